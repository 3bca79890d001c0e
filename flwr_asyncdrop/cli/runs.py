"""The runs of a comparison, and which of them are already there."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr_asyncdrop.app.config import (
    IRRELEVANT,
    LEFT_OUT,
    RunConfig,
    Value,
    earlier_values,
    key_table,
)
from flwr_asyncdrop.app.fleets import keys_in, trace_digest
from flwr_asyncdrop.app.run_folder import RunFolder
from flwr_asyncdrop.checkpoint import Checkpoint, newest
from flwr_asyncdrop.cli.events import RunProgress
from flwr_asyncdrop.cli.variants import Variant
from flwr_asyncdrop.exceptions import ConfigError, DamagedError
from flwr_asyncdrop.fleet.codecs import codec_choice
from flwr_asyncdrop.observers.history_lines import TRACE_DIGEST
from flwr_asyncdrop.paths import make_output_folder
from flwr_asyncdrop.report.files import (
    HISTORY,
    OF_COMPARISONS,
    OF_SEARCHES,
    SEED,
    run_of_comparison,
)
from flwr_asyncdrop.report.runlog import Curve, RunLog

LOG = "run.log"
MOST_RUNS = 10_000

# A history says in its first line when its run ends, which resuming does not change.
_FREE = IRRELEVANT - {"max-seconds"}


@dataclass(frozen=True)
class RunSpec:
    """One run: its name for people, folder, run-config and size of the fleet."""

    name: str
    folder: Path
    settings: dict[str, Value]
    devices: int

    @property
    def config(self) -> RunConfig:
        """Its run-config, parsed."""
        return RunConfig.parse(self.settings)

    @property
    def max_seconds(self) -> float:
        """Seconds on its clock after which it ends; 0 for no limit."""
        return self.config.max_seconds

    @property
    def num_updates(self) -> int:
        """Updates in the whole run."""
        config = self.config
        return config.num_rounds * min(config.in_flight, self.devices)


def all_runs(
    variants: Iterable[Variant], seeds: Sequence[int], devices: int, out: Path
) -> list[RunSpec]:
    """Return every variant with every seed, the first seed's first."""
    variants = list(variants)
    if (total := len(variants) * len(seeds)) > MOST_RUNS:
        raise ConfigError(f"{total:,} runs are more than {MOST_RUNS:,}: compare less")
    algos = {(variant.label, variant.settings.get("algo")) for variant in variants}
    called = Counter(label for label, _ in algos)
    if twice := sorted(label for label, count in called.items() if count > 1):
        raise ConfigError(f"two algorithms are called {twice[0]}: rename a class")
    runs = []
    for seed in seeds:
        for variant in variants:
            folder = out / variant.label / f"{SEED}{seed}"
            settings = {**variant.settings, "seed": seed, "out-dir": str(folder)}
            runs.append(
                RunSpec(f"{variant.label} seed {seed}", folder, settings, devices)
            )
    names = Counter(run.name for run in runs)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise ConfigError(
            f"{twice[0]} is asked for more than once: name each algorithm, value and "
            "seed once"
        )
    return runs


def make_folder_of_runs(path: Path, *, searches: bool) -> Path:
    """Make the folder of a comparison, or of a tuning or an advice, which search.

    ConfigError if it is a run's own, or has runs of the other kind: a report would take
    them for runs of theirs.
    """
    if (path / HISTORY).exists():
        raise ConfigError(f"{path} has a run: choose another --out")
    others = OF_COMPARISONS if searches else OF_SEARCHES
    if other := run_of_comparison(path, [others]):
        raise ConfigError(
            f"{path} has other runs, such as {other}: choose another --out"
        )
    return make_output_folder(path, "out")


def is_complete(run: RunSpec) -> bool:
    """Return whether the run's folder already has its result.

    A run of another configuration there is a ConfigError, a history that was changed
    since a DataError, and a checkpoint of another run or version a CheckpointError.
    """
    folder = RunFolder(run.folder)
    if folder.log is not None and folder.log.complete:
        _check_same("complete", _trained_with(folder.log), run)
        return folder.is_complete
    if run.config.checkpoint_every and (checkpoint := _checkpoint(run)) is not None:
        recorded = {"devices": checkpoint.devices, **checkpoint.settings}
        _check_same("interrupted", recorded, run)
    return False


def curve_of(run: RunSpec) -> Curve | None:
    """Return the metric of a run over time; None if it is not complete, or has none."""
    log = RunFolder(run.folder).log if is_complete(run) else None
    return None if log is None else log.curve


def refuse_changes(folder: Path, log: RunLog, given: Mapping[str, Value]) -> None:
    """Raise a ConfigError for keys that a run which is over had with other values.

    Others, such as a default that is another one by now, were not asked for.
    """
    if not given.keys() - _FREE:
        return
    recorded = _recorded(log)
    devices = int(recorded.pop("devices"))
    told = RunSpec("", folder, {**keys_in(recorded), **given}, devices)
    if differences := _differences(_trained_with(log), told, given.keys()):
        raise ConfigError(
            f"{folder} has a run that is over, with another configuration "
            f"({'; '.join(differences)}): leave that out, or begin a new run"
        )


def is_trained(run: RunSpec) -> bool:
    """Return whether all that the run's folder lacks can be made without training."""
    return RunFolder(run.folder).is_trained


def progress_of(run: RunSpec) -> RunProgress:
    """Return how far a run that is over came."""
    log = RunFolder(run.folder).log
    if log is None or log.end is None:
        return RunProgress()
    curve = log.curve
    metric = None if curve is None else (curve.metric.name, curve.final.value)
    lost = sum(log.end["failures"].values())
    return RunProgress(log.end["updates"], log.end["time"], metric, lost)


def resumed(run: RunSpec) -> RunSpec:
    """Return a run as it resumes from its last checkpoint, if it has one.

    Without one, or if all are damaged, it begins again and replaces what is there. So
    does a run whose codec or algorithm keeps on the clients what no checkpoint has.
    """
    checkpoint = _checkpoint(run) if _is_resumable(run.config) else None
    how = {"overwrite": True} if checkpoint is None else {"resume": str(run.folder)}
    return replace(run, settings={**run.settings, **how})


def _is_resumable(config: RunConfig) -> bool:
    codecs = codec_choice(config.codec)
    keeps = config.algorithm.keeps_client_state or (codecs and codecs.uses_feedback)
    return bool(config.checkpoint_every) and not keeps


def _checkpoint(run: RunSpec) -> Checkpoint | None:
    """Return the one to resume from; a CheckpointError says why none can be used."""
    if not RunFolder(run.folder).can_resume:
        return None
    try:
        return newest(run.folder)
    except DamagedError:  # all of them
        return None


def _recorded(log: RunLog) -> dict[str, Any]:
    return {"devices": log.run.get("devices"), **log.run.get("config", {})}


def _trained_with(log: RunLog) -> dict[str, Any]:
    """Return what is recorded, and the defaults of an algorithm of one's own."""
    recorded = _recorded(log)
    return recorded | {
        key: default
        for key, default in log.run.get("defaults", {}).items()
        if recorded.get(key, LEFT_OUT) == LEFT_OUT
    }


def _check_same(state: str, recorded: Mapping[str, Any], run: RunSpec) -> None:
    if differences := _differences(recorded, run):
        raise ConfigError(
            f"{run.folder} has a run that is {state}, with another configuration "
            f"({'; '.join(differences)}): choose another --out, or delete that folder"
        )


def _differences(
    recorded: Mapping[str, Any], run: RunSpec, among: Collection[str] | None = None
) -> list[str]:
    """Return what differs, but for the keys that are free to.

    `among` are the keys that are looked at, by default all.
    """
    before = effective({**earlier_values(run.config), **recorded}, run.config)
    now = effective({"devices": run.devices, **run.config.settings}, run.config)
    # Of a trace, the history has only the file's name, and a digest.
    if Path(str(before["trace"])).name == Path(str(now["trace"])).name:
        before["trace"] = now["trace"]
    digest = trace_digest(run.config).get(TRACE_DIGEST)
    is_edited = digest is not None and recorded.get(TRACE_DIGEST, digest) != digest
    if among is None:
        among = now.keys()
    edited = ["the trace had other devices"] if is_edited and "trace" in among else []
    return edited + [
        f"{key} {before.get(key)!r}, now {value!r}"
        for key, value in now.items()
        if key in among and key not in _FREE and before.get(key) != value
    ]


def effective(settings: Mapping[str, Any], config: RunConfig) -> dict[str, Any]:
    """Return settings with the algorithm's own value for what is left out."""
    found, algorithm = dict(settings), type(config.algorithm).label()
    for name, key in key_table(config.algo).items():
        if key.own is None:
            continue
        if algorithm not in key.own:
            found.pop(name, None)
        elif found.get(name, LEFT_OUT) == LEFT_OUT:
            found[name] = key.own[algorithm]
    return found
