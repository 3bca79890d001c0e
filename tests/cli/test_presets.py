import pytest

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.cli.presets import PRESETS, num_rounds
from flwr_asyncdrop.cli.variants import preset_settings
from flwr_asyncdrop.exceptions import ConfigError


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("algo", ["async-fedavg", "hetero-asyncdrop"])
def test_every_task_is_a_valid_configuration(name, algo):
    config = RunConfig.parse(preset_settings(PRESETS[name], {"algo": algo}))
    assert config.algo == algo


# By hand: the speeds of the levels are 1, 7/11, 7/15, 7/19, 7/23, 7/27, 7/31 and 1/5
# of the fastest, 0.43261 on average. MLP: a device holds 60,000 / 8 / 2 = 3,750
# samples; 160 epochs of them are 600,000, at 50 x 128 an update 93.75, so 94 updates;
# 94 x 0.43261 = 40.7. ResNet34, CIFAR: 3,125 x 320 / 6,400 = 156.25, 157 x 0.43261 =
# 67.9. LSTM: 1,562.5 x 80 / (40 x 64) = 48.8, 49 x 0.43261 = 21.2.
@pytest.mark.parametrize(
    ("name", "rounds"),
    [
        ("mlp-fashion-mnist", 41),
        ("resnet34-fashion-mnist", 41),
        ("resnet34-fashion-mnist-paper", 41),
        ("resnet34-cifar10", 68),
        ("resnet34-cifar10-paper", 68),
        ("resnet34-cifar100", 68),
        ("resnet34-cifar100-paper", 68),
        ("lstm-imdb", 22),
    ],
)
def test_the_papers_tasks_last_until_the_fastest_have_finished_their_epochs(
    name, rounds
):
    settings = preset_settings(PRESETS[name], {"algo": "hetero-asyncdrop"})
    assert settings["num-rounds"] == rounds


def test_longer_tasks_make_fewer_rounds():
    """100 local steps: 46.875, so 47 updates of the fastest; 47 x 0.43261 = 20.3."""
    explicit = {"algo": "fedbuff", "local-steps": 100}
    assert preset_settings(PRESETS["mlp-fashion-mnist"], explicit)["num-rounds"] == 21


def test_rounds_that_were_asked_for_stay():
    settings = preset_settings(PRESETS["mlp-fashion-mnist"], {"num-rounds": 3})
    assert settings["num-rounds"] == 3


def test_where_all_devices_are_equal_a_round_is_an_update_of_each():
    config = RunConfig(speed_ratio=1.0, levels=2, local_steps=5, batch_size=10)
    # 400 / 2 / 2 = 100 samples a device, 50 an update: 2 updates an epoch.
    assert num_rounds(config, epochs=7, samples=400) == 14


def test_tasks_have_the_papers_protocol():
    settings = PRESETS["lstm-imdb"].settings
    assert (settings["drop-rate"], settings["local-steps"]) == (0.125, 40)
    for task in ("mlp-fashion-mnist", "resnet34-cifar100"):
        settings = PRESETS[task].settings
        assert (settings["drop-rate"], settings["local-steps"]) == (0.25, 50)
        assert (settings["lr"], settings["batch-size"]) == (0.01, 128)


SMALL = [name for name in PRESETS if name.endswith("-small")]


@pytest.mark.parametrize("name", [name for name in SMALL if "cifar10" not in name])
@pytest.mark.parametrize("algo", ["fedbuff", "asyncdrop-plus"])
def test_short_tasks_are_tested_often_on_the_papers_fleet(name, algo):
    settings = preset_settings(PRESETS[name], {"algo": algo})
    assert settings["num-rounds"] / settings["evaluate-every"] >= 25
    assert 25 <= settings["local-steps"] <= 50
    fleet = ("levels", "speed-ratio", "in-flight", "selection", "partition")
    expected = (8, 5.0, 8, "stratified", "speed-level")
    assert tuple(settings[key] for key in fleet) == expected


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "fashion-mnist"])
@pytest.mark.parametrize(
    ("algo", "own"),
    [
        ("hetero-asyncdrop", {"scope", "scale", "score-vectors"}),
        ("asyncdrop", {"scope", "scale"}),
        ("async-fedavg", set()),
    ],
)
def test_the_papers_resnet_has_the_rules_that_its_algorithms_know(algo, own, dataset):
    rules = {"scope": "internal", "scale": False, "score-vectors": False}
    everybodys = {"augment": True, "duration": "paper"}
    ours, papers = (
        preset_settings(PRESETS[name], {"algo": algo})
        for name in (f"resnet34-{dataset}", f"resnet34-{dataset}-paper")
    )
    expected = everybodys | {key: rules[key] for key in own}
    assert papers == ours | expected


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    "explicit",
    [
        {"partition": "iid"},
        {"partition": "dirichlet", "dirichlet-alpha": 0.1},
        {"dataset": "digits", "model": "mlp"},
        {"dataset": "imdb", "model": "lstm"},
        {"dataset": "diamonds", "model": "mlp"},
        {"dataset": "own:load", "model": "own:build"},
        {"trace": "phones.csv"},
        {"algo": "fedavg"},
        {"lr-milestones": ""},
        {"clock": "wall"},
    ],
    ids=str,
)
def test_what_a_task_says_of_something_else_is_left_out_of_it(name, explicit):
    """It was refused, with the advice to leave out what nobody had given."""
    settings = preset_settings(PRESETS[name], explicit)
    assert {key: settings[key] for key in explicit} == explicit


@pytest.mark.parametrize(
    ("explicit", "says"),
    [
        ({"partition": "iid", "shards-per-level": 4}, "contradicts shards-per-level=4"),
        ({"dataset": "digits", "text-length": 16}, "contradicts text-length=16"),
    ],
)
def test_what_was_given_is_refused_where_it_makes_no_difference(explicit, says):
    with pytest.raises(ConfigError, match=says):
        preset_settings(PRESETS["lstm-small"], {"model": "mlp", **explicit})
