"""What a checkpoint of a run has to share with the strategy that resumes it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.completeness.opaque import sorted_shapes
from flwr_asyncdrop.completeness.own_state import OwnState
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.profiles import sha256_of
from flwr_asyncdrop.readable import first_line
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.same_arguments import described
from flwr_asyncdrop.server.schedule import Schedule
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.strategy.arguments import (
    Arguments,
    label_of,
    objective_config,
)
from flwr_asyncdrop.strategy.copies import copied
from flwr_asyncdrop.strategy.sampling import Sampling
from flwr_asyncdrop.strategy.start import StartArguments
from flwr_asyncdrop.strategy.units import sha256_of_units


def unresumable(given: Arguments) -> str:
    """Return why no checkpoint has all that a run depends on; "" if it has."""
    codec = given.codec
    if given.algorithm is not None and given.algorithm.keeps_client_state:
        kept = f"algo={label_of(given)!r} keeps state on its clients"
    elif given.fleet is not None and codec is not None and codec.uses_feedback:
        kept = f"codec={codec.label!r} keeps what it has lost on the clients"
    else:
        return ""
    return f"{kept}, and no checkpoint has it, so the run cannot be resumed"


def constant_parts(given: Arguments) -> Mapping[str, object]:
    """Return what all runs have, and what must not change in one."""
    return {
        "algorithm": given.algorithm,
        "codec": given.codec,
        "schedule": given.schedule,
    }


def new_parts(given: Arguments, slots: int) -> Mapping[str, object]:
    """Return the objects that a run begins with, which may change in it."""
    return {
        "aggregator": given.build_aggregator(slots),
        "masks": copied("masks", given.assignment.masks),
        "selection": copied("selection", given.selection),
        "work": copied("work", given.work),
        **constant_parts(given),
    }


def own_state(given: Arguments, run: Run, start: StartArguments) -> OwnState:
    """Return what saves the objects of a user's around a run, if there are any."""
    return OwnState(
        {
            "strategy": given,
            "train_metrics_aggr_fn": given.train_metrics_aggr_fn,
            "evaluate_metrics_aggr_fn": given.evaluate_metrics_aggr_fn,
            "train_config": start.train_config,
            "evaluate_config": start.evaluate_config,
            "evaluate_fn": start.evaluate_fn,
        },
        given.callbacks,
        [
            *given.evaluators,
            given.checkpointer,
            given.aggregator,
            *run.parts.values(),
        ],
        sorted_shapes(start.initial_arrays),
    )


def run_settings(given: Arguments, num_rounds: int) -> dict[str, Any]:
    """Return the settings that a resumed run must share."""
    hyper = {} if given.algorithm is None else _hyperparameters(given.algorithm)
    return {
        "algo": label_of(given),
        "num-rounds": num_rounds,
        "in-flight": Sampling.of(given).described(),
        "seed": given.seed,
        **({} if given.codec is None else {"codec": given.codec.label}),
        **{name.replace("_", "-"): value for name, value in hyper.items()},
    }


def run_arguments(given: Arguments, run: Run) -> StateDict:
    """Return the other arguments that a resumed run must share."""
    profiles = run.fleet.profiles
    schedule: Schedule | None = run.dispatcher.rules.settings.schedule
    if callable(given.schedule) and profiles is None:
        schedule = None  # what is made of a real fleet depends on who is there
    arguments = {
        # A run-config has no word for the defaults that an algorithm of one's own has.
        "algorithm": given.algorithm,
        "aggregator": given.aggregator,
        "masks": given.masks,
        "plan": None if given.plan is None else sha256_of_units(given.plan),
        "objective": objective_config(given),
        "codec": given.codec,
        "mode": given.mode,
        "duration": given.duration,
        "fleet": None if profiles is None else sha256_of(profiles),
        "devices_have_frozen": given.devices_have_frozen,
        "selection": given.selection,
        "work": given.work,
        "schedule": schedule,
        "faults": given.faults,
        "queue_ahead": given.queue_ahead,
        "fraction_evaluate": given.fraction_evaluate,
        "min_evaluate_nodes": Sampling.of(given).min_evaluate_nodes,
        "evaluate_every": given.evaluate_every,
        "weighted_by_key": given.weighted_by_key,
        "max_examples": given.max_examples,
        "outlier_factor": given.outlier_factor,
    }
    return {name: described(value) for name, value in arguments.items()}


@dataclass(frozen=True)
class _Hyperparameter:
    value: Any


def _hyperparameters(algorithm: Algorithm) -> dict[str, Any]:
    """Return the fields of an algorithm by name, dataclasses in them as dicts."""
    found = {}
    for field in fields(algorithm):
        try:
            held = asdict(_Hyperparameter(getattr(algorithm, field.name)))
        except Exception as error:  # whatever a copy of an object of a user's raises
            why = first_line(error)
            if isinstance(error, RecursionError):
                why = "it contains itself, or has very many parts inside of each other"
            raise ConfigError(
                f"{field.name} of {type(algorithm).__name__} cannot be saved in a "
                f"checkpoint ({why}): give a number, a text, a list or a dict"
            ) from error
        found[field.name] = held["value"]
    return found
