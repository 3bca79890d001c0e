"""What each run-config key means, for ``--help``."""

from collections.abc import Mapping
from types import MappingProxyType

DESCRIPTIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "What is run": {
            "algo": "fedavg | async-fedavg | async-weighted | async-fedprox | "
            "async-fjord | fedbuff | fedbuff-wait | asyncdrop | hetero-asyncdrop | "
            "layerwise-asyncdrop | asyncdrop-plus",
            "drop-rate": "share of the units that a submodel leaves out, in [0, 1)",
            "round-to": "make the widths multiples of it, e.g. of 16",
            "alpha": "mixing rate: W <- (1 - alpha) W + alpha W_i, in (0, 1]",
            "scope": "all | internal (only units inside a block, as the paper)",
            "weighting": "capability | constant | polynomial | hinge; "
            '"" = the algorithm\'s own',
            "weighting-a": "FedAsync's a: polynomial (1 + s)^-a, "
            "hinge 1 / (a (s - b) + 1)",
            "weighting-b": "FedAsync's b: staleness up to which a hinge has no effect",
            "buffer-size": "updates that fedbuff collects; 0 = half of in-flight",
            "server-lr": "learning rate of the server's step; 0 = the algorithm's own",
            "server-momentum": "and its momentum, in [0, 1)",
            "combine": "mean | trimmed-mean | median: one change of those collected",
            "trim": "share that a trimmed mean cuts off at each end, in [0, 0.5)",
            "clip-norm": "L2 norm down to which an update's change is scaled; 0 = off",
            "averaging": "decay of the average of versions that is served; "
            "0 = the algorithm's own",
            "proximal-mu": "async-fedprox adds mu/2 ||w - w_dispatched||^2 to the loss",
            "logit-adjustment": "tau of the loss that corrects a device's label skew; "
            "0 = the algorithm's own",
            "num-rounds": "a round is as many updates as devices in flight",
            "max-seconds": "end after so many seconds on the run's clock; 0 = no limit",
            "in-flight": "devices that train at any moment",
            "seed": "of everything random",
        },
        "On what": {
            "dataset": "digits (embedded) | fashion-mnist | cifar10 | cifar100 | imdb",
            "data-dir": "folder that holds the data sets' own folders",
            "download": "let torchvision download into data-dir what is absent",
            "partition": "speed-level (labels skewed by speed, as the paper) "
            "| dirichlet | iid",
            "shards-per-level": "of partition='speed-level': the more, the less skewed",
            "dirichlet-alpha": "of partition='dirichlet': the smaller, the more skewed",
            "model": "mlp | cnn | resnet10 | resnet18 | resnet34 | lstm (text)",
            "width": "factor of all hidden widths of the model, e.g. 0.25",
        },
        "How a client trains": {
            "local-steps": "mini-batches per task",
            "batch-size": "samples in a mini-batch",
            "optimizer": "sgd | adam",
            "lr": "its initial learning rate",
            "momentum": "its momentum; Adam's first decay rate",
            "lr-milestones": "when to decay it, as shares of the fastest device's "
            "updates",
            "lr-gamma": "factor of each decay",
            "precision": "float32 | bfloat16 (autocast, for GPUs)",
            "threads": "CPU threads of each process, also of the evaluation",
        },
        "The devices": {
            "clock": "virtual (simulated devices) | wall (real ones)",
            "levels": "speed levels of the simulated fleet",
            "speed-ratio": "delay of the slowest level over that of the fastest",
            "step-seconds": "virtual seconds of one full-model step on the fastest",
            "bandwidth-mbps": "of the fastest level, others in proportion; "
            "0 = infinite",
            "duration": "of a task: flops and bytes | paper (x (1 - drop rate))",
            "jitter": "sigma of a log-normal factor on every task's duration",
            "dropout": "share of the tasks that are lost on the device",
            "availability": "share of the time that a device is there",
            "trace": "CSV with a line for each device (absolute path), "
            "instead of levels",
            "selection": "stratified (one of each level in flight) | uniform",
            "max-examples": "most examples that a device can say it trained on",
            "deadline": "of a task, times its expected duration; 0 = none",
            "late": "merge | discount (by half) | drop: a reply after its deadline",
            "quarantine-after": "failures in a row for which a device is left alone; "
            "0 = never",
            "queue-ahead": "tasks that a real device gets beside the one that it "
            "trains",
        },
        "What comes out": {
            "evaluate-every": "rounds from one evaluation to the next",
            "timeout": "real seconds to wait for a reply, and for nodes",
            "out-dir": "where the files go; default ./runs/<time>-<algo>",
            "checkpoint-every": "rounds from one checkpoint to the next; "
            "0 = no checkpoints",
            "keep-checkpoints": "how many of them are kept, the newest ones",
            "resume": "folder of an interrupted run (absolute path), to go on with it",
            "metrics-port": "serve Prometheus metrics while the run goes on, e.g. "
            "9464; 0 = off",
            "metrics-address": "address that they are served on: '0.0.0.0' to all who "
            "can connect",
        },
    }
)
"""Section, then key, then its comment in pyproject's ``[tool.flwr.app.config]``."""
