"""The table of all keys of a run-config: one field each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from flwr_asyncdrop.aggregation import OUTLIER_FACTOR, OUTLIER_FACTORS
from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.app.config.ranges import (
    ADDRESS,
    BANDWIDTH,
    MILESTONES,
    TRACKED,
    one_of_or_reference,
)
from flwr_asyncdrop.app.data import DATASET_NAMES, Sizes
from flwr_asyncdrop.app.models import MODEL_NAMES
from flwr_asyncdrop.fleet.codecs import PACKED
from flwr_asyncdrop.fleet.faults import (
    DEADLINES,
    LATE_POLICIES,
    FaultPolicy,
    LatePolicy,
)
from flwr_asyncdrop.parameters import (
    A_PATH,
    at_least,
    in_interval,
    more_than,
    one_of,
    parameter,
)
from flwr_asyncdrop.wire import MAX_EXAMPLES
from flwr_asyncdrop.wire.codec import PRESETS


@dataclass(frozen=True)
class Settings:
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
    )
    scale: bool = parameter(
        True,
        "multiply the inputs of narrowed layers by full / narrow width; false as the "
        "paper",
    )
    codec: str = parameter(
        "none",
        "compression: none | packed | q8 | q4 | q2 | topk-q4 | auto (by bandwidth)",
        one_of(*PRESETS, PACKED, "auto"),
    )
    seed: int = parameter(0, "random seed", at_least(0))

    # Stands where their keys stand; no part of the hash, as it is a dict.
    hyperparameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    dataset: str = parameter(
        "digits",
        "digits (embedded) | fashion-mnist | cifar10 | cifar100 | imdb | imdb-words "
        "| diamonds | package.module:function",
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
    image_size: int = parameter(
        Sizes.image_size,
        "pixels a side that images are averaged down to, in whole squares; 0 = their "
        "own",
        in_interval("[0, 100000]"),
    )
    text_length: int = parameter(
        Sizes.text_length,
        "words kept of a review, its last ones",
        in_interval(f"[1, {Sizes.text_length}]"),
    )
    vocabulary_size: int = parameter(
        Sizes.vocabulary_size,
        "token ids of the reviews: padding, unknown, and the most frequent words",
        in_interval(f"[3, {Sizes.vocabulary_size}]"),
    )
    test_samples: int = parameter(
        Sizes.test_samples,
        "test with so many of the test samples, the same in every run; 0 = all",
        at_least(0),
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
        0.5,
        "of partition='dirichlet': the smaller, the more skewed",
        in_interval("[0.000000001, 1000000000]"),
    )
    model: str = parameter(
        "cnn",
        "mlp | cnn | resnet10 | resnet18 | resnet34 | lstm, transformer (text) "
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
        "when lr decays, as shares of the fastest devices' expected updates, or in "
        "seconds of the run's clock, e.g. '1200s,1800s'",
        MILESTONES,
    )
    lr_gamma: float = parameter(0.1, "factor of each decay", in_interval("(0, 1]"))
    augment: bool = parameter(
        False,
        "shift training images by up to 4 pixels and mirror half of them, at random",
    )
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
        8,
        "speed levels of the simulated fleet, and of partition='speed-level'",
        in_interval("[1, 1000]"),
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
        "flops", "of a task: flops (and bytes) | paper (times 1 - drop rate)"
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
        1.0,
        "share of the time that a device is there",
        in_interval("[0.000000001, 1]"),
    )
    watts: float = parameter(
        0.0,
        "power of a device while it computes; 0 = not counted",
        in_interval("[0, 1000000000]"),
    )
    joules_per_megabyte: float = parameter(
        0.0,
        "energy of a device's radio, each way; 0 = not counted",
        in_interval("[0, 1000000000]"),
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
        DEADLINES,
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
    history_every: int = parameter(
        1,
        "history.jsonl has a line for one update in so many, and exact sums of the "
        "others; 1 = all",
        in_interval("[1, 1000000000]"),
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
    track: str = parameter(
        "",
        "tool that keeps and draws the run: tensorboard | mlflow | wandb | "
        "opentelemetry, or several, e.g. 'tensorboard,mlflow'; \"\" = none",
        TRACKED,
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
