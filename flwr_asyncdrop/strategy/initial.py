"""The initial model of a run, checked before devices train for nothing."""

from typing import Any

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor, nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError, ReplyError
from flwr_asyncdrop.readable import type_of
from flwr_asyncdrop.submodel import Plan, State
from flwr_asyncdrop.submodel.narrowing.wrappers import (
    NAMELESS,
    PREFIXES,
    are_adapters_alone,
)
from flwr_asyncdrop.submodel.types import is_inexact

_UNMERGED = (torch.uint16, torch.uint32, torch.uint64)


def read_initial(
    arrays: ArrayRecord, plan: Plan | None = None, model: nn.Module | None = None
) -> State:
    """Return the tensors of ``start(initial_arrays=...)``.

    ConfigError if these are none, or not those of the `plan`, or have other names than
    those of the `model`, or another kind of number.
    """
    if not isinstance(arrays, ArrayRecord) or not arrays:
        what = "empty" if isinstance(arrays, ArrayRecord) else type_of(arrays)
        raise ConfigError(
            f"initial_arrays is {what}: pass ArrayRecord(model.state_dict())"
        )
    initial = {name: _read(name, array) for name, array in arrays.items()}
    if plan is not None:
        _check_planned(initial, plan)
    if model is not None:
        _check_named(initial, model)
        _check_kinds(initial, model)
    return initial


def _read(name: str, array: Array) -> Tensor:
    try:
        return wire.from_record(ArrayRecord({name: array}))[name]
    except ConfigError:  # it is a ValueError, too
        raise
    except ValueError as error:
        raise ConfigError(
            f"initial_arrays: {name!r} cannot be read: {error}; pass arrays of "
            "numbers, e.g. ArrayRecord(model.state_dict())"
        ) from error


def check_mergeable(arrays: State, codec: str = "") -> None:
    """Raise ConfigError if a model holds what no reply can be merged with.

    A lossy `codec` codes it in single precision.
    """
    for name, tensor in arrays.items():
        if tensor.dtype in _UNMERGED:
            raise ConfigError(
                f"initial_arrays: {name!r} is of {tensor.dtype}, in which PyTorch "
                "compares no numbers; make it one of torch.int64, or keep it out of "
                "the state_dict (persistent=False) or of what trains (trainable=...)"
            )
        try:
            wire.check_values(name, tensor.numpy())
        except ReplyError as error:
            what = str(error).rpartition(": ")[0]
            raise ConfigError(
                f"initial_arrays: {what}, and every reply that returns it would be "
                "refused; keep a constant, such as a mask, out of the state_dict "
                "(persistent=False), or out of what trains (trainable=...)"
            ) from error
        try:
            if codec and wire.is_coded(name, tuple(tensor.shape), tensor.dtype):
                wire.check_codable(name, tensor)
        except ReplyError as error:
            what = str(error).rpartition(": ")[0]
            raise ConfigError(
                f"codec={codec!r}: {what}, and a codec has single precision: set "
                "codec='packed', which has not, or scale the model"
            ) from error


def check_averaged(arrays: State) -> None:
    """Raise ConfigError if a model has nothing that these algorithms average.

    Of whole numbers they keep the larger ones, as of counters.
    """
    if any(is_inexact(tensor) and tensor.numel() for tensor in arrays.values()):
        return
    kinds = ", ".join(sorted({str(tensor.dtype) for tensor in arrays.values()}))
    raise ConfigError(
        f"initial_arrays: nothing that trains has floating-point numbers ({kinds}), "
        "and others, such as the bytes of XGBoost's trees, are not averaged: pass "
        "weights as floats, or an aggregator of your own (docs/migrating.md)"
    )


def _check_planned(initial: State, plan: Plan) -> None:
    for name in sorted(initial.keys() | plan.shapes.keys()):
        planned: Any = plan.shapes.get(name, "not there")
        given: Any = tuple(initial[name].shape) if name in initial else "not there"
        if planned == given:
            continue
        wrapped = any(
            f"{prefix}{name}" in keys or name.removeprefix(prefix) in keys - {name}
            for prefix in PREFIXES
            for keys in (initial.keys(), plan.shapes.keys())
        )
        fix = "take the state_dict of the module that the plan was made of"
        if wrapped:
            fix = "take both from the module itself, without its wrapper"
        elif are_adapters_alone(initial, plan.shapes):
            fix = "for adapters alone pass plan=lora_plan(model, inputs) (docs/lora.md)"
        elif all(map(str.isdecimal, initial.keys() - plan.shapes.keys() or [""])):
            fix = NAMELESS
        elif initial.keys() < plan.shapes.keys():
            fix += (
                ", or give the strategy the part of the model that travels "
                "(docs/migrating.md#personal-layers)"
            )
        raise ConfigError(
            f"initial_arrays do not fit the plan of submodels: {name!r} is {given} in "
            f"them and {planned} in the plan; {fix}"
        )


def _check_named(initial: State, model: nn.Module) -> None:
    """Raise ConfigError if a model has other names: nothing of it would be frozen."""
    own = model.state_dict().keys()
    if own and not own & initial.keys() and not are_adapters_alone(initial, own):
        kind, names = type(model).__name__, sorted(initial)
        fix = "take both from one module, without its wrapper"
        if all(map(str.isdecimal, names)):
            fix = NAMELESS
        raise ConfigError(
            f"initial_arrays have {names[0]!r}, and none of the names of the {kind} of "
            f"the strategy, such as {min(own)!r}: {fix}"
        )


def _check_kinds(initial: State, model: nn.Module) -> None:
    """Raise ConfigError if weights became whole numbers, or complex ones real."""
    for name, own in model.state_dict().items():
        given = initial.get(name)
        if given is None or not isinstance(own, Tensor) or _kind(own) == _kind(given):
            continue
        raise ConfigError(
            f"initial_arrays: {name!r} is of {given.dtype}, and of {own.dtype} in the "
            f"{type(model).__name__} of the strategy: take them from its state_dict"
        )


def _kind(tensor: Tensor) -> str:
    if tensor.is_complex():
        return "complex"
    return "real" if tensor.is_floating_point() else "whole"
