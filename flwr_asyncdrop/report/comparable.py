"""Which runs can stand in one table."""

from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain

from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.readable import headline, some
from flwr_asyncdrop.report.runlog import RunLog

Logs = Mapping[str, Mapping[int, RunLog]]
"""Histories by label and seed."""


def name_of(label: str, seed: int | None) -> str:
    """Return what a run is called; its seed may not be known."""
    return label if seed is None else f"{label} seed {seed}"


def check_comparable(logs: Logs) -> None:
    """Raise a DataError that names the runs if they cannot be compared.

    A label must have one algorithm, and no other one's name. All must have one data
    set, headline metric and clock, and be evaluated by the same side.
    """
    names = {label: _algorithms(of_label.values()) for label, of_label in logs.items()}
    run = set(chain.from_iterable(names.values()))
    for label, own in names.items():
        _check_algorithm(label, own, run)
    found: dict[str, dict[str, list[tuple[str, RunLog]]]] = {}
    for label, of_label in logs.items():
        for seed, log in of_label.items():
            for kind, fact in _facts(log).items():
                runs = found.setdefault(kind, {}).setdefault(fact, [])
                runs.append((name_of(label, seed), log))
    for kind, runs_by_fact in found.items():
        if len(runs_by_fact) > 1:
            others = runs_by_fact.keys() if kind == "metrics" else set()
            said = [
                f"{fact} ({some([name for name, _ in runs], 1)}"
                f"{_never_finite(runs[0][1], others - {fact})})"
                for fact, runs in sorted(runs_by_fact.items())
            ]
            raise DataError(
                f"the runs have different {kind}, {', '.join(said)}: report them one "
                "by one"
            )


def _algorithms(logs: Iterable[RunLog]) -> list[str]:
    found = (log.fact("algorithm") for log in logs)
    return sorted({str(name) for name in found if name is not None})


def _check_algorithm(label: str, own: Sequence[str], run: Set[str]) -> None:
    """Check the algorithms of a label, where those of all are known."""
    if len(own) > 1:
        raise DataError(
            f"the runs in the folder {label} are of different algorithms, "
            f"{', '.join(own)}: put those of each into a folder of its own"
        )
    named = label.partition(",")[0]
    # A strategy of one's own may be called as an algorithm of ours.
    others = {*ALGORITHMS, *run} if {*own} & {*ALGORITHMS} else run
    # Histories of before have a class with its module.
    if own and named in others - {each.rpartition(":")[2] for each in own}:
        raise DataError(
            f"the folder {label} has runs of {own[0]}: give it that name back, or one "
            "that is no algorithm's"
        )


def _facts(log: RunLog) -> dict[str, str]:
    """Return what must be the same in all runs, but for what a run does not have."""
    # A project's own history of before does not say its clock.
    clock = "not said" if log.fact("clock") is None else log.time_label
    facts = {"data sets": str(log.fact("dataset")), "clocks": clock}
    if (curve := log.curve) is not None:
        facts["metrics"] = curve.metric.name
        facts["evaluations"] = "on the server" if curve.by_server else "by clients"
    return facts


def _never_finite(log: RunLog, metrics: Set[str]) -> str:
    """Say which of the metrics a run has been evaluated by, with no number."""
    lines = [line["metrics"] for line in log.evaluations]
    evaluated = {name for line in lines for name in line}
    finite = {name for line in lines for name in line if headline({name: line[name]})}
    lacking = ", ".join(sorted((evaluated - finite) & metrics))
    return lacking and f", which has no finite {lacking}"
