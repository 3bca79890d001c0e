"""What a subclass sets, and an inherited __init__ would set again, is refused."""

from dataclasses import dataclass, make_dataclass
from functools import cached_property
from types import new_class
from typing import ClassVar

import pytest
import torch

import flwr_asyncdrop
from flwr_asyncdrop import AsyncStrategy, FaultPolicy, StepDecay
from flwr_asyncdrop.aggregation import Buffered, Mixing
from flwr_asyncdrop.algorithms import ALGORITHMS, Algorithm, AsyncDrop, algorithm
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet import Uniform
from flwr_asyncdrop.fleet.profiles import DeviceProfile, checked_profiles
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.objectives import LocalObjective, StandardObjective
from flwr_asyncdrop.overrides import check_fields, check_names, check_overrides
from flwr_asyncdrop.parameters import parameter
from tests.runs import mlp

DECORATOR = r"@dataclass\(frozen=True\) above class "


class Undecorated(AsyncDrop):
    drop_rate = 0.5


class Annotated(AsyncDrop):
    drop_rate: float = 0.5


class Extended(AsyncDrop):
    beta: float = 0.9


class Explained(AsyncDrop):
    beta = parameter(0.9, "a share")


class Method(AsyncDrop):
    def drop_rate(self):
        return 0.5


class Cached(AsyncDrop):
    @cached_property
    def drop_rate(self):
        return 0.5


@dataclass(frozen=True)
class Untyped(AsyncDrop):
    drop_rate = 0.5


class Half:
    drop_rate = 0.5


@dataclass(frozen=True)
class Mixed(Half, AsyncDrop):
    pass


class Below(Undecorated):
    pass


WRONG = [
    (Undecorated, r"drop_rate = 0.5 .*" + DECORATOR + "Undecorated.*drop_rate: float"),
    (Annotated, r"drop_rate = 0.5 .*" + DECORATOR + "Annotated"),
    (Extended, "beta .* " + DECORATOR + "Extended.* ClassVar"),
    (Explained, "beta .* " + DECORATOR + "Explained"),
    (Method, "drop_rate .*" + DECORATOR + "Method"),
    (Cached, "drop_rate .*" + DECORATOR + "Cached"),
    (Untyped, r"drop_rate = 0.5 .*give it its type.* drop_rate: float = 0.5"),
    (Mixed, r"drop_rate = 0.5 of Half .*in class Mixed .*drop_rate: float = 0.5"),
    (Below, DECORATOR + "Undecorated"),
]


@pytest.mark.parametrize(("kind", "says"), WRONG)
class TestAFieldThatIsNone:
    def test_an_algorithm_of_it_is_refused(self, kind, says):
        with pytest.raises(ConfigError, match=says) as caught:
            kind()
        assert "\n" not in str(caught.value)

    def test_its_name_is(self, kind, says):
        with pytest.raises(ConfigError, match=says):
            algorithm(f"{__name__}:{kind.__name__}")

    def test_a_strategy_with_it_is_though_it_checks_nothing_itself(self, kind, says):
        quiet = type(kind.__name__, (kind,), {"__post_init__": lambda self: None})
        with pytest.raises(ConfigError, match=says):
            AsyncStrategy(algorithm=quiet())


class Renamed(AsyncDrop):
    """Other methods, and attributes of the class."""

    name = "renamed"
    units: str = "channels"
    keeps_client_state: ClassVar[bool] = True
    beta: ClassVar[float] = 0.9

    @property
    def half(self):
        return 0.5

    def masks(self):
        return RandomMask(self.half)


@dataclass(frozen=True)
class Declared(Half, AsyncDrop):
    drop_rate: float = 0.75
    beta: "float" = 0.9
    gamma: "ClassVar[float]" = 1.0


@dataclass(frozen=True)
class Parameter(AsyncDrop):
    drop_rate: float = parameter(0.5)


@dataclass(frozen=True)
class Behind(AsyncDrop, Half):
    """What comes first is what holds, in Python too."""


@dataclass(frozen=True, slots=True)
class Slots(Algorithm):
    rate: float = 0.5

    def aggregator(self, in_flight):
        return Mixing(self.rate)


Made = make_dataclass("Made", [("rate", float, 0.5)], bases=(AsyncDrop,), frozen=True)


@pytest.mark.parametrize(
    "kind", [Renamed, Declared, Parameter, Behind, Slots, Made, *ALGORITHMS.values()]
)
def test_a_subclass_whose_attributes_are_what_they_say_is_taken(kind):
    check_fields(kind)
    kind()


class Mu(StandardObjective):
    proximal_mu = 0.1


class Strict(FaultPolicy):
    quarantine_after = 1


class Fast(StepDecay):
    gamma = 0.9


class Waiting(Buffered):
    waits_for = 3


class WaitingMore(Buffered):
    waits_for = 3

    def __init__(self, size):
        super().__init__(size)
        self.more = True


class Saving(RandomMask):
    least_saving = 0.5


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("objective", Mu, r"proximal_mu = 0.1 .*" + DECORATOR + "Mu"),
        ("faults", Strict, r"quarantine_after = 1 .*" + DECORATOR + "Strict"),
        ("schedule", Fast, r"gamma = 0.9 .*" + DECORATOR + "Fast"),
        (
            "aggregator",
            lambda: Waiting(4),
            r"waits_for = 3 of Waiting .* Buffered\(\.\.\.\) sets it to 1: .*__init__",
        ),
        ("aggregator", lambda: WaitingMore(4), "waits_for = 3 of WaitingMore"),
        ("masks", lambda: Saving(0.25), "least_saving = 0.5 of Saving"),
    ],
)
def test_what_an_inherited_init_sets_again_is_refused(name, given, says):
    arguments = {"aggregator": Mixing(), name: given()}
    with pytest.raises(ConfigError, match=says):
        AsyncStrategy(**arguments)


@dataclass
class Turning(Uniform):
    turn: int = 0


class Choosing(Turning):
    turn = 1


@dataclass(frozen=True)
class Building(Algorithm):
    """An algorithm that builds what is told to it."""

    built: ClassVar[dict] = {}

    def aggregator(self, in_flight):
        return self.built.get("aggregator", Mixing)()

    def masks(self):
        return self.built["masks"]() if "masks" in self.built else None

    def objective(self):
        return self.built.get("objective", LocalObjective)()

    def selection(self):
        return self.built["selection"]() if "selection" in self.built else None


@pytest.mark.parametrize(
    ("built", "asks"),
    [
        ({"aggregator": lambda: Waiting(4)}, lambda made: made.clipped_aggregator(4)),
        ({"masks": lambda: Saving(0.25)}, Building.checked_masks),
        ({"objective": Mu}, Building.checked_objective),
        ({"selection": lambda: Choosing(3)}, Building.checked_selection),
    ],
)
def test_so_is_what_an_algorithm_builds(built, asks, monkeypatch):
    monkeypatch.setattr(Building, "built", built)
    with pytest.raises(ConfigError, match="has no effect"):
        asks(Building())


class Wider(flwr_asyncdrop.HeteroAsyncDrop):
    drop_rate = 0.5


class Seeded(AsyncStrategy):
    seed = 7


class Passing(Wider):
    def __init__(self, model, inputs):
        super().__init__(model, inputs, drop_rate=self.drop_rate)


class Reading(flwr_asyncdrop.HeteroAsyncDrop):
    seed = 0

    @property
    def drop_rate(self):
        return self.algorithm.drop_rate


def test_so_is_what_a_strategy_takes_as_an_argument():
    net, inputs = mlp(), torch.zeros(1, 4)
    with pytest.raises(ConfigError, match=r"it, Wider\(drop_rate=0.5\)"):
        Wider(net, inputs)
    with pytest.raises(ConfigError, match="seed = 7 of Seeded has no effect"):
        Seeded(aggregator=Mixing())
    assert Reading(net, inputs, drop_rate=0.5).drop_rate == 0.5
    assert Passing(net, inputs).algorithm.drop_rate == 0.5


class Phone(DeviceProfile):
    watts = 2.0


def test_so_is_a_device_profile():
    with pytest.raises(ConfigError, match=r"watts = 2.0 .*" + DECORATOR + "Phone"):
        checked_profiles([Phone(1.0)], 1)


class Counting(Buffered):
    """One that sets what it has a default of, itself or as it runs."""

    waits_for = 3
    merged = 0

    def __init__(self, size):
        super().__init__(size)
        self.waits_for = 2


class Bare(Buffered):
    """One without what it inherits."""

    waits_for = 3

    def __init__(self):
        self.size = 4


def test_an_own_init_may_set_what_it_likes():
    counting = Counting(4)
    counting.merged = 5
    check_overrides(counting)
    check_overrides(Bare())
    check_overrides(torch.zeros(2))
    check_overrides(Mixing())


class TestNamesOfOurs:
    """They ended in an AttributeError or a TypeError deep in a run."""

    @pytest.mark.parametrize(
        ("name", "base"),
        [
            ("_begin", AsyncStrategy),
            ("_evaluators", flwr_asyncdrop.FedBuff),
            ("_read_evaluation", AsyncStrategy),
            ("_made", AsyncStrategy),
            ("_collect", flwr_asyncdrop.LocalGrid),
            ("_contexts", flwr_asyncdrop.LocalGrid),
            ("_probe", flwr_asyncdrop.CapacityMod),
        ],
    )
    def test_an_attribute_of_a_class(self, name, base):
        says = f"^Mine has an attribute {name}, and .* another one of that name"
        with pytest.raises(ConfigError, match=says):
            type("Mine", (base,), {name: 1, "__module__": __name__})
        with pytest.raises(ConfigError, match=says):
            type("Mine", (base,), {name: str, "__module__": __name__})

    def test_what_methods_set(self):
        with pytest.raises(ConfigError, match="Mine has an attribute _run, and Flow"):

            class Mine(AsyncStrategy):
                def aggregate_train(self, server_round, replies):
                    self._run = "a name for a tracker"
                    return super().aggregate_train(server_round, replies)

    def test_a_class_that_says_another_module(self):
        """That of ``abc``, ``types`` or ``dataclasses``, which make it."""
        name = {"_collected": 1}
        made = [
            type("Mine", (Buffered,), name),
            new_class("Mine", (Buffered,), exec_body=lambda body: body.update(name)),
            make_dataclass("Mine", [], bases=(Buffered,), namespace=name),
            type("Mine", (Buffered,), {**name, "__module__": "statistics"}),
        ]
        for kind in made:
            with pytest.raises(ConfigError, match=r"^Mine has an attribute _collected"):
                check_names(kind)
        with pytest.raises(ConfigError, match="Mine has an attribute _begin"):
            type("Mine", (AsyncStrategy,), {"_begin": 1})

    @pytest.mark.parametrize("before", [True, False])
    def test_of_a_class_beside_it(self, before):
        class Tracked:
            def track(self):
                self._driven = []

        bases = (Tracked, AsyncStrategy) if before else (AsyncStrategy, Tracked)
        with pytest.raises(
            ConfigError, match=r"^Tracked has an attribute _driven, and"
        ):
            type("Mine", bases, {})

    def test_parts_are_looked_at_when_they_are_given(self):
        class Mine(Buffered):
            def __init__(self):
                super().__init__(4)
                self._collected = 0

        with pytest.raises(
            ConfigError, match=r"^Mine has an attribute _collected, and"
        ):
            AsyncStrategy(aggregator=Mine(), in_flight=4)

    @pytest.mark.parametrize("name", ["sampling", "keys", "check_set", "_own", "__x"])
    def test_other_names_are_free(self, name):
        class Mine(AsyncStrategy):
            def __init__(self, **settings):
                super().__init__(**settings)
                setattr(self, name, 0.5)

        Mine(aggregator=Mixing())._check_set()

    def test_what_hides_a_method(self):
        class Mine(AsyncStrategy):
            def __init__(self, **settings):
                super().__init__(**settings)
                self.summary = "all of it"

        class Noting(Mixing):
            def __init__(self):
                super().__init__()
                self.extra = {}

        says = r"^summary of Mine is no function, and hides the method summary of Argu"
        with pytest.raises(ConfigError, match=says):
            Mine(aggregator=Mixing())._check_set()
        with pytest.raises(ConfigError, match=r"^extra of Noting is no function"):
            AsyncStrategy(aggregator=Noting())

    @pytest.mark.parametrize("name", ["_begin", "_evaluators", "_own_state"])
    def test_a_function_that_is_set_on_an_object(self, name):
        strategy = AsyncStrategy(aggregator=Mixing())
        setattr(strategy, name, print)
        says = f"^AsyncStrategy has an attribute {name}, and"
        with pytest.raises(ConfigError, match=says):
            strategy._check_set()
