import pickle
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from flwr_asyncdrop.algorithms import ALGORITHMS, AsyncDrop, AsyncDropPlus
from flwr_asyncdrop.app.config import INCIDENTAL, IRRELEVANT, RunConfig, key_table
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import details
from scripts import keys as written

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
OUTSIDE = """
from dataclasses import dataclass
from typing import Literal

from flwr_asyncdrop.algorithms import AsyncDrop
from flwr_asyncdrop.parameters import at_least, parameter

@dataclass(frozen=True)
class FedRolex(AsyncDrop):
    name = ""
    window: int = parameter(3, "units that it moves on by", at_least(1))
    order: Literal["up", "down"] = "up"
    limit: float | None = None
    limited: Literal["yes", "perhaps"] | None = None
    sizes: tuple[int, ...] = ()

@dataclass(frozen=True)
class Clashing(AsyncDrop):
    momentum: float = 0.5
"""
ROLEX = "outside_algorithms:FedRolex"


@pytest.fixture
def outside(tmp_path, monkeypatch):
    (tmp_path / "outside_algorithms.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("outside_algorithms", None)
    key_table.cache_clear()


def documented():
    return tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"]


def test_what_is_generated_from_the_table_is_up_to_date():
    """`python -m scripts.keys` writes both files."""
    assert PYPROJECT.read_text() == written.pyproject()
    assert written.DOCS.read_text() == written.docs()


def test_pyproject_documents_every_key_with_its_default():
    assert documented() == RunConfig().settings
    assert list(documented()) == list(key_table())


def test_the_documented_config_parses_to_the_defaults():
    assert RunConfig.parse(documented()) == RunConfig()


def test_every_key_says_what_it_means_under_a_heading():
    for key in key_table().values():
        assert key.details.help
        assert key.details.section


def test_the_hyperparameters_are_the_fields_of_the_algorithms():
    fields = {name for kind in ALGORITHMS.values() for name in details(kind)}
    keys = {key.field for key in key_table().values() if key.own is not None}
    assert keys == fields


def test_values_are_taken_and_integers_do_for_floats():
    given = {"algo": "asyncdrop", "drop-rate": 0, "num-rounds": 7, "lr": 1}
    config = RunConfig.parse(given)
    assert (config.algo, config.lr, config.num_rounds) == ("asyncdrop", 1.0, 7)
    assert config.hyperparameters == {"drop_rate": 0.0}
    assert type(config.lr) is type(config.hyperparameters["drop_rate"]) is float


def test_a_hyperparameter_that_is_left_out_is_the_algorithms_own():
    assert RunConfig(algo="asyncdrop-plus").algorithm == AsyncDropPlus()
    config = RunConfig.parse({"algo": "asyncdrop", "drop-rate": "", "alpha": 0.25})
    assert config.hyperparameters == {"alpha": 0.25}
    assert config.algorithm == AsyncDrop(alpha=0.25)
    assert (config.settings["drop-rate"], config.settings["alpha"]) == ("", 0.25)


def test_one_that_the_algorithm_does_not_have_can_be_left_out():
    assert RunConfig.parse({"algo": "fedavg", "drop-rate": ""}).hyperparameters == {}


@pytest.mark.parametrize(
    ("key", "off"),
    [
        ("averaging", 0.0),
        ("logit-adjustment", 0.0),
        ("group-memory", False),
        ("drop-rate", 0.0),
        ("rate-spread", 0.0),
    ],
)
def test_every_ingredient_can_be_switched_off(key, off):
    config = RunConfig.parse({"algo": "asyncdrop-plus", key: off})
    name = key.replace("-", "_")
    assert config.algorithm == replace(AsyncDropPlus(), **{name: off})
    assert config.algorithm != AsyncDropPlus()


def test_one_that_is_none_by_default_takes_integers():
    config = RunConfig.parse({"algo": "fedbuff", "buffer-size": 4})
    assert config.algorithm.buffer_size == 4
    assert RunConfig(algo="fedbuff").algorithm.buffer_size is None


def test_a_config_is_a_value():
    config = RunConfig.parse({"algo": "asyncdrop", "drop-rate": 0.5})
    twin = RunConfig(algo="asyncdrop", hyperparameters={"drop_rate": 0.5})
    assert config == twin
    assert hash(config) == hash(twin)
    assert config != RunConfig(algo="asyncdrop")
    copied = pickle.loads(pickle.dumps(config))  # noqa: S301
    assert (copied, copied.algorithm) == (config, config.algorithm)
    moved = replace(config, data_dir="/elsewhere")
    assert (moved.data_dir, moved.algorithm) == ("/elsewhere", config.algorithm)


@pytest.mark.usefixtures("outside")
class TestAlgorithmFromOutside:
    def test_its_own_fields_are_keys(self):
        given = {"algo": ROLEX, "window": 5, "order": "down", "limit": 2, "alpha": 1.0}
        config = RunConfig.parse(given)
        algorithm = config.algorithm
        assert type(algorithm).__name__ == "FedRolex"
        assert (algorithm.window, algorithm.order, algorithm.alpha) == (5, "down", 1.0)
        assert (algorithm.limit, type(algorithm.limit)) == (2.0, float)
        assert config.settings.items() >= given.items()
        assert RunConfig.parse(config.settings) == config

    def test_they_are_keys_of_no_other_algorithm(self):
        assert "window" in key_table(ROLEX)
        assert "window" not in key_table()
        with pytest.raises(ConfigError, match="'window' is unknown"):
            RunConfig.parse({"window": 5})

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"windows": 5}, "'windows' is unknown: did you mean 'window'"),
            ({"window": 0}, "window=0 must be at least 1"),
            ({"window": 2.5}, "window=2.5 must be a number (int)"),
            ({"order": 1}, "order=1 must be a string in quotes"),
            ({"order": "dwn"}, "must be one of up, down: did you mean 'down'?"),
            ({"limited": "no"}, "limited='no' must be one of yes, perhaps"),
            ({"sizes": 1}, "'sizes' is unknown"),
            ({"combine": "median"}, "makes no difference to algo='outside_algorithms"),
            (
                {"algo": "outside_algorithms:Clashing"},
                "outside_algorithms:Clashing: momentum is a key of every run-config",
            ),
            ({"algo": "outside_algorithms:Nope"}, "cannot be imported"),
        ],
    )
    def test_what_is_wrong_is_refused_by_name(self, given, says):
        with pytest.raises(ConfigError) as caught:
            RunConfig.parse({"algo": ROLEX, **given})
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


def test_data_sets_and_models_from_outside_are_taken_as_they_are():
    config = RunConfig.parse({"dataset": "my.data:load", "model": "my.nets:build"})
    assert (config.dataset, config.model) == ("my.data:load", "my.nets:build")
    RunConfig.parse({"dataset": "imdb", "model": "my.nets:build"})
    RunConfig.parse({"dataset": "my.data:load", "model": "lstm"})


@pytest.mark.parametrize(
    ("run_config", "says"),
    [
        ({"drop-rat": 0.5}, "'drop-rat' is unknown: did you mean 'drop-rate'"),
        ({"xyzzy": 1}, "'xyzzy' is unknown: known: algo, num-rounds"),
        ({"drop_rate": 0.5}, "did you mean 'drop-rate'"),
        ({"drop-rate": "a lot"}, "drop-rate='a lot' must be a number"),
        ({"num-rounds": 2.5}, "num-rounds=2.5 must be a number (int)"),
        ({"num-rounds": True}, "num-rounds=True must be a number"),
        ({"download": 1}, "download=1 must be true or false"),
        ({"algo": 3}, "algo=3 must be a string in quotes"),
        ({"algo": "hetero"}, "algo='hetero' is not known: choose one of fedavg"),
        ({"drop-rate": 1.0}, "drop-rate=1.0 must be in [0, 1)"),
        ({"drop-rate": -0.1}, "drop-rate=-0.1 must be in [0, 1)"),
        ({"drop-rate": float("nan")}, "drop-rate=nan must be in [0, 1)"),
        ({"drop-rate": False}, "drop-rate=False must be a number (float)"),
        ({"lr": ""}, "lr='' must be a number (float)"),
        ({"buffer-size": 2.5}, "buffer-size=2.5 must be a number (int)"),
        (
            {"algo": "fedbuff", "buffer-size": 0},
            "buffer-size=0 must be at least 1",
        ),
        (
            {"algo": "asyncdrop-plus", "group-memory": 1},
            "group-memory=1 must be true or false",
        ),
        (
            {"algo": "fedbuff", "server-lr": 0.0},
            "server-lr=0.0 must be more than 0",
        ),
        ({"alpha": 0.0}, "alpha=0.0 must be in (0, 1]"),
        ({"num-rounds": 0}, "num-rounds=0 must be in [1, 1000000000]"),
        ({"in-flight": 0}, "in-flight=0 must be in [1, 100000]"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"dataset": "mnist"}, "dataset='mnist' must be one of digits, fashion-mnist"),
        ({"model": "vgg"}, "model='vgg' must be one of mlp, cnn"),
        ({"lr": 0.0}, "lr=0.0 must be in (0, 1000000]"),
        ({"dirichlet-alpha": 5e-324}, "dirichlet-alpha=5e-324 must be in [0.00000"),
        ({"lr": float("inf")}, "lr=inf must be in (0, 1000000]"),
        ({"lr-milestones": "0.7,0.2"}, "ascending fractions"),
        ({"lr-milestones": "half"}, "ascending fractions"),
        ({"lr-milestones": "0.5,1200s"}, "or seconds, e.g. '1200s,1800s'"),
        ({"lr-milestones": "1800s,1200s"}, "or seconds, e.g."),
        ({"lr-milestones": "0s"}, "or seconds, e.g."),
        ({"lr-milestones": "infs"}, "or seconds, e.g."),
        ({"lr-milestones": "1200"}, "or seconds, e.g."),
        ({"speed-ratio": 0.5}, "speed-ratio=0.5 must be in [1, 1000000]"),
        ({"jitter": 11.0}, "jitter=11.0 must be in [0, 10]"),
        (
            {"algo": "fedavg", "combine": "mode"},
            "combine='mode' must be one of mean, trimmed-mean",
        ),
        ({"algo": "fedavg", "trim": 0.5}, "trim=0.5 must be in [0, 0.5)"),
        ({"clip-norm": -1.0}, "clip-norm=-1.0 must be at least 0"),
        ({"max-examples": 0}, "max-examples=0 must be at least 1"),
        ({"deadline": 0.5}, "deadline=0.5 must be at least 1 (times the expected"),
        ({"late": "forget"}, "late='forget' must be one of merge, discount, drop"),
        ({"quarantine-after": -1}, "quarantine-after=-1 must be at least 0"),
        ({"metrics-port": 65536}, "metrics-port=65536 must be in [0, 65535]"),
        ({"metrics-address": ""}, "metrics-address='' must be an address to listen on"),
        (
            {"metrics-address": "0.0.0.0"},  # noqa: S104  # nothing listens
            "metrics-port=0 listens on no port, which contradicts metrics-address='0.0",
        ),
        ({"dropout": 1.0}, "dropout=1.0 must be in [0, 1)"),
        ({"availability": 0.0}, "availability=0.0 must be in [0.000000001, 1]"),
        ({"duration": "long"}, "duration='long' must be one of flops, paper"),
        ({"clock": "sundial"}, "clock='sundial' must be one of virtual, wall"),
    ],
)
def test_a_wrong_key_or_value_is_refused_by_name(run_config, says):
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(run_config)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("run_config", "names"),
    [
        ({"algo": "async-fedavg", "drop-rate": 0.5}, ["algo", "drop-rate=0.5"]),
        ({"algo": "asyncdrop", "buffer-size": 4}, ["algo", "buffer-size=4", "fedbuff"]),
        ({"algo": "fedavg", "proximal-mu": 1.0}, ["proximal-mu=1.0", "async-fedprox"]),
        ({"algo": "fedbuff", "scope": "internal"}, ["algo", "scope='internal'"]),
        ({"algo": "async-fedavg", "scope": "internal"}, ["algo", "scope"]),
        ({"algo": "layerwise-asyncdrop", "round-to": 16}, ["algo", "round-to=16"]),
        ({"algo": "layerwise-asyncdrop", "scope": "internal"}, ["algo", "scope"]),
        ({"algo": "fedbuff", "scale": False}, ["algo", "scale=False"]),
        ({"algo": "layerwise-asyncdrop", "scale": False}, ["algo", "scale"]),
        ({"algo": "asyncdrop", "combine": "median"}, ["algo", "combine='median'"]),
        (
            {"algo": "fedbuff", "combine": "median", "trim": 0.1},
            ["combine='median'", "trim=0.1", "'trimmed-mean'"],
        ),
        ({"algo": "fedbuff", "trim": 0.2}, ["combine='mean'", "trim=0.2"]),
        (
            {"algo": "async-weighted", "weighting-a": 2.0},
            ["weighting='capability'", "weighting-a=2.0", "weighting='hinge'"],
        ),
        (
            {"algo": "fedbuff", "weighting": "constant", "weighting-b": 1.0},
            ["weighting='constant'", "weighting-b=1.0"],
        ),
        (
            {"algo": "fedbuff-wait", "weighting-b": 0.0},
            ["weighting='polynomial'", "weighting-b=0.0", "weighting='hinge'"],
        ),
        (
            {"algo": "asyncdrop-plus", "waits": False, "wait-limit": 2.0},
            ["waits=false", "wait-limit=2.0", "waits=true"],
        ),
        (
            {"algo": "asyncdrop-plus", "group-memory": False, "adaptive-memory": True},
            ["group-memory=false", "adaptive-memory=True"],
        ),
        (
            {
                "algo": "asyncdrop-plus",
                "group-memory": False,
                "adaptive-staleness": True,
            },
            ["group-memory=false", "adaptive-staleness=True"],
        ),
        (
            {
                "algo": "asyncdrop-plus",
                "adaptive-memory": False,
                "adaptive-staleness": True,
            },
            ["adaptive-memory=false", "adaptive-staleness=True"],
        ),
        (
            {"algo": "asyncdrop-plus", "combine": "median", "adaptive-memory": True},
            ["combine='median'", "adaptive-memory=True", "combine='mean'"],
        ),
        (
            {
                "algo": "asyncdrop-plus",
                "combine": "trimmed-mean",
                "adaptive-staleness": True,
            },
            ["combine='trimmed-mean'", "adaptive-staleness=True"],
        ),
        ({"dataset": "imdb"}, ["dataset='imdb'", "model='cnn'", "'lstm'"]),
        ({"model": "lstm"}, ["model='lstm'", "dataset='digits'", "'imdb'"]),
        ({"dirichlet-alpha": 0.1}, ["partition='speed-level'", "dirichlet-alpha=0.1"]),
        ({"data-dir": "/data"}, ["dataset", "data-dir"]),
        ({"download": True}, ["dataset", "download"]),
        ({"dataset": "cifar10", "download": True}, ["download", "data-dir"]),
        (
            {"dataset": "my.data:load", "download": True, "data-dir": "/data"},
            ["dataset='my.data:load'", "download=True", "fashion-mnist, cifar10"],
        ),
        (
            {
                "dataset": "diamonds",
                "model": "mlp",
                "download": True,
                "data-dir": "/data",
            },
            ["dataset='diamonds'", "download=True"],
        ),
        ({"clock": "wall", "speed-ratio": 8.0}, ["clock", "speed-ratio"]),
        ({"clock": "wall", "trace": "/t.csv"}, ["clock", "trace"]),
        ({"clock": "wall", "duration": "paper"}, ["clock", "duration"]),
        ({"clock": "wall", "jitter": 0.1}, ["clock", "jitter"]),
        ({"clock": "wall", "dropout": 0.1}, ["clock", "dropout"]),
        ({"clock": "wall", "availability": 0.5}, ["clock", "availability"]),
        ({"clock": "wall", "watts": 2.0}, ["clock", "watts=2.0"]),
        ({"trace": "/t.csv", "watts": 2.0}, ["trace", "watts=2.0"]),
        (
            {"trace": "/t.csv", "joules-per-megabyte": 2.0},
            ["trace", "joules-per-megabyte=2.0"],
        ),
        ({"deadline": 0.0, "late": "drop"}, ["deadline=0", "late='drop'"]),
        (
            {"trace": "/t.csv", "levels": 4, "partition": "iid"},
            ["trace='/t.csv'", "partition='iid'", "levels"],
        ),
        (
            {"clock": "wall", "levels": 4, "partition": "dirichlet"},
            ["clock='wall'", "partition='dirichlet'", "levels"],
        ),
        ({"trace": "/t.csv", "speed-ratio": 8.0}, ["trace", "speed-ratio"]),
        ({"trace": "/t.csv", "step-seconds": 2.0}, ["trace", "step-seconds"]),
        ({"trace": "/t.csv", "bandwidth-mbps": 8.0}, ["trace", "bandwidth-mbps"]),
        ({"trace": "/t.csv", "jitter": 0.1}, ["trace", "jitter"]),
        ({"trace": "/t.csv", "dropout": 0.1}, ["trace", "dropout"]),
        ({"trace": "/t.csv", "availability": 0.5}, ["trace", "availability"]),
        ({"codec": "auto"}, ["bandwidth-mbps=0", "codec='auto'"]),
        ({"lr-milestones": "", "lr-gamma": 0.5}, ["lr-milestones=''", "lr-gamma=0.5"]),
        ({"levels": 1, "speed-ratio": 9.0}, ["levels=1", "speed-ratio=9.0"]),
        ({"resume": "/a", "out-dir": "/b"}, ["resume='/a'", "out-dir='/b'"]),
        ({"resume": "/a", "checkpoint-every": 0}, ["resume='/a'", "checkpoint-every"]),
        (
            {"checkpoint-every": 0, "keep-checkpoints": 3},
            ["checkpoint-every=0", "keep-checkpoints=3"],
        ),
    ],
)
def test_contradictory_keys_are_refused_by_name(run_config, names):
    with pytest.raises(ConfigError) as caught:
        RunConfig.parse(run_config)
    assert all(name in str(caught.value) for name in names)


def test_contradictions_leave_what_agrees_alone():
    RunConfig.parse({"algo": "async-fedavg"})
    RunConfig.parse({"algo": "layerwise-asyncdrop", "drop-rate": 0.5})
    RunConfig.parse({"algo": "fedavg", "combine": "trimmed-mean", "trim": 0.1})
    RunConfig.parse({"algo": "fedbuff", "weighting-a": 2.0})
    hinge = {"weighting": "hinge", "weighting-a": 2.0, "weighting-b": 1.0}
    RunConfig.parse({"algo": "async-weighted", **hinge})
    plus = {"algo": "asyncdrop-plus"}
    RunConfig.parse({**plus, "wait-limit": 2.0, "adaptive-memory": True})
    off = {"group-memory": False, "adaptive-memory": False, "adaptive-staleness": False}
    RunConfig.parse({**plus, **off, "waits": False})
    RunConfig.parse({**plus, "combine": "median", "adaptive-memory": False})
    RunConfig.parse({"levels": 1})
    RunConfig.parse({"levels": 1, "speed-ratio": 1.0})
    RunConfig.parse({"lr-milestones": ""})
    RunConfig.parse({"lr-milestones": "0.5", "lr-gamma": 0.5})
    RunConfig.parse({"clock": "wall"})
    RunConfig.parse({"clock": "wall", "codec": "auto"})
    RunConfig.parse({"bandwidth-mbps": 5.0, "codec": "auto"})
    RunConfig.parse({"trace": "/t.csv", "codec": "auto"})
    RunConfig.parse({"trace": "/t.csv", "levels": 4})
    RunConfig.parse({"clock": "wall", "levels": 4})
    RunConfig.parse({"trace": "/t.csv", "duration": "paper", "selection": "uniform"})
    RunConfig.parse({"dataset": "cifar10", "download": True, "data-dir": "/data"})
    RunConfig.parse({"dataset": "imdb", "model": "lstm", "data-dir": "/data"})
    RunConfig.parse({"partition": "dirichlet", "dirichlet-alpha": 0.1})
    RunConfig.parse({"resume": "/a/checkpoints/000003", "out-dir": "/a"})


def test_the_settings_are_all_that_was_parsed():
    given = {"algo": "asyncdrop", "drop-rate": 0.5, "resume": "/a"}
    config = RunConfig.parse(given)
    assert RunConfig.parse(config.settings) == config
    assert config.settings.items() >= given.items()
    assert config.settings.keys() > IRRELEVANT > INCIDENTAL
    assert {"timeout", "max-seconds"} == IRRELEVANT - INCIDENTAL


def test_milestones():
    assert RunConfig().milestones == (0.5, 0.75)
    assert RunConfig(lr_milestones="").milestones == ()
    assert RunConfig(lr_milestones="1200s, 1.5e3s").milestones == (1200.0, 1500.0)


@pytest.mark.parametrize("key", ["seed", "lr"])
def test_a_number_beyond_64_bits_is_refused(key):
    """One that is no float either ended in an OverflowError."""
    with pytest.raises(ConfigError, match=f"{key}=1000.* must fit into 64 bits"):
        RunConfig.parse({key: 10**400})
