"""A CNN with one hidden layer and a fixed second layer, and its tangent kernel."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Data", "Network", "limit_kernel", "make_data", "patches_of"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """What is learnt.

    Attributes
    ----------
    patches : ndarray of shape (n, p, d)
        For each of n images and p pixels, the d values of the patch around it.
    labels : ndarray of shape (n,)
    """

    patches: Array
    labels: Array


def patches_of(images: Array, size: int) -> Array:
    """Cut the patch around every pixel out of one-dimensional images.

    Parameters
    ----------
    images : ndarray of shape (n, channels, p)
        Their ends are joined, so that each pixel is in as many patches.
    size : int
        Pixels in a patch, q in the paper.

    Returns
    -------
    ndarray of shape (n, p, size * channels)
    """
    shifted = [np.roll(images, -shift, axis=2) for shift in range(size)]
    return np.concatenate(shifted, axis=1).transpose(0, 2, 1)


def make_data(examples: int, seed: int, channels: int = 4, pixels: int = 4) -> Data:
    """Draw images as Assumption 1 wants them: distinct, of Frobenius norm q^(-1/2).

    More examples of a seed continue the fewer. Patches have q = 3 pixels; labels are
    1 and -1 by turns.
    """
    size = 3
    generator = np.random.default_rng(seed)
    images = generator.normal(size=(examples, channels, pixels))
    images /= np.linalg.norm(images, axis=(1, 2), keepdims=True) * np.sqrt(size)
    labels = np.where(np.arange(examples) % 2 == 0, 1.0, -1.0)
    return Data(patches_of(images, size), labels)


@dataclass(frozen=True)
class Network:
    """Networks side by side, one for each repeat: only their filters are trained.

    Attributes
    ----------
    patches : ndarray of shape (n, p, d)
        The inputs, as in `Data`.
    second_layer : ndarray of shape (repeats, m, p)
        The fixed weights a of each filter and pixel.
    """

    patches: Array
    second_layer: Array

    def jacobian(self, filters: Array) -> Array:
        """Differentiate each filter's share of the output by the filter.

        Parameters
        ----------
        filters : ndarray of shape (repeats, m, d)
            The trained weights w.

        Returns
        -------
        ndarray of shape (n, repeats, m, d)
            ``sum_j a_rj x_ij 1{<x_ij, w_r> >= 0}`` for example i and filter r. The
            share itself is the inner product with w_r, as the ReLU is homogeneous.
        """
        repeats, width, d = filters.shape
        inputs = self.patches.transpose(0, 2, 1)
        pixels = self.patches.shape[1]
        active = filters.reshape(-1, d) @ inputs >= 0
        slopes = active * self.second_layer.reshape(-1, pixels)
        return (slopes @ self.patches).reshape(-1, repeats, width, d)

    def shares(self, filters: Array) -> Array:
        """Return each filter's share of the output, of shape (n, repeats, m)."""
        return np.einsum("nbmd,bmd->nbm", self.jacobian(filters), filters)

    def kernel(self, filters: Array) -> Array:
        """Return the tangent kernel H of each repeat, of shape (repeats, n, n)."""
        jacobian = self.jacobian(filters)
        rows = jacobian.swapaxes(0, 1).reshape(filters.shape[0], len(jacobian), -1)
        return rows @ rows.swapaxes(1, 2)


def limit_kernel(patches: Array) -> Array:
    """Return the tangent kernel of infinite width at the start.

    Parameters
    ----------
    patches : ndarray of shape (n, p, d)
        None of them may be zero.

    Returns
    -------
    ndarray of shape (n, n)
        ``p^-2 sum_j <x_ij, x_kj> P(both are active)``; of two vectors at an angle phi,
        a Gaussian filter activates both with probability ``(pi - phi) / (2 pi)``.
    """
    pixels = patches.shape[1]
    inner = np.einsum("ijd,kjd->jik", patches, patches)
    norms = np.linalg.norm(patches, axis=2).T
    cosines = inner / (norms[:, :, None] * norms[:, None, :])
    both_active = 0.5 - np.arccos(np.clip(cosines, -1, 1)) / (2 * np.pi)
    return (inner * both_active).sum(axis=0) / pixels**2
