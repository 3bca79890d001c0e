"""Whether the arguments of a strategy are of the kinds that they are said to be."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr_asyncdrop.aggregation import Aggregator
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.selection import Selection
from flwr_asyncdrop.fleet.work import WorkPolicy
from flwr_asyncdrop.masks import MaskPolicy
from flwr_asyncdrop.objectives import LocalObjective
from flwr_asyncdrop.overrides import check_names, check_overrides
from flwr_asyncdrop.parameters import A_SWITCH
from flwr_asyncdrop.readable import printable, shown, with_article
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.evaluator import Evaluator
from flwr_asyncdrop.strategy.calls import check_call
from flwr_asyncdrop.submodel import Plan

_OBJECTS: Mapping[str, type] = {
    "algorithm": Algorithm,
    "aggregator": Aggregator,
    "masks": MaskPolicy,
    "objective": LocalObjective,
    "plan": Plan,
    "selection": Selection,
    "work": WorkPolicy,
    "faults": FaultPolicy,
    "checkpointer": Checkpointer,
}
_PARTS = (*_OBJECTS, "codec", "schedule")
_LISTS: Mapping[str, type] = {"callbacks": Callback, "evaluators": Evaluator}
_METRICS = ("records, weighted_by_key", "the records of all replies, and the key")
# What a function is given, and what that is.
_FUNCTIONS = {
    "fleet": ("num_devices", "the number of devices"),
    "train_metrics_aggr_fn": _METRICS,
    "evaluate_metrics_aggr_fn": _METRICS,
}
_KEYS = ("arrayrecord_key", "configrecord_key", "weighted_by_key")
_SWITCHES = ("devices_have_frozen", "log_rounds", "probe")
_NEEDED = ("faults", "schedule")

CHECKED = (*_PARTS, *_LISTS, *_FUNCTIONS, *_KEYS, *_SWITCHES)
"""The names of the arguments that `check_kinds` looks at."""


def check_kinds(arguments: Mapping[str, Any]) -> None:
    """Raise ConfigError for an argument, by its name, that is of another kind."""
    given = {
        name: value
        for name, value in arguments.items()
        if value is not None or name in (*_NEEDED, *_LISTS)
    }
    for name, value in given.items():
        if name in _OBJECTS:
            _check_object(name, value, _OBJECTS[name])
    for name, value in given.items():
        if name in _LISTS:
            _check_list(name, value, _LISTS[name])
    lists = (value for name in _LISTS for value in given[name])
    for value in (*(given[name] for name in _PARTS if name in given), *lists):
        check_overrides(value)
        check_names(type(value))
    for name, (takes, told) in _FUNCTIONS.items():
        if name in given:
            check_call(name, given[name], takes, told)
    for name in _SWITCHES:
        A_SWITCH.check(name, arguments[name])
    schedule = given["schedule"]
    if not (callable(schedule) or hasattr(schedule, "factor")):
        raise ConfigError(
            f"schedule={_text(schedule)} must be a Schedule, e.g. StepDecay((100,))"
        )
    if isinstance(schedule, type):
        _refuse_class("schedule", schedule)
    _check_keys({name: arguments[name] for name in _KEYS})


def _check_object(name: str, value: object, kind: type) -> None:
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        _refuse_class(name, value)
    wanted = with_article(kind.__name__)
    raise ConfigError(f"{name}={_text(value)} must be {wanted}")


def _check_list(name: str, values: object, kind: type) -> None:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ConfigError(
            f"{name}={_text(values)} must be a list: {name}=[{kind.__name__}(...)]"
        )
    for number, value in enumerate(values):
        _check_object(f"{name}[{number}]", value, kind)


def _check_keys(keys: Mapping[str, object]) -> None:
    for name, key in keys.items():
        if not isinstance(key, str) or not key:
            raise ConfigError(f"{name}={key!r} must be a text, and not empty")
    arrays, config, _ = keys.values()
    if arrays == config:
        raise ConfigError(
            f"arrayrecord_key and configrecord_key are both {arrays!r}, and a message "
            "has one record under a key: let them differ"
        )


def _refuse_class(name: str, given: Callable[..., object]) -> None:
    kind = given.__name__
    raise ConfigError(f"{name}={kind} is a class: pass an object of it, {kind}(...)")


def _text(value: object) -> str:
    return printable(shown(value))
