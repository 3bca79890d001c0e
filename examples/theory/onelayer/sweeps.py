"""Which settings are run: one quantity of the theorem varied at a time."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from onelayer.training import Setting

__all__ = ["BASE", "CHECKS", "PANELS", "Sweep", "settings_of"]


BASE = Setting()


@dataclass(frozen=True)
class Sweep:
    """One quantity varied, the others as in a base.

    Attributes
    ----------
    name : str
        The field of `Setting`.
    symbol : str
        The theorem's letter for it.
    values : tuple of float
        What it is set to.
    base : Setting
        All other quantities.
    """

    name: str
    symbol: str
    values: tuple[float, ...]
    base: Setting = BASE

    @property
    def settings(self) -> list[Setting]:
        """One setting for each value."""
        return [replace(self.base, **{self.name: value}) for value in self.values]


PANELS = (
    Sweep("delay", "E", (0, 32, 64, 128)),
    Sweep("keep", "ξ", (0.3, 0.5, 0.7, 0.9, 1.0)),
    Sweep("devices", "S", (1, 2, 4, 16)),
    Sweep("width", "m", (64, 256, 1024, 4096)),
)
"""The panels of the figure, from left to right."""

CHECKS = (
    Sweep("keep", "ξ", (0.1,), Setting(devices=16)),
    Sweep("delay", "E", (64,), Setting(keep=1.0)),
    Sweep("examples", "n", (2, 4, 8), Setting(delay=0)),
    Sweep("examples", "n", (2, 4, 8), Setting(delay=64)),
)
"""Further rows of the table: a small xi, delay alone, the delay's share and n."""


def settings_of(sweeps: Iterable[Sweep]) -> list[Setting]:
    """Return the settings of some sweeps, each once."""
    return list(dict.fromkeys(each for sweep in sweeps for each in sweep.settings))
