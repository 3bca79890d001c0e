"""A task as a message."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from flwr.app import (
    DEFAULT_TTL,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    RecordDict,
)

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import shown
from flwr_asyncdrop.wire.records import records_of

SEED = "asyncdrop-seed"
PARTITION_ID = "partition-id"
NUM_PARTITIONS = "num-partitions"
ROUND = "server-round"
WORK = "work-share"
"""In a config, and in a reply's metrics, where tasks have not all local steps."""


@dataclass(frozen=True)
class RecordKeys:
    """Where a Flower project keeps its records; the defaults are Flower's.

    Attributes
    ----------
    arrays, config : str
        Keys of the ``ArrayRecord`` and the ``ConfigRecord`` in a message.
    num_examples : str
        Key of the number of training examples in the reply's ``MetricRecord``.
    """

    arrays: str = "arrays"
    config: str = "config"
    num_examples: str = "num-examples"


@dataclass(frozen=True)
class TaskConfig:
    """What the server adds to the user's config for a task.

    `partition_id` is the simulated device that the node plays; None on a real fleet,
    where a node knows its own data. `seed` is for the task's local training, and `work`
    the share of the usual local steps that it has, None for all.
    """

    round: int
    seed: int
    partition_id: int | None = None
    num_partitions: int | None = None
    work: float | None = None

    def entries(self) -> Iterator[tuple[str, int | float]]:
        """Yield the keys and values that go into the ``ConfigRecord``."""
        yield ROUND, self.round
        yield SEED, self.seed
        if self.partition_id is not None and self.num_partitions is not None:
            yield PARTITION_ID, self.partition_id
            yield NUM_PARTITIONS, self.num_partitions
        if self.work is not None:
            yield WORK, self.work

    def steps(self, usual: int) -> int:
        """Return how many local steps it has, where others have the `usual` number."""
        return usual if self.work is None else max(1, round(self.work * usual))


def make_task(
    arrays: ArrayRecord,
    config: Mapping[str, object],
    task: TaskConfig,
    *,
    node_id: int,
    keys: RecordKeys,
    ttl: float = DEFAULT_TTL,
    message_type: str = MessageType.TRAIN,
    extra: Mapping[str, ArrayRecord] | None = None,
) -> Message:
    """Build the message that asks a node to train, or to evaluate, a model.

    Flower gives the message and its reply up after `ttl` seconds. `extra` is sent
    beside the model, by record; ConfigError if one has the key of another record, or if
    the `config` has another value where the server has one. The round is the server's,
    as with Flower's own strategies.
    """
    extra = extra or {}
    if taken := {keys.arrays, keys.config} & extra.keys():
        raise ConfigError(
            f"the record {min(taken)!r} that an aggregator sends along has the key of "
            "another record: name it otherwise"
        )
    entries = dict(task.entries())
    for key in sorted(entries.keys() & config.keys() - {ROUND}):
        if config[key] != entries[key]:
            kind = "evaluate" if message_type == MessageType.EVALUATE else "train"
            raise ConfigError(
                f"{kind}_config[{key!r}]={shown(config[key])} would be lost: the "
                "server has a value of its own for each task there, so name yours "
                "otherwise (docs/drop-in.md)"
            )
    record = ConfigRecord({**config, **entries})  # type: ignore[dict-item]  # the values come out of a ConfigRecord
    content = RecordDict({keys.arrays: arrays, **extra, keys.config: record})
    return Message(
        content=content,
        dst_node_id=node_id,
        message_type=message_type,
        ttl=ttl,
        group_id=str(task.round),
    )


def read_config(message: Message) -> dict[str, object]:
    """Return, on the client, the entries of all config records of a message."""
    records = records_of(message.content, ConfigRecord).values()
    return {key: value for record in records for key, value in record.items()}


def read_task(message: Message) -> TaskConfig:
    """Read, on the client, what `make_task` added to the user's config.

    A message of a plain Flower strategy reads as round 0, seed 0, and no partition.
    """
    merged = read_config(message)
    return TaskConfig(
        round=_integer(merged, ROUND) or 0,
        seed=_integer(merged, SEED) or 0,
        partition_id=_integer(merged, PARTITION_ID),
        num_partitions=_integer(merged, NUM_PARTITIONS),
        work=_number(merged, WORK),
    )


def _integer(config: Mapping[str, object], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) else None


def _number(config: Mapping[str, object], key: str) -> float | None:
    value = config.get(key)
    return float(value) if isinstance(value, float | int) else None
