"""What the values of a run-config must not be like together."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from flwr_asyncdrop.aggregation import WEIGHTINGS, has_parameter
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.app.data import (
    DATASET_NAMES,
    DOWNLOADS,
    NEXT_WORD_DATASETS,
    TABLE_DATASETS,
    TEXT_DATASETS,
)
from flwr_asyncdrop.app.models import MODEL_NAMES, NEXT_WORD_MODELS, TEXT_MODELS
from flwr_asyncdrop.checkpoint import run_folder

# A RunConfig, which imports this module.
Condition = Callable[[Any], bool]

DEVICE_KEYS = (
    "levels",
    "speed-ratio",
    "step-seconds",
    "bandwidth-mbps",
    "jitter",
    "dropout",
    "availability",
    "watts",
    "joules-per-megabyte",
)
"""The keys that say, without a trace, what the simulated devices are like."""

# Levels also say, without simulated ones, who holds which labels.
_OF_SIMULATED = tuple(key for key in DEVICE_KEYS if key != "levels")

SCOPED = ("scope", "scale")
"""The keys of what is left out of layers."""


def has_scope(kind: type[Algorithm]) -> bool:
    """Return whether an algorithm leaves units out of layers, which have a scope."""
    return kind.masks is not Algorithm.masks and kind.units == "channels"


def _resumes_elsewhere(config: Any) -> bool:
    if not (config.resume and config.out_dir):
        return False
    folder = run_folder(Path(config.resume).expanduser())
    return folder.absolute() != Path(config.out_dir).expanduser().absolute()


def _is_off(config: Any, switch: str) -> bool:
    return getattr(config.algorithm, switch.replace("-", "_"), None) is False


def _is_in_vain(config: Any, switch: str, without: str) -> bool:
    """Return whether a switch is on that has no effect while another one is off."""
    return _is_off(config, without) and not _is_off(config, switch)


def _lacks(config: Any, key: str) -> bool:
    """Return whether the function that weighs updates has no such parameter."""
    name = getattr(config.algorithm, "weighting", "")
    return name in WEIGHTINGS and not has_parameter(name, key)


def _is_robust(config: Any, switch: str) -> bool:
    """Return whether a switch is on that has no effect on a robust `combine`."""
    mean = getattr(config.algorithm, "combine", "mean") == "mean"
    return not mean and not _is_off(config, switch)


NEEDLESS: tuple[tuple[Condition, str, tuple[str, ...], str], ...] = (
    (
        lambda c: not has_scope(type(c.algorithm)),
        "algo={c.algo!r} leaves no units out of layers",
        SCOPED,
        "choose algo='hetero-asyncdrop'",
    ),
    (
        lambda c: getattr(c.algorithm, "combine", "") in ("mean", "median"),
        "combine={c.algorithm.combine!r} cuts nothing off",
        ("trim",),
        "choose combine='trimmed-mean'",
    ),
    *(
        (
            partial(_lacks, key=key),
            f"weighting={{c.algorithm.weighting!r}} has no {key}",
            (f"weighting-{key}",),
            "choose weighting='hinge'",
        )
        for key in ("a", "b")
    ),
    (
        lambda c: _is_off(c, "waits"),
        "waits=false lets no device wait",
        ("wait-limit",),
        "choose waits=true",
    ),
    *(
        (
            partial(_is_in_vain, switch=switch, without=without),
            f"{without}=false switches {switch} off, too",
            (switch,),
            f"choose {without}=true",
        )
        for switch, without in (
            ("adaptive-memory", "group-memory"),
            ("adaptive-staleness", "group-memory"),
            ("adaptive-staleness", "adaptive-memory"),
        )
    ),
    *(
        (
            partial(_is_robust, switch=switch),
            "combine={c.algorithm.combine!r} measures no changes",
            (switch,),
            "choose combine='mean'",
        )
        for switch in ("adaptive-memory", "adaptive-staleness")
    ),
    (
        lambda c: c.algorithm.checked_selection() is not None,
        "algo={c.algo!r} chooses the devices itself",
        ("selection",),
        "choose another algorithm",
    ),
    (
        lambda c: c.deadline == 0,
        "deadline=0 makes nothing late",
        ("late",),
        "set a deadline, e.g. 3.0",
    ),
    (
        lambda c: c.partition != "speed-level",
        "partition={c.partition!r} deals no shards",
        ("shards-per-level",),
        "choose partition='speed-level'",
    ),
    (
        lambda c: c.partition != "dirichlet",
        "partition={c.partition!r} draws from no Dirichlet distribution",
        ("dirichlet-alpha",),
        "choose partition='dirichlet'",
    ),
    (
        lambda c: c.dataset not in (*TEXT_DATASETS, *NEXT_WORD_DATASETS),
        "dataset={c.dataset!r} is none of the package's own texts",
        ("text-length", "vocabulary-size"),
        f"choose dataset={TEXT_DATASETS[0]!r}",
    ),
    (
        lambda c: c.dataset in (*TEXT_DATASETS, *NEXT_WORD_DATASETS, *TABLE_DATASETS),
        "dataset={c.dataset!r} has no images",
        ("image-size",),
        "choose dataset='fashion-mnist'",
    ),
    (
        lambda c: not c.milestones,
        "lr-milestones='' decays nothing",
        ("lr-gamma",),
        "set lr-milestones, e.g. 0.5,0.75",
    ),
    (
        lambda c: c.levels == 1 and c.speed_ratio != 1,
        "levels=1 has one speed",
        ("speed-ratio",),
        "choose more levels",
    ),
    (
        lambda c: c.dataset == "digits",
        "dataset='digits' is embedded",
        ("data-dir", "download"),
        "choose another dataset",
    ),
    (
        lambda c: c.dataset not in DOWNLOADS,
        "dataset={c.dataset!r} cannot be downloaded, only put into data-dir by hand",
        ("download",),
        f"choose from {', '.join(DOWNLOADS)}",
    ),
    (
        lambda c: c.clock == "wall",
        "clock='wall' runs real devices, whose speed is measured",
        ("trace", "duration", *_OF_SIMULATED),
        "choose clock='virtual'",
    ),
    (
        lambda c: (
            c.codec == "auto"
            and c.clock != "wall"
            and not (c.bandwidth_mbps or c.trace)
        ),
        "bandwidth-mbps=0 takes no time for any number of bytes",
        ("codec",),
        "set bandwidth-mbps, e.g. 50",
    ),
    (
        lambda c: c.clock != "wall",
        "clock={c.clock!r} runs no real devices",
        ("queue-ahead",),
        "choose clock='wall'",
    ),
    (
        lambda c: bool(c.trace),
        "trace={c.trace!r} says what every device is like",
        _OF_SIMULATED,
        "leave out the trace",
    ),
    (
        lambda c: bool(c.trace) and c.partition != "speed-level",
        "trace={c.trace!r} has no levels, nor has partition={c.partition!r}",
        ("levels",),
        "choose partition='speed-level'",
    ),
    (
        lambda c: c.clock == "wall" and c.partition != "speed-level",
        "clock={c.clock!r} has no levels, nor has partition={c.partition!r}",
        ("levels",),
        "choose partition='speed-level'",
    ),
    (
        lambda c: c.checkpoint_every == 0,
        "checkpoint-every=0 makes no checkpoints",
        ("resume", "keep-checkpoints"),
        "set checkpoint-every, e.g. 10",
    ),
    (
        lambda c: bool(c.resume),
        "resume={c.resume!r} replaces no run",
        ("overwrite",),
        "start a new run",
    ),
    (
        _resumes_elsewhere,
        "resume={c.resume!r} continues in the folder of its run",
        ("out-dir",),
        "start a new run",
    ),
    (
        lambda c: c.metrics_port == 0,
        "metrics-port=0 listens on no port",
        ("metrics-address",),
        "set a port, e.g. 9464",
    ),
)
"""A condition, what it means, the keys that say otherwise, and another way out."""

IMPOSSIBLE: tuple[tuple[Condition, str], ...] = (
    (
        lambda c: (
            c.dataset in TEXT_DATASETS
            and c.model in set(MODEL_NAMES).difference(TEXT_MODELS)
        ),
        "dataset={c.dataset!r} is text, which model={c.model!r} cannot read: choose "
        f"model={TEXT_MODELS[0]!r}",
    ),
    (
        lambda c: (
            c.model in TEXT_MODELS
            and c.dataset
            in set(DATASET_NAMES).difference(TEXT_DATASETS, NEXT_WORD_DATASETS)
        ),
        "model={c.model!r} reads text, which dataset={c.dataset!r} is not: choose "
        f"dataset={TEXT_DATASETS[0]!r}",
    ),
    (
        lambda c: c.dataset in TABLE_DATASETS and c.model in set(MODEL_NAMES) - {"mlp"},
        "dataset={c.dataset!r} is a table, which model={c.model!r} cannot read: choose "
        "model='mlp'",
    ),
    (
        lambda c: (
            c.dataset in NEXT_WORD_DATASETS
            and c.model in set(MODEL_NAMES).difference(NEXT_WORD_MODELS)
        ),
        "dataset={c.dataset!r} asks for the next word, which model={c.model!r} does "
        f"not tell: choose model={NEXT_WORD_MODELS[0]!r}",
    ),
    (
        lambda c: (
            (getattr(c.algorithm, "buffer_size", None) or 0)
            > c.num_rounds * c.in_flight
        ),
        "buffer-size={c.algorithm.buffer_size} is more than the updates of the run, "
        "num-rounds={c.num_rounds} times in-flight={c.in_flight}, so the model would "
        "never change: make it smaller",
    ),
    (
        lambda c: c.download and not c.data_dir,
        "download=true needs a place: set data-dir to an absolute path",
    ),
)
"""A condition, and what to do about it."""


def needless(config: Any) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield why keys that a RunConfig gives make no difference, and another way out."""
    for condition, means, keys, fix in NEEDLESS:
        given = tuple(key for key in keys if config.is_given(key))
        if given and condition(config):
            yield means.format(c=config), given, fix


def contradictions(config: Any) -> Iterator[str]:
    """Say in one line each what contradicts what in a RunConfig, and how to fix it."""
    for why, keys, fix in needless(config):
        those = " and ".join(f"{key}={config.settings[key]!r}" for key in keys)
        yield f"{why}, which contradicts {those}: leave it out, or {fix}"
    for condition, message in IMPOSSIBLE:
        if condition(config):
            yield message.format(c=config)
