"""Flower's Grid, served by a runner: in this process, in others, or elsewhere."""

import copy
import logging
import pickle
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from threading import RLock
from typing import ClassVar, Self

import torch
from flwr.app import Context, Error, Message, RecordDict, UserConfig, UserConfigValue
from flwr.serverapp import Grid

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.flower_internals.identity import (
    SUPERLINK_NODE_ID,
    ErrorCode,
    Run,
    assume_identity,
    stamp,
)
from flwr_asyncdrop.overrides import check_names
from flwr_asyncdrop.parameters import integer_in
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.seeding import derive_seed, kept_global_generators
from flwr_asyncdrop.simulation.client_app import ClientAppSource
from flwr_asyncdrop.simulation.gpus import chosen_gpus
from flwr_asyncdrop.simulation.held_signals import held_signals
from flwr_asyncdrop.simulation.runner import Answer, ClientCall, InlineRunner, Runner
from flwr_asyncdrop.simulation.task_queue import TaskQueue
from flwr_asyncdrop.simulation.worker_pool import WorkerPool

MOST_NODES, MOST_WORKERS, MOST_THREADS = 1_000_000, 124, 1024
"""Beyond them the memory ends, or the machine's threads, or what Linux lets a process
be given as it starts: 253 descriptors, of which a worker has two for each worker."""

_NOT_PICKLED = (AttributeError, TypeError, pickle.PicklingError)
_FIRST_NODE_ID = 1000
_RUN_ID = 1

_log = logging.getLogger(__name__)


class LocalGrid(Grid):
    """Flower's ``Grid`` for tests, examples and experiments on one machine.

    It runs the ClientApp that Flower's simulation engine would run, with the same
    messages and contexts, in processes that stay. It differs from the engine where
    that makes runs repeatable: node and message ids are counted, not drawn, the
    messages of a node are processed one at a time in the order pushed, and a
    message's time to live is carried but not enforced.

    Workers are started with the ``forkserver`` method of ``multiprocessing``: all see
    the environment variables of the first start. They import the main script only if
    the ClientApp is a function or lies there; then it needs the usual
    ``if __name__ == "__main__":``. A worker that dies costs its task (an Error reply)
    and is replaced. One that is stopped for 5 s, or has a task and computes nothing for
    600 s, is killed and replaced, with a warning; its task is run again once, so that
    the answers are the same. (Linux only: elsewhere nobody says how a process is.)

    What a ClientApp draws from the global generators of Python, NumPy and PyTorch
    depends on the task, or else the number of the message, and on
    ``torch.initial_seed()`` here, and not on where it runs: call ``torch.manual_seed``
    before to repeat it. So a run that resumes trains as it would have; what clients
    draw while they evaluate may be something else then.

    What clients keep in ``context.state`` stays as long as the grid does, as in one run
    of Flower: a second `start` finds it there. Make a grid for each run to compare.

    Calls may come from several threads; one waits for the other. Ctrl-C ends a wait,
    after which the grid can be used as before; `close` in another thread ends it with a
    RunError. Use it as a context manager, or call `close`; else the workers end when
    the grid is garbage-collected, or with this process, however that ends.

    Parameters
    ----------
    client_app : str | Callable[[], ClientApp] | None
        ``"module:attribute"`` of a ClientApp, importable with this ``sys.path``, or
        a function of a module that takes nothing and returns a ClientApp. Leave it out
        if you give a `runner`, which knows its own.
    num_nodes : int
        How many nodes there are; at least 1. Their ids are 1000, 1001, ...
    workers : int
        Worker processes, at most 124; 0 runs the ClientApp in this process, one task
        whenever an answer is asked for: slower, but a debugger can step into it. Of
        several such grids in threads one runs its ClientApp at a time.
    node_config : Callable[[int], Mapping[str, bool | int | float | str]] | None
        What a node's config has, by partition (0, 1, ...), besides Flower's
        ``partition-id`` and ``num-partitions``.
    run_config : Mapping[str, bool | int | float | str] | None
        The run config that the ClientApp sees.
    threads_per_worker : int
        Threads that PyTorch uses in each worker; at least 1.
    runner : Runner | None
        What runs the ClientApp in place of worker processes; closed with the grid.
    gpus : int | Sequence[str]
        Over how many of the GPUs that this process sees the workers are spread, or
        which ones, named as in CUDA_VISIBLE_DEVICES. Each worker sees one of them, in
        turn: 8 workers and ``gpus=2`` are four on each. By default all see all.

    Raises
    ------
    ConfigError
        An argument is out of range, or the ClientApp cannot be loaded.
    RunError
        A worker died before it was ready.
    """

    has_all_nodes: ClassVar[bool] = True
    """None will come or go, so a server need not wait for more."""

    answers_at_once: ClassVar[bool] = True
    """No call waits for anything far away."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        check_names(cls)

    def __init__(
        self,
        client_app: ClientAppSource | None = None,
        *,
        num_nodes: int,
        workers: int = 1,
        node_config: Callable[[int], Mapping[str, UserConfigValue]] | None = None,
        run_config: Mapping[str, UserConfigValue] | None = None,
        threads_per_worker: int = 1,
        runner: Runner | None = None,
        gpus: int | Sequence[str] = 0,
    ) -> None:
        num_nodes = integer_in(1, MOST_NODES).check("num_nodes", num_nodes)
        workers = integer_in(0, MOST_WORKERS).check("workers", workers)
        threads_per_worker = integer_in(1, MOST_THREADS).check(
            "threads_per_worker", threads_per_worker
        )
        if gpus and (runner is not None or not workers):
            raise ConfigError(
                f"gpus={gpus!r} spreads worker processes over GPUs: set workers"
            )
        gpus = chosen_gpus(gpus)
        assume_identity(_RUN_ID)
        with kept_global_generators():  # no ClientApp of another thread's grid has them
            self._seed = torch.initial_seed() % 2**63
        self._run = Run.create_empty(_RUN_ID)
        self._contexts: dict[int, Context] = {}
        for partition in range(num_nodes):
            node = _FIRST_NODE_ID + partition
            config: UserConfig = {
                "partition-id": partition,
                "num-partitions": num_nodes,
                **(node_config(partition) if node_config else {}),
            }
            settings = dict(run_config or {})
            context = Context(_RUN_ID, node, config, RecordDict(), settings)
            self._contexts[node] = context
        self._client_state = ""
        self._lock = RLock()
        self._numbers = count(1)
        self._queue = TaskQueue()
        self._open: set[str] = set()
        self._nodes: dict[str, int] = {}  # of the messages that the runner has
        self._answers: list[Answer] = []  # not taken yet
        self._replies: dict[str, Message] = {}
        if runner is None:
            if client_app is None:
                raise ConfigError(
                    "LocalGrid needs a client_app, or a runner that has one."
                )
            runner = (
                WorkerPool(client_app, workers, threads_per_worker, gpus=gpus)
                if workers
                else InlineRunner(client_app)
            )
        elif client_app is not None:
            raise ConfigError("A runner has its own ClientApp: leave client_app out.")
        self._runner = runner
        self._close = weakref.finalize(self, self._runner.close)

    @property
    def runs_clients_here(self) -> bool:
        """Whether the ClientApp runs in this process, and draws what it draws."""
        return isinstance(self._runner, InlineRunner)

    @property
    def client_state(self) -> str:
        """The key of a record that clients keep in ``context.state``; "" for none."""
        return self._client_state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; unanswered messages are lost. May be called again."""
        self._close()

    def set_run(self, run: Run) -> None:
        """Set the run that messages and contexts belong to."""
        self._run = run
        for context in self._contexts.values():
            context.run_id = run.run_id

    @property
    def run(self) -> Run:
        """The run that messages and contexts belong to."""
        return copy.copy(self._run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message, as ``flwr.app.Message`` does."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes, in the order of their partitions."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Queue messages for their nodes; return their ids, which are set in place.

        A message for a node that does not exist has none, and is logged. A message that
        waits is not copied: leave its content as it is until it has been answered.
        """
        messages = list(messages)
        with self._lock, held_signals():
            self._check_open()
            ids = []
            for message in messages:
                if message.metadata.dst_node_id not in self._contexts:
                    node = message.metadata.dst_node_id
                    _log.error("No node %d: the message is dropped.", node)
                else:
                    ids.append(self._accept(message))
            self._hand_out()
            return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies there are, each one once, in the order of the ids.

        An id that is unknown, or whose reply was returned before, gives an Error reply,
        as in Flower.
        """
        with self._lock:
            self._collect(0.0)
            return [
                self._replies.pop(message_id)
                if message_id in self._replies
                else self._unknown(message_id)
                for message_id in dict.fromkeys(message_ids)
                if message_id not in self._open
            ]

    def wait_any(
        self, message_ids: Collection[str], timeout: float | None = None
    ) -> bool:
        """Wait until `pull_messages` has something to return for one of the ids.

        For `timeout` seconds at most; ``None`` waits as long as it takes. Return
        whether there is something.
        """
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while message_ids and self._open.issuperset(message_ids):
                left = None if end is None else max(0.0, end - time.monotonic())
                self._collect(left)
                if left == 0.0:
                    break
            return not self._open.issuperset(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Push messages and wait for all replies, or `timeout` seconds at most.

        Replies are returned in the order in which they came. What has not come when it
        ends, by Ctrl-C too, is forgotten: see `forget_messages`.
        """
        end = None if timeout is None else time.monotonic() + timeout
        waiting = set(self.push_messages(messages))
        replies: list[Message] = []
        try:
            while waiting:
                left = None if end is None else max(0.0, end - time.monotonic())
                if not self.wait_any(waiting, left):
                    break
                with self._lock:
                    arrived = [each for each in self._replies if each in waiting]
                    replies += self.pull_messages(arrived)
                waiting.difference_update(arrived)
        finally:
            self.forget_messages(waiting)
        return replies

    def forget_messages(self, message_ids: Iterable[str]) -> None:
        """Keep no reply to these, which nobody will ask for.

        Nor are they begun, if they still wait for a worker or for their node. What one
        that has begun leaves in its node's context stays.
        """
        message_ids = set(message_ids)
        with self._lock, held_signals():
            self._queue.drop(message_ids)
            for message_id in message_ids:
                self._open.discard(message_id)
                self._replies.pop(message_id, None)

    def _accept(self, message: Message) -> str:
        if message.metadata.message_id in self._open:
            raise RunError(
                f"{message.metadata.message_id} is not answered yet; "
                "push a new Message, not the same one again."
            )
        message_id = f"message-{next(self._numbers)}"
        run_id, source = self._run.run_id, SUPERLINK_NODE_ID
        stamp(message, message_id=message_id, run_id=run_id, src_node_id=source)
        self._open.add(message_id)
        self._queue.push(message)
        return message_id

    def _hand_out(self) -> None:
        while self._queue and self._runner.has_room:
            message = self._queue.pop()
            node = message.metadata.dst_node_id
            context = self._contexts[node]
            # A run that resumes sends its tasks again, in messages of other numbers.
            task = wire.read_task(message).seed
            call = f"task {task}" if task else message.metadata.message_id
            seed = derive_seed(self._seed, f"call {call}")
            message_id = message.metadata.message_id
            self._nodes[message_id] = node
            try:
                self._runner.submit(ClientCall(message, context, seed))
            except Exception as error:
                self._queue.done(self._nodes.pop(message_id))
                self._open.remove(message_id)
                if isinstance(error, _NOT_PICKLED):
                    raise ConfigError(
                        f"The task of node {node} cannot be sent to its ClientApp: "
                        f"{one_line(error)}; see node_config, run_config, and what the "
                        "message has"
                    ) from error
                raise

    def _collect(self, timeout: float | None) -> None:
        self._check_open()
        self._answers += self._runner.collect(0.0 if self._answers else timeout)
        if self._answers or self._queue:
            with held_signals():
                while self._answers:
                    self._take(self._answers.pop(0))
                self._hand_out()

    def _take(self, answer: Answer) -> None:
        message_id = answer.reply.metadata.reply_to_message_id
        # Not as the reply says: a ClientApp may have changed its message's.
        node = self._nodes.pop(message_id)
        reply_id = f"reply-to-{message_id}"
        stamp(answer.reply, message_id=reply_id, src_node_id=node)
        if not answer.reply.has_error():  # else it may be changed by half
            self._contexts[node] = answer.context
            if not self._client_state:
                self._client_state = wire.kept_by_client(answer.context.state)
        self._queue.done(node)
        if message_id in self._open:  # else it was forgotten
            self._open.remove(message_id)
            self._replies[message_id] = answer.reply

    def _unknown(self, message_id: str) -> Message:
        asked = Message(RecordDict(), SUPERLINK_NODE_ID, "query")
        stamp(asked, message_id=message_id, run_id=self._run.run_id)
        reason = f"No message {message_id!r} awaits a reply."
        reply = Message(Error(ErrorCode.MESSAGE_UNAVAILABLE, reason), reply_to=asked)
        stamp(reply, message_id=f"reply-to-{message_id}")
        return reply

    def _check_open(self) -> None:
        if not self._close.alive:
            raise RunError("The LocalGrid is closed; make a new one.")
