"""The metrics of a reply, bounded before any work is done on them."""

from collections.abc import Mapping
from typing import TypeVar

from flwr.app import MetricRecord, RecordDict

from flwr_asyncdrop.exceptions import ConfigError, ReplyError
from flwr_asyncdrop.parameters import plain
from flwr_asyncdrop.readable import printable, shown
from flwr_asyncdrop.wire.records import records_of

MAX_EXAMPLES = 1_000_000_000
"""Examples that one task can claim unless the user says otherwise."""

_MOST_METRICS = 1000
_MOST_NUMBERS = 100_000  # in lists
_LONGEST_NAME = 200
_LARGEST_INTEGER = 2**63 - 1

Value = TypeVar("Value")


def read_metrics(
    content: RecordDict, key: str, max_examples: int
) -> tuple[RecordDict, int]:
    """Return the metric records, and the number of examples in one of them.

    That one comes first, where Flower's aggregation functions look for it. Names have
    no characters that cannot be printed. NaN and infinity are metrics like others: a
    device that diverges should be seen. ReplyError, of kind ``"metrics"``, if they are
    too many or too large, or if two records disagree; of kind ``"num-examples"`` unless
    `key` has a whole number from 1 to `max_examples`.
    """
    records = records_of(content, MetricRecord)
    _check_size(records)
    _check_names(records)
    found = next((name for name, record in records.items() if key in record), None)
    if found is None:
        raise ReplyError(
            "num-examples",
            f"the reply's MetricRecord has no {key!r}: add the number of examples",
        )
    value = records[found][key]
    if (
        not isinstance(value, int | float)
        or not 1 <= value <= max_examples
        or value % 1  # a share of one would be rounded off
    ):
        is_more = isinstance(value, int | float) and value > max_examples
        more = "; raise max-examples if there can be more" if is_more else ""
        raise ReplyError(
            "num-examples",
            f"{key!r} is {shown(value)}: it must be a whole number of examples from 1 "
            f"to {max_examples:,}{more}",
        )
    named = {name: _named(record) for name, record in records.items()}
    first = {_name(found): named[found]}
    return RecordDict({**first, **_by_name(named), **first}), int(value)


def metric_record(metrics: object, source: str) -> MetricRecord | None:
    """Return what a user's function returned as a record; a dict of numbers will do.

    None stays None. ConfigError, which names the `source`, for anything else, and for
    integers of more than 64 bits.
    """
    if metrics is None:
        return None
    record = metrics if isinstance(metrics, MetricRecord) else _as_record(metrics)
    if record is None:
        said = printable(shown(metrics))
        raise ConfigError(f"{source} returned {said}: return a MetricRecord, or None")
    if fault := too_large(record):
        raise ConfigError(f"{source}: {fault}")
    return record


def _as_record(metrics: object) -> MetricRecord | None:
    """Return a dict of numbers as a record, None for what is none."""
    if not isinstance(metrics, Mapping):
        return None
    try:
        return MetricRecord({name: plain(v) for name, v in metrics.items()})
    except (TypeError, ValueError):
        return None


def too_large(metrics: Mapping[str, object]) -> str:
    """Say which metric has an integer of more than 64 bits; "" if none has.

    Neither a message can hold it, nor maybe a float.
    """
    for name, value in metrics.items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and abs(number) > _LARGEST_INTEGER:
                return (
                    f"the metric {shown(name)} is {shown(number)}: return integers of "
                    "64 bits, or a float"
                )
    return ""


def flat_metrics(content: RecordDict) -> dict[str, float | int]:
    """Return the scalar metrics of all metric records."""
    return {
        key: value
        for record in records_of(content, MetricRecord).values()
        for key, value in record.items()
        if isinstance(value, float | int)
    }


def _check_size(records: Mapping[str, MetricRecord]) -> None:
    count = sum(len(record) for record in records.values())
    if count > _MOST_METRICS:
        raise ReplyError(
            "metrics",
            f"the reply has {count:,} metrics: return at most {_MOST_METRICS:,}",
        )
    metrics = [each for record in records.values() for each in record.items()]
    numbers = sum(len(value) for _, value in metrics if isinstance(value, list))
    if numbers > _MOST_NUMBERS:
        raise ReplyError(
            "metrics",
            f"the lists of the reply's metrics have {numbers:,} numbers: return at "
            f"most {_MOST_NUMBERS:,}",
        )
    for record in records.values():
        if fault := too_large(record):
            raise ReplyError("metrics", fault)


def _check_names(records: Mapping[str, MetricRecord]) -> None:
    """Raise ReplyError for a metric that two records have with two values."""
    values: dict[str, object] = {}
    for record in records.values():
        for name, value in record.items():
            known = values.setdefault(name, value)
            if known is not value and repr(known) != repr(value):
                raise ReplyError(
                    "metrics",
                    f"the metric {shown(name)} is {shown(known)} in one MetricRecord "
                    f"and {shown(value)} in another: give it two names",
                )


def _named(record: MetricRecord) -> MetricRecord:
    if all(name == _name(name) for name in record):
        return record
    return MetricRecord(_by_name(record))


def _by_name(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return values by names that can be shown; one that is so keeps its own value."""
    sound = {name: value for name, value in values.items() if name == _name(name)}
    return {_name(name): value for name, value in values.items()} | sound


def _name(name: str) -> str:
    if len(name) <= _LONGEST_NAME and name.isprintable():
        return name
    return printable(name, _LONGEST_NAME)
