"""The right-hand side of Theorem 1: a rate of decay and a floor."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from onelayer.network import Array, Data, limit_kernel
from onelayer.training import Setting

__all__ = ["Bound", "FloorTerms", "active_probability", "kernel_rate"]


def active_probability(setting: Setting) -> float:
    """Return theta = 1 - (1 - xi)^S: that a filter is in at least one subnetwork."""
    return 1 - (1 - setting.keep) ** setting.devices


def kernel_rate(setting: Setting, eigenvalue: float) -> float:
    """Return 2 xi theta eta lambda: the share of the error that an update removes.

    So it is in expectation over the masks while the tangent kernel H stays as it is: an
    update moves the outputs by ``-xi theta eta H`` times the residuals, theta for the
    filters that are trained and xi for the scale of the output.
    """
    theta = active_probability(setting)
    return 2 * setting.keep * theta * setting.step_size * eigenvalue


@dataclass(frozen=True)
class FloorTerms:
    """What the theorem has under its O, by cause.

    Attributes
    ----------
    delay : float
        The terms in E^2: gradients are stale.
    width : float
        The terms in 1/m without E: each subnetwork lacks filters.
    devices : float
        The term in 1/S: the masks of a group are a sample.
    """

    delay: float
    width: float
    devices: float

    @property
    def total(self) -> float:
        """The sum of all terms."""
        return self.delay + self.width + self.devices


@dataclass(frozen=True)
class Bound:
    """The bound for one data set.

    Attributes
    ----------
    lambda_0 : float
        The smallest eigenvalue of the tangent kernel of infinite width.
    patch_values : int
        d: values of a patch.
    constant : float
        What the O hides, the same for all terms and settings.
    """

    lambda_0: float
    patch_values: int
    constant: float = 1.0

    @classmethod
    def of(cls, data: Data) -> "Bound":
        """Return the bound for a data set, its constant 1."""
        eigenvalues = np.linalg.eigvalsh(limit_kernel(data.patches))
        return cls(float(eigenvalues[0]), data.patches.shape[2])

    def fitted(self, floors: Mapping[Setting, float]) -> "Bound":
        """Return it with the smallest constant that no measured floor exceeds."""
        terms = {setting: self.terms(setting).total for setting in floors}
        ratios = [floors[setting] / total for setting, total in terms.items() if total]
        return replace(self, constant=float(max(ratios)))

    def rate(self, setting: Setting) -> float:
        """Return theta eta lambda_0 / 4: the share that an update removes at least."""
        return active_probability(setting) * setting.step_size * self.lambda_0 / 4

    def floor(self, setting: Setting) -> float:
        """Return what the bound tends to."""
        return self.constant * self.terms(setting).total

    def curve(self, setting: Setting, first: float, iterations: Array) -> Array:
        """Return the bound at some iterations, from the error at the start."""
        return (1 - self.rate(setting)) ** iterations * first + self.floor(setting)

    def terms(self, setting: Setting) -> FloorTerms:
        """Return the seven terms under the O."""
        keep, n, m = setting.keep, setting.examples, setting.width
        kappa_squared = setting.init_scale**2
        theta = active_probability(setting)
        step = theta * setting.step_size
        dropped = (keep * (1 - keep)) ** 2
        stale = (
            step * self.lambda_0**3 * keep**2 / n**2
            + step**2 * n * self.lambda_0 * keep**4 / m**4
            + step**2 * dropped * self.lambda_0 / m**3
        )
        narrow = step * n**3 / m + step**2 * n**2 * (1 / m**3 + 1 / m**2)
        return FloorTerms(
            delay=stale * kappa_squared * setting.delay**2,
            width=narrow * dropped * kappa_squared * self.patch_values / self.lambda_0,
            devices=n * kappa_squared * (theta - keep**2) / setting.devices,
        )
