"""The run-config of ``flwr run``, parsed once at the edge."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from flwr_asyncdrop.aggregation import OUTLIER_FACTOR, OUTLIER_FACTORS
from flwr_asyncdrop.algorithms import ALGORITHMS, Algorithm, algorithm
from flwr_asyncdrop.app.config.contradictions import contradictions
from flwr_asyncdrop.app.config.keys import LEFT_OUT, Key, hyperparameter_keys, keys_of
from flwr_asyncdrop.app.config.ranges import (
    ADDRESS,
    BANDWIDTH,
    DEADLINE,
    FRACTIONS,
    one_of_or_reference,
)
from flwr_asyncdrop.app.data import DATASET_NAMES
from flwr_asyncdrop.app.models import MODEL_NAMES
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.faults import LATE_POLICIES, FaultPolicy, LatePolicy
from flwr_asyncdrop.parameters import (
    A_PATH,
    at_least,
    details,
    did_you_mean,
    in_interval,
    more_than,
    one_of,
    parameter,
)
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.references import is_reference
from flwr_asyncdrop.wire import MAX_EXAMPLES
from flwr_asyncdrop.wire.codec import PRESETS

_SECTION_OF_HYPERPARAMETERS = 'Of the algorithm ("" = its own default)'


@dataclass(frozen=True)
class RunConfig:
    """The settings of a run: its fields are the table of all keys, once.

    A field ``num_rounds`` is the key ``num-rounds``. pyproject's section of keys,
    ``--help`` and docs/keys.md are made from it by ``scripts/keys.py``.
    """

    algo: str = parameter(
        "hetero-asyncdrop",
        "the algorithm, or package.module:Class",
        one_of_or_reference(*ALGORITHMS),
        section="What is run",
    )
    num_rounds: int = parameter(
        60,
        "a round is as many updates as devices in flight",
        in_interval("[1, 1000000000]"),
    )
    max_seconds: float = parameter(
        0.0,
        "end after so many seconds on the run's clock; 0 = no limit",
        at_least(0),
        affects="length",
    )
    in_flight: int = parameter(
        8, "devices that train at any moment", in_interval("[1, 100000]")
    )
    scope: Literal["all", "internal", "stream"] = parameter(
        "all",
        "all | internal (only inside a block, as the paper) | stream (more than all)",
        one_of("all", "internal", "stream"),
    )
    codec: str = parameter(
        "none",
        "compression both ways: none | q8 | q4 | q2 | topk-q4 | auto (by bandwidth)",
        one_of(*PRESETS, "auto"),
    )
    seed: int = parameter(0, "random seed", at_least(0))

    # Stands where their keys stand; no part of the hash, as it is a dict.
    hyperparameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    dataset: str = parameter(
        "digits",
        "digits (embedded) | fashion-mnist | cifar10 | cifar100 | imdb "
        "| package.module:function",
        one_of_or_reference(*DATASET_NAMES),
        section="On what",
    )
    data_dir: str = parameter(
        "",
        "folder that holds the data sets' own folders",
        A_PATH,
        affects="nothing",
    )
    download: bool = parameter(
        False,
        "let torchvision download into data-dir what is absent",
        affects="nothing",
    )
    partition: str = parameter(
        "speed-level",
        "speed-level (labels skewed by speed, as the paper) | dirichlet | iid",
        one_of("speed-level", "dirichlet", "iid"),
    )
    shards_per_level: int = parameter(
        2,
        "of partition='speed-level': the more, the less skewed",
        in_interval("[1, 1000000]"),
    )
    dirichlet_alpha: float = parameter(
        0.5, "of partition='dirichlet': the smaller, the more skewed", more_than(0)
    )
    model: str = parameter(
        "cnn",
        "mlp | cnn | resnet10 | resnet18 | resnet34 | lstm (text) "
        "| package.module:function",
        one_of_or_reference(*MODEL_NAMES),
    )
    width: float = parameter(
        1.0, "factor of all hidden widths of the model, e.g. 0.25", more_than(0)
    )

    local_steps: int = parameter(
        50,
        "mini-batches per task",
        in_interval("[1, 1000000]"),
        section="How a client trains",
    )
    batch_size: int = parameter(
        16, "samples in a mini-batch", in_interval("[1, 1000000]")
    )
    optimizer: str = parameter(
        "sgd", "optimizer of the local steps", one_of("sgd", "adam")
    )
    lr: float = parameter(
        0.05, "initial learning rate of the clients", in_interval("(0, 1000000]")
    )
    momentum: float = parameter(
        0.9, "momentum of sgd; first decay rate of adam", in_interval("[0, 1)")
    )
    lr_milestones: str = parameter(
        "0.5,0.75",
        "when lr decays, as shares of the fastest device's updates",
        FRACTIONS,
    )
    lr_gamma: float = parameter(0.1, "factor of each decay", in_interval("(0, 1]"))
    precision: str = parameter(
        "float32",
        "float32 | bfloat16 (autocast, for GPUs)",
        one_of("float32", "bfloat16"),
    )
    threads: int = parameter(
        1,
        "CPU threads of each process, also of the evaluation",
        in_interval("[1, 1024]"),
    )

    clock: str = parameter(
        "virtual",
        "virtual (simulated devices) | wall (real ones)",
        one_of("virtual", "wall"),
        section="The devices",
    )
    levels: int = parameter(
        8, "speed levels of the simulated fleet", in_interval("[1, 1000]")
    )
    speed_ratio: float = parameter(
        5.0,
        "delay of the slowest level over that of the fastest",
        in_interval("[1, 1000000]"),
    )
    step_seconds: float = parameter(
        1.0,
        "virtual seconds of a full-model step on the fastest",
        in_interval("[0.000000001, 1000000000]"),
    )
    bandwidth_mbps: float = parameter(
        0.0,
        "of the fastest level, others in proportion; 0 = infinite",
        BANDWIDTH,
    )
    duration: Literal["flops", "paper"] = parameter(
        "flops",
        "of a task: flops (and bytes) | paper (times 1 - drop rate)",
        one_of("flops", "paper"),
    )
    jitter: float = parameter(
        0.0,
        "sigma of a log-normal factor on every task's duration",
        in_interval("[0, 10]"),
    )
    dropout: float = parameter(
        0.0, "share of the tasks that are lost on the device", in_interval("[0, 1)")
    )
    availability: float = parameter(
        1.0, "share of the time that a device is there", in_interval("(0, 1]")
    )
    trace: str = parameter(
        "",
        "CSV with a line for each device (absolute path), instead of levels",
        A_PATH,
    )
    selection: str = parameter(
        "stratified",
        "stratified (one of each level in flight) | uniform",
        one_of("stratified", "uniform"),
    )
    max_examples: int = parameter(
        MAX_EXAMPLES, "most examples that a device can report", at_least(1)
    )
    outlier_factor: float = parameter(
        OUTLIER_FACTOR,
        "an update is refused whose change is so many times the usual; 0 = none is",
        OUTLIER_FACTORS,
    )
    deadline: float = parameter(
        FaultPolicy.deadline,
        "of a task, times its expected duration; 0 = none",
        DEADLINE,
    )
    late: LatePolicy = parameter(  # noqa: RUF009  # of immutable values
        FaultPolicy.late,
        "merge | discount (by half) | drop: a reply after its deadline",
        one_of(*LATE_POLICIES),
    )
    quarantine_after: int = parameter(
        FaultPolicy.quarantine_after,
        "failures in a row after which a device gets no task for a while; 0 = never",
        at_least(0),
    )
    queue_ahead: int = parameter(
        0, "tasks that wait on a real device while it trains another", at_least(0)
    )

    evaluate_every: int = parameter(
        1,
        "rounds from one evaluation to the next",
        at_least(1),
        section="What comes out",
    )
    timeout: float = parameter(
        3600.0,
        "real seconds to wait for a reply, and for nodes",
        more_than(0),
        affects="length",
    )
    out_dir: str = parameter(
        "",
        'folder of the run\'s files; "" = ./runs/<time>-<algo>',
        A_PATH,
        affects="nothing",
    )
    overwrite: bool = parameter(
        False, "replace the run that out-dir has already", affects="nothing"
    )
    checkpoint_every: int = parameter(
        10,
        "rounds from one checkpoint to the next; 0 = no checkpoints",
        at_least(0),
        affects="nothing",
    )
    keep_checkpoints: int = parameter(
        2, "how many checkpoints are kept, the newest", at_least(1), affects="nothing"
    )
    resume: str = parameter(
        "",
        "folder of the interrupted run to resume (absolute path)",
        A_PATH,
        affects="nothing",
    )
    metrics_port: int = parameter(
        0,
        "port of Prometheus metrics during the run, e.g. 9464; 0 = off",
        in_interval("[0, 65535]"),
        affects="nothing",
    )
    metrics_address: str = parameter(
        "127.0.0.1",
        "address of the metrics: '0.0.0.0' for all who can connect",
        ADDRESS,
        affects="nothing",
    )

    @classmethod
    def parse(cls, run_config: Mapping[str, object]) -> Self:
        """Read Flower's run-config; keys that are absent keep their defaults.

        Raises
        ------
        ConfigError
            If a key is unknown, has a value of the wrong type or out of range, or
            contradicts another. One line, by name, with the fix.
        """
        algo = run_config.get("algo", cls.algo)
        known = key_table(algo if isinstance(algo, str) else cls.algo)
        values: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for name, value in run_config.items():
            if name not in known:
                if value == LEFT_OUT:  # a key of another algorithm from outside
                    continue
                raise ConfigError(_unknown(name, list(known)))
            key = known[name]
            if key.own is None:
                values[key.field] = key.typed(value)
            elif value != LEFT_OUT:
                given[key.field] = key.typed(value)
        config = cls(**values, hyperparameters=given)
        config.check()
        return config

    def check(self) -> None:
        """Raise ConfigError if a value is out of range or contradicts another."""
        kind = algorithm(self.algo)
        for key in key_table(self.algo).values():
            if key.own is None:
                key.details.range.check(key.name, getattr(self, key.field))
            elif key.field in self.hyperparameters:
                value = self.hyperparameters[key.field]
                if key.field not in details(kind):
                    raise ConfigError(
                        f"{key.name}={value!r} makes no difference to "
                        f"algo={self.algo!r}: leave it out, or choose one of "
                        f"{', '.join(key.own)}"
                    )
                key.details.range.check(key.name, value)
        _ = self.algorithm  # one from outside may check more
        for message in contradictions(self):
            raise ConfigError(message)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm with its hyperparameters."""
        try:
            return algorithm(self.algo)(**self.hyperparameters)
        except ConfigError:
            raise
        except Exception as error:  # no default, or whatever its code raises
            raise ConfigError(
                f"algo={self.algo!r} cannot be built: {one_line(error)}"
            ) from error

    def is_given(self, name: str) -> bool:
        """Return whether a key has another value than its default."""
        key = name.replace("-", "_")
        if hasattr(type(self), key):
            return bool(getattr(self, key) != getattr(type(self), key))
        return key in self.hyperparameters

    @property
    def settings(self) -> dict[str, Any]:
        """All values by key, as `parse` takes them; "" for what is left out."""
        return {
            name: getattr(self, key.field)
            if key.own is None
            else self.hyperparameters.get(key.field, LEFT_OUT)
            for name, key in key_table(self.algo).items()
        }

    @cached_property
    def milestones(self) -> tuple[float, ...]:
        """`lr_milestones` as fractions of the fastest device's updates."""
        return tuple(float(part) for part in self.lr_milestones.split(",") if part)

    @property
    def data_path(self) -> Path | None:
        """`data_dir` as an absolute path; None if it is not set."""
        return Path(self.data_dir).expanduser().absolute() if self.data_dir else None


@lru_cache
def key_table(*algos: str) -> Mapping[str, Key]:
    """Return all keys of a run-config by name, with those of `algos` from outside."""
    outside = [algorithm(name) for name in algos if is_reference(name)]
    hyper = hyperparameter_keys(
        [*ALGORITHMS.values(), *outside], _SECTION_OF_HYPERPARAMETERS
    )
    own = keys_of(RunConfig)
    if both := sorted(hyper.keys() & own.keys()):
        raise ConfigError(
            f"{', '.join(algos)}: {both[0]} is a key of every run-config: call the "
            "hyperparameter something else"
        )
    first = next(iter(own.values())).details.section
    before = {name: key for name, key in own.items() if key.details.section == first}
    return MappingProxyType({**before, **hyper, **own})


def _unknown(name: str, known: list[str]) -> str:
    hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
    return f"run-config key {name!r} is unknown: {hint}"


INCIDENTAL = frozenset(
    name for name, key in key_table().items() if key.details.affects == "nothing"
)
"""The keys that do not change a run."""

IRRELEVANT = INCIDENTAL | {
    name for name, key in key_table().items() if key.details.affects == "length"
}
"""Those that may change when a run is resumed: some of them end it."""
