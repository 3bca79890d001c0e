"""What made a report: seeds, versions, configuration and commands."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flwr_asyncdrop.observers.history_lines import TRACE_DIGEST
from flwr_asyncdrop.readable import printable
from flwr_asyncdrop.report.comparison import Comparison
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.shell import as_operand, command_of, quoted

_MADE_BY: Final = ("python", "flwr-asyncdrop", "flwr", "torch", "platform", "gpu")
# Keys that the command line has flags of its own for, or that no run shares.
_TOLD: Final = frozenset({"algo", "seed"})
# What a command has beside its flags, or cannot have.
_NO_FLAGS: Final = frozenset({"seed", TRACE_DIGEST})
# What a task of the command line sets, and is left empty on purpose.
_EMPTY: Final = frozenset({"lr-milestones"})


@dataclass(frozen=True)
class Made:
    """Facts by name; keys that differ, their values by label; the others; commands."""

    facts: tuple[tuple[str, str], ...]
    differing: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]
    common: tuple[tuple[str, str], ...]
    commands: tuple[str, ...]


def what_made(
    series: Sequence[Series], comparison: Comparison, folders: Sequence[str]
) -> Made:
    """Return what the first lines of the histories tell of how to do this again.

    `folders` are the names of those with the results.
    """
    by_label = {one.label: _logs(one) for one in series}
    keys = list(dict.fromkeys(key for logs in by_label.values() for key in _keys(logs)))
    told = {
        label: {key: _values(logs, key) for key in keys}
        for label, logs in by_label.items()
    }
    differing = tuple(
        key for key in keys if len({values[key] for values in told.values()}) > 1
    )
    some = next(iter(told.values()))
    words = ["asyncdrop", "report", *map(as_operand, folders)]
    words.append(f"--target={comparison.target.value!r}")
    if comparison.reference is not None:
        words.append(f"--reference={comparison.reference}")
    return Made(
        facts=tuple(_facts(by_label)),
        differing=tuple(map(printable, differing)),
        variants={
            label: tuple(values[key] for key in differing)
            for label, values in told.items()
        },
        common=tuple(
            (printable(key), some[key]) for key in keys if key not in differing
        ),
        commands=(*_commands(by_label), command_of(words)),
    )


def _logs(one: Series) -> dict[int, RunLog]:
    return {**one.runs, **one.incomplete}


def _keys(logs: dict[int, RunLog]) -> Iterator[str]:
    yield "devices"
    for log in logs.values():
        yield from (key for key in log.run.get("config", {}) if key not in _TOLD)


def _values(logs: dict[int, RunLog], key: str) -> str:
    """Return the value of a key, or all of them if the runs of a label differ."""
    found = (
        log.run.get("devices") if key == "devices" else _setting(log, key)
        for log in logs.values()
    )
    return _listed(found) or "its own default"


def _setting(log: RunLog, key: str) -> Any:
    return log.run.get("config", {}).get(key)


def _listed(values: Iterable[Any]) -> str:
    found = (printable(str(v)) for v in values if v not in (None, ""))
    return ", ".join(dict.fromkeys(found))


def _facts(by_label: dict[str, dict[int, RunLog]]) -> Iterator[tuple[str, str]]:
    seeds = {label: _listed(sorted(logs)) for label, logs in by_label.items()}
    if len(set(seeds.values())) == 1:
        yield "seeds", next(iter(seeds.values()))
    else:
        yield from ((f"seeds of {label}", of_it) for label, of_it in seeds.items())
    logs = [log for of_label in by_label.values() for log in of_label.values()]
    for name in _MADE_BY:
        if found := _listed(log.run.get("wall", {}).get(name) for log in logs):
            yield name, {"True": "yes", "False": "no"}.get(found, found)


def _commands(by_label: dict[str, dict[int, RunLog]]) -> Iterator[str]:
    """Return a command for the runs of each label with the same configuration.

    Histories that do not have all of it give none.
    """
    for label, logs in by_label.items():
        seeds: dict[str, list[int]] = {}
        for seed, log in sorted(logs.items()):
            if "algo" in log.run.get("config", {}) and "devices" in log.run:
                seeds.setdefault(_flags(log), []).append(seed)
        for flags, some in seeds.items():
            out = quoted(f"again/{label}/seed-")
            yield (
                f"for seed in {' '.join(map(str, some))}; do asyncdrop simulate "
                f'{flags} --seed="$seed" --out={out}"$seed"; done'
            )


def _flags(log: RunLog) -> str:
    words = [f"--devices={log.run['devices']}"]
    for key, value in log.run["config"].items():
        if key in _NO_FLAGS or (value == "" and key not in _EMPTY):
            continue  # what is empty is the algorithm's own
        if isinstance(value, bool):
            words.append(f"--{key}" if value else f"--no-{key}")
        else:
            words.append(f"--{key}={value}")
    return command_of(words)
