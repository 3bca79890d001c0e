"""The run-config of ``flwr run``, parsed once at the edge."""

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from flwr_asyncdrop.algorithms.hyperparameters import HYPERPARAMETERS, Hyperparameters
from flwr_asyncdrop.algorithms.registry import ALGORITHMS
from flwr_asyncdrop.app.config.rules import CONTRADICTIONS, RULES, changed
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.faults import FaultPolicy, LatePolicy
from flwr_asyncdrop.wire import MAX_EXAMPLES

INCIDENTAL = frozenset(
    {
        "data-dir",
        "download",
        "out-dir",
        "checkpoint-every",
        "keep-checkpoints",
        "resume",
        "metrics-port",
        "metrics-address",
    }
)
"""The keys that make no other run, wherever and however it is run."""

IRRELEVANT = INCIDENTAL | {"timeout", "max-seconds"}
"""Those that may be others when a run goes on: they end it, and that is all."""


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
    max_seconds: float = 0.0
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
    deadline: float = FaultPolicy.deadline
    late: LatePolicy = FaultPolicy.late
    quarantine_after: int = FaultPolicy.quarantine_after
    queue_ahead: int = 0
    # What comes out
    evaluate_every: int = 1
    timeout: float = 3600.0
    out_dir: str = ""
    checkpoint_every: int = 10
    keep_checkpoints: int = 2
    resume: str = ""
    metrics_port: int = 0
    metrics_address: str = "127.0.0.1"

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
        for name, (allowed, description) in RULES.items():
            value = getattr(self, name)
            if not allowed(value):
                key = name.replace("_", "-")
                raise ConfigError(f"{key}={value!r} must be {description}")
        for name in HYPERPARAMETERS:
            if name not in ALGORITHMS[self.algo].uses and changed(self, name):
                raise ConfigError(self._unused(name))
        for contradicts, message in CONTRADICTIONS:
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
