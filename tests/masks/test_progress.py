"""A mask policy knows how far the run is, and how large the units are."""

import math

import pytest
import torch
from flwr.app import ArrayRecord

from flwr_asyncdrop import AsyncStrategy, speed_levels
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.machine_memory import Memory
from flwr_asyncdrop.masks import MaskContext, MaskPolicy
from flwr_asyncdrop.server.assignment import Assignment
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.strategy.driven import DrivenRun
from flwr_asyncdrop.submodel import plan_submodels
from tests.grids import HandlerGrid
from tests.runs import Run, mlp, plus_one

PLAN = plan_submodels(mlp(), torch.zeros(1, 4))


class Watching(MaskPolicy):
    """Keeps all units, and notes how far the run is."""

    def __init__(self):
        self.seen = []

    def choose(self, context):
        self.seen.append(context.progress)
        return tuple(torch.arange(group.size) for group in context.groups)


class Largest(MaskPolicy):
    """Keeps the unit of each group with the largest norm."""

    def choose(self, context):
        return tuple(norms.argmax().reshape(1) for norms in context.norms)


def run_of(policy, **options):
    grid = HandlerGrid(plus_one, node_ids=[7, 9])
    arrays = mlp().state_dict()
    assignment = Assignment(PLAN, policy)
    return Run(grid, (1.0, 2.5), arrays=arrays, assignment=assignment, **options)


def test_by_updates_or_by_seconds_whichever_ends_the_run_first():
    rule = StoppingRule(10, 4, 4, 100.0)
    assert [rule.progress(n, 1e9) for n in (0, 10, 40)] == [0.0, 0.25, 1.0]
    timed = StoppingRule(10, 4, 4, 100.0, max_seconds=200.0)
    assert timed.progress(10, 20.0) == 0.25
    assert timed.progress(10, 150.0) == 0.75
    assert timed.progress(10, 250.0) == 1.0


def test_a_run_of_two_devices_by_hand():
    # Of 6 updates, as in tests/server/test_loop.py: tasks leave at 0, 0, 1, 2, 2.5 and
    # 3 s, when 0, 0, 1, 2, 3 and 4 updates are merged.
    policy = Watching()
    run_of(policy).go()
    assert policy.seen == pytest.approx([0, 0, 1 / 6, 2 / 6, 3 / 6, 4 / 6])


def test_it_ends_with_the_seconds_that_it_may_take():
    # 2.5 s: the tasks that leave at 0, 0, 1 and 2 s.
    policy = Watching()
    run_of(policy, max_seconds=2.5).go()
    assert policy.seen == pytest.approx([0, 0, 1 / 2.5, 2 / 2.5])


def test_who_drives_the_rounds_does_not_say_how_many_there_will_be():
    with pytest.raises(ConfigError, match=r"run it with .* own start\(num_rounds"):
        DrivenRun(run_of(Watching()).open()).train(1)


def test_a_context_without_it_says_so():
    context = MaskContext(PLAN.groups, 0, 1, torch.Generator())
    with pytest.raises(ConfigError, match="how far the run is"):
        _ = context.progress
    with pytest.raises(ConfigError, match="pass compute_norms"):
        _ = context.norms


def test_norms_are_those_of_the_global_model_as_it_is():
    # Unit 2 of the first group is the largest, and unit 4 of the second.
    state = RunState.start_from(mlp().state_dict(), 0)
    for tensor in state.arrays.values():
        tensor.fill_(1.0)
    state.arrays["0.weight"][2] = -9.0
    state.arrays["4.weight"][:, 4] = 9.0
    part = Assignment(PLAN, Largest()).part(state, 0, 1)
    assert [units.tolist() for units in part.kept.values()] == [[2], [4]]


class Late(MaskPolicy):
    """Keeps half of the units, and all once the run is over."""

    def choose(self, context):
        share = 1.0 if context.progress == 1.0 else 0.5
        return tuple(
            torch.arange(math.ceil(group.size * share)) for group in context.groups
        )


def test_costs_are_those_at_the_start_or_at_the_end():
    state = RunState.start_from(mlp().state_dict(), 0)
    assignment = Assignment(PLAN, Late())
    first, last = (
        assignment.first_cost(state, 0, 1, progress=progress).bytes_down
        for progress in (0.0, 1.0)
    )
    assert assignment.first_cost(state, 0, 1).bytes_down == first < last
    assert last == sum(tensor.nbytes for tensor in state.arrays.values())


@pytest.mark.usefixtures("no_settling")
def test_memory_is_that_of_the_largest_tasks(monkeypatch, caplog):
    # At the end of the run each order has the full model.
    monkeypatch.setattr(Memory, "here", lambda: Memory(free=1))
    model = mlp()
    strategy = AsyncStrategy(
        model,
        torch.zeros(1, 4),
        aggregator=Mixing(),
        masks=Late(),
        in_flight=4,
        fleet=speed_levels,
        fraction_evaluate=0.0,
    )
    strategy.start(HandlerGrid(plus_one), ArrayRecord(model.state_dict()), num_rounds=1)
    size = sum(tensor.nbytes for tensor in model.state_dict().values()) / 1000
    (line,) = [m for m in caplog.messages if m.startswith("memory may run out")]
    assert f"keep a submodel of {size:.3f} kB each" in line
