"""The search behind an advice: a race, a comparison of its winners, and a file."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.fleets import build_fleet
from flwr_asyncdrop.cli.advice import Advice, Candidate, advise, json_values
from flwr_asyncdrop.cli.advice_text import commands, limits
from flwr_asyncdrop.cli.budget import Plan
from flwr_asyncdrop.cli.equal_time import read_runs
from flwr_asyncdrop.cli.halving import at_edge
from flwr_asyncdrop.cli.question import Question
from flwr_asyncdrop.cli.race import Lane, race
from flwr_asyncdrop.cli.runs import RunSpec, all_runs
from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.storage.whole import changing, write_whole

ADVICE = "advice.json"
"""The file's name, in the folder of an advice."""

_FORMAT = "flwr-asyncdrop advice 1"

Do = Callable[[str, Sequence[RunSpec]], object]
"""Does those of some runs that are missing, given in words what they are for."""


@dataclass(frozen=True)
class Answer:
    """An advice, and how it was found: `notes` say what the search could not tell."""

    asked: Question
    plan: Plan
    advice: Advice
    lanes: tuple[Lane, ...]
    notes: tuple[str, ...]

    @property
    def recommended(self) -> Lane:
        """The lane of the algorithm that is recommended."""
        name = self.advice.recommended.candidate.algorithm
        return next(lane for lane in self.lanes if lane.label == name)

    @property
    def commands(self) -> dict[str, str]:
        """The commands that run what is recommended."""
        lane = self.recommended
        values = lane.winner.values
        variant = lane.variant(values)
        changes = {**lane.own, **values, **lane.length(values)}
        return commands(
            self.asked.task,
            self.asked.terms.devices,
            {"algo": variant.settings["algo"], **changes},
            variant.settings,
        )


def find(asked: Question, plan: Plan, out: Path, do: Do) -> Answer:
    """Race by a plan, compare the winners with the other seeds, and advise.

    RunError if no algorithm comes through.
    """
    terms = plan.applied(asked.terms)
    notes = [said] if (said := plan.said()) else []

    def lose(lane: Lane, error: RunError) -> None:
        notes.append(str(error))

    def rung(number: int, runs: Sequence[RunSpec]) -> None:
        do(f"search {number} of {plan.rungs}", runs)

    lanes = race(asked.algos, terms, out, rung, lose)
    last = {lane: _last(lane, asked, out) for lane in lanes}
    do("comparison", [run for runs in last.values() for run in runs])
    sound: list[Candidate] = []
    for lane, runs in last.items():
        (series,) = read_runs(runs)
        if missing := len(runs) - len(series.runs):
            notes.append(
                f"{lane.label} is left out, as {missing} of its {len(runs)} last runs "
                "failed: the same command tries them again"
            )
            continue
        values = lane.winner.values
        config = RunConfig.parse(lane.variant(values).settings)
        sound.append(Candidate(lane.label, values, config, series))
    if not sound:
        raise RunError("no algorithm has all of its last runs: see their logs")
    logs = [log for each in sound for log in each.series.runs.values()]
    if not any(log.end and log.end["updates"] for log in logs):
        raise ConfigError(
            f"no device has done a task within {asked.measure.seconds:g} virtual s: "
            "give more with --within"
        )
    target = asked.measure.target([each.series for each in sound])
    advice = advise(sound, target, asked.measure.seconds)
    notes += [line for lane in lanes for line in _about(lane, advice)]
    notes += _about_codecs(asked, lanes[0])
    return Answer(asked, plan, advice, tuple(lanes), tuple(notes))


def _last(lane: Lane, asked: Question, out: Path) -> list[RunSpec]:
    variant = lane.variant(lane.winner.values)
    folder = out / asked.measure.last_folder
    return all_runs([variant], asked.seeds, asked.terms.devices, folder)


def _about(lane: Lane, advice: Advice) -> Iterator[str]:
    """Say what the search of one algorithm could not tell."""
    if lane.failed:
        yield (
            f"out of {lane.label}, as runs of them failed or diverged: "
            f"{counted(lane.failed, 'setting')}"
        )
    if lane.is_by_chance:
        yield (
            f"settings of {lane.label} were equally good in a rung of the search, so "
            "the first went on: longer runs may tell them apart (--budget, --within)"
        )
    tried, grid = len(lane.candidates), math.prod(map(len, lane.search.values()))
    if tried < grid:
        yield f"{lane.label}: {tried} of {grid} settings tried: --candidates"
    edges = at_edge(lane.winner.values, lane.search)
    if edges and lane.label == advice.recommended.candidate.algorithm:
        are = "are" if len(edges) > 1 else "is"
        yield (
            f"{', '.join(edges)} of {lane.label} {are} at the edge of what was "
            "searched: better values may lie beyond"
        )


def _about_codecs(asked: Question, lane: Lane) -> Iterator[str]:
    """Say that compression was not tried, on a fleet with slow links."""
    config = RunConfig.parse(lane.settings({}))
    if "codec" in {*asked.terms.search.keys, *asked.terms.explicit}:
        return
    fleet = build_fleet(config)(asked.terms.devices)
    if any(device.bytes_per_second_up < math.inf for device in fleet):
        yield "compression was not tried: --search codec=none,q8,q4 does"


def write_answer(answer: Answer, out: Path) -> Path:
    """Write all that decided, and the advice, into a folder; return the file."""
    asked, path = answer.asked, out / ADVICE
    content = {
        "format": _FORMAT,
        "task": asked.task,
        "devices": asked.terms.devices,
        "given": asked.terms.explicit,
        "search": asked.terms.search.shared,
        "search-seeds": asked.terms.seeds,
        "plan": asdict(answer.plan),
        **json_values(answer.advice),
        "notes": [*answer.notes, *limits(answer.advice)],
        "run-config": answer.recommended.variant(
            answer.recommended.winner.values
        ).settings,
        "commands": answer.commands,
        "algorithms": {lane.label: lane.report() for lane in answer.lanes},
    }
    with changing(path):
        write_whole(path, f"{json.dumps(content, indent=1)}\n".encode())
    return path
