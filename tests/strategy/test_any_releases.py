"""Whatever an aggregator says of who waits for whom, a run goes on to its end."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flwr_asyncdrop import AsyncStrategy
from flwr_asyncdrop.aggregation import Aggregator
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.fleet import DeviceProfile, Uniform
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.waiting import GENERATIONS
from tests.grids import HandlerGrid
from tests.nightly import examples, once_in_the_gate
from tests.runs import failing, plus_one, record

pytestmark = pytest.mark.usefixtures("no_settling")

ROUNDS = 15
MOST_STEPS = 2000  # of the loop; the longest of these runs takes some 300
TIERS = 3


class Tiered(Aggregator):
    """Steps when a tier has delivered so many, and lets go whom a table says."""

    def __init__(self, waits_for, table, leaves_out=0, flushes=True, period=math.inf):
        self.waits_for, self.table, self.leaves_out = waits_for, table, leaves_out
        self.flushes, self.period, self.steps_at = flushes, period, period
        self.came, self.stepped, self.seen = [0] * TIERS, 0, 0

    def merge(self, state, update):
        self.seen += 1
        if self.leaves_out and self.seen % self.leaves_out == 0:
            return False
        tier = self.stepped = update.rank * TIERS // update.num_ranks
        self.came[tier] = (self.came[tier] + 1) % self.waits_for
        return not self.came[tier] and self.step(state)

    def flush(self, state):
        self.steps_at += self.period
        if self.flushes:
            self.came = [0] * TIERS
            self.step(state)
        return self.flushes

    def step(self, state):
        for tensor in state.values():
            tensor += 1
        return True

    def releases(self, rank, num_ranks):
        return self.table[self.stepped][rank * TIERS // num_ranks]


class Watch(Callback):
    """Counts, and ends a run that does not get on."""

    def on_start(self, state):
        self.steps, self.state = 0, state

    def on_pause(self, state):
        self.steps += 1
        assert self.steps < MOST_STEPS


def start(aggregator, seconds, slots, selection=None, broken=()):
    def handle(message):
        fails = message.content["config"]["partition-id"] in broken
        return failing(message) if fails else plus_one(message)

    watch = Watch()
    strategy = AsyncStrategy(
        aggregator=aggregator,
        in_flight=slots,
        fleet=lambda count: [DeviceProfile(each) for each in seconds],
        fraction_evaluate=0.0,
        callbacks=[watch],
        **({} if selection is None else {"selection": selection}),
    )
    grid = HandlerGrid(handle, node_ids=range(1, len(seconds) + 1))
    strategy.start(grid, record({"w": torch.zeros(2)}), num_rounds=ROUNDS)
    return watch


OWN = [[row == column for column in range(TIERS)] for row in range(TIERS)]
NEVER = [[False] * TIERS] * TIERS
ANY = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=3, max_size=3)


@once_in_the_gate
@settings(
    max_examples=examples(180),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    waits_for=st.integers(1, 3),
    table=st.one_of(st.just(OWN), st.just(NEVER), ANY),
    leaves_out=st.sampled_from([0, 0, 2, 3]),
    flushes=st.booleans(),
    period=st.sampled_from([math.inf, math.inf, math.inf, 1.5]),
    wait_limit=st.sampled_from([math.inf, 2.0]),
    seconds=st.lists(st.sampled_from([1.0, 2.0, 3.0]), min_size=4, max_size=5),
    slots=st.integers(4, 5),
    selection=st.sampled_from([None, Uniform()]),
    broken=st.one_of(st.just(set()), st.sets(st.integers(0, 4), max_size=2)),
)
def test_a_run_gets_on_and_says_who_starves(
    caplog, waits_for, table, leaves_out, flushes, period, wait_limit, **fleet
):
    caplog.clear()
    aggregator = Tiered(waits_for, table, leaves_out, flushes, period)
    aggregator.wait_limit = wait_limit
    slots, devices = fleet["slots"], len(fleet["seconds"])
    try:
        watch = start(aggregator, **fleet)
    except RunError as error:
        reason = str(error)
        assert fleet["broken"]
        assert "tasks all failed" in reason
        return
    state = watch.state
    if not state.ended:
        assert state.updates == ROUNDS * min(slots, devices)
    # All tasks that are out at one moment are back within two of the longest.
    waited = max((state.time - each.timing.due for each in state.waiting), default=0.0)
    starves = waited > 2 * (GENERATIONS + 1) * max(fleet["seconds"])
    if starves and not state.failures and not state.ended:
        assert "has waited for a step" in caplog.text


def starving(caplog, table=OWN, waits_for=2, **options):
    """Return what is said of a run in which a tier has one device."""
    start(Tiered(waits_for, table, **options), [1.0, 1.0, 2.0, 2.0, 3.0], slots=5)
    return [line for line in caplog.messages if "has waited for a step" in line]


def test_a_tier_of_fewer_devices_than_it_waits_for_is_named_once(caplog):
    assert starving(caplog) == [
        "device 4 (rank 4 of 5) has waited for a step of Tiered since 3 s, while all "
        "other tasks came back 3 times: where devices wait for their like, each 2 of "
        "them (waits_for) must train at once; wait for fewer, or put more in flight"
    ]


@pytest.mark.parametrize(
    "whole",
    [
        {"table": [[True] * TIERS] * TIERS},
        {"waits_for": 1},
        {"period": 5.0},  # a step by the time is for all
    ],
)
def test_nothing_is_said_where_nobody_starves(caplog, whole):
    assert starving(caplog, **whole) == []


def test_who_waits_for_a_slow_one_does_not_starve(caplog):
    start(Tiered(2, OWN), [1.0, 1.0, 2.0, 2.0, 3.0, 40.0], slots=6)
    assert "has waited" not in caplog.text
