from dataclasses import replace

import pytest
from flwr_asyncdrop.algorithms.hyperparameters import HYPERPARAMETERS, Hyperparameters

from flwr_asyncdrop.aggregation import Buffered, Clipped, LatestPerGroup, Mixing
from flwr_asyncdrop.aggregation.server_step import ServerStep
from flwr_asyncdrop.algorithms.registry import ALGORITHMS, algorithm
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import OrderedMask, RandomMask, SmartPartition
from tests.strategies import STRATEGIES


@pytest.mark.parametrize(
    ("name", "aggregator", "mask", "waits"),
    [
        ("fedavg", Buffered, None, True),
        ("async-fedavg", Mixing, None, False),
        ("async-weighted", Mixing, None, False),
        ("async-fedprox", Mixing, None, False),
        ("async-fjord", Mixing, OrderedMask, False),
        ("fedbuff", Buffered, None, False),
        ("fedbuff-wait", Buffered, None, True),
        ("asyncdrop", Mixing, RandomMask, False),
        ("hetero-asyncdrop", Mixing, SmartPartition, False),
        ("layerwise-asyncdrop", Mixing, SmartPartition, False),
        ("asyncdrop-plus", LatestPerGroup, RandomMask, False),
    ],
)
def test_what_the_algorithms_are_made_of(name, aggregator, mask, waits):
    rules = algorithm(name)
    built = rules.aggregator(Hyperparameters(), 8)
    assert isinstance(built, aggregator)
    assert built.waits == waits
    policy = None if rules.mask is None else rules.mask(Hyperparameters())
    assert policy is mask is None or isinstance(policy, mask)
    assert (rules.units == "blocks") == (name == "layerwise-asyncdrop")


def test_a_buffer_holds_half_of_the_devices_unless_told_and_a_cohort_all():
    sizes = {
        (name, size): algorithm(name).aggregator(Hyperparameters(buffer_size=size), 9)
        for name in ("fedbuff", "fedbuff-wait", "fedavg")
        for size in (0, 3)
    }
    assert {key: built.size for key, built in sizes.items()} == {
        ("fedbuff", 0): 4,
        ("fedbuff", 3): 3,
        ("fedbuff-wait", 0): 4,
        ("fedbuff-wait", 3): 3,
        ("fedavg", 0): 9,
        ("fedavg", 3): 9,
    }


def test_devices_that_would_wait_for_ever_are_refused():
    hyper = Hyperparameters(buffer_size=5)
    assert algorithm("fedbuff").aggregator(hyper, 4).size == 5
    with pytest.raises(ConfigError, match="buffer_size=5 is more than the 4 devices"):
        algorithm("fedbuff-wait").aggregator(hyper, 4)


def test_every_algorithm_clips_if_told_to():
    for rules in ALGORITHMS.values():
        plain = rules.build_aggregator(Hyperparameters(), 8)
        clipped = rules.build_aggregator(Hyperparameters(clip_norm=2.0), 8)
        assert not isinstance(plain, Clipped)
        assert isinstance(clipped, Clipped)
        assert clipped.norm == 2.0
        assert clipped.waits == plain.waits


def test_outliers_among_two_are_refused():
    """A buffer is half of the devices in flight unless told otherwise."""
    median = Hyperparameters(combine="median")
    for name, fewest in (("fedavg", 3), ("fedbuff", 6), ("asyncdrop-plus", 3)):
        algorithm(name).aggregator(median, fewest)
        with pytest.raises(ConfigError, match="outlier among 2 updates"):
            algorithm(name).aggregator(median, fewest - 1)


def test_hyperparameters_that_make_no_difference_are_refused_by_name():
    rules = algorithm("asyncdrop")
    assert rules.hyperparameters("asyncdrop", {"drop_rate": 0.5}).drop_rate == 0.5
    with pytest.raises(ConfigError, match="does not use hyperparameter 'server_lr'"):
        rules.hyperparameters("asyncdrop", {"server_lr": 1.0})
    with pytest.raises(ConfigError, match="has no hyperparameter 'drop_rat'"):
        rules.hyperparameters("asyncdrop", {"drop_rat": 0.5})


def test_what_an_algorithm_does_not_use_makes_no_difference():
    """A hyperparameter left out of `uses` must not change what is built."""
    other = Hyperparameters(
        alpha=0.3,
        drop_rate=0.1,
        round_to=2,
        weighting="hinge",
        weighting_a=0.9,
        weighting_b=0.0,
        buffer_size=2,
        server_lr=0.5,
        server_momentum=0.5,
        combine="median",
        trim=0.4,
        clip_norm=0.5,
        proximal_mu=0.5,
        averaging=0.5,
        logit_adjustment=0.5,
    )
    for rules in ALGORITHMS.values():
        for name in HYPERPARAMETERS:
            # A share to trim makes a difference to a trimmed mean alone.
            combine = "trimmed-mean" if name == "trim" else "mean"
            default = Hyperparameters(combine=combine)
            changed = replace(default, **{name: getattr(other, name)})
            assert (name in rules.uses) == (
                fingerprint(rules, changed) != fingerprint(rules, default)
                or (
                    name in ("weighting_a", "weighting_b") and "weighting" in rules.uses
                )
            ), (rules, name)


def fingerprint(rules, hyper):
    """Return everything that an algorithm builds, as comparable text."""
    mask = None if rules.mask is None else vars(rules.mask(hyper))
    aggregator = {
        name: vars(part) if isinstance(part, ServerStep) else part
        for name, part in vars(rules.build_aggregator(hyper, 8)).items()
    }
    averaging = hyper.averaging or rules.averaging
    return repr((aggregator, mask, rules.local(hyper), averaging))


def test_every_algorithm_has_a_strategy_of_its_name():
    assert STRATEGIES.keys() == ALGORITHMS.keys()
    assert all(cls.algorithm == name for name, cls in STRATEGIES.items())


def test_an_unknown_algorithm_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="algo='fedsgd' is not known") as caught:
        algorithm("fedsgd")
    assert all(name in str(caught.value) for name in ALGORITHMS)
    assert "\n" not in str(caught.value)


def test_the_table_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        ALGORITHMS["mine"] = ALGORITHMS["asyncdrop"]
