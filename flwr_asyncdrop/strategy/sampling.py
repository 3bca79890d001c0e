"""How many nodes train and evaluate: FedAvg's arguments, with their meaning there."""

from dataclasses import dataclass, fields
from typing import Generic, Self, TypeVar

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import (
    check_parameters,
    in_interval,
    parameter,
    whole_from,
)

MIN_NODES = 2  # Flower's default, of those that train and that evaluate

Number = TypeVar("Number", int, float)


class OrFlowers(Generic[Number]):
    """An attribute that reads as Flower's default where it is None.

    The ``__dict__`` of the instance has what was given.
    """

    def __init__(self, default: Number) -> None:
        self._default: Number = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type | None = None) -> Number:
        given: Number | None = None
        if instance is not None:
            given = vars(instance).get(self._name)
        return self._default if given is None else given

    def __set__(self, instance: object, value: Number | None) -> None:
        vars(instance)[self._name] = value


@dataclass(frozen=True)
class Sampling:
    """How many nodes train at once, evaluate, and must be there; None is Flower's.

    ConfigError if a value is wrong, or two say the same.
    """

    in_flight: int | None = parameter(None, "train at once", whole_from(1))
    fraction_train: float | None = parameter(
        None, "share that train at once", in_interval("(0, 1]")
    )
    min_train_nodes: int | None = parameter(
        None, "train at once at the least", whole_from(1)
    )
    fraction_evaluate: float = parameter(
        1.0, "share that evaluate", in_interval("[0, 1]")
    )
    min_evaluate_nodes: int | None = parameter(
        None, "evaluate at the least", whole_from(0)
    )
    min_available_nodes: int = parameter(
        MIN_NODES, "are there when a run begins", whole_from(1)
    )

    @classmethod
    def of(cls, strategy: object) -> Self:
        """Return what the attributes of a strategy say."""
        given = vars(strategy)  # None where the attribute reads as Flower's default
        names = [each.name for each in fields(cls)]
        # A subclass may have a property in the place of one.
        others = {n: getattr(strategy, n) for n in names if n not in given}
        return cls(**{name: given[name] for name in names if name in given}, **others)

    def __post_init__(self) -> None:
        check_parameters(self)
        for name in ("fraction_train", "min_train_nodes"):
            if self.in_flight is not None and getattr(self, name) is not None:
                raise ConfigError(
                    f"in_flight={self.in_flight} and {name}={getattr(self, name)} both "
                    "say how many devices train at once: pass one of them"
                )

    @property
    def needed(self) -> tuple[int, str]:
        """Nodes to wait for before a run begins, and the argument that says so.

        Flower's own default of those that train and that evaluate counts too, unless
        `in_flight` says how many train.
        """
        default = MIN_NODES if self.in_flight is None else 0
        counts = {
            "min_available_nodes": self.min_available_nodes,
            "min_train_nodes": self.min_train_nodes,
            "min_evaluate_nodes": self.min_evaluate_nodes,
        }
        if self.fraction_evaluate == 0:
            del counts["min_evaluate_nodes"]
        found = {n: default if count is None else count for n, count in counts.items()}
        name = max(found, key=lambda each: found[each])  # the first of several
        return found[name], name

    def training(self, nodes: int) -> int:
        """Return how many devices train at once, of so many nodes at the start."""
        if self.in_flight is not None:
            return self.in_flight
        fraction = 1.0 if self.fraction_train is None else self.fraction_train
        least = MIN_NODES if self.min_train_nodes is None else self.min_train_nodes
        return max(int(nodes * fraction), min(least, nodes), 1)

    def evaluating(self, nodes: int) -> int:
        """Return how many of so many nodes evaluate the model."""
        if self.fraction_evaluate == 0:
            return 0
        least = self.min_evaluate_nodes
        least = MIN_NODES if least is None else least
        return min(max(int(nodes * self.fraction_evaluate), least), nodes)

    def described(self) -> int | str:
        """Return what stands for the devices in flight in a run's settings."""
        if self.in_flight is not None:
            return self.in_flight
        fraction = f"fraction_train={self.fraction_train or 1.0:g}"
        if self.min_train_nodes is None:
            return fraction
        return f"{fraction}, min_train_nodes={self.min_train_nodes}"
