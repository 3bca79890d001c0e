"""The tasks and the paper's ablations by name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.fleet import speed_levels


@dataclass(frozen=True)
class Preset:
    """Settings of a run, and instead of ``num-rounds`` its length in epochs.

    They are the fastest devices', over their part of the `samples` of the training set.
    """

    settings: Mapping[str, Value]
    epochs: int | None = None
    samples: int | None = None


_PAPER: Mapping[str, Value] = MappingProxyType(
    {
        "drop-rate": 0.25,
        "in-flight": 8,
        "partition": "speed-level",
        "local-steps": 50,
        "batch-size": 128,
        "lr": 0.01,
        "momentum": 0.9,
        "lr-milestones": "0.5,0.75",
        "lr-gamma": 0.1,
        "levels": 8,
        "speed-ratio": 5.0,
        "selection": "stratified",
    }
)

# As near to the paper's script as keys come; docs/claims.md has the rest
_SCRIPT: Mapping[str, Value] = MappingProxyType(
    {
        "scope": "internal",
        "scale": False,
        "score_vectors": False,
        "augment": True,
        "duration": "paper",
    }
)

_SMALL: Mapping[str, Value] = MappingProxyType(
    {
        "local_steps": 25,
        "batch_size": 32,
        "test_samples": 4000,
        "lr": 0.05,
        "num_rounds": 75,
        "evaluate_every": 3,
    }
)


def _paper(model: str, dataset: str, **changes: Value) -> dict[str, Value]:
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return {**_PAPER, "model": model, "dataset": dataset, **named}


def _small(model: str, dataset: str, **changes: Value) -> dict[str, Value]:
    return _paper(model, dataset, **{**_SMALL, **changes})


_TEXT: Mapping[str, Value] = MappingProxyType(
    {
        "text_length": 32,
        "vocabulary_size": 2000,
        "batch_size": 16,
        "optimizer": "adam",
        "shards_per_level": 8,
        "num_rounds": 26,
        "evaluate_every": 1,
    }
)

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # The main job: the defaults of every key
        "digits": Preset({}),
        # The paper's five tasks
        "mlp-fashion-mnist": Preset(
            _paper("mlp", "fashion-mnist"), epochs=160, samples=60_000
        ),
        # The paper does not say how IMDB's labels are dealt: with two shards, most
        # levels would have a single class. Plain SGD hardly trains this LSTM
        "lstm-imdb": Preset(
            _paper(
                "lstm",
                "imdb",
                drop_rate=0.125,
                local_steps=40,
                batch_size=64,
                optimizer="adam",
                lr=0.01,
                shards_per_level=8,
            ),
            epochs=80,
            samples=25_000,
        ),
        "resnet34-cifar10": Preset(
            _paper("resnet34", "cifar10"), epochs=320, samples=50_000
        ),
        "resnet34-cifar10-paper": Preset(
            _paper("resnet34", "cifar10", **_SCRIPT), epochs=320, samples=50_000
        ),
        "resnet34-cifar100": Preset(
            _paper("resnet34", "cifar100"), epochs=320, samples=50_000
        ),
        "resnet34-cifar100-paper": Preset(
            _paper("resnet34", "cifar100", **_SCRIPT), epochs=320, samples=50_000
        ),
        "resnet34-fashion-mnist": Preset(
            _paper("resnet34", "fashion-mnist"), epochs=160, samples=60_000
        ),
        "resnet34-fashion-mnist-paper": Preset(
            _paper("resnet34", "fashion-mnist", **_SCRIPT), epochs=160, samples=60_000
        ),
        # Short runs, for comparing many algorithms with many seeds
        "mlp-small": Preset(_small("mlp", "fashion-mnist", image_size=14)),
        "cnn-small": Preset(
            _small(
                "cnn",
                "cifar10",
                image_size=16,
                width=0.5,
                batch_size=16,
                num_rounds=30,
                evaluate_every=1,
            )
        ),
        # Two classes: with two shards, half of the levels would have one alone
        "lstm-small": Preset(_small("lstm", "imdb", **_TEXT, lr=0.005)),
        "transformer-small": Preset(_small("transformer", "imdb", **_TEXT, lr=0.002)),
        # Dealt by whether the review is positive
        "lm-small": Preset(
            _small(
                "transformer",
                "imdb-words",
                **{
                    **_TEXT,
                    "text_length": 16,
                    "vocabulary_size": 1000,
                    "shards_per_level": 2,
                    "test_samples": 1000,
                },
                lr=0.005,
            )
        ),
        # Five classes of very different sizes: with two shards, levels would have one
        "tabular-small": Preset(_small("mlp", "diamonds", shards_per_level=4)),
        # A ResNet at a scale that a CPU can train
        "resnet-cifar10-small": Preset(
            _paper(
                "resnet10",
                "cifar10",
                width=0.125,
                local_steps=25,
                batch_size=32,
                lr=0.05,
                num_rounds=50,
                evaluate_every=5,
            )
        ),
    }
)


@dataclass(frozen=True)
class Ablation:
    """What an ablation compares: algorithms, and keys with the values they take."""

    algorithms: tuple[str, ...]
    vary: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)


ABLATIONS: Mapping[str, Ablation] = MappingProxyType(
    {
        "drop-rate": Ablation(
            ("hetero-asyncdrop",), {"drop-rate": (0.0, 0.125, 0.25, 0.5)}
        ),
        "local-steps": Ablation(("hetero-asyncdrop",), {"local-steps": (25, 50, 100)}),
        "smart-vs-random": Ablation(("asyncdrop", "hetero-asyncdrop")),
        "filter-vs-layer": Ablation(("hetero-asyncdrop", "layerwise-asyncdrop")),
    }
)


def num_rounds(config: RunConfig, epochs: int, samples: int) -> int:
    """Return the rounds in which the fastest devices finish their epochs.

    A device holds half of its level's share of the samples (the paper's partition).
    While a device of the fastest level does one update, devices do on average the mean
    of the levels' speeds relative to the fastest. A round is an update per slot.
    """
    held = samples / config.levels / 2
    updates = math.ceil(epochs * held / (config.local_steps * config.batch_size))
    levels = speed_levels(
        config.levels, num_levels=config.levels, slowest_over_fastest=config.speed_ratio
    )
    mean_speed = sum(1 / level.seconds_per_task for level in levels) / len(levels)
    return math.ceil(updates * mean_speed)
