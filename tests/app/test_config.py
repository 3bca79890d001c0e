import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from flwr_asyncdrop.app.config import INCIDENTAL, RunConfig
from flwr_asyncdrop.exceptions import ConfigError

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def documented():
    return tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"]


def test_pyproject_documents_every_key_with_its_default():
    defaults = {k.replace("_", "-"): v for k, v in asdict(RunConfig()).items()}
    assert documented() == defaults


def test_the_documented_config_parses_to_the_defaults():
    assert RunConfig.parse(documented()) == RunConfig()


def test_every_documented_key_has_a_comment():
    section = PYPROJECT.read_text().split("[tool.flwr.app.config]")[1].split("\n[")[0]
    bare = [
        line
        for line in section.splitlines()
        if "=" in line and not line.startswith("#") and "#" not in line
    ]
    # Where the name says it all.
    assert [line.split()[0] for line in bare] == ["batch-size"]


def test_values_are_taken_and_integers_do_for_floats():
    config = RunConfig.parse({"algo": "asyncdrop", "drop-rate": 0, "num-rounds": 7})
    assert (config.algo, config.drop_rate, config.num_rounds) == ("asyncdrop", 0.0, 7)
    assert isinstance(config.drop_rate, float)


@pytest.mark.parametrize(
    ("run_config", "says"),
    [
        ({"drop-rat": 0.5}, "'drop-rat' is unknown: did you mean 'drop-rate'"),
        ({"xyzzy": 1}, "'xyzzy' is unknown: known: algo, drop-rate"),
        ({"drop_rate": 0.5}, "did you mean 'drop-rate'"),
        ({"drop-rate": "a lot"}, "drop-rate='a lot' must be a number"),
        ({"num-rounds": 2.5}, "num-rounds=2.5 must be a number (int)"),
        ({"num-rounds": True}, "num-rounds=True must be a number"),
        ({"download": 1}, "download=1 must be true or false"),
        ({"algo": 3}, "algo=3 must be a string in quotes"),
        ({"algo": "hetero"}, "algo='hetero' must be one of fedavg, async-fedavg"),
        ({"drop-rate": 1.0}, "drop-rate=1.0 must be in [0, 1)"),
        ({"drop-rate": -0.1}, "drop-rate=-0.1 must be in [0, 1)"),
        ({"drop-rate": float("nan")}, "drop-rate=nan must be in [0, 1)"),
        ({"alpha": 0.0}, "alpha=0.0 must be in (0, 1]"),
        ({"num-rounds": 0}, "num-rounds=0 must be at least 1"),
        ({"in-flight": 0}, "in-flight=0 must be at least 1"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"dataset": "mnist"}, "dataset='mnist' must be one of digits, fashion-mnist"),
        ({"model": "vgg"}, "model='vgg' must be one of mlp, cnn"),
        ({"lr": 0.0}, "lr=0.0 must be more than 0"),
        ({"lr": float("inf")}, "lr=inf must be more than 0"),
        ({"lr-milestones": "0.7,0.2"}, "ascending fractions"),
        ({"lr-milestones": "half"}, "ascending fractions"),
        ({"speed-ratio": 0.5}, "speed-ratio=0.5 must be at least 1"),
        ({"jitter": 11.0}, "jitter=11.0 must be in [0, 10]"),
        ({"combine": "mode"}, "combine='mode' must be one of mean, trimmed-mean"),
        ({"trim": 0.5}, "trim=0.5 must be in [0, 0.5)"),
        ({"clip-norm": -1.0}, "clip-norm=-1.0 must be at least 0"),
        ({"max-examples": 0}, "max-examples=0 must be at least 1"),
        ({"deadline": 0.5}, "deadline=0.5 must be at least 1 (times the expected"),
        ({"late": "forget"}, "late='forget' must be one of merge, discount, drop"),
        ({"quarantine-after": -1}, "quarantine-after=-1 must be at least 0"),
        ({"metrics-port": 65536}, "metrics-port=65536 must be in [0, 65535]"),
        ({"metrics-address": ""}, "metrics-address='' must be an address to listen on"),
        (
            {"metrics-address": "0.0.0.0"},  # noqa: S104  # nothing listens
            "metrics-address='0.0.0.0' listens on no port with metrics-port=0",
        ),
        ({"dropout": 1.0}, "dropout=1.0 must be in [0, 1)"),
        ({"availability": 0.0}, "availability=0.0 must be in (0, 1]"),
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
        ({"algo": "asyncdrop", "combine": "median"}, ["algo", "combine='median'"]),
        (
            {"algo": "fedbuff", "combine": "median", "trim": 0.1},
            ["combine='median'", "trim=0.1", "'trimmed-mean'"],
        ),
        ({"dataset": "imdb"}, ["dataset='imdb'", "model='cnn'", "'lstm'"]),
        ({"model": "lstm"}, ["model='lstm'", "dataset='digits'", "'imdb'"]),
        ({"dirichlet-alpha": 0.1}, ["partition='speed-level'", "dirichlet-alpha=0.1"]),
        ({"data-dir": "/data"}, ["dataset", "data-dir"]),
        ({"download": True}, ["dataset", "download"]),
        ({"dataset": "cifar10", "download": True}, ["download", "data-dir"]),
        ({"clock": "wall", "speed-ratio": 8.0}, ["clock", "speed-ratio"]),
        ({"clock": "wall", "trace": "/t.csv"}, ["clock", "trace"]),
        ({"clock": "wall", "duration": "paper"}, ["clock", "duration"]),
        ({"clock": "wall", "jitter": 0.1}, ["clock", "jitter"]),
        ({"clock": "wall", "dropout": 0.1}, ["clock", "dropout"]),
        ({"clock": "wall", "availability": 0.5}, ["clock", "availability"]),
        ({"deadline": 0.0, "late": "drop"}, ["deadline=0", "late='drop'"]),
        ({"trace": "/t.csv", "levels": 4}, ["trace='/t.csv'", "levels"]),
        ({"trace": "/t.csv", "speed-ratio": 8.0}, ["trace", "speed-ratio"]),
        ({"trace": "/t.csv", "step-seconds": 2.0}, ["trace", "step-seconds"]),
        ({"trace": "/t.csv", "bandwidth-mbps": 8.0}, ["trace", "bandwidth-mbps"]),
        ({"trace": "/t.csv", "jitter": 0.1}, ["trace", "jitter"]),
        ({"trace": "/t.csv", "dropout": 0.1}, ["trace", "dropout"]),
        ({"trace": "/t.csv", "availability": 0.5}, ["trace", "availability"]),
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
    RunConfig.parse({"clock": "wall"})
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
    assert config.settings.keys() > INCIDENTAL


def test_milestones():
    assert RunConfig().milestones == (0.5, 0.75)
    assert RunConfig(lr_milestones="").milestones == ()
