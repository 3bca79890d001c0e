"""Dataclasses of tensors and plain data, to and from JSON and a table of tensors.

What is saved follows from the declared types alone, so a field that is added to a
dataclass is saved with it, and one of a type that cannot be saved is an error. No
class is ever named in what is written: reading cannot run anything.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from flwr.app import MetricRecord, RecordDict
from torch import Tensor

Json = Any
"""What JSON can say: None, truths, numbers, strings, lists, dicts with string keys."""

_PLAIN = (bool, int, float, str)


def encode(value: object, kind: Any, path: str, tensors: dict[str, Tensor]) -> Json:
    """Return a value as JSON, and put its tensors into a table.

    Parameters
    ----------
    value : object
        What is saved; only read.
    kind : type or annotation
        What it was declared as: plain types, ``Literal``, ``Tensor``, dataclasses,
        Flower's metric records, and lists, tuples, dicts and unions with None of all
        of these.
    path : str
        Name of the value, which its tensors' names begin with.
    tensors : dict of str to Tensor
        Gets the tensors, by name, uncopied. One that comes up again, the same object,
        is put there once.

    Raises
    ------
    TypeError
        If something in it is of a type that cannot be saved.
    """
    names = {id(tensor): name for name, tensor in tensors.items()}

    def tensor_name(tensor: Tensor, path: str) -> str:
        if id(tensor) not in names:
            names[id(tensor)] = path
            tensors[path] = tensor
        return names[id(tensor)]

    return _encode(value, kind, path, tensor_name)


def decode(json: Json, kind: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that `encode` was given; what was one tensor is one again.

    Raises
    ------
    TypeError, ValueError, KeyError or AttributeError
        If the JSON is not that of a value of this kind.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (Any, types.NoneType, *_PLAIN) or origin is Literal:
        return json
    if kind is Tensor:
        return tensors[json]
    if origin in (Union, types.UnionType):
        return None if json is None else decode(json, _not_none(kind), tensors)
    if _is_dataclass(kind):
        hints = _hints(kind)
        if json.keys() != hints.keys():
            odd = ", ".join(sorted(json.keys() ^ hints.keys()))
            raise ValueError(f"other fields: {odd}")
        return kind(
            **{name: decode(json[name], hint, tensors) for name, hint in hints.items()}
        )
    if _is_mapping(origin):
        return _decode_items(json, arguments, tensors)
    if origin is tuple:
        kinds = _item_kinds(arguments, len(json))
        return tuple(
            decode(item, item_kind, tensors)
            for item, item_kind in zip(json, kinds, strict=True)
        )
    if _is_sequence(origin):
        return [decode(item, arguments[0], tensors) for item in json]
    if kind is MetricRecord:
        return MetricRecord(json)
    if kind is RecordDict:
        return RecordDict({name: MetricRecord(record) for name, record in json.items()})
    raise TypeError(f"{kind} cannot be read")


_TensorName = Callable[[Tensor, str], str]


def _encode(value: Any, kind: Any, path: str, tensor_name: _TensorName) -> Json:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _encode(value, _not_none(kind), path, tensor_name)
    if kind in (Any, types.NoneType):
        return _checked_json(value, path)
    if origin is Literal:
        return _of(_PLAIN, value, path)
    if kind in _PLAIN:
        # An integer will do for a float, as it does for Python.
        return _of((int, float) if kind is float else kind, value, path)
    if kind is Tensor:
        return tensor_name(_of(Tensor, value, path), path)
    if _is_dataclass(kind):
        return {
            name: _encode(getattr(value, name), hint, f"{path}/{name}", tensor_name)
            for name, hint in _hints(kind).items()
        }
    if _is_mapping(origin):
        return _encode_items(value, arguments, path, tensor_name)
    if origin is tuple or _is_sequence(origin):
        kinds = _item_kinds(
            arguments if origin is tuple else (arguments[0], ...), len(value)
        )
        return [
            _encode(item, item_kind, f"{path}/{number}", tensor_name)
            for number, (item, item_kind) in enumerate(zip(value, kinds, strict=True))
        ]
    if kind is MetricRecord:
        return _checked_json(dict(value), path)
    if kind is RecordDict:
        if value.keys() != value.metric_records.keys():
            raise TypeError(f"{path}: only metric records can be saved")
        return {name: dict(record) for name, record in value.metric_records.items()}
    raise TypeError(f"{path}: {kind} cannot be saved in a checkpoint")


def _encode_items(
    value: Mapping[Any, Any], kinds: Sequence[Any], path: str, tensor_name: _TensorName
) -> Json:
    """Return a dict; as a list of pairs unless its keys are strings."""
    key_kind, item_kind = kinds
    if key_kind is str:
        return {
            _of(str, key, path): _encode(item, item_kind, f"{path}/{key}", tensor_name)
            for key, item in value.items()
        }
    return [
        [
            _encode(key, key_kind, f"{path}/{number}/key", tensor_name),
            _encode(item, item_kind, f"{path}/{number}", tensor_name),
        ]
        for number, (key, item) in enumerate(value.items())
    ]


def _decode_items(
    json: Json, kinds: Sequence[Any], tensors: Mapping[str, Tensor]
) -> dict[Any, Any]:
    key_kind, item_kind = kinds
    if key_kind is str:
        return {key: decode(item, item_kind, tensors) for key, item in json.items()}
    return {
        decode(key, key_kind, tensors): decode(item, item_kind, tensors)
        for key, item in json
    }


def _is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the declared types of the fields of a dataclass."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _not_none(kind: Any) -> Any:
    """Return ``X`` of ``X | None``."""
    kinds = [part for part in get_args(kind) if part is not types.NoneType]
    if len(kinds) != 1:
        raise TypeError(f"{kind} cannot be saved in a checkpoint: it is not one kind")
    return kinds[0]


def _is_mapping(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_sequence(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Sequence)


def _item_kinds(arguments: Sequence[Any], count: int) -> Sequence[Any]:
    """Return the kind of each of so many items of a tuple."""
    if len(arguments) == 2 and arguments[1] is ...:
        return [arguments[0]] * count
    return arguments


def _of(kinds: Any, value: Any, path: str) -> Any:
    if not isinstance(value, kinds):
        raise TypeError(f"{path}: {value!r} is not {kinds}")
    return value


def _checked_json(value: Any, path: str) -> Json:
    """Return a value that is JSON as it is."""
    if isinstance(value, dict):
        for key, item in value.items():
            _checked_json(item, f"{path}/{_of(str, key, path)}")
        return dict(value)
    if isinstance(value, list):
        return [_checked_json(item, f"{path}/{at}") for at, item in enumerate(value)]
    return value if value is None else _of(_PLAIN, value, path)
