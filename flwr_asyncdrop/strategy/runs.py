"""The runs that the arguments of a strategy describe, new and resumed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from inspect import signature
from typing import Any

from flwr.app import DEFAULT_TTL, ArrayRecord

from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.completeness.opaque import sorted_shapes
from flwr_asyncdrop.completeness.own_state import OwnState
from flwr_asyncdrop.completeness.unsaved import Unsaved
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.profiles import sha256_of
from flwr_asyncdrop.readable import first_line, printable, shown
from flwr_asyncdrop.server.dispatch import DispatchRules
from flwr_asyncdrop.server.opening import open_run, size_at_start
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.same_arguments import described
from flwr_asyncdrop.server.schedule import Schedule
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.train_settings import TrainConfig, TrainSettings
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.strategy.construction import Arguments
from flwr_asyncdrop.strategy.copies import copied
from flwr_asyncdrop.strategy.initial import check_mergeable, read_initial
from flwr_asyncdrop.strategy.start import StartArguments
from flwr_asyncdrop.strategy.units import first_costs, sha256_of_units


class Runs(Arguments):
    """Opens runs with the arguments of `AsyncStrategy`."""

    def _open(
        self,
        node_ids: Sequence[int],
        arrays: ArrayRecord,
        config: TrainConfig,
        timeout: float,
        *,
        in_flight: int,
        saved: StateDict | None = None,
        queue_ahead: int | None = None,
        resends: bool = False,
    ) -> Run:
        initial = read_initial(arrays, self.plan, self.trainable.model)
        state = RunState.start_from(initial, self.seed, self.trainable.frozen(initial))
        codec = self.codec
        check_mergeable(state.arrays, codec.label if codec and codec.is_lossy else "")
        simulated, algorithm = self.fleet is not None, self.algorithm
        resends = resends or bool(self.checkpointer or state.frozen.tensors)
        devices, ranks = size_at_start(node_ids, in_flight, saved)
        settings = TrainSettings(
            config=config,
            schedule=self._schedule(state, ranks, devices),
            keys=self._keys,
            ttl=max(timeout, DEFAULT_TTL) if simulated else timeout,
        )
        run = open_run(
            state,
            node_ids,
            DispatchRules(
                copied("selection", self.selection),
                self.assignment.with_masks(copied("masks", self.assignment.masks)),
                settings,
                self.faults,
                self.queue_ahead if queue_ahead is None else queue_ahead,
                keeps_base=simulated and resends,
                codec=self.codec,
                brings_frozen=simulated and not self.devices_have_frozen,
            ),
            in_flight=in_flight,
            build_aggregator=self.build_aggregator,
            build_fleet=self.fleet,
            averaging=algorithm.averaging if algorithm else 0.0,
            max_examples=self.max_examples,
            outlier_factor=self.outlier_factor,
            saved=saved,
        )
        if self.checkpointer is not None:
            run.arguments = self._arguments(run)
            build = partial(self._new_parts, run.slots)
            unsaved = Unsaved({**run.parts, **self._shared}, build)
            run.find_unsaved = unsaved.find
        return run

    def _schedule(self, state: RunState, num_ranks: int, num_devices: int) -> Schedule:
        if not callable(self.schedule):
            return self.schedule
        typical = None if self.codec is None else self.codec.typical
        costs = first_costs(self.assignment, state, num_ranks, typical)
        try:
            signature(self.schedule).bind(costs, num_devices)
        except TypeError as error:
            raise ConfigError(
                f"schedule(costs, num_devices) cannot be called ({error}): a function "
                "gets the costs of the first tasks and the number of devices"
            ) from error
        schedule = self.schedule(costs, num_devices)
        if not hasattr(schedule, "factor"):
            raise ConfigError(
                f"schedule(...) returned {printable(shown(schedule))}: a function is "
                "asked once, with the costs of the first tasks, for a Schedule"
            )
        return schedule

    @property
    def _unresumable(self) -> str:
        """Why no checkpoint has all that a run depends on; "" if it has."""
        codec = self.codec
        if self.algorithm is not None and self.algorithm.keeps_client_state:
            kept = f"algo={self._label!r} keeps state on its clients"
        elif self.fleet is not None and codec is not None and codec.uses_feedback:
            kept = f"codec={codec.label!r} keeps what it has lost on the clients"
        else:
            return ""
        return f"{kept}, and no checkpoint has it, so the run cannot be resumed"

    @property
    def _shared(self) -> Mapping[str, object]:
        """Return what all runs have, and what must not change in one."""
        return {
            "algorithm": self.algorithm,
            "codec": self.codec,
            "schedule": self.schedule,
        }

    def _own_state(self, run: Run, given: StartArguments) -> OwnState | None:
        """Return what saves a user's own objects around a run; None for no need."""
        if self.checkpointer is None:
            return None
        own = OwnState(
            {
                "strategy": self,
                "train_metrics_aggr_fn": self.train_metrics_aggr_fn,
                "evaluate_metrics_aggr_fn": self.evaluate_metrics_aggr_fn,
                "train_config": given.train_config,
                "evaluate_config": given.evaluate_config,
                "evaluate_fn": given.evaluate_fn,
            },
            self.callbacks,
            [*self.evaluators, self.checkpointer, self.aggregator, *run.parts.values()],
            sorted_shapes(given.initial_arrays),
        )
        self._kept_first = own.since("strategy", self._kept_first)
        return own if own.has_any else None

    def _new_parts(self, slots: int) -> Mapping[str, object]:
        """Return the objects that a run begins with, which may change in it."""
        return {
            "aggregator": self.build_aggregator(slots),
            "masks": copied("masks", self.assignment.masks),
            "selection": copied("selection", self.selection),
            **self._shared,
        }

    def _arguments(self, run: Run) -> StateDict:
        """Return the other arguments that a resumed run must share."""
        profiles = run.fleet.profiles
        schedule: Schedule | None = run.dispatcher.rules.settings.schedule
        if callable(self.schedule) and profiles is None:
            schedule = None  # what is made of a real fleet depends on who is there
        arguments = {
            "aggregator": self.aggregator,
            "masks": self.masks,
            "plan": None if self.plan is None else sha256_of_units(self.plan),
            "objective": self._objective_config(),
            "codec": self.codec,
            "mode": self.mode,
            "duration": self.duration,
            "fleet": None if profiles is None else sha256_of(profiles),
            "devices_have_frozen": self.devices_have_frozen,
            "selection": self.selection,
            "schedule": schedule,
            "faults": self.faults,
            "queue_ahead": self.queue_ahead,
            "fraction_evaluate": self.fraction_evaluate,
            "min_evaluate_nodes": self._sampling.min_evaluate_nodes,
            "evaluate_every": self.evaluate_every,
            "weighted_by_key": self.weighted_by_key,
            "max_examples": self.max_examples,
            "outlier_factor": self.outlier_factor,
        }
        return {name: described(value) for name, value in arguments.items()}

    def _settings(self, num_rounds: int) -> dict[str, Any]:
        """Return the settings that a resumed run must share."""
        hyper = {} if self.algorithm is None else _hyperparameters(self.algorithm)
        return {
            "algo": self._label,
            "num-rounds": num_rounds,
            "in-flight": self._sampling.described(),
            "seed": self.seed,
            **({} if self.codec is None else {"codec": self.codec.label}),
            **{name.replace("_", "-"): value for name, value in hyper.items()},
        }


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
