"""What each algorithm is made of, and what its fields change."""

import math
import re
from dataclasses import FrozenInstanceError, asdict, dataclass, fields, replace
from functools import partial

import pytest
import torch

from flwr_asyncdrop.aggregation import (
    AdaptivePerGroup,
    Buffered,
    Clipped,
    LatestPerGroup,
    Mixing,
    Update,
)
from flwr_asyncdrop.algorithms import (
    ALGORITHMS,
    Algorithm,
    AsyncDrop,
    AsyncDropPlus,
    FedAvg,
    FedBuff,
    FedBuffWait,
    algorithm,
)
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import OrderedMask, RandomMask, SmartPartition
from flwr_asyncdrop.parameters import details, parameter
from tests.strategies import STRATEGIES


@pytest.mark.parametrize(
    ("name", "aggregator", "mask", "waits_for"),
    [
        ("fedavg", Buffered, None, 8),
        ("async-fedavg", Mixing, None, 1),
        ("async-weighted", Mixing, None, 1),
        ("async-fedprox", Mixing, None, 1),
        ("async-fjord", Mixing, OrderedMask, 1),
        ("fedbuff", Buffered, None, 1),
        ("fedbuff-wait", Buffered, None, 4),
        ("asyncdrop", Mixing, RandomMask, 1),
        ("hetero-asyncdrop", Mixing, SmartPartition, 1),
        ("layerwise-asyncdrop", Mixing, SmartPartition, 1),
        ("asyncdrop-plus", AdaptivePerGroup, RandomMask, 4),
    ],
)
def test_what_the_algorithms_are_made_of(name, aggregator, mask, waits_for):
    made = algorithm(name)()
    built = made.aggregator(8)
    assert isinstance(built, aggregator)
    assert built.waits_for == waits_for
    policy = made.masks()
    assert policy is mask is None or isinstance(policy, mask)
    assert (made.units == "blocks") == (name == "layerwise-asyncdrop")


@pytest.mark.parametrize("kind", ALGORITHMS.values())
class TestEveryAlgorithm:
    def test_cannot_be_changed(self, kind):
        with pytest.raises(FrozenInstanceError):
            kind().clip_norm = 1.0

    def test_every_field_is_explained_and_typed(self, kind):
        for name, (field, about) in details(kind).items():
            assert about.help, name
            assert field.type not in ("object", "Any"), name

    def test_clips_if_told_to(self, kind):
        plain, clipped = kind(), kind(clip_norm=2.0)
        assert not isinstance(plain.clipped_aggregator(8), Clipped)
        built = clipped.clipped_aggregator(8)
        assert isinstance(built, Clipped)
        assert built.norm == 2.0
        assert built.waits_for == plain.clipped_aggregator(8).waits_for

    def test_every_field_makes_a_difference(self, kind):
        for field in fields(kind):
            # A share to trim makes one to a trimmed mean alone, and two numbers make
            # one to some of the functions that weigh.
            trims = {"combine": "trimmed-mean"} if field.name == "trim" else {}
            hinges = {"weighting": "hinge"} if "weighting_" in field.name else {}
            default = kind(**trims, **hinges)
            value = getattr(default, field.name)
            value = not value if isinstance(value, bool) else OTHER[field.name]
            changed = replace(default, **{field.name: value})
            assert fingerprint(changed) != fingerprint(default), field.name


OTHER = {
    "alpha": 0.3,
    "drop_rate": 0.1,
    "round_to": 2,
    "weighting": "hinge",
    "weighting_a": 0.9,
    "weighting_b": 0.0,
    "buffer_size": 3,
    "server_lr": 0.5,
    "server_momentum": 0.5,
    "combine": "median",
    "trim": 0.4,
    "clip_norm": 0.5,
    "proximal_mu": 0.5,
    "averaging": 0.5,
    "logit_adjustment": 0.5,
    "rate_spread": 0.1,
    "wait_limit": 3.0,
    "least_saving": 0.7,
}
"""Other values of the hyperparameters that are no truths."""


def fingerprint(made):
    """Return everything that an algorithm builds, as comparable text."""
    masks, aggregator = made.masks(), made.clipped_aggregator(8)
    parts = (aggregator, masks, made.objective().config(), made.averaging)
    return repr(described(parts))


def described(value):
    """Return a value whose text has all that is in it, and no addresses."""
    if isinstance(value, partial):
        return value.func.__qualname__, described(value.args), described(value.keywords)
    if isinstance(value, dict):
        return {key: described(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    if type(value).__module__.startswith("flwr_asyncdrop"):
        return type(value).__qualname__, described(vars(value))
    return value.__qualname__ if callable(value) else value


class TestAsyncDropPlus:
    """Every ingredient can be switched off."""

    def test_without_its_averaging_and_its_loss(self):
        plain = AsyncDropPlus(averaging=0.0, logit_adjustment=0.0)
        assert plain.averaging == 0.0
        assert plain.objective().config() == {}
        assert AsyncDropPlus().objective().config() == {"logit-adjustment": 1.0}

    def test_without_its_memory(self):
        built = AsyncDropPlus(group_memory=False).aggregator(8)
        assert isinstance(built, Buffered)
        assert (built.size, built.waits_for) == (4, 4)

    @pytest.mark.parametrize(("in_flight", "groups"), [(5, 5), (32, 32), (64, 32)])
    def test_it_remembers_a_change_of_each_rank_as_far_as_that_goes(
        self, in_flight, groups
    ):
        remembers = AsyncDropPlus(adaptive_memory=False).aggregator(in_flight)
        assert remembers.collects == groups
        # What a step takes, and the mean of the last one
        adapts = AsyncDropPlus().aggregator(in_flight)
        assert adapts.collects == groups + in_flight // 2 + 1

    def test_its_memory_adapts_unless_told_or_robust(self):
        def kind(**settings):
            return type(AsyncDropPlus(**settings).aggregator(8))

        assert kind() is AdaptivePerGroup
        assert kind(adaptive_memory=False) is LatestPerGroup
        assert kind(combine="median") is LatestPerGroup
        assert kind(group_memory=False) is Buffered

    def test_staleness_adapts_unless_told(self):
        def common(**settings):
            memory = AsyncDropPlus(buffer_size=1, **settings).aggregator(8)
            zeros, ones = {"w": torch.zeros(1)}, {"w": torch.ones(1)}
            for rank in (0, 1, 0):
                update = Update(ones, {}, 0, 1, zeros, rank=rank, num_ranks=2)
                memory.merge({"w": torch.zeros(1)}, update)
            return memory.metrics().get("common-share")

        assert common() > 0
        assert common(adaptive_staleness=False) is None

    @pytest.mark.parametrize("memory", [True, False])
    def test_without_waiting(self, memory):
        plus = AsyncDropPlus(waits=False, group_memory=memory)
        assert plus.aggregator(8).waits_for == 1

    @pytest.mark.parametrize("adapts", [True, False])
    @pytest.mark.parametrize("memory", [True, False])
    def test_how_long_it_waits(self, memory, adapts):
        def limit(**settings):
            settings = {"group_memory": memory, "adaptive_memory": adapts, **settings}
            return AsyncDropPlus(**settings).clipped_aggregator(8).wait_limit

        assert limit() == limit(clip_norm=1.0) == 8.0
        assert limit(wait_limit=3.0) == 3.0
        assert limit(wait_limit=0.0) == math.inf
        assert FedBuffWait().aggregator(8).wait_limit == math.inf

    def test_without_graded_rates(self):
        same = AsyncDropPlus(rate_spread=0.0, least_saving=0.0).masks()
        assert vars(same) == vars(AsyncDrop().masks())


def test_a_buffer_holds_half_of_the_devices_unless_told_and_a_cohort_all():
    assert [kind().aggregator(9).size for kind in (FedBuff, FedBuffWait)] == [4, 4]
    assert FedBuff(buffer_size=3).aggregator(9).size == 3
    assert FedAvg().aggregator(9).size == 9


def test_devices_that_would_wait_for_ever_are_refused():
    assert FedBuff(buffer_size=5).aggregator(4).size == 5
    assert AsyncDropPlus(buffer_size=5, waits=False).aggregator(4).size == 5
    for kind in (FedBuffWait, AsyncDropPlus):
        with pytest.raises(ConfigError, match="buffer_size=5 is more than the 4 dev"):
            kind(buffer_size=5).aggregator(4)


def test_a_buffer_that_waits_is_fedbuff_wait():
    waits, named = FedBuff(waits=True), FedBuffWait()
    assert asdict(waits) == asdict(named)
    assert fingerprint(waits) == fingerprint(named)


def test_outliers_among_two_are_refused():
    """A buffer is half of the devices in flight unless told otherwise."""
    for kind, fewest in ((FedAvg, 3), (FedBuff, 6), (AsyncDropPlus, 3)):
        kind(combine="median").aggregator(fewest)
        with pytest.raises(ConfigError, match="outlier among 2 updates"):
            kind(combine="median").aggregator(fewest - 1)


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (AsyncDrop, {"alpha": 0.0}, r"alpha=0.0 must be in \(0, 1\]"),
        (AsyncDrop, {"drop_rate": "half"}, "drop_rate='half' must be in"),
        (FedBuff, {"weighting": "age"}, "weighting='age' must be one of"),
        (FedBuff, {"buffer_size": 0}, "buffer_size=0 must be at least 1"),
        (FedBuff, {"buffer_size": 2.5}, "buffer_size=2.5 must be at least 1, and a w"),
        (FedAvg, {"server_lr": 0.0}, "server_lr=0.0 must be more than 0"),
        (FedBuff, {"waits": "false"}, "waits='false' must be True or False"),
        (FedBuff, {"waits": None}, "waits=None must be True or False"),
    ],
)
def test_a_value_out_of_its_range_is_named(kind, values, says):
    with pytest.raises(ConfigError, match=says) as caught:
        kind(**values)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Own(Algorithm):
    rate: float = parameter(0.5)

    def aggregator(self, in_flight):
        return Mixing(self.rate)


class TestFromOutside:
    def test_by_name(self):
        found = algorithm(f"{__name__}:Own")
        assert found.__name__ == "Own"
        assert found(rate=0.25).label() == "Own"

    @pytest.mark.parametrize(
        ("name", "says"),
        [
            (f"{__name__}:Nobody", "cannot be imported .AttributeError"),
            ("no_such_package.there:Own", "cannot be imported .ModuleNotFoundError"),
            (f"{__name__}:fingerprint", "is not an algorithm: make it a frozen"),
        ],
    )
    def test_what_is_none_is_refused_in_one_line(self, name, says):
        with pytest.raises(ConfigError, match=says) as caught:
            algorithm(name)
        assert "\n" not in str(caught.value)

    def test_code_that_fails_is_not_said_to_be_absent(self, tmp_path, monkeypatch):
        (tmp_path / "fails_here.py").write_text("def own(rate=1, steps): ...")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ConfigError, match=r"line 1\)\): try it in Python"):
            algorithm("fails_here:own")


def test_every_algorithm_has_a_strategy_of_its_name():
    assert STRATEGIES.keys() == ALGORITHMS.keys()


def test_an_unknown_algorithm_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="algo='fedsgd' is not known") as caught:
        algorithm("fedsgd")
    assert all(name in str(caught.value) for name in ALGORITHMS)
    assert "\n" not in str(caught.value)


def test_the_table_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        ALGORITHMS["mine"] = ALGORITHMS["asyncdrop"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"waits_for": 0}, "waits_for of Odd=0 must be at least 1"),
        ({"updates_per_version": 0}, "updates_per_version of Odd=0 must be at least 1"),
        ({"waits_for": 2.5}, "waits_for of Odd=2.5 must be at least 1, and a whole"),
        ({"wait_limit": math.nan}, "wait_limit of Odd=nan must be more than 0"),
        ({"wait_limit": "8"}, "wait_limit of Odd='8' must be more than 0"),
        ({"collects": "3"}, "collects of Odd='3' must be at least 0"),
        ({"collects": -1}, "collects of Odd=-1 must be at least 0"),
        ({"needs_base": "false"}, "needs_base of Odd='false' must be True or False"),
        (None, "aggregator() of Own returned None: return an Aggregator"),
    ],
)
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_an_aggregator_that_no_run_can_go_by_is_refused(changes, says, clip_norm):
    """They divided by zero, or had no attribute, when the run began."""

    class Odd(Mixing):
        pass

    @dataclass(frozen=True)
    class Own(Algorithm):
        def aggregator(self, in_flight):
            if changes is None:
                return None
            built = Odd()
            vars(built).update(changes)
            return built

    with pytest.raises(ConfigError, match=re.escape(says)):
        Own(clip_norm=clip_norm).clipped_aggregator(8)


@pytest.mark.parametrize(
    ("part", "found", "says"),
    [
        ("masks", "all", "masks() of Own returned 'all': return a MaskPolicy, or None"),
        ("masks", RandomMask, "RandomMask'>: return a MaskPolicy, or None"),
        ("objective", None, "objective() of Own returned None: return a Local"),
    ],
)
def test_other_parts_that_no_run_can_go_by_are_refused(part, found, says):
    """They had no such attribute when the run began."""

    @dataclass(frozen=True)
    class Own(Algorithm):
        def aggregator(self, in_flight):
            return Mixing()

    setattr(Own, part, lambda self: found)
    with pytest.raises(ConfigError, match=re.escape(says)):
        getattr(Own(), f"checked_{part}")()
