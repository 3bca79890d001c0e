"""Overridden hooks of Flower's rounds, called in a run that has no such rounds.

`configure_train` is called when a round begins, and `aggregate_train` when it ends:
they may change the config and the metrics, and see all that Flower shows them. What
cannot be done any more by then, or not for tasks that leave one by one, is refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.observers.results import ResultCollector
from flwr_asyncdrop.readable import printable, shown, type_of
from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.strategy.read_once import read_before
from flwr_asyncdrop.strategy.train_configs import Config, TrainConfigs, config_of

_SEE = "(docs/migrating.md)"

Trained = tuple[ArrayRecord | None, MetricRecord | None]


class Hooked(Protocol):
    """A strategy with the training hooks of Flower's."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Any:
        """Begin a round."""

    def aggregate_train(self, server_round: int, replies: Any) -> Trained:
        """End it."""


def evaluations_of(strategy: object, found: object) -> list[Message]:
    """Return the messages that `configure_evaluate` has made, each to be sent once."""
    kind = type(strategy).__name__
    made: list[object] = [*found] if isinstance(found, Iterable) else [None]
    messages = [each for each in made if isinstance(each, Message)]
    if len(messages) < len(made):
        odd = next(each for each in made if not isinstance(each, Message))
        what = type_of(odd if isinstance(found, Iterable) else found)
        raise ConfigError(
            f"configure_evaluate of {kind} returns {what} in place of messages: return "
            f"a list of them, [] for none {_SEE}"
        )
    if len({id(message) for message in messages}) < len(messages):
        raise ConfigError(
            f"configure_evaluate of {kind} returns a message twice: make another one "
            f"for each node {_SEE}"
        )
    return messages


class TasksOneByOne(Sequence[Message]):
    """What `configure_train` returns in an asynchronous run, in place of messages."""

    def __init__(self, strategy: str) -> None:
        self._strategy = strategy

    def __getitem__(self, _: Any) -> NoReturn:
        self._refuse()

    def __iter__(self) -> Iterator[Message]:
        self._refuse()

    def __len__(self) -> NoReturn:
        self._refuse()

    def __bool__(self) -> bool:
        return True

    def _refuse(self) -> NoReturn:
        raise ConfigError(
            f"configure_train of {self._strategy} looks into the messages of a round, "
            "but tasks are made one by one: change `config`, and return what super() "
            f"returns; what devices get is for a Selection and a MaskPolicy {_SEE}"
        )


class RoundHooks(Callback):
    """Calls the overridden training hooks of a strategy, once a round.

    It stands behind the `ResultCollector`, and calls `aggregate_train` if the metrics
    of a round are to be filed there `by_hook`.
    """

    def __init__(
        self,
        strategy: Hooked,
        configs: TrainConfigs,
        collector: ResultCollector,
        grid: Grid,
        num_rounds: int,
        *,
        weighting_key: str,
        configures: bool,
    ) -> None:
        self._strategy = strategy
        self._configs = configs
        self._collector = collector
        self._grid = grid
        self._num_rounds = num_rounds
        self._weighting_key = weighting_key
        self._configures = configures
        self._kind = type(strategy).__name__
        self._replies: list[Message] = []
        self._records: list[list[object]] = []
        # What the hook that is being called was given, and what super() made of it.
        self._arrays: ArrayRecord | None = None
        self._passed: ConfigRecord | None = None
        self._number = 0
        self._tasks = TasksOneByOne(self._kind)

    def state_dict(self) -> StateDict:
        """Return the train configs of the rounds so far."""
        return self._configs.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Continue with them."""
        self._configs.load_state_dict(state)

    def on_start(self, state: RunState) -> None:
        """Begin the first round."""
        self._begin(state, 1)

    def on_resume(self, state: RunState) -> None:
        """Continue with the round that had begun, if the checkpoint knows of it."""
        if not self._configs.begun:
            self.on_start(state)

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Keep a reply for `aggregate_train`."""
        if self._collector.by_hook and merged.message is not None:
            message = wire.in_flowers_arrays(merged.message, merged.reply)
            self._replies.append(message)
            self._records.append(self._parts(message))

    def on_round(self, state: RunState, number: int) -> None:
        """End a round, and begin the next."""
        if self._collector.by_hook:
            self._end(state, number)
        if number < self._num_rounds:
            self._begin(state, number + 1)

    def configured(self, arrays: ArrayRecord, config: Config) -> Sequence[Message]:
        """Take what an overridden `configure_train` passes to its super()."""
        if arrays is not self._arrays:
            self._refuse_arrays()
        if config is None:
            raise ConfigError(
                f"configure_train of {self._kind} passes None on as the config: pass "
                f"the record that it was given, or another {_SEE}"
            )
        config = config_of(config, f"config of {self._kind}", self._number)
        self._passed = config
        return self._tasks

    def aggregated(self, replies: Sequence[Message]) -> Trained:
        """Return what the super() of an overridden `aggregate_train` returns."""
        same = len(replies) == len(self._replies) and all(
            a is b for a, b in zip(replies, self._replies, strict=True)
        )
        if not same or self._records != [self._parts(reply) for reply in replies]:
            raise ConfigError(
                f"aggregate_train of {self._kind} passes other replies on than it was "
                "given, which were merged as they came: choose or change updates in an "
                "Aggregator, and what may be merged by clip_norm and combine; of a "
                f"client that raises an error nothing is merged {_SEE}"
            )
        return self._arrays, self._collector.aggregated()

    def _begin(self, state: RunState, number: int) -> None:
        config = self._configs.current(number)
        if self._configures:
            config = self._configure(self._snapshot(state), config, number)
        self._configs.begin(number, config)

    def _configure(
        self, arrays: ArrayRecord, config: ConfigRecord, number: int
    ) -> ConfigRecord:
        """Return the config that an overridden `configure_train` passes on."""
        before, self._passed, self._number = _parts_of(arrays), None, number
        strategy = self._strategy
        with read_before(strategy, "configure_train"):
            returned = strategy.configure_train(number, arrays, config, self._grid)
        passed: ConfigRecord | None = self._passed
        if returned is not self._tasks or passed is None:
            raise ConfigError(
                f"configure_train of {self._kind} returns messages of its own, but "
                "tasks are made one by one: change `config`, and return "
                f"super().configure_train(server_round, arrays, config, grid) {_SEE}"
            )
        if before != _parts_of(arrays):
            self._refuse_arrays()
        return passed

    def _end(self, state: RunState, number: int) -> None:
        arrays = self._snapshot(state)
        before = _parts_of(arrays)
        with read_before(self._strategy, "aggregate_train"):
            result: object = self._strategy.aggregate_train(number, [*self._replies])
        if not isinstance(result, tuple) or len(result) != 2:
            raise ConfigError(
                f"aggregate_train of {self._kind} returns {printable(shown(result))}: "
                f"return arrays and metrics, as super() does {_SEE}"
            )
        returned, metrics = result
        if returned is not arrays or before != _parts_of(arrays):
            raise ConfigError(
                f"aggregate_train of {self._kind} returns other arrays than super() "
                "does, but replies are merged as they come: how, is for an algorithm "
                "or an Aggregator; save arrays here, and return them as they are "
                f"{_SEE}"
            )
        metrics = wire.metric_record(
            metrics, f"aggregate_train({number}, ...) of {self._kind}"
        )
        by_round = self._collector.result.train_metrics_clientapp
        if metrics is None:
            by_round.pop(number, None)
        else:
            by_round[number] = metrics
        self._replies, self._records = [], []

    def _parts(self, reply: Message) -> list[object]:
        """Return what of a reply was merged, and the metrics that count for it.

        The collector has the same records of metrics: their values may change.
        """
        content, key = reply.content, self._weighting_key
        arrays = [
            _parts_of(record)
            for record in wire.records_of(content, ArrayRecord).values()
        ]
        metrics = wire.records_of(content, MetricRecord).values()
        return [*arrays, *((id(record), record.get(key)) for record in metrics)]

    def _refuse_arrays(self) -> NoReturn:
        raise ConfigError(
            f"configure_train of {self._kind} passes other arrays on than it was "
            "given, which no task would have: change the model in an Aggregator, or "
            f"begin with start(initial_arrays=...) {_SEE}"
        )

    def _snapshot(self, state: RunState) -> ArrayRecord:
        self._arrays = wire.to_record(state.served)
        return self._arrays


def _parts_of(record: ArrayRecord) -> list[object]:
    """Return what a record consists of: unequal, if somebody has changed it."""
    return [
        (name, array.dtype, tuple(array.shape), array.stype, array.data)
        for name, array in record.items()
    ]
