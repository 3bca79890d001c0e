"""How many nodes train and evaluate: FedAvg's arguments, with their meaning there."""

from dataclasses import dataclass

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import in_interval, whole_from

_MIN_NODES = 2  # Flower's default


@dataclass(frozen=True)
class Sampling:
    """How many nodes train at once, evaluate, and must be there; None is Flower's."""

    in_flight: int | None = None
    fraction_train: float | None = None
    min_train_nodes: int | None = None
    fraction_evaluate: float = 1.0
    min_evaluate_nodes: int | None = None
    min_available_nodes: int = _MIN_NODES

    def check(self) -> None:
        """Raise ConfigError if a value is wrong, or two say the same."""
        for name in ("in_flight", "min_train_nodes"):
            value = getattr(self, name)
            if value is not None:
                whole_from(1).check(name, value)
        if self.min_evaluate_nodes is not None:
            whole_from(0).check("min_evaluate_nodes", self.min_evaluate_nodes)
        whole_from(1).check("min_available_nodes", self.min_available_nodes)
        if self.fraction_train is not None:
            in_interval("(0, 1]").check("fraction_train", self.fraction_train)
        in_interval("[0, 1]").check("fraction_evaluate", self.fraction_evaluate)
        for name in ("fraction_train", "min_train_nodes"):
            if self.in_flight is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"in_flight={self.in_flight} and {name}={getattr(self, name)} both "
                    "say how many devices train at once: pass one of them"
                )

    @property
    def needed(self) -> int:
        """Nodes to wait for before a run begins."""
        least = (self.min_train_nodes, self.min_evaluate_nodes)
        return max(self.min_available_nodes, *(count or 0 for count in least))

    def training(self, nodes: int) -> int:
        """Return how many devices train at once, of so many nodes at the start."""
        if self.in_flight is not None:
            return self.in_flight
        fraction = 1.0 if self.fraction_train is None else self.fraction_train
        least = _MIN_NODES if self.min_train_nodes is None else self.min_train_nodes
        return max(int(nodes * fraction), min(least, nodes), 1)

    def evaluating(self, nodes: int) -> int:
        """Return how many of so many nodes evaluate the model."""
        if self.fraction_evaluate == 0:
            return 0
        least = self.min_evaluate_nodes
        least = _MIN_NODES if least is None else least
        return min(max(int(nodes * self.fraction_evaluate), least), nodes)

    def described(self) -> int | str:
        """Return what stands for the devices in flight in a run's settings."""
        if self.in_flight is not None:
            return self.in_flight
        return f"fraction_train={self.fraction_train or 1.0:g}"
