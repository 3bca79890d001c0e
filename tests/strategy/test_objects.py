"""A strategy of objects, with nothing of the package's own between them."""

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from flwr_asyncdrop import AsyncFedProx, AsyncStrategy, algorithms, wire
from flwr_asyncdrop.aggregation import Aggregator, Buffered, Clipped, Mixing
from flwr_asyncdrop.algorithms import AsyncDrop, FedBuff
from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.fleet import (
    DeviceProfile,
    QuickSelection,
    Selection,
    Uniform,
)
from flwr_asyncdrop.masks import MaskPolicy, RandomMask
from flwr_asyncdrop.objectives import LocalObjective
from flwr_asyncdrop.server.evaluator import Evaluator
from flwr_asyncdrop.server.schedule import StepDecay
from flwr_asyncdrop.state_dict import from_plain, to_plain
from tests.grids import HandlerGrid
from tests.runs import Recorder, answer, mlp, plus_one, record

pytestmark = pytest.mark.usefixtures("no_settling")

INPUTS = torch.zeros(1, 4)
ZEROS = {"w": torch.zeros(2)}


def fleet(count):
    return [DeviceProfile(1.0 + place) for place in range(count)]


def start(strategy, handle=plus_one, arrays=ZEROS, rounds=2, **settings):
    grid = HandlerGrid(handle, node_ids=range(1, 4))
    result = strategy.start(grid, record(arrays), num_rounds=rounds, **settings)
    return result, grid


class Adding(Aggregator):
    """Adds what came back, and counts."""

    def __init__(self):
        self.count = 0

    def merge(self, state, update):
        for name, tensor in state.items():
            tensor += update.arrays[name]
        self.count += 1
        return True


@pytest.mark.parametrize(
    ("name", "given"),
    [("aggregator", Mixing()), ("masks", RandomMask(0.25)), ("selection", Uniform())],
)
def test_what_cannot_be_copied_is_refused(name, given):
    given.lock = threading.Lock()
    arguments = {"algorithm": AsyncDrop(), name: given}
    if name == "aggregator":
        arguments = {name: given, "masks": RandomMask(0.25)}
    net = mlp()
    with pytest.raises(ConfigError, match=rf"^{name}, of .* be copied \(.*lock"):
        start(
            AsyncStrategy(net, INPUTS, fleet=fleet, **arguments),
            arrays=net.state_dict(),
        )


def test_an_aggregator_as_an_object():
    given = Adding()
    strategy = AsyncStrategy(aggregator=given, in_flight=1, fleet=fleet)
    (first, _), (second, _) = start(strategy), start(strategy)
    # 0 + 1 = 1, then 1 + 2 = 3; and every run begins with a copy.
    for result in (first, second):
        assert wire.from_record(result.arrays)["w"].tolist() == [3, 3]
    assert given.count == 0


class Noting(Adding):
    """Notes the factors of learning rates."""

    factors: ClassVar[list[float]] = []

    def merge(self, state, update):
        self.factors.append(update.lr_factor)
        return super().merge(state, update)


@pytest.mark.parametrize(
    ("config", "schedule", "expected"),
    [
        (lambda r: ConfigRecord({"lr": 0.8 / 2**r}), StepDecay(), [1, 0.5, 0.25]),
        (
            lambda r: ConfigRecord({"lr": 0.8 / 2**r}),
            StepDecay((1,), gamma=0.5),
            [1, 0.25, 0.125],
        ),
        (lambda r: ConfigRecord({"steps": r}), StepDecay(), [1, 1, 1]),
        (ConfigRecord({"lr": 0.8}), StepDecay(), [1, 1, 1]),
    ],
)
def test_a_rate_by_round_is_in_the_factor_of_an_update(config, schedule, expected):
    Noting.factors.clear()
    strategy = AsyncStrategy(
        aggregator=Noting(), in_flight=1, fleet=fleet, schedule=schedule
    )
    start(strategy, rounds=3, train_config=config)
    assert Noting.factors == pytest.approx(expected)


def test_a_rate_by_round_is_in_the_factor_of_driven_rounds_too():
    Noting.factors.clear()
    strategy = AsyncStrategy(aggregator=Noting(), in_flight=1, fleet=fleet)
    arrays, grid = record(ZEROS), HandlerGrid(plus_one, node_ids=(1, 2))
    for number, rate in enumerate([0.4, 0.2, 0.1, 0.4], 1):
        config = ConfigRecord({"lr": rate})
        tasks = strategy.configure_train(number, arrays, config, grid)
        assert [task.content["config"]["lr"] for task in tasks] == [rate]
        strategy.aggregate_train(number, [plus_one(task) for task in tasks])
    assert Noting.factors == pytest.approx([1, 0.5, 0.25, 1])


def test_an_object_goes_before_the_algorithms_own():
    strategy = AsyncStrategy(
        mlp(), INPUTS, algorithm=AsyncDrop(), aggregator=Buffered(1), masks=Nested()
    )
    assert isinstance(strategy.build_aggregator(8), Buffered)
    assert isinstance(strategy.assignment.masks, Nested)


def test_an_object_is_clipped_as_the_algorithm_says():
    strategy = AsyncStrategy(algorithm=FedBuff(clip_norm=2.0), aggregator=Mixing())
    assert isinstance(strategy.build_aggregator(8), Clipped)


class Nested(MaskPolicy):
    """Keeps as many units as the round says, and notes what it sees."""

    def __init__(self, note=lambda seen: None):
        self.note, self.asked = note, 0

    def choose(self, context):
        self.asked += 1
        self.note((context.round, context.device, context.rank))
        return tuple(torch.arange(context.round) for _ in context.groups)


def test_masks_see_the_round_and_the_device_and_scores_cost_nothing_unasked(
    monkeypatch,
):
    def fail(*_):
        raise AssertionError("nobody asked for scores")

    monkeypatch.setattr("flwr_asyncdrop.server.assignment.unit_scores", fail)
    seen, recorder = [], Recorder()
    masks = Nested(seen.append)
    start(
        AsyncStrategy(
            mlp(),
            INPUTS,
            aggregator=Mixing(),
            masks=masks,
            in_flight=1,
            fleet=fleet,
            callbacks=[recorder],
        ),
        arrays=mlp().state_dict(),
        rounds=3,
    )
    orders = recorder.orders
    assert seen == [(o.round, o.device, o.rank) for o in orders]
    assert masks.asked == 0, "every run begins with a copy"
    widths = [order.part.shapes["0.weight"][0] for order in orders]
    assert widths == [1, 2, 3]


class Strength(LocalObjective):
    def config(self):
        return {"strength": 2.5}


def test_an_objective_tells_the_clients_by_the_train_config():
    strategy = AsyncStrategy(
        aggregator=Mixing(),
        objective=Strength(),
        in_flight=1,
        fleet=fleet,
        fraction_evaluate=0.0,
    )
    _, grid = start(strategy, train_config=ConfigRecord({"lr": 0.5}))
    configs = [dict(message.content["config"]) for message in grid.pushed]
    assert [(c["lr"], c["strength"]) for c in configs] == [(0.5, 2.5)] * 2


def test_flowers_own_rounds_keep_what_the_objective_adds():
    """It was lost from the second round on."""
    strategy = AsyncFedProx(in_flight=1, min_available_nodes=1, proximal_mu=0.25)
    grid = HandlerGrid(plus_one)
    for number in (1, 2):
        (message,) = strategy.configure_train(
            number, record(ZEROS), ConfigRecord({"lr": 0.5}), grid
        )
        assert message.content["config"]["proximal-mu"] == 0.25
        strategy.aggregate_train(number, [])


class Nova(Aggregator):
    """FedNova in a buffer of two: as far as all, in the direction of each step.

    ``W <- W + (mean of tau) (mean of Delta / tau)`` for ``tau`` local steps.
    """

    needs_base = True
    updates_per_version = collects = 2

    def __init__(self):
        self.held = []

    def merge(self, state, update):
        steps = update.metrics["steps"]
        self.held.append((steps, (update.arrays["w"] - update.sent["w"]) / steps))
        if len(self.held) < 2:
            return False
        (one, first), (two, second) = self.held
        state["w"] += (one + two) / 2 * (first + second) / 2
        self.held.clear()
        return True


def test_an_aggregator_sees_what_a_client_reports():
    # One device goes 4 in 1 step, the other 6 in 3: 2 * (4 + 2) / 2.
    done = iter([(4.0, 1), (6.0, 3)])

    def train(message):
        far, steps = next(done)
        return answer(message, {"w": torch.full((2,), far)}, steps=steps, each=[0.5])

    strategy = AsyncStrategy(
        aggregator=Nova(), in_flight=2, fleet=fleet, fraction_evaluate=0.0
    )
    result, _ = start(strategy, train, rounds=1)
    assert wire.from_record(result.arrays)["w"].tolist() == [6, 6]


class Watching(Mixing):
    """Notes when updates come, how long they took, and what they may draw with."""

    seen: ClassVar[list[tuple[float, float, int]]] = []

    def merge(self, state, update):
        self.seen.append((update.time, update.seconds, update.seed))
        return super().merge(state, update)


def seen_in(**arguments):
    Watching.seen.clear()
    start(AsyncStrategy(aggregator=Watching(), in_flight=3, fleet=fleet, **arguments))
    return list(zip(*Watching.seen, strict=True))


def test_an_aggregator_sees_the_time():
    # Three devices that take 1, 2 and 3 s; of those at one time, the first that left.
    times, seconds, _ = seen_in()
    assert times == (1, 2, 2, 3, 3, 4)
    assert seconds == (1, 2, 1, 3, 1, 2)


def test_an_aggregator_has_a_seed_for_each_update():
    *_, seeds = seen_in()
    assert len(set(seeds)) == 6
    *_, same = seen_in(seed=0)
    *_, others = seen_in(seed=1)
    assert same == seeds
    assert set(others).isdisjoint(seeds)


class Curious(Selection):
    """The idle device whose last reported loss was the largest; new ones first."""

    def __init__(self):
        self.losses = {}

    def choose(self, idle, ranks, busy_ranks, generator):
        return max(idle.tolist(), key=lambda d: self.losses.get(d, math.inf))

    def learn(self, update):
        self.losses[update.device] = update.metrics["loss"]

    def state_dict(self):
        return {"losses": to_plain(self.losses)}

    def load_state_dict(self, state):
        self.losses = from_plain(dict[int, float], state["losses"])


@dataclass(frozen=True)
class Picky(algorithms.AsyncFedAvg):
    """An algorithm with a selection of its own."""

    def selection(self):
        return Curious()


@dataclass(frozen=True)
class Unselective(algorithms.AsyncFedAvg):
    def selection(self):
        return "uniform"


def losses_by_node(message):
    state = wire.from_record(message.content["arrays"])
    losses = {1: 0.5, 2: 3.0, 3: 1.0}
    return answer(message, state, loss=losses[message.metadata.dst_node_id])


@pytest.mark.parametrize(
    "given", [{"algorithm": Picky()}, {"aggregator": Mixing(), "selection": Curious()}]
)
def test_a_selection_learns_from_updates(given):
    strategy = AsyncStrategy(in_flight=1, fleet=fleet, fraction_evaluate=0.0, **given)
    for _ in range(2):  # every run begins with a copy
        _, grid = start(strategy, losses_by_node, rounds=6)
        nodes = [message.metadata.dst_node_id for message in grid.pushed]
        assert nodes == [1, 2, 3, 2, 2, 2]


class Wrong(Selection):
    """Chooses what it is told to, whoever is idle."""

    def __init__(self, chosen):
        self.chosen = chosen

    def choose(self, idle, ranks, busy_ranks, generator):
        return self.chosen


class QuicklyWrong(QuickSelection):
    """The same, without a look at all devices."""

    def __init__(self, chosen):
        self.chosen = chosen

    def choose(self, idle, ranks, busy_ranks, generator):
        return self.chosen

    def choose_idle(self, idle, busy_ranks, generator):
        return self.chosen


@pytest.mark.parametrize("kind", [Wrong, QuicklyWrong])
@pytest.mark.parametrize("devices", [fleet, None])
@pytest.mark.parametrize("chosen", [0, 99, -1, 1.0, None, "0", np.array([1])])
def test_a_selection_chooses_an_idle_device(chosen, devices, kind):
    """The first has a task from the start on: it must not get a second one."""
    strategy = AsyncStrategy(
        aggregator=Mixing(),
        in_flight=2,
        fleet=devices,
        fraction_evaluate=0.0,
        selection=kind(chosen),
    )
    says = rf"^{kind.__name__} has chosen .*: return one of those that it is given$"
    with pytest.raises(ConfigError, match=says):
        start(strategy)


@pytest.mark.parametrize("kind", [Wrong, QuicklyWrong])
def test_so_it_does_in_rounds_that_are_driven(kind):
    strategy = AsyncStrategy(aggregator=Mixing(), fleet=fleet, selection=kind(0))
    grid = HandlerGrid(plus_one, node_ids=range(1, 4))
    with pytest.raises(ConfigError, match="has chosen 0, which is no device that is"):
        strategy.configure_train(1, record(ZEROS), ConfigRecord(), grid)


@pytest.mark.parametrize("kind", [Wrong, QuicklyWrong])
def test_a_selection_may_choose_by_a_number_of_numpy(kind):
    strategy = AsyncStrategy(
        aggregator=Mixing(), in_flight=1, fleet=fleet, selection=kind(np.int32(1))
    )
    _, grid = start(strategy, rounds=1)
    assert grid.pushed[0].metadata.dst_node_id == 2


def test_a_selection_goes_before_the_algorithms_own():
    strategy = AsyncStrategy(algorithm=Picky(), selection=Uniform())
    assert isinstance(strategy.selection, Uniform)
    with pytest.raises(ConfigError, match="'uniform': return a Selection, or None"):
        AsyncStrategy(algorithm=Unselective())


class SendsAlong(Mixing):
    """Sends along what it is told to."""

    def __init__(self, along):
        super().__init__()
        self.along = along

    def extra(self, state):
        return self.along


@pytest.mark.parametrize(
    ("along", "says"),
    [
        ([1], r"extra of the aggregator returned \[1\]: return a dict of records"),
        (torch.ones(2), r"returned tensor\(.*: return a dict of records"),
        ({"w": torch.ones(2)}, "has tensor.* under 'w': a record has a text"),
        ({"a": None}, "has None under 'a': a record has a text"),
        ({3: {"w": torch.ones(2)}}, "under 3: a record has a text for its name"),
        ({"a": {"w": [1.0, 2.0]}}, r"has 'w' of shape \(\) and list: send tensors"),
        ({"a": {"w": np.ones(2)}}, r"has 'w' of shape \(2,\) and float64: send"),
    ],
)
def test_what_cannot_be_sent_along_is_refused_in_one_line(along, says):
    strategy = AsyncStrategy(aggregator=SendsAlong(along), in_flight=1, fleet=fleet)
    with pytest.raises(ConfigError, match=says) as caught:
        start(strategy)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Telling(LocalObjective):
    """Adds what it is told to the train config."""

    told: object

    def config(self):
        return self.told


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (None, r"config\(\) of Telling returned None: return a dict of numbers"),
        ([1], r"config\(\) of Telling returned \[1\]"),
        ({"mu": None}, "Telling has None under 'mu', which cannot be sent"),
        ({"mu": {}}, "Telling has {} under 'mu'"),
        ({"mu": torch.ones(2)}, r"Telling has tensor\(.* under 'mu'"),
        ({1: 2.0}, "Telling has 2.0 under 1, which cannot be sent"),
        ({"mu": [1, "x"]}, r"Telling\['mu'\]=\[1, 'x'\] cannot be sent"),
        ({"mu": [[1.0]]}, r"Telling\['mu'\]=\[\[1.0\]\] cannot be sent"),
        ({"mu": 2**63}, r"Telling\['mu'\]=9.* cannot be sent: integers have 64 bits"),
    ],
)
def test_what_an_objective_cannot_tell_is_refused_in_one_line(told, says):
    strategy = AsyncStrategy(
        aggregator=Mixing(), objective=Telling(told), in_flight=1, fleet=fleet
    )
    with pytest.raises(ConfigError, match=says) as caught:
        start(strategy)
    assert "\n" not in str(caught.value)


class Overwriting(Mixing):
    """Takes the change in place, out of what the device was sent."""

    needs_base = True

    def merge(self, state, update):
        update.sent["w"].sub_(update.arrays["w"])
        return super().merge(state, update)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize("devices", [fleet, None])
def test_what_a_device_was_sent_is_only_read(devices, clip_norm):
    strategy = AsyncStrategy(
        algorithm=algorithms.AsyncFedAvg(clip_norm=clip_norm),
        aggregator=Overwriting(),
        in_flight=2,
        fleet=devices,
    )
    with pytest.raises(ConfigError, match=r"^merge of Overwriting has written into wh"):
        start(strategy)


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
@pytest.mark.parametrize(
    "extra",
    [lambda state: {"old": {"w": state["w"].zero_()}}, lambda state: state.clear()],
)
def test_what_goes_along_is_made_without_a_change_of_the_model(extra, clip_norm):
    class Changing(Mixing):
        def extra(self, state):
            return extra(state)

    strategy = AsyncStrategy(
        algorithm=algorithms.AsyncFedAvg(clip_norm=clip_norm),
        aggregator=Changing(),
        in_flight=2,
        fleet=fleet,
    )
    with pytest.raises(ConfigError, match=r"^extra of Changing has written into the g"):
        start(strategy)


class Refusing(Mixing):
    """Leaves out the first `number` updates."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def merge(self, state, update):
        self.left -= 1
        return self.left < 0 and super().merge(state, update)


@pytest.mark.parametrize(("number", "warns"), [(2, True), (1, False)])
def test_a_model_that_never_changes_is_said_to_be_the_initial_one(
    number, warns, caplog
):
    strategy = AsyncStrategy(aggregator=Refusing(number), in_flight=1, fleet=fleet)
    start(strategy, rounds=2)
    assert ("changed nothing with 2 updates" in caplog.text) is warns


class Dividing(Mixing):
    """Divides by zero."""

    def merge(self, state, update):
        state["w"] /= 0.0
        return True


def test_a_model_that_is_not_finite_is_no_fault_of_its_devices():
    strategy = AsyncStrategy(aggregator=Dividing(), in_flight=1, fleet=fleet)
    says = "^the global model holds NaN or infinity in 'w'.* Dividing has made it so$"
    with pytest.raises(RunError, match=says):
        start(strategy)


@pytest.mark.parametrize(("along", "warns"), [({}, True), ({"other": ZEROS}, False)])
def test_what_trains_beside_the_model_is_no_untrained_model(along, warns, caplog):
    def returned(message):
        content = RecordDict(dict(message.content.array_records))
        content["metrics"] = MetricRecord({"num-examples": 1})
        return Message(content, reply_to=message)

    start(
        AsyncStrategy(aggregator=SendsAlong(along), in_flight=1, fleet=fleet), returned
    )
    assert ("exactly the weights that" in caplog.text) is warns


class Choosing(Buffered):
    """Leaves out updates of clients that say so."""

    def merge(self, state, update):
        return bool(update.metrics["trained"]) and super().merge(state, update)


@pytest.mark.parametrize("devices", [fleet, None])
@pytest.mark.parametrize(("waits", "ends_at"), [(True, 3), (False, 2)])
def test_updates_that_are_left_out_hold_nobody_up(waits, ends_at, devices):
    """Where both wait and one was left out, the other's is a step."""
    trained = iter([0, 0, 0, 1, 0, 1, 1, 1])

    def train(message):
        state = wire.from_record(message.content["arrays"])
        return answer(message, {"w": state["w"] + 1}, trained=next(trained))

    strategy = AsyncStrategy(
        aggregator=Choosing(2, waits=waits),
        in_flight=2,
        fleet=devices,
        fraction_evaluate=0.0,
    )
    result, _ = start(strategy, train, rounds=4)
    assert wire.from_record(result.arrays)["w"].tolist() == [ends_at] * 2


def test_nor_do_they_where_devices_are_fewer_than_tasks():
    strategy = AsyncStrategy(
        aggregator=Choosing(2, waits=True), in_flight=8, fraction_evaluate=0.0
    )

    def train(message):
        return answer(message, {"w": torch.ones(2)}, trained=0)

    result, grid = start(strategy, train, rounds=3)  # of three devices
    assert wire.from_record(result.arrays)["w"].tolist() == [0, 0]
    assert len(grid.pushed) == 9


class Echoed(Aggregator):
    """Sends a record along, and adds up what comes back of it."""

    def __init__(self):
        self.total = {"w": torch.zeros(2)}

    def extra(self, state):
        return {"total": self.total}

    def merge(self, state, update):
        state["w"] += update.arrays["w"] + update.extra["total"]["w"]
        self.total = {"w": self.total["w"] + 1}
        return True


def echoing(message):
    reply = answer(message, {"w": torch.ones(2)})
    reply.content["total"] = message.content["total"]
    return reply


class TestExtraRecords:
    def strategy(self, **changes):
        settings = {"in_flight": 1, "fleet": fleet, "fraction_evaluate": 0.0}
        return AsyncStrategy(aggregator=Echoed(), **{**settings, **changes})

    def test_travel_both_ways_and_cost_bytes(self):
        recorder = Recorder()
        result, grid = start(self.strategy(callbacks=[recorder]), echoing, rounds=3)
        sent = [wire.from_record(m.content["total"])["w"][0] for m in grid.pushed]
        assert sent == [0, 1, 2]
        # Each update adds 1 and what came back: 1 + 0, 1 + 1, 1 + 2.
        assert wire.from_record(result.arrays)["w"].tolist() == [6, 6]
        message = grid.pushed[0].content
        each = wire.array_bytes(message["arrays"]), wire.array_bytes(message["total"])
        assert recorder.orders[0].cost.bytes_down == sum(each)
        assert recorder.merged[0].reply.num_bytes == sum(each)

    def test_a_reply_without_them_costs_its_task(self):
        recorder = Recorder()
        replies = iter([plus_one, echoing, echoing])
        start(
            self.strategy(callbacks=[recorder]),
            lambda message: next(replies)(message),
            rounds=2,
        )
        ((_, kind, reason),) = recorder.failures
        assert kind == "records"
        assert "lacks the record 'total'" in reason

    @pytest.mark.parametrize(
        ("tensor", "kind"),
        [(torch.ones(3), "shape"), (torch.full((2,), float("nan")), "non-finite")],
    )
    def test_what_they_hold_is_checked_like_the_model(self, tensor, kind):
        def wrong(message):
            reply = answer(message, {"w": torch.ones(2)})
            reply.content["total"] = wire.to_record({"w": tensor})
            return reply

        recorder, replies = Recorder(), iter([wrong, echoing])
        start(
            self.strategy(callbacks=[recorder]),
            lambda message: next(replies)(message),
            rounds=1,
        )
        assert [failure[1] for failure in recorder.failures] == [kind]

    def test_are_cut_like_the_model(self):
        class Controls(Mixing):
            def extra(self, state):
                return {"all": dict(state), "some": {"0.bias": state["0.bias"]}}

        shapes = []

        def reply(message):
            content = message.content.array_records
            found = {k: wire.from_record(r) for k, r in content.items()}
            assert all(
                torch.equal(t, found["arrays"][n]) for n, t in found["all"].items()
            )
            shapes.append(tuple(found["some"]["0.bias"].shape))
            answered = answer(message, found["arrays"])
            for name in ("all", "some"):
                answered.content[name] = message.content[name]
            return answered

        start(
            AsyncStrategy(
                mlp(),
                INPUTS,
                aggregator=Controls(),
                masks=RandomMask(0.5),
                in_flight=1,
                fleet=fleet,
                fraction_evaluate=0.0,
            ),
            reply,
            arrays=mlp().state_dict(),
        )
        assert shapes == [(3,), (3,)]

    @pytest.mark.parametrize(
        "tensors",
        [{"v": torch.ones(2)}, {"w": torch.ones(3)}, {"w": torch.ones(2).double()}],
    )
    def test_have_tensors_like_the_models(self, tensors):
        class Unlike(Mixing):
            def extra(self, state):
                return {"total": tensors}

        strategy = AsyncStrategy(aggregator=Unlike(), in_flight=1, fleet=fleet)
        with pytest.raises(ConfigError, match=r"the record 'total' .* of the global"):
            start(strategy)

    def test_cannot_have_the_key_of_another_record(self):
        class Clash(Mixing):
            def extra(self, state):
                return {"arrays": dict(state)}

        strategy = AsyncStrategy(aggregator=Clash(), in_flight=1, fleet=fleet)
        with pytest.raises(ConfigError, match="the record 'arrays'"):
            start(strategy)


class Largest(Evaluator):
    """Measures in the loop itself."""

    source = "largest"

    def __init__(self):
        self.found = []

    def begin(self, evaluation):
        self.found.append(evaluation)

    @property
    def pending(self):
        return list(self.found)

    def collect(self, *, finish) -> Iterable:
        while self.found:
            evaluation = self.found.pop(0)
            value = float(evaluation.arrays["w"].max())
            yield evaluation.ended(self.source, MetricRecord({"largest": value}))

    def close(self):
        pass


def test_an_evaluator_of_ones_own():
    recorder = Recorder()
    strategy = AsyncStrategy(
        aggregator=Mixing(1.0),
        in_flight=1,
        fleet=fleet,
        evaluators=[Largest()],
        callbacks=[recorder],
    )
    start(strategy, rounds=3)
    largest = [e for e in recorder.evaluations if e.source == "largest"]
    assert [e.metrics["largest"] for e in largest if e.round] == [1, 2, 3]


class TestBadInput:
    def test_nothing_says_how_to_merge(self):
        with pytest.raises(ConfigError, match="nothing says how AsyncStrategy merges"):
            AsyncStrategy(masks=RandomMask(0.5))

    def test_hyperparameters_belong_to_the_algorithm(self):
        with pytest.raises(ConfigError, match="takes no 'drop_rate': set it on"):
            AsyncStrategy(algorithm=FedBuff(), drop_rate=0.5)

    def test_a_typing_error_is_recognised(self):
        with pytest.raises(ConfigError, match="did you mean 'in_flight'"):
            AsyncFedProx(in_fligth=3)
        with pytest.raises(ConfigError, match="did you mean 'in_flight'"):
            AsyncStrategy(aggregator=Mixing(), in_fligth=3)

    @pytest.mark.parametrize("size", [0, 2])
    def test_a_fleet_of_fewer_than_the_nodes(self, size):
        strategy = AsyncStrategy(
            aggregator=Mixing(), fleet=lambda count: [DeviceProfile(1.0)] * size
        )
        with pytest.raises(ConfigError, match=rf"fleet\(3\) returned {size} profiles"):
            start(strategy)

    def test_masks_need_a_model(self):
        with pytest.raises(ConfigError, match="pass the model and example inputs"):
            AsyncStrategy(aggregator=Mixing(), masks=RandomMask(0.5))

    @pytest.mark.parametrize("in_flight", [3, 8])  # of three nodes
    @pytest.mark.parametrize("simulated", [fleet, None])
    def test_an_aggregator_that_waits_for_more_than_can_come(
        self, in_flight, simulated
    ):
        aggregator = Buffered(9, waits=True)
        strategy = AsyncStrategy(
            aggregator=aggregator, in_flight=in_flight, fleet=simulated
        )
        with pytest.raises(ConfigError, match="waits for 9 updates, more than the 3"):
            start(strategy)
