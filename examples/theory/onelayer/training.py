"""AsyncDrop as Theorem 1 has it: groups of devices, masks, delayed gradients."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from onelayer.network import Array, Data, Network

__all__ = ["Run", "Setting", "delayed_descent", "group_gradient", "start", "train"]


@dataclass(frozen=True)
class Setting:
    """What the theorem's error depends on.

    Attributes
    ----------
    delay : int
        E: how many updates old a gradient is when it arrives.
    keep : float
        xi: the probability that a device trains a filter, in (0, 1].
    devices : int
        S: devices of a group, whose gradients are averaged.
    width : int
        m: filters.
    examples : int
        n: images.
    init_scale : float
        kappa: standard deviation of the filters at the start.
    step_size : float
        eta.
    """

    delay: int = 8
    keep: float = 0.5
    devices: int = 2
    width: int = 1024
    examples: int = 4
    init_scale: float = 1.0
    step_size: float = 0.5


@dataclass(frozen=True)
class Run:
    """What was measured on the way.

    Attributes
    ----------
    iterations : ndarray of shape (points,)
        How many updates had arrived at each measurement.
    residuals : ndarray of shape (points, repeats, n)
        Output of the network, its filters scaled by xi, minus the label.
    kernel_eigenvalue : float
        Smallest eigenvalue of the tangent kernel at the start, mean of the repeats.
    """

    iterations: Array
    residuals: Array
    kernel_eigenvalue: float

    @property
    def errors(self) -> Array:
        """The squared errors ``||u_t - y||^2``, of shape (points, repeats)."""
        return (self.residuals**2).sum(axis=2)


def group_gradient(
    network: Network, labels: Array, filters: Array, masks: Array
) -> Array:
    """Average the gradients of a group's devices, filter by filter.

    Each device differentiates ``1/2 sum_i (f_i - y_i)^2`` of its own subnetwork. A
    filter's gradients are summed and divided by how many devices have the filter,
    ``N_r = max(sum_s m_r, 1)``: one that nobody has gets none.

    Parameters
    ----------
    network : Network
        The inputs and the second layer.
    labels : ndarray of shape (n,)
        What the outputs should be.
    filters : ndarray of shape (repeats, m, d)
        The weights that were sent out.
    masks : ndarray of shape (repeats, devices, m)
        1 where a device has a filter, otherwise 0.

    Returns
    -------
    ndarray of shape (repeats, m, d)
    """
    jacobian = network.jacobian(filters)
    shares = np.einsum("nbmd,bmd->bmn", jacobian, filters)
    residuals = masks @ shares - labels
    means = masks / np.maximum(masks.sum(axis=1, keepdims=True), 1)
    weights = means.swapaxes(1, 2) @ residuals
    return np.einsum("bmn,nbmd->bmd", weights, jacobian)


def delayed_descent(
    weights: Array,
    gradient: Callable[[Array], Array],
    step_size: float,
    delay: int,
) -> Iterator[Array]:
    """Descend by gradients that were taken up to `delay` updates ago.

    ``delay + 1`` groups start together and answer in turn. Whoever has answered gets
    the new weights, and answers again after all the others: update t arrives with a
    delay of ``min(t, delay)``, and every gradient arrives once.

    Parameters
    ----------
    weights : ndarray
        Those that all groups start with.
    gradient : callable
        From the weights sent out to what a group answers.
    step_size : float
        What an answer is multiplied by.
    delay : int
        E, at least 0.

    Yields
    ------
    ndarray
        The weights after each update, without end.
    """
    in_flight = deque(gradient(weights) for _ in range(delay + 1))
    while True:
        weights = weights - step_size * in_flight.popleft()
        yield weights
        in_flight.append(gradient(weights))


def start(
    setting: Setting, data: Data, repeats: int, generator: np.random.Generator
) -> tuple[Network, Array]:
    """Draw networks as Assumption 2 wants them.

    Returns
    -------
    Network
        Its second layer is plus or minus ``1 / (p sqrt(m))``.
    ndarray of shape (repeats, m, d)
        The filters, normal of standard deviation kappa.
    """
    _, pixels, d = data.patches.shape
    filters = generator.normal(size=(repeats, setting.width, d)) * setting.init_scale
    signs = generator.choice([-1.0, 1.0], size=(repeats, setting.width, pixels))
    second_layer = signs / (pixels * np.sqrt(setting.width))
    return Network(data.patches, second_layer), filters


def train(
    setting: Setting,
    data: Data,
    *,
    iterations: int,
    repeats: int,
    seed: int,
    every: int = 20,
) -> Run:
    """Train several networks, each with its own start and masks.

    Parameters
    ----------
    setting : Setting
        The quantities of the theorem.
    data : Data
        Of ``setting.examples`` examples; the same for all repeats.
    iterations, repeats : int
        Updates, and networks.
    seed : int
        Of starts and masks.
    every : int
        Updates from one measurement to the next.

    Returns
    -------
    Run
    """
    generator = np.random.default_rng(seed)
    network, filters = start(setting, data, repeats, generator)

    def gradient(sent: Array) -> Array:
        shape = (repeats, setting.devices, setting.width)
        drawn = generator.random(shape, dtype=np.float32)
        masks = (drawn < setting.keep).astype(np.float64)
        return group_gradient(network, data.labels, sent, masks)

    def residual(filters: Array) -> Array:
        return setting.keep * network.shares(filters).sum(axis=2).T - data.labels

    eigenvalues = np.linalg.eigvalsh(network.kernel(filters))[:, 0]
    descent = delayed_descent(filters, gradient, setting.step_size, setting.delay)
    residuals = [residual(filters)]
    for iteration in range(1, iterations + 1):
        filters = next(descent)
        if iteration % every == 0:
            residuals.append(residual(filters))
    points = np.arange(len(residuals), dtype=np.float64) * every
    return Run(points, np.stack(residuals), float(eigenvalues.mean()))
