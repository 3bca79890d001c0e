"""The actors of a runner: started, checked, replaced and ended."""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pickle import PicklingError
from types import ModuleType
from typing import Any

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.simulation.client_app import ClientAppSource
from flwr_asyncdrop.simulation.ray.actor import CallActor, Place
from flwr_asyncdrop.simulation.ray.cluster import most_actors
from flwr_asyncdrop.simulation.ray.head import Head
from flwr_asyncdrop.simulation.ray.node_facts import Fingerprint, NodeFacts

_log = logging.getLogger("flwr.asyncdrop")

# Seconds from a start that failed to the next one: doubled each time, up to the last.
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 30.0
# Seconds without any actor after which a warning says what is waited for.
_SILENCE = 30.0
NODE_ID = "ray.io/node-id"
"""Ray's label of a node, for the selectors of actors."""


@dataclass(frozen=True)
class ActorOptions:
    """What is asked for, for each of `count` actors."""

    client_app: ClientAppSource
    count: int
    num_cpus: float
    num_gpus: float
    threads: int
    fingerprint: Fingerprint | None
    code: Mapping[str, str]
    patience: float


_NOWHERE = Place("", "a node that is not known yet")


@dataclass(eq=False)
class Actor:
    """An actor, where it is once that is known, and how many calls it has."""

    handle: Any
    place: Place = _NOWHERE
    held: int = 0


class Fleet:
    """As many actors as there is room for, up to a number, wherever Ray puts them.

    An actor takes calls once its node has been found equal to this one. A node that
    differs is refused: it gets no more actors.

    Attributes
    ----------
    ready : list[Actor]
        Those that take calls.
    starting : dict[ObjectRef, Actor]
        Those that are not ready yet, by what says that they are.
    lost : int
        How many ended by themselves while they had calls.
    """

    def __init__(
        self,
        ray: ModuleType,
        options: ActorOptions,
        here: NodeFacts,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ready: list[Actor] = []
        self.starting: dict[Any, Actor] = {}
        self.lost = 0
        self._ray = ray
        self._head = Head.of(ray)
        self._options = options
        self._timer = timer
        self._here = here
        self._refused: dict[str, str] = {}
        self._processors: list[str] = []
        self._cause = ""
        self._pause = _FIRST_PAUSE
        self._next_start = self._none_since = timer()
        self._has_warned = False

    @property
    def has_refused(self) -> bool:
        """Whether a node is not used, since it differs."""
        return bool(self._refused)

    def top_up(self) -> None:
        """Start what is missing, if it is time; RunError if the head is gone."""
        self._head.look()
        if self._head.is_silent:
            return
        missing = self._options.count - len(self.ready) - len(self.starting)
        if missing and self._timer() >= self._next_start:
            for _ in range(missing):
                self._start()

    def settle(self, reference: Any) -> None:
        """Note how the start of an actor went, which is over."""
        actor = self.starting.pop(reference)
        try:
            place, found = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._failed(actor, one_line(error))
            return
        actor.place = place
        if isinstance(found, NodeFacts):
            if problem := found.differences(self._here):
                self._refuse(actor, f"differs: {problem}")
            else:
                self._accept(actor, found.processors)
        else:
            self._refuse(actor, f"cannot be prepared: {found}")

    def lose(self, actor: Actor, error: Exception) -> None:
        """Give up an actor that a call was lost with."""
        if actor not in self.ready:
            return
        self.ready.remove(actor)
        self.lost += 1
        self._head.look(at_once=True)
        self._cause = f"an actor on {actor.place.host} was lost ({one_line(error)})"
        _log.warning("Ray: %s; it is replaced, and what it had runs again", self._cause)
        self._end(actor)
        if not self.ready:
            self._none_since = self._timer()
            self._has_warned = False

    def trouble(self) -> str:
        """Say in one line why no actor can be expected any more; "" while one can."""
        if self.ready or self._head.is_silent:
            return ""
        refusals = "; ".join(self._refused.values())
        if self._refused and self._refused.keys() >= self._nodes():
            return f"Ray has no node that could be used: {refusals}"
        waited, patience = self._timer() - self._none_since, self._options.patience
        if waited < patience:
            if waited >= _SILENCE and not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "Ray: no actor for %.0f s, and the run ends after %g s: %s",
                    waited,
                    patience,
                    self._why_none(refusals),
                )
            return ""
        return (
            f"no Ray actor has been there for {patience:g} s: "
            f"{self._why_none(refusals)}"
        )

    def close(self) -> None:
        """End all actors."""
        for actor in [*self.ready, *self.starting.values()]:
            self._end(actor)
        self.ready.clear()
        self.starting.clear()

    def _start(self) -> None:
        options = self._options
        where = {NODE_ID: f"!in({','.join(self._refused)})"} if self._refused else None
        handle = (
            self._ray.remote(CallActor)
            .options(
                num_cpus=options.num_cpus,
                num_gpus=options.num_gpus,
                # The runner does both, once it has looked at the node.
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy="SPREAD",
                label_selector=where,
                enable_task_events=False,
            )
            .remote()
        )
        try:
            prepared = handle.prepare.remote(
                options.client_app, options.threads, options.fingerprint, options.code
            )
        except (TypeError, AttributeError, PicklingError) as error:
            raise ConfigError(
                f"the ClientApp or the fingerprint cannot be sent to Ray "
                f"({one_line(error)}): give a function of a module"
            ) from error
        self.starting[prepared] = Actor(handle)

    def _accept(self, actor: Actor, processors: str) -> None:
        self.ready.append(actor)
        self._pause = _FIRST_PAUSE
        if processors not in self._processors:
            self._processors.append(processors)
            if len(self._processors) > 1:
                _log.warning(
                    "Ray: %s computes with %s, others with %s: results may differ in "
                    "their last bits by where a task runs",
                    actor.place.host,
                    processors,
                    self._processors[0],
                )

    def _failed(self, actor: Actor, reason: str) -> None:
        self._cause = f"an actor could not be started ({reason})"
        self._end(actor)
        self._next_start = self._timer() + self._pause
        self._pause = min(2 * self._pause, _LAST_PAUSE)

    def _refuse(self, actor: Actor, problem: str) -> None:
        reason = f"{actor.place.host} {problem}"
        if actor.place.node_id not in self._refused:
            _log.warning("Ray: %s; the node is not used", reason)
        self._refused[actor.place.node_id] = reason
        self._end(actor)

    def _end(self, actor: Actor) -> None:
        if self._head.is_silent:
            return
        with suppress(Exception):  # the cluster may be gone
            self._ray.kill(actor.handle)

    def _why_none(self, refusals: str) -> str:
        if causes := "; ".join(filter(None, [refusals, self._cause])):
            return causes
        asked = f"{self._options.num_cpus:g} CPU, {self._options.num_gpus:g} GPU each"
        if not self._nodes():
            return f"the cluster has no room for one ({asked})"
        return f"its nodes are busy, or slow to start one ({asked})"

    def _nodes(self) -> set[str]:
        """Return the ids of the nodes that have room for an actor, if nothing else."""
        asked = self._options.num_cpus, self._options.num_gpus
        nodes = self._ray.nodes()
        return {node["NodeID"] for node in nodes if most_actors([node], *asked)}
