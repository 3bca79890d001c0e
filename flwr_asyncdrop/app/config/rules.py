"""What the values of a run-config must be like, alone and together."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr_asyncdrop.aggregation import COMBINATIONS, WEIGHTINGS
from flwr_asyncdrop.algorithms.registry import ALGORITHMS
from flwr_asyncdrop.app.data import DATASET_NAMES, TEXT_DATASETS
from flwr_asyncdrop.app.models import MODEL_NAMES, TEXT_MODELS
from flwr_asyncdrop.checkpoint import run_folder
from flwr_asyncdrop.fleet.faults import LATE_POLICIES

if TYPE_CHECKING:
    from flwr_asyncdrop.app.config.run_config import RunConfig

Rule = tuple[Callable[[Any], bool], str]


def _one_of(*choices: str) -> Rule:
    return lambda value: value in choices, f"one of {', '.join(choices)}"


def _at_least(bound: float) -> Rule:
    return lambda value: bound <= value < float("inf"), f"at least {bound}"


def _more_than(bound: float) -> Rule:
    return lambda value: bound < value < float("inf"), f"more than {bound}"


def _fractions(text: str) -> bool:
    try:
        numbers = [float(part) for part in text.split(",") if part]
    except ValueError:
        return False
    return numbers == sorted(numbers) and all(0 < number < 1 for number in numbers)


RULES: dict[str, Rule] = {
    "algo": _one_of(*ALGORITHMS),
    "drop_rate": (lambda rate: 0 <= rate < 1, "in [0, 1)"),
    "round_to": _at_least(1),
    "alpha": (lambda alpha: 0 < alpha <= 1, "in (0, 1]"),
    "scope": _one_of("all", "internal"),
    "weighting": _one_of("", *WEIGHTINGS),
    "weighting_a": _at_least(0),
    "weighting_b": _at_least(0),
    "buffer_size": _at_least(0),
    "server_lr": _at_least(0),
    "server_momentum": (lambda momentum: 0 <= momentum < 1, "in [0, 1)"),
    "combine": _one_of(*COMBINATIONS),
    "trim": (lambda share: 0 <= share < 0.5, "in [0, 0.5)"),
    "clip_norm": _at_least(0),
    "averaging": (lambda decay: 0 <= decay < 1, "in [0, 1)"),
    "proximal_mu": _at_least(0),
    "logit_adjustment": _at_least(0),
    "num_rounds": _at_least(1),
    "max_seconds": _at_least(0),
    "in_flight": _at_least(1),
    "seed": _at_least(0),
    "dataset": _one_of(*DATASET_NAMES),
    "partition": _one_of("speed-level", "dirichlet", "iid"),
    "shards_per_level": _at_least(1),
    "dirichlet_alpha": _more_than(0),
    "model": _one_of(*MODEL_NAMES),
    "width": _more_than(0),
    "local_steps": _at_least(1),
    "batch_size": _at_least(1),
    "optimizer": _one_of("sgd", "adam"),
    "lr": _more_than(0),
    "momentum": (lambda momentum: 0 <= momentum < 1, "in [0, 1)"),
    "lr_milestones": (_fractions, "ascending fractions in (0, 1), e.g. '0.5,0.75'"),
    "lr_gamma": (lambda gamma: 0 < gamma <= 1, "in (0, 1]"),
    "precision": _one_of("float32", "bfloat16"),
    "threads": _at_least(1),
    "clock": _one_of("virtual", "wall"),
    "levels": _at_least(1),
    "speed_ratio": _at_least(1),
    "step_seconds": _more_than(0),
    "bandwidth_mbps": _at_least(0),
    "duration": _one_of("flops", "paper"),
    "jitter": (lambda sigma: 0 <= sigma <= 10, "in [0, 10]"),
    "dropout": (lambda share: 0 <= share < 1, "in [0, 1)"),
    "availability": (lambda share: 0 < share <= 1, "in (0, 1]"),
    "selection": _one_of("stratified", "uniform"),
    "max_examples": _at_least(1),
    "deadline": (
        lambda times: times == 0 or 1 <= times < float("inf"),
        "at least 1 (times the expected duration of a task), or 0 for none",
    ),
    "late": _one_of(*LATE_POLICIES),
    "quarantine_after": _at_least(0),
    "queue_ahead": _at_least(0),
    "evaluate_every": _at_least(1),
    "timeout": _more_than(0),
    "checkpoint_every": _at_least(0),
    "keep_checkpoints": _at_least(1),
    "metrics_port": (lambda port: 0 <= port <= 65535, "in [0, 65535]"),
    "metrics_address": (bool, "an address to listen on, e.g. '0.0.0.0' for all"),
}


def changed(config: "RunConfig", *names: str) -> bool:
    """Return whether a key has a value of its own, not its default."""
    return any(getattr(config, name) != getattr(type(config), name) for name in names)


_LEVELS = (
    "levels",
    "speed_ratio",
    "step_seconds",
    "bandwidth_mbps",
    "jitter",
    "dropout",
    "availability",
)
_KEYS_OF_LEVELS = ", ".join(_LEVELS).replace("_", "-")


def _goes_elsewhere(config: "RunConfig") -> bool:
    """Return whether a run that goes on is to go on in another folder."""
    if not (config.resume and config.out_dir):
        return False
    folder = run_folder(Path(config.resume).expanduser())
    return folder.absolute() != Path(config.out_dir).expanduser().absolute()


CONTRADICTIONS: tuple[tuple[Callable[["RunConfig"], bool], str], ...] = (
    (
        lambda c: ALGORITHMS[c.algo].mask is None and changed(c, "scope"),
        "algo={c.algo!r} trains full models, which scope={c.scope!r} contradicts: "
        "leave it out, or choose algo='asyncdrop'",
    ),
    (
        lambda c: ALGORITHMS[c.algo].units == "blocks" and changed(c, "scope"),
        "algo={c.algo!r} leaves out whole blocks, which scope={c.scope!r} "
        "contradicts: leave it out, or choose algo='hetero-asyncdrop'",
    ),
    (
        lambda c: c.combine != "trimmed-mean" and changed(c, "trim"),
        "combine={c.combine!r} cuts nothing off, which trim={c.trim} contradicts: "
        "leave it out, or choose combine='trimmed-mean'",
    ),
    (
        lambda c: c.deadline == 0 and changed(c, "late"),
        "deadline=0 makes nothing late, which late={c.late!r} contradicts: leave it "
        "out, or set a deadline, e.g. 3.0",
    ),
    (
        lambda c: c.dataset in TEXT_DATASETS and c.model not in TEXT_MODELS,
        "dataset={c.dataset!r} is text, which model={c.model!r} cannot read: choose "
        f"model={TEXT_MODELS[0]!r}",
    ),
    (
        lambda c: c.model in TEXT_MODELS and c.dataset not in TEXT_DATASETS,
        "model={c.model!r} reads text, which dataset={c.dataset!r} is not: choose "
        f"dataset={TEXT_DATASETS[0]!r}",
    ),
    (
        lambda c: c.partition != "speed-level" and changed(c, "shards_per_level"),
        "partition={c.partition!r} deals no shards, which shards-per-level="
        "{c.shards_per_level} contradicts: leave it out, or choose "
        "partition='speed-level'",
    ),
    (
        lambda c: c.partition != "dirichlet" and changed(c, "dirichlet_alpha"),
        "partition={c.partition!r} draws nothing from a Dirichlet distribution, which "
        "dirichlet-alpha={c.dirichlet_alpha} contradicts: leave it out, or choose "
        "partition='dirichlet'",
    ),
    (
        lambda c: c.dataset == "digits" and (bool(c.data_dir) or c.download),
        "dataset='digits' is embedded, which data-dir and download contradict: leave "
        "them out, or choose another dataset",
    ),
    (
        lambda c: c.download and not c.data_dir,
        "download=true needs a place: set data-dir to an absolute path",
    ),
    (
        lambda c: c.clock == "wall" and changed(c, *_LEVELS, "trace", "duration"),
        "clock='wall' runs real devices, whose speed is measured: trace, duration, "
        f"{_KEYS_OF_LEVELS} contradict it",
    ),
    (
        lambda c: c.clock != "wall" and changed(c, "queue_ahead"),
        "queue-ahead={c.queue_ahead} is for real devices, which clock={c.clock!r} "
        "contradicts: leave it out, or choose clock='wall'",
    ),
    (
        lambda c: bool(c.trace) and changed(c, *_LEVELS),
        "trace={c.trace!r} says what every device is like, which "
        f"{_KEYS_OF_LEVELS} contradict: leave them out, or the trace",
    ),
    (
        _goes_elsewhere,
        "resume={c.resume!r} goes on in the folder of its run, which "
        "out-dir={c.out_dir!r} contradicts: leave it out",
    ),
    (
        lambda c: c.checkpoint_every == 0 and bool(c.resume),
        "resume={c.resume!r} goes on from checkpoints, which checkpoint-every=0 "
        "contradicts: leave it out",
    ),
    (
        lambda c: c.checkpoint_every == 0 and changed(c, "keep_checkpoints"),
        "keep-checkpoints={c.keep_checkpoints} keeps nothing with checkpoint-every=0: "
        "leave one of them out",
    ),
    (
        lambda c: c.metrics_port == 0 and changed(c, "metrics_address"),
        "metrics-address={c.metrics_address!r} listens on no port with metrics-port=0: "
        "leave it out, or set a port, e.g. 9464",
    ),
)
