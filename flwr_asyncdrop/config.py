"""The run-config of ``flwr run``, parsed once at the edge."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from flwr_asyncdrop.aggregation import COMBINATIONS, WEIGHTINGS
from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.checkpoint import run_folder
from flwr_asyncdrop.data import DATASET_NAMES, TEXT_DATASETS
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.hyperparameters import HYPERPARAMETERS, Hyperparameters
from flwr_asyncdrop.models import MODEL_NAMES, TEXT_MODELS
from flwr_asyncdrop.server.tolerance import LATE_POLICIES, LatePolicy, Tolerance
from flwr_asyncdrop.wire import MAX_EXAMPLES

__all__ = ["INCIDENTAL", "RunConfig"]

INCIDENTAL = frozenset(
    {
        "data_dir",
        "download",
        "out_dir",
        "checkpoint_every",
        "keep_checkpoints",
        "resume",
    }
)
"""The fields of `RunConfig` that make no other run, wherever and however it is run."""


@dataclass(frozen=True)
class RunConfig:
    """What a run is told; ``[tool.flwr.app.config]`` in pyproject documents each key.

    A field ``drop_rate`` is the key ``drop-rate``.
    """

    # What is run
    algo: str = "hetero-asyncdrop"
    drop_rate: float = Hyperparameters.drop_rate
    round_to: int = Hyperparameters.round_to
    alpha: float = Hyperparameters.alpha
    scope: Literal["all", "internal"] = "all"
    weighting: str = Hyperparameters.weighting
    weighting_a: float = Hyperparameters.weighting_a
    weighting_b: float = Hyperparameters.weighting_b
    buffer_size: int = Hyperparameters.buffer_size
    server_lr: float = Hyperparameters.server_lr
    server_momentum: float = Hyperparameters.server_momentum
    combine: str = Hyperparameters.combine
    trim: float = Hyperparameters.trim
    clip_norm: float = Hyperparameters.clip_norm
    averaging: float = Hyperparameters.averaging
    proximal_mu: float = Hyperparameters.proximal_mu
    logit_adjustment: float = Hyperparameters.logit_adjustment
    num_rounds: int = 60
    in_flight: int = 8
    seed: int = 0
    # On what
    dataset: str = "digits"
    data_dir: str = ""
    download: bool = False
    partition: str = "speed-level"
    shards_per_level: int = 2
    dirichlet_alpha: float = 0.5
    model: str = "cnn"
    width: float = 1.0
    # How a client trains
    local_steps: int = 50
    batch_size: int = 16
    optimizer: str = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    lr_milestones: str = "0.5,0.75"
    lr_gamma: float = 0.1
    precision: str = "float32"
    threads: int = 1
    # The devices
    clock: str = "virtual"
    levels: int = 8
    speed_ratio: float = 5.0
    step_seconds: float = 1.0
    bandwidth_mbps: float = 0.0
    duration: Literal["flops", "paper"] = "flops"
    jitter: float = 0.0
    dropout: float = 0.0
    availability: float = 1.0
    trace: str = ""
    selection: str = "stratified"
    max_examples: int = MAX_EXAMPLES
    deadline: float = Tolerance.deadline
    late: LatePolicy = Tolerance.late
    quarantine_after: int = Tolerance.quarantine_after
    # What comes out
    evaluate_every: int = 1
    timeout: float = 3600.0
    out_dir: str = ""
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    resume: str = ""

    @classmethod
    def parse(cls, run_config: Mapping[str, object]) -> Self:
        """Read Flower's run-config; keys that are absent keep their defaults.

        Raises
        ------
        ConfigError
            If a key is unknown, has a value of the wrong type or out of range, or
            contradicts another. One line, by name, with what mends it.
        """
        known = {field.name.replace("_", "-"): field for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in run_config.items():
            if key not in known:
                raise ConfigError(_unknown(key, list(known)))
            field = known[key]
            values[field.name] = _typed(key, value, type(field.default))
        config = cls(**values)
        config.check()
        return config

    def check(self) -> None:
        """Raise ConfigError if a value is out of range or contradicts another."""
        for name, (allowed, description) in _RULES.items():
            value = getattr(self, name)
            if not allowed(value):
                key = name.replace("_", "-")
                raise ConfigError(f"{key}={value!r} must be {description}")
        for name in HYPERPARAMETERS:
            if name not in ALGORITHMS[self.algo].uses and _changed(self, name):
                raise ConfigError(self._unused(name))
        for contradicts, message in _CONTRADICTIONS:
            if contradicts(self):
                raise ConfigError(message.format(c=self))

    @property
    def settings(self) -> dict[str, Any]:
        """All values by key, as `parse` takes them."""
        return {name.replace("_", "-"): value for name, value in asdict(self).items()}

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Those that the algorithm uses, by name."""
        return {name: getattr(self, name) for name in ALGORITHMS[self.algo].uses}

    @cached_property
    def milestones(self) -> tuple[float, ...]:
        """`lr_milestones` as fractions of the fastest device's updates."""
        return tuple(float(part) for part in self.lr_milestones.split(",") if part)

    @property
    def data_path(self) -> Path | None:
        """`data_dir` as an absolute path; None if it is not set."""
        return Path(self.data_dir).expanduser().absolute() if self.data_dir else None

    def _unused(self, name: str) -> str:
        key, value = name.replace("_", "-"), getattr(self, name)
        others = [algo for algo, rules in ALGORITHMS.items() if name in rules.uses]
        return (
            f"{key}={value!r} makes no difference to algo={self.algo!r}: leave it "
            f"out, or choose one of {', '.join(others)}"
        )


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


_RULES: dict[str, Rule] = {
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
    "evaluate_every": _at_least(1),
    "timeout": _more_than(0),
    "checkpoint_every": _at_least(0),
    "keep_checkpoints": _at_least(1),
}


def _changed(config: RunConfig, *names: str) -> bool:
    """Return whether a key has a value of its own, not its default."""
    return any(getattr(config, name) != getattr(RunConfig, name) for name in names)


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


def _goes_elsewhere(config: RunConfig) -> bool:
    """Return whether a run that goes on is to go on in another folder."""
    if not (config.resume and config.out_dir):
        return False
    folder = run_folder(Path(config.resume).expanduser())
    return folder.absolute() != Path(config.out_dir).expanduser().absolute()


_CONTRADICTIONS: tuple[tuple[Callable[[RunConfig], bool], str], ...] = (
    (
        lambda c: ALGORITHMS[c.algo].mask is None and _changed(c, "scope"),
        "algo={c.algo!r} trains full models, which scope={c.scope!r} contradicts: "
        "leave it out, or choose algo='asyncdrop'",
    ),
    (
        lambda c: ALGORITHMS[c.algo].units == "blocks" and _changed(c, "scope"),
        "algo={c.algo!r} leaves out whole blocks, which scope={c.scope!r} "
        "contradicts: leave it out, or choose algo='hetero-asyncdrop'",
    ),
    (
        lambda c: c.combine != "trimmed-mean" and _changed(c, "trim"),
        "combine={c.combine!r} cuts nothing off, which trim={c.trim} contradicts: "
        "leave it out, or choose combine='trimmed-mean'",
    ),
    (
        lambda c: c.deadline == 0 and _changed(c, "late"),
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
        lambda c: c.partition != "speed-level" and _changed(c, "shards_per_level"),
        "partition={c.partition!r} deals no shards, which shards-per-level="
        "{c.shards_per_level} contradicts: leave it out, or choose "
        "partition='speed-level'",
    ),
    (
        lambda c: c.partition != "dirichlet" and _changed(c, "dirichlet_alpha"),
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
        lambda c: c.clock == "wall" and _changed(c, *_LEVELS, "trace", "duration"),
        "clock='wall' runs real devices, whose speed is measured: trace, duration, "
        f"{_KEYS_OF_LEVELS} contradict it",
    ),
    (
        lambda c: bool(c.trace) and _changed(c, *_LEVELS),
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
        lambda c: c.checkpoint_every == 0 and _changed(c, "keep_checkpoints"),
        "keep-checkpoints={c.keep_checkpoints} keeps nothing with checkpoint-every=0: "
        "leave one of them out",
    ),
)


def _unknown(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
    return f"run-config key {key!r} is unknown: {hint}"


def _typed(key: str, value: object, kind: type) -> object:
    """Return `value` as a `kind`; an integer will do for a float."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        names = {str: "a string in quotes", bool: "true or false"}
        wanted = names.get(kind, f"a number ({kind.__name__})")
        raise ConfigError(f"{key}={value!r} must be {wanted}")
    return value
