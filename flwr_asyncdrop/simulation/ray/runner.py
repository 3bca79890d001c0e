"""A runner whose processes are actors of a Ray cluster, on any number of machines."""

import atexit
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.parameters import in_interval, integer_in
from flwr_asyncdrop.readable import counted, one_line
from flwr_asyncdrop.simulation.client_app import ClientAppSource, load_client_app
from flwr_asyncdrop.simulation.held_signals import held_signals
from flwr_asyncdrop.simulation.ray.actor import from_parts, to_parts
from flwr_asyncdrop.simulation.ray.cluster import (
    AUTO,
    connect,
    local_modules,
    most_actors,
)
from flwr_asyncdrop.simulation.ray.fleet import Actor, ActorOptions, Fleet
from flwr_asyncdrop.simulation.ray.node_facts import Fingerprint, NodeFacts, hashes
from flwr_asyncdrop.simulation.ray.versions import VersionStore
from flwr_asyncdrop.simulation.runner import Answer, ClientCall, Runner

MOST_ACTORS, MOST_THREADS = 10_000, 1024

# One that runs and one that waits, as in the worker pool.
_CALLS_PER_ACTOR = 2
# Between two looks at what is missing, while nothing comes.
_INTERVAL = 1.0
# While no actor is even starting.
_PAUSE = 0.05
_LEAST_QUANTITY = 1e-4

_log = logging.getLogger("flwr.asyncdrop")


class RayRunner(Runner):
    """Runs calls in actors of a Ray cluster, which it starts, replaces and ends.

    Nodes may join and leave. A call whose actor or node is lost runs again, on another
    one: the same call gives the same answer, so the run's history is the same, and no
    device is blamed. `losses` counts such calls.

    On each node an actor is first asked what there is: the versions of Python, Flower,
    PyTorch and NumPy, the code of this package and of other modules from folders that
    the ClientApp has imported, and what `fingerprint` returns. A node that differs from
    this process is refused, with a warning that names its host and what differs.

    What this process has imported from folders, as opposed to installed packages, is
    sent to the cluster. A process that has called ``ray.init`` before keeps its own
    runtime environment, and sends nothing more.

    Parameters
    ----------
    client_app : str | Callable[[], ClientApp]
        As for `LocalGrid`; it is loaded here first.
    address : str
        ``"auto"``, for the cluster that this machine is a node of, or ``"HOST:PORT"``
        of its head. This machine has to be a node either way.
    actors : int
        How many actors; 0 for as many as fit on the nodes that are there at the start.
    cpus_per_actor, gpus_per_actor : float
        What Ray sets aside for each; a share of a GPU may be below 1.
    threads : int
        Threads that PyTorch uses in each actor; at least 1.
    fingerprint : Callable[[], Mapping[str, str]] | None
        A function of a module, called here and in each actor, that returns what else
        has to be equal, such as a hash of the data, by name.
    share : int
        Of how many runners side by side this is one, which then takes no more than its
        share of what fits.
    retries : int
        How often a call may be lost before the run ends.
    patience : float
        Seconds without any actor after which the run ends.

    Raises
    ------
    ConfigError
        An argument is out of range, the ClientApp cannot be loaded, or all nodes are
        refused.
    MissingExtraError
        Ray is not installed.
    RunError
        There is no cluster, or no actor within `patience`.
    """

    def __init__(
        self,
        client_app: ClientAppSource,
        *,
        address: str = AUTO,
        actors: int = 0,
        cpus_per_actor: float = 1.0,
        gpus_per_actor: float = 0.0,
        threads: int = 1,
        fingerprint: Fingerprint | None = None,
        share: int = 1,
        retries: int = 10,
        patience: float = 300.0,
    ) -> None:
        actors = integer_in(0, MOST_ACTORS).check("actors", actors)
        cpus_per_actor = _quantity("cpus_per_actor", cpus_per_actor)
        gpus_per_actor = _quantity("gpus_per_actor", gpus_per_actor)
        threads = integer_in(1, MOST_THREADS).check("threads", threads)
        share = integer_in(1, MOST_ACTORS).check("share", share)
        retries = integer_in(0, 1_000_000).check("retries", retries)
        patience = in_interval("[0, inf]").check("patience", patience)
        if cpus_per_actor == gpus_per_actor == 0:
            raise ConfigError(
                "cpus_per_actor and gpus_per_actor are 0: set one of them"
            )
        load_client_app(client_app)
        here = NodeFacts.here(fingerprint)
        # The fingerprint may have imported what it looks at.
        code = hashes(local_modules())
        self.losses = 0
        self._retries = retries
        self._waiting: deque[ClientCall] = deque()
        self._running: dict[Any, tuple[ClientCall, Actor]] = {}
        self._times_lost: Counter[str] = Counter()
        self._is_closed = False
        self._owner = os.getpid()
        self._ray, self._is_mine = connect(address)
        fitting = most_actors(self._ray.nodes(), cpus_per_actor, gpus_per_actor)
        options = ActorOptions(
            client_app=client_app,
            count=_count(actors, fitting, share),
            num_cpus=cpus_per_actor,
            num_gpus=gpus_per_actor,
            threads=threads,
            fingerprint=fingerprint,
            code=code,
            patience=patience,
        )
        self._versions = VersionStore(self._ray)
        self._fleet = Fleet(self._ray, options, here.with_code(code))
        atexit.register(self.close)
        try:
            while not self._fleet.ready:
                self.collect(None)
        except RunError as error:
            self.close()
            if self._fleet.has_refused:
                raise ConfigError(str(error)) from None
            raise
        except BaseException:
            self.close()
            raise

    @property
    def num_actors(self) -> int:
        """How many actors take calls now."""
        return len(self._fleet.ready)

    @property
    def has_room(self) -> bool:
        """Whether fewer calls are unanswered than the actors take."""
        unanswered = len(self._waiting) + len(self._running)
        return unanswered < _CALLS_PER_ACTOR * max(1, len(self._fleet.ready))

    def submit(self, call: ClientCall) -> None:
        """Hand the call to the actor that has the fewest, or keep it for one."""
        self._waiting.append(call)
        self._hand_out()

    def collect(self, timeout: float | None) -> list[Answer]:
        """Wait for news of any actor, and return the answers among it."""
        self._fleet.top_up()
        self._hand_out()
        bound = _INTERVAL if timeout is None else min(timeout, _INTERVAL)
        answers: list[Answer] = []
        for reference in self._finished(bound):
            if reference in self._running:
                answers.extend(self._receive(reference))
            else:
                self._fleet.settle(reference)
        self._fleet.top_up()
        self._hand_out()
        if not answers and (trouble := self._fleet.trouble()):
            raise RunError(trouble)
        return answers

    def close(self) -> None:
        """End the actors, and say how many calls were lost with some of them."""
        if self._is_closed or os.getpid() != self._owner:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        if self.losses:
            _log.warning(
                "Ray: lost with %s, and run again: %s; no device is blamed for that",
                counted(self._fleet.lost, "actor"),
                counted(self.losses, "task"),
            )
        if self._ray.is_initialized():
            self._fleet.close()
            if self._is_mine:
                self._ray.shutdown()
        self._waiting.clear()
        self._running.clear()

    def _finished(self, timeout: float) -> list[Any]:
        """Return what is over, after waiting for the first."""
        references = [*self._running, *self._fleet.starting]
        if not references:
            time.sleep(min(timeout, _PAUSE))
            return []
        # Ray runs handlers of signals in it, and makes an exit of its own of theirs.
        with held_signals():
            done, _ = self._ray.wait(references, num_returns=1, timeout=timeout)
            if done and len(references) > 1:
                # All that are over: it does not wait for the others.
                count = len(references)
                done, _ = self._ray.wait(references, num_returns=count, timeout=0)
        return list(done)

    def _hand_out(self) -> None:
        """Give calls that wait to the actors that have the fewest."""
        while self._waiting and self._fleet.ready:
            actor = min(self._fleet.ready, key=lambda each: each.held)
            if actor.held >= _CALLS_PER_ACTOR:
                return
            call = self._waiting.popleft()
            try:
                reference = self._send(call, actor)
            except self._ray.exceptions.RayError as error:
                raise RunError(f"Ray takes no task: {one_line(error)}") from error
            actor.held += 1
            self._running[reference] = call, actor

    def _send(self, call: ClientCall, actor: Actor) -> Any:
        """Start a call; the arrays of its message travel apart from the rest."""
        stream, *arrays = to_parts(call.message)
        version = self._versions.put(arrays)
        context = to_parts(call.context)
        return actor.handle.run.remote([stream], version, context, call.seed)

    def _receive(self, reference: Any) -> Iterator[Answer]:
        call, actor = self._running.pop(reference)
        actor.held -= 1
        message_id = call.message.metadata.message_id
        try:
            parts = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._lost(call, actor, error)
            return
        self._times_lost.pop(message_id, None)
        yield call.read(lambda: from_parts(parts))

    def _lost(self, call: ClientCall, actor: Actor, error: Exception) -> None:
        """Let a call run again, or end the run if it was lost too often."""
        self.losses += 1
        self._fleet.lose(actor, error)
        self._versions.clear()
        self._waiting.appendleft(call)
        message_id = call.message.metadata.message_id
        self._times_lost[message_id] += 1
        if (times := self._times_lost[message_id]) > self._retries:
            raise RunError(
                f"a task was lost {times} times with its Ray actor, the last time on "
                f"{actor.place.host}: {one_line(error)}"
            )


def _count(actors: int, fitting: int, share: int) -> int:
    """Return how many actors to ask for: side by side, no runner takes another's."""
    if actors and share == 1:
        return actors
    own = max(1, fitting // share)
    return min(actors, own) if actors else own


def _quantity(name: str, value: float) -> float:
    """Refuse what Ray cannot set aside: it counts in ten-thousandths."""
    value = in_interval("[0, 1024]").check(name, value)
    if 0 < value < _LEAST_QUANTITY or (value > 1 and value != int(value)):
        raise ConfigError(
            f"{name} is {value!r}; Ray takes 0, shares of {_LEAST_QUANTITY:g} to 1, "
            "and whole numbers."
        )
    return value
