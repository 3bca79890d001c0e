"""The metric that runs are judged by: its direction, and how it is written."""

from dataclasses import dataclass

from flwr_asyncdrop.readable import lower_is_better


@dataclass(frozen=True)
class Metric:
    """The headline metric of some runs, e.g. ``Metric("accuracy")``."""

    name: str

    @property
    def title(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ").replace("-", " ")

    @property
    def falls(self) -> bool:
        """Whether less is better."""
        return lower_is_better(self.name)

    @property
    def is_share(self) -> bool:
        """Whether it is written in per cent."""
        return self.name.endswith("accuracy")

    @property
    def extreme(self) -> str:
        """``"min"`` or ``"max"``: what the best value is."""
        return "min" if self.falls else "max"

    def goodness(self, value: float) -> float:
        """Return a number that is the greater, the better the value is."""
        return -value if self.falls else value

    def text(self, value: float, decimals: int = 2) -> str:
        """Return a value for people, with decimals of a per cent where it is one."""
        return f"{value:.{decimals}%}" if self.is_share else f"{value:.4g}"
