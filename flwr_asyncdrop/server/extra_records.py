"""The records that an aggregator, which may be anybody's own, sends with every task."""

from collections.abc import Mapping

from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import printable, shown
from flwr_asyncdrop.submodel import State


def checked_extra(extra: object, arrays: State) -> Mapping[str, State]:
    """Return the records beside the model; None are none.

    ConfigError unless they have tensors like those of the model's own `arrays`.
    """
    if extra is None:
        return {}
    if not isinstance(extra, Mapping):
        raise ConfigError(
            f"extra of the aggregator returned {_text(extra)}: return a dict of "
            "records by name, each a dict of tensors by name"
        )
    for record, tensors in extra.items():
        if not isinstance(record, str) or not isinstance(tensors, Mapping):
            raise ConfigError(
                f"extra of the aggregator has {_text(tensors)} under {_text(record)}: "
                "a record has a text for its name, and is a dict of tensors by name"
            )
        for name, tensor in tensors.items():
            if not _is_like(tensor, arrays.get(name)):
                shape = tuple(getattr(tensor, "shape", ()))
                dtype = getattr(tensor, "dtype", type(tensor).__name__)
                raise ConfigError(
                    f"the record {record!r} that the aggregator sends along has "
                    f"{name!r} of shape {shape} and {dtype}: send tensors with names, "
                    "shapes and dtypes of the global model's"
                )
    return extra


def _is_like(tensor: object, own: Tensor | None) -> bool:
    if not isinstance(tensor, Tensor) or own is None:
        return False
    return (tensor.shape, tensor.dtype) == (own.shape, own.dtype)


def _text(value: object) -> str:
    return printable(shown(value))
