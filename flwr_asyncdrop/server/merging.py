"""What an aggregator, which may be anybody's own, does to the global model."""

from collections.abc import Mapping

from torch import Tensor

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Aggregator, Clipped, Update
from flwr_asyncdrop.aggregation.aggregator import check_attributes
from flwr_asyncdrop.exceptions import ConfigError, ReplyError, RunError, ShapeError
from flwr_asyncdrop.parameters import plain
from flwr_asyncdrop.readable import printable, shown, type_of
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.submodel import State
from flwr_asyncdrop.submodel.types import is_inexact


def name_of(aggregator: Aggregator) -> str:
    """Return the name of an aggregator's class, or of that which is clipped."""
    return type(_unclipped(aggregator)).__name__


def check_finite(arrays: State, aggregator: Aggregator) -> None:
    """Raise RunError if devices cannot help it that what they return is not finite."""
    if name := not_finite(arrays):
        raise RunError(
            f"the global model holds NaN or infinity in {name!r}, so that nothing can "
            f"be merged any more: {name_of(aggregator)} has made it so"
        )


def not_finite(arrays: State) -> str:
    """Return the name of the first tensor with NaN or infinity in it; "" for none."""
    odd = (n for n, t in arrays.items() if is_inexact(t) and not t.isfinite().all())
    return next(odd, "")


def changed_by(
    aggregator: Aggregator, arrays: State, update: Update | None = None
) -> bool:
    """Merge an update, or flush without one; return whether the model has changed.

    ConfigError if the aggregator does not say so, or says no or refuses the update and
    has written into the model: devices would go on with the version before. So it is if
    tensors are no longer those of the model that devices have, if it has written into
    what a device was sent, or if it has set an attribute to what no run can go by.
    """
    sent = [] if update is None else (update.base or {}).values()
    sent_before = [(tensor, writes(tensor)) for tensor in sent]
    before = {name: (tensor, writes(tensor)) for name, tensor in arrays.items()}
    kinds = _kinds(arrays)
    name = f"{'flush' if update is None else 'merge'} of {name_of(aggregator)}"
    try:
        changed: object = (
            aggregator.flush(arrays)
            if update is None
            else aggregator.merge(arrays, update)
        )
    except (ReplyError, ShapeError) as error:
        if _is_written(arrays, before):
            raise ConfigError(
                f"{name} has written into the global model before it raised "
                f"{type(error).__name__} ({error}): raise it before the first write"
            ) from error
        raise
    if any(writes(tensor) != earlier for tensor, earlier in sent_before):
        raise ConfigError(
            f"{name} has written into what the device was sent, which other tasks "
            "have, too: change a clone of it"
        )
    says_changed = plain(changed)
    if not isinstance(says_changed, bool):
        raise ConfigError(
            f"{name} returned {type_of(changed)}, no bool: change the global model in "
            "place, and return whether it has changed"
        )
    if _kinds(arrays) != kinds:
        raise ConfigError(
            f"{name} has changed names, shapes or dtypes of the global model: change "
            "its tensors in place"
        )
    if not says_changed and _is_written(arrays, before):
        raise ConfigError(
            f"{name} has written into the global model and returned False, so that "
            "devices get the old one: return True, or write with the step"
        )
    check_attributes(_unclipped(aggregator))
    return says_changed


def in_parts(aggregator: Aggregator) -> bool:
    """Return whether a step may be for some of the devices that wait, and not all."""
    own, usual = _unclipped(aggregator).releases, Aggregator.releases
    return getattr(own, "__func__", None) is not usual


def releases(aggregator: Aggregator, waiting: Order) -> bool:
    """Return whether a device that waits goes on; ConfigError if nothing says so."""
    found: object = aggregator.releases(waiting.rank, waiting.num_ranks)
    says_so = plain(found)
    if not isinstance(says_so, bool):
        raise ConfigError(
            f"releases of {name_of(aggregator)} returned {type_of(found)}, no "
            "bool: return whether those of the rank go on"
        )
    return says_so


def extra_of(aggregator: Aggregator, arrays: State) -> Mapping[str, State]:
    """Return what every task carries beside the model, which is only read for it.

    ConfigError if it is not: devices would train another version than this.
    """
    before = {name: (tensor, writes(tensor)) for name, tensor in arrays.items()}
    extra = aggregator.extra(arrays)
    if _is_written(arrays, before):
        raise ConfigError(
            f"extra of {name_of(aggregator)} has written into the global model: change "
            "clones of its tensors"
        )
    return extra


def metrics_of(aggregator: Aggregator) -> dict[str, float]:
    """Return the numbers that an aggregator says of its step; ConfigError for others.

    They may be NaN or infinity.
    """
    found: object = aggregator.metrics()
    if isinstance(found, Mapping):
        metrics = {name: plain(value) for name, value in found.items()}
        named = all(isinstance(name, str) for name in metrics)
        if named and all(isinstance(value, int | float) for value in metrics.values()):
            if fault := wire.too_large(metrics):
                raise ConfigError(f"metrics of {name_of(aggregator)}: {fault}")
            return metrics
    raise ConfigError(
        f"metrics of {name_of(aggregator)} returned {printable(shown(found))}: return "
        "numbers by their names, or {} for none"
    )


def writes(tensor: Tensor) -> int:
    """Return how often a tensor was written in place; inference tensors do not know."""
    return 0 if tensor.is_inference() else tensor._version


def _unclipped(aggregator: Aggregator) -> Aggregator:
    while isinstance(aggregator, Clipped):
        aggregator = aggregator.clipped
    return aggregator


def _is_written(arrays: State, before: Mapping[str, tuple[Tensor, int]]) -> bool:
    """Return whether tensors are other ones, or were written, since `before`."""
    return arrays.keys() != before.keys() or any(
        arrays[name] is not tensor or writes(tensor) != earlier
        for name, (tensor, earlier) in before.items()
    )


def _kinds(arrays: State) -> dict[str, tuple[object, object]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in arrays.items()}
