import sys

import pytest

from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.cli.presets import ABLATIONS, PRESETS
from flwr_asyncdrop.cli.variants import build_variants, preset_settings
from flwr_asyncdrop.exceptions import ConfigError

DIGITS, MLP = PRESETS["digits"], PRESETS["mlp-fashion-mnist"]


def labels(*arguments):
    return [variant.label for variant in build_variants(*arguments)]


def test_without_variation_a_label_is_the_name_of_its_algorithm():
    assert labels(["fedbuff", "asyncdrop"], DIGITS, {}, {}) == ["fedbuff", "asyncdrop"]


def test_every_combination_is_a_variant():
    vary = {"drop-rate": [0.0, 0.5], "partition": ["iid", "speed-level"]}
    assert labels(["asyncdrop"], DIGITS, {}, vary) == [
        "asyncdrop,drop-rate=0.0,partition=iid",
        "asyncdrop,drop-rate=0.0,partition=speed-level",
        "asyncdrop,drop-rate=0.5,partition=iid",
        "asyncdrop,drop-rate=0.5,partition=speed-level",
    ]


def test_scale_varies_where_layers_become_narrower():
    vary = {"scale": [True, False]}
    assert labels(["fedavg", "layerwise-asyncdrop", "asyncdrop"], DIGITS, {}, vary) == [
        "fedavg",
        "layerwise-asyncdrop",
        "asyncdrop,scale=true",
        "asyncdrop,scale=false",
    ]


def test_a_label_that_no_folder_can_have_is_refused_before_anything_runs():
    vary = {"lr": [0.1], "trace": [f"{'t' * 240}.csv"]}
    with pytest.raises(ConfigError, match="lr, trace make a label of 265 bytes"):
        build_variants(["fedbuff"], DIGITS, {}, vary)


def test_an_algorithm_does_not_vary_by_what_it_does_not_use():
    vary = {"drop-rate": [0.25, 0.5], "lr": [0.1]}
    assert labels(["fedbuff", "asyncdrop"], DIGITS, {}, vary) == [
        "fedbuff,lr=0.1",
        "asyncdrop,drop-rate=0.25,lr=0.1",
        "asyncdrop,drop-rate=0.5,lr=0.1",
    ]


def test_what_varies_overrides_flags_which_override_the_task():
    (variant,) = build_variants(
        ["asyncdrop"], MLP, {"lr": 0.5, "momentum": 0.0}, {"lr": [0.1]}
    )
    settings = variant.settings
    assert (settings["lr"], settings["momentum"]) == (0.1, 0.0)
    assert (settings["algo"], settings["batch-size"]) == ("asyncdrop", 128)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_runs_every_task_with_flags_that_suit_only_some(algo):
    explicit = {"drop-rate": 0.5, "scope": "internal", "server-lr": 0.5}
    names = {algo, "hetero-asyncdrop", "fedbuff"}
    for variant in build_variants(names, MLP, explicit, {}):
        config = RunConfig.parse(variant.settings)
        own = ALGORITHMS[config.algo]()
        for name in ("drop_rate", "server_lr"):
            expected = 0.5 if hasattr(own, name) else None
            assert getattr(config.algorithm, name, None) == expected


def test_a_key_that_means_nothing_to_any_algorithm_is_refused():
    with pytest.raises(ConfigError, match="drop-rate means nothing to fedavg, fedbuff"):
        build_variants(["fedavg", "fedbuff"], DIGITS, {"drop-rate": 0.5}, {})
    with pytest.raises(ConfigError, match="scope means nothing to fedavg"):
        build_variants(["fedavg"], DIGITS, {}, {"scope": ["all", "internal"]})


def test_a_single_run_keeps_explicit_keys_so_that_contradictions_show():
    with pytest.raises(ConfigError, match=r"drop-rate=0\.5 makes no difference"):
        preset_settings(MLP, {"algo": "fedavg", "drop-rate": 0.5})


def test_labels_are_names_of_folders():
    assert labels(["fedavg"], DIGITS, {}, {"trace": ["a/b.csv"]}) == [
        "fedavg,trace=a_b.csv"
    ]


def test_the_label_of_an_algorithm_from_outside_is_a_name(tmp_path, monkeypatch):
    (tmp_path / "outside_variants.py").write_text(
        "from dataclasses import dataclass\n"
        "from flwr_asyncdrop.algorithms import AsyncDrop\n"
        "@dataclass(frozen=True)\n"
        "class Rolling(AsyncDrop):\n"
        "    window: int = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    algos = ["outside_variants:Rolling", "asyncdrop"]
    vary = {"window": [1, 2], "model": ["nets:build"]}
    variants = build_variants(algos, DIGITS, {"scope": "internal"}, vary)
    assert [variant.label for variant in variants] == [
        "Rolling,window=1,model=nets.build",
        "Rolling,window=2,model=nets.build",
        "asyncdrop,model=nets.build",
    ]
    assert RunConfig.parse(variants[1].settings).algorithm.window == 2


@pytest.mark.parametrize("name", ["..", ".", " "])
def test_an_algorithm_whose_name_is_no_folders_is_refused(name, tmp_path, monkeypatch):
    """The runs of one that called itself ".." were beside the comparison's folder."""
    (tmp_path / "nameless_variants.py").write_text(
        "from flwr_asyncdrop.algorithms import FedAvg\n"
        f"class Mine(FedAvg): name = {name!r}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "nameless_variants", raising=False)
    with pytest.raises(ConfigError, match=r"calls itself '[. ]+', and no folder"):
        labels(["nameless_variants:Mine"], DIGITS, {}, {})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "drop-rate",
            [f"hetero-asyncdrop,drop-rate={rate}" for rate in (0.0, 0.125, 0.25, 0.5)],
        ),
        (
            "local-steps",
            [f"hetero-asyncdrop,local-steps={steps}" for steps in (25, 50, 100)],
        ),
        ("smart-vs-random", ["asyncdrop", "hetero-asyncdrop"]),
        ("filter-vs-layer", ["hetero-asyncdrop", "layerwise-asyncdrop"]),
    ],
)
def test_ablations(name, expected):
    ablation = ABLATIONS[name]
    task = PRESETS["resnet34-cifar100"]
    assert labels(ablation.algorithms, task, {}, ablation.vary) == expected
