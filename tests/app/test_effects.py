"""Each key of a run-config has an effect on a run's history, where it is accepted."""

import json

import pytest

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.app.config import INCIDENTAL, RunConfig, key_table
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.observers.history_reading import read_history
from tests.app.own import APP
from tests.nightly import by_night

BASE = {
    "model": "mlp",
    "width": 0.3,
    "local-steps": 2,
    "num-rounds": 6,
    "in-flight": 4,
    "levels": 4,
    "batch-size": 8,
}
BUFFERED = {"algo": "fedbuff"}
PLUS = {"algo": "asyncdrop-plus", "num-rounds": 12, "speed-ratio": 50.0}
RESNET = {"model": "resnet10", "width": 0.03, "num-rounds": 2}
TEXTS = {"dataset": "imdb", "model": "lstm", "num-rounds": 2}
UNSTEADY = {"jitter": 1.5, "num-rounds": 15}

EFFECTS = {
    "algo": ({}, "asyncdrop"),
    "num-rounds": ({}, 7),
    "max-seconds": ({}, 5.0),
    "in-flight": ({}, 3),
    "scope": (RESNET, "internal"),
    "scale": ({}, False),
    "codec": ({}, "q8"),
    "seed": ({}, 1),
    "clip-norm": ({}, 0.01),
    "averaging": ({}, 0.5),
    "logit-adjustment": ({}, 0.5),
    "server-lr": (BUFFERED, 0.5),
    "server-momentum": (BUFFERED, 0.5),
    "combine": ({"algo": "fedavg"}, "median"),
    "trim": ({"algo": "fedavg", "combine": "trimmed-mean"}, 0.0),
    "alpha": ({}, 0.3),
    "weighting": (BUFFERED, "constant"),
    "weighting-a": (BUFFERED, 2.0),
    "weighting-b": ({**BUFFERED, "weighting": "hinge", "speed-ratio": 20.0}, 0.0),
    "proximal-mu": ({"algo": "async-fedprox"}, 1.0),
    "drop-rate": ({}, 0.5),
    "round-to": ({}, 4),
    "buffer-size": (BUFFERED, 3),
    "waits": (BUFFERED, True),
    "score-vectors": ({}, False),
    "rate-spread": (PLUS, 0.9),
    "least-saving": (PLUS, 1.5),
    "group-memory": (PLUS, False),
    "adaptive-memory": (PLUS, False),
    "adaptive-staleness": (PLUS, False),
    "wait-limit": (PLUS, 1.1),
    "dataset": ({"partition": "iid"}, "tests.app.own:plane"),
    "image-size": ({}, 4),
    "text-length": (TEXTS, 2),
    "vocabulary-size": (TEXTS, 4),
    "test-samples": ({}, 100),
    "partition": ({}, "iid"),
    "shards-per-level": ({}, 5),
    "dirichlet-alpha": ({"partition": "dirichlet"}, 5.0),
    "model": ({}, "cnn"),
    "width": ({}, 0.5),
    "local-steps": ({}, 3),
    "batch-size": ({}, 4),
    "optimizer": ({}, "adam"),
    "lr": ({}, 0.01),
    "momentum": ({}, 0.5),
    "lr-milestones": ({}, "0.3"),
    "lr-gamma": ({}, 0.5),
    "augment": ({}, True),
    "precision": ({}, "bfloat16"),
    "levels": ({}, 3),
    "speed-ratio": ({}, 2.0),
    "step-seconds": ({}, 2.0),
    "bandwidth-mbps": ({}, 1.0),
    "duration": ({}, "paper"),
    "jitter": ({}, 0.5),
    "dropout": ({}, 0.3),
    "availability": ({}, 0.5),
    "watts": ({}, 1.0),
    "joules-per-megabyte": ({}, 1.0),
    "selection": ({}, "uniform"),
    "outlier-factor": ({}, 1.5),
    "deadline": (UNSTEADY, 1.1),
    "late": (UNSTEADY, "drop"),
    "quarantine-after": ({"dropout": 0.5, "num-rounds": 15}, 1),
    "evaluate-every": ({}, 2),
    "history-every": ({}, 2),
    "trace": ({}, ""),  # a file that the test writes
}
"""By key: the keys that it is accepted with, and another value."""

ELSEWHERE = {"threads", "timeout", "clock", "queue-ahead", "max-examples"}
"""Of processes, and of real devices."""


def test_no_key_is_forgotten():
    assert EFFECTS.keys() | ELSEWHERE | INCIDENTAL == key_table().keys()
    assert not EFFECTS.keys() & INCIDENTAL


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """Return the history of settings; that of the same ones is made once."""
    found = {}

    def history_of(settings, again=False):
        name = repr(sorted(settings.items()))
        if again or name not in found:
            found[name] = history(settings, tmp_path_factory.mktemp("run"))
        return found[name]

    return history_of


def history(settings, out):
    config = RunConfig.parse({**BASE, **settings, "out-dir": str(out)})
    with LocalGrid(APP, num_nodes=12, workers=0, run_config=config.settings) as grid:
        try:
            run_experiment(grid, config)
        except RunError as error:
            return str(error)
    events = read_history(out / "history.jsonl")
    return [without_real_time(event) for event in events if event["event"] != "run"]


def without_real_time(event):
    metrics = {k: v for k, v in event.get("metrics", {}).items() if "wall" not in k}
    return {**event, "wall": None, "metrics": metrics}


@by_night
def test_the_same_keys_have_the_same_history(histories):
    assert histories({}) == histories({}, again=True)


@by_night
@pytest.mark.parametrize("key", EFFECTS)
def test_a_key_that_is_accepted_has_an_effect(key, histories, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings, value = EFFECTS[key]
    if settings is TEXTS:
        settings = {**TEXTS, "data-dir": str(texts(tmp_path))}
    if key == "trace":
        value = str(trace(tmp_path))
        settings = {"levels": RunConfig.levels}
    assert histories(settings) != histories({**settings, key: value})


def trace(folder):
    file = folder / "fleet.csv"
    file.write_text("seconds_per_step\n" + "1\n2\n3\n" * 4)
    return file


def texts(folder):
    lines = [
        {"split": split, "label": n % 2, "text": "a bad film indeed" + " so good" * n}
        for split in ("train", "test")
        for n in range(40)
    ]
    (folder / "imdb").mkdir()
    content = "\n".join(map(json.dumps, lines))
    (folder / "imdb" / "imdb.jsonl").write_text(content)
    return folder
