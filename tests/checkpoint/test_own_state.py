"""What a user's own objects keep, and no checkpoint has, ends their checkpoints."""

import itertools
import random
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pytest
import torch
from flwr.app import MetricRecord
from flwr.clientapp import ClientApp

from flwr_asyncdrop import AsyncFedAvg, Checkpointer, LocalGrid, speed_levels
from flwr_asyncdrop.aggregation import (
    Aggregator,
    Buffered,
    LatestPerGroup,
    Mixing,
    mean_change,
)
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.checkpoint import newest, series
from flwr_asyncdrop.checkpoint.files import all_checkpoints, discard, write
from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.fleet.selection import Selection
from flwr_asyncdrop.masks import MaskPolicy
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.submodel import merge_
from tests.checkpoint.small_runs import copy_of, run
from tests.checkpoint.test_resume import InTurn, stopping_at
from tests.runs import plus_one, record
from tests.strategies import STRATEGIES

pytestmark = pytest.mark.usefixtures("no_settling")


class Slowing(Aggregator):
    """Moves less and less, and does not save by how much."""

    def __init__(self):
        self.count = 0

    def merge(self, state, update):
        self.count += 1
        merge_(state, update.arrays, update.indices, 1 / (1 + self.count))
        return True


class Saved(Slowing):
    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Half(Aggregator):
    """As in CONTRIBUTING.md: a count that the class begins with."""

    count = 0

    def merge(self, state, update):
        merge_(state, update.arrays, update.indices, 0.5)
        self.count += 1
        return True

    state_dict = Saved.state_dict
    load_state_dict = Saved.load_state_dict


class Forgetful(Saved):
    """Saves one of two."""

    def __init__(self):
        super().__init__()
        self.speeds = {}

    def merge(self, state, update):
        self.speeds[update.device] = update.capability
        return super().merge(state, update)


class Copied(Buffered):
    """Calls no `super()` where it saves."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Broken(Saved):
    def load_state_dict(self, state):
        self.count = state["counts"]


class Drawing(MaskPolicy):
    """Draws from a generator of its own."""

    def __init__(self):
        self.random = random.Random(0)  # noqa: S311

    def choose(self, context):
        return tuple(
            torch.tensor(sorted(self.random.sample(range(g.size), g.size - 1)))
            for g in context.groups
        )


class Turning(Selection):
    def __init__(self):
        self.turn = 0

    choose = InTurn.choose


class SavedTurning(Turning):
    def state_dict(self):
        return {"turn": self.turn}

    def load_state_dict(self, state):
        self.turn = state["turn"]


class Noting(Mixing):
    """Notes in a list of its class."""

    seen: ClassVar[list] = []

    def merge(self, state, update):
        self.seen.append(update.device)
        return super().merge(state, update)


class Weights:
    """A weighting that remembers."""

    def __init__(self):
        self.before = None

    def __call__(self, update):
        self.before = update.staleness
        return 1 / (1 + self.before)


def weighting():
    calls = 0

    def weigh(update):
        nonlocal calls
        calls += 1
        return 1 / calls

    return weigh


class Calming:
    """A combination of changes that remembers how many steps there were."""

    def __init__(self):
        self.count = 0

    def __call__(self, state, changes):
        self.count += 1
        mean = mean_change(state, changes)
        return {name: tensor / self.count for name, tensor in mean.items()}


class CalmingSaved(Calming):
    state_dict = Saved.state_dict
    load_state_dict = Saved.load_state_dict


class Yielding(Mixing):
    """Goes through what it has, one at a time."""

    def __init__(self):
        super().__init__()
        self.rates = itertools.cycle([0.25, 0.5, 0.75])

    def merge(self, state, update):
        merge_(state, update.arrays, update.indices, next(self.rates))
        return True


@dataclass(frozen=True)
class Generating(Algorithm):
    """Whose aggregator, which is not copied, has an iterator that nobody can save."""

    def aggregator(self, in_flight):
        built = Half()
        built.rates = (rate for rate in itertools.repeat(0.5))
        next(built.rates)
        return built


LOST = [
    (
        {"aggregator": Slowing()},
        "Slowing.count, which has no state_dict and load_st",
    ),
    ({"aggregator": Forgetful()}, r"Forgetful.speeds, which load_state_dict\(state"),
    ({"aggregator": Copied(3)}, "Copied._collected, which load_state_dict"),
    ({"masks": Drawing()}, "Drawing.random, which has no state_dict"),
    ({"selection": Turning()}, "Turning.turn, which has no state_dict"),
    ({"aggregator": Noting()}, "Noting.seen, which is not the object's own"),
    ({"aggregator": Mixing(0.5, Weights())}, "Weights.before, which has no state"),
    (
        {"aggregator": Mixing(0.5, weighting())},
        "the variable calls of the function weigh, which",
    ),
    (
        {"aggregator": Buffered(3, combine=Calming())},
        "Calming.count, which has no state_dict",
    ),
    ({"aggregator": Yielding()}, r"Yielding\._?[a-z]+, which load_state_dict"),
]


def own(folder, **changes):
    """Run with parts of somebody's own; masks go with an algorithm that has some."""
    algorithm = "hetero-asyncdrop" if "masks" in changes else "async-fedavg"
    return run(folder, algorithm, **changes)


@pytest.mark.parametrize(("changes", "says"), LOST)
def test_a_run_that_would_resume_to_another_history_has_no_checkpoints(
    changes, says, tmp_path, caplog
):
    own(tmp_path, **changes)
    (warning,) = [m for m in caplog.messages if "no checkpoint has" in m]
    assert warning.startswith("no checkpoint has ")
    assert warning.endswith(
        ", so the run cannot be resumed: from here on it has no checkpoints "
        "(see docs/checkpoints.md)"
    )
    assert "\n" not in warning
    assert not all_checkpoints(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match=rf"no checkpoint has {says}") as caught:
        own(tmp_path, resume=tmp_path, **changes)
    assert str(caught.value).endswith("cannot be resumed: start it again")


def test_without_that_it_would_have_resumed_to_another_history(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "flwr_asyncdrop.completeness.unsaved.Unsaved.find", lambda *_: ""
    )
    whole = own(tmp_path / "whole", aggregator=Slowing())
    folder = copy_of(tmp_path / "whole", "again")
    resume = all_checkpoints(folder / "checkpoints")[0]
    assert own(folder, resume=resume, aggregator=Slowing()) != whole


@pytest.mark.parametrize(
    "changes",
    [
        {"aggregator": Saved()},
        {"aggregator": Half()},
        {"aggregator": Buffered(3, combine=CalmingSaved())},
        {"aggregator": LatestPerGroup(3, combine=CalmingSaved())},
    ],
)
def test_one_that_saves_what_changes_resumes(changes, tmp_path):
    whole = own(tmp_path / "whole", **changes)
    folder = copy_of(tmp_path / "whole", "again")
    resume = all_checkpoints(folder / "checkpoints")[1]
    assert own(folder, resume=resume, **changes) == whole


class InPlace(Aggregator):
    """Returns the tensor that it works with, as a `state_dict` of PyTorch does."""

    def __init__(self):
        self.share = torch.zeros(1)

    def merge(self, state, update):
        self.share.lerp_(torch.ones(1), 0.1)
        merge_(state, update.arrays, update.indices, self.share.item())
        return True

    def state_dict(self):
        return {"share": self.share}

    def load_state_dict(self, state):
        self.share = state["share"]


class InPlaceCombining(InPlace):
    """The same, as a function that an aggregator of this package calls."""

    def __call__(self, state, changes):
        self.share.lerp_(torch.ones(1), 0.1)
        mean = mean_change(state, changes)
        return {name: tensor * self.share for name, tensor in mean.items()}


@pytest.mark.parametrize(
    "make", [InPlace, lambda: Buffered(2, combine=InPlaceCombining())]
)
def test_what_changes_in_place_is_saved_as_it_was_though_it_is_written_later(
    make, tmp_path, monkeypatch
):
    write, later = series.write, threading.Event()

    class Updates(Callback):
        def on_update(self, state, merged):
            if state.updates % 4 == 3 or state.updates == 15:
                later.set()

    def patient(*arguments):
        assert later.wait(300)
        later.clear()
        return write(*arguments)

    monkeypatch.setattr(series, "write", patient)
    whole = own(tmp_path / "whole", aggregator=make(), callbacks=[Updates()])
    monkeypatch.undo()
    folder = copy_of(tmp_path / "whole", "again")
    resume = all_checkpoints(folder / "checkpoints")[1]
    assert own(folder, resume=resume, aggregator=make()) == whole


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"aggregator": Saved()}, "Saved"),
        ({"aggregator": Buffered(2, combine=CalmingSaved())}, "CalmingSaved"),
        ({"selection": SavedTurning()}, "SavedTurning"),
    ],
)
def test_who_cannot_load_what_was_saved_of_an_older_one_is_named(
    changes, name, tmp_path, monkeypatch
):
    """It is no matter of another version of this package."""
    own(tmp_path, **changes)
    for kind in (Saved, CalmingSaved, SavedTurning):
        monkeypatch.setattr(kind, "load_state_dict", Broken.load_state_dict)
    says = rf"^{name} cannot load what its state_dict returned \(KeyError: 'counts'\)"
    with pytest.raises(CheckpointError, match=says):
        own(tmp_path, resume=tmp_path, **changes)


def test_a_state_dict_that_raises_is_named_before_the_first_update(tmp_path):
    class Unable(Saved):
        def state_dict(self):
            raise RuntimeError("no\nway")

    says = r"^Unable.state_dict\(\) cannot be called \(RuntimeError: no way\): corr"
    with pytest.raises(CheckpointError, match=says):
        own(tmp_path, aggregator=Unable())


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        (lambda self: 1 / 0, "Later.state_dict() cannot be called (ZeroDivisionError"),
        (lambda self: {"count": {1}}, "Later.state_dict()['count']: {1} cannot be sav"),
        (
            lambda self: {"count": torch.ones(1, device="meta")},
            "Later.state_dict()['count']: a tensor on the device meta cannot be saved",
        ),
    ],
)
def test_a_state_dict_that_fails_later_does_not_end_the_run(
    fails, says, tmp_path, caplog, monkeypatch
):
    class Later(Saved):
        def state_dict(self):
            return super().state_dict() if self.count < 6 else fails(self)

    result = own(tmp_path, aggregator=Later())
    (warning,) = [m for m in caplog.messages if m.startswith(says)]
    assert warning.endswith(
        "from here on the run has no checkpoints, and resumes from that of update 4 "
        "(see docs/checkpoints.md)"
    )
    monkeypatch.setattr(Later, "state_dict", Saved.state_dict)
    assert own(tmp_path, resume=tmp_path, aggregator=Later()) == result


def test_a_state_that_is_no_dict_is_refused(tmp_path):
    class Listing(Saved):
        def state_dict(self):
            return [self.count]

    says = r"^Listing.state_dict\(\) returned a list: return a dict with strings"
    with pytest.raises(CheckpointError, match=says):
        own(tmp_path, aggregator=Listing())


def test_one_that_cannot_load_what_it_saves_is_found_before_it_is_needed(
    tmp_path, caplog
):
    own(tmp_path, aggregator=Broken())
    assert (
        "one that resumes cannot load the state_dict of Broken into another Broken "
        "(KeyError: 'counts'), so the run cannot be resumed" in caplog.text
    )


def keeping(key):
    """Return what makes a ClientApp whose clients keep a record."""

    def make():
        app = ClientApp()

        @app.train()
        def train(message, context):
            context.state[key] = MetricRecord({"tasks": 1})
            return plus_one(message)

        return app

    return make


@pytest.mark.parametrize(
    ("key", "expected"),
    [("tasks", 0), ("asyncdrop-personal.1", 0), ("asyncdrop-frozen.12ab", 2)],
)
def test_what_clients_of_a_local_grid_keep_no_checkpoint_has(
    key, expected, tmp_path, caplog
):
    strategy = AsyncFedAvg(
        in_flight=2,
        fleet=speed_levels,
        fraction_evaluate=0.0,
        checkpointer=Checkpointer(tmp_path, every=1),
    )
    with LocalGrid(keeping(key), num_nodes=2, workers=0) as grid:
        strategy.start(grid, record({"w": torch.zeros(2)}), num_rounds=3)
    assert len(all_checkpoints(tmp_path / "checkpoints")) == expected
    says = f"no checkpoint has what clients keep in context.state ('{key}' in this"
    assert (says in caplog.text) == (not expected)


def test_one_that_is_known_to_keep_state_says_so_when_it_is_to_be_resumed(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        own(tmp_path, codec="topk-q4", handler=stopping_at(3))
    with pytest.raises(CheckpointError, match=r"topk-q4.* cannot be resumed: start it"):
        newest(tmp_path)


class Tabled(Mixing):
    """Has a table that is made when it is first needed, and never changes."""

    @cached_property
    def rates(self):
        return [0.5] * 8

    def merge(self, state, update):
        merge_(state, update.arrays, update.indices, self.rates[update.device])
        return True


class Filled(Tabled):
    """Keeps its state in what looks derived."""

    def merge(self, state, update):
        changed = super().merge(state, update)
        self.rates[update.device] *= 0.9
        return changed


def test_a_cached_property_is_derived_if_it_is_the_same_in_a_new_object(
    tmp_path, caplog
):
    own(tmp_path / "tabled", aggregator=Tabled())
    assert "no checkpoint" not in caplog.text
    own(tmp_path / "filled", aggregator=Filled())
    assert "no checkpoint has Filled.rates" in caplog.text


class Weighing(AsyncFedAvg):
    """Weighs updates by a method, so that its aggregator holds the strategy."""

    power = 0.5

    def __init__(self, *arguments, **settings):
        self.seen = 0
        weight = Mixing(0.5, lambda update: self.weigh(update))
        super().__init__(*arguments, aggregator=weight, **settings)

    def weigh(self, update):
        return (1 + update.staleness) ** -self.power


class Counting(Weighing):
    def weigh(self, update):
        self.seen += 1
        return 1 / self.seen


@pytest.mark.parametrize(
    ("kind", "says"), [(Weighing, ""), (Counting, "Counting.seen, which is not")]
)
def test_of_a_strategy_that_takes_part_its_own_attributes_are_state(
    kind, says, tmp_path, caplog, monkeypatch
):
    monkeypatch.setitem(STRATEGIES, "async-fedavg", kind)
    whole = own(tmp_path / "whole")
    assert [says in m for m in caplog.messages if "no checkpoint has" in m] == (
        [True] if says else []
    )
    if not says:
        folder = copy_of(tmp_path / "whole", "again")
        resume = all_checkpoints(folder / "checkpoints")[0]
        assert own(folder, resume=resume) == whole


def test_an_interrupted_one_says_so_and_not_how_it_resumes(tmp_path, caplog):
    with pytest.raises(KeyboardInterrupt):
        own(tmp_path, aggregator=Slowing(), handler=stopping_at(9), every=99)
    assert not all_checkpoints(tmp_path / "checkpoints")
    assert caplog.messages[-1].startswith(
        "interrupted; no checkpoint has Slowing.count"
    )
    assert "to resume" not in caplog.text


class Late(Aggregator):
    """Changes from its tenth update on, and does not save by how much."""

    def __init__(self):
        self.merged = self.count = 0

    def merge(self, state, update):
        self.merged += 1
        self.count += self.merged > 9
        merge_(state, update.arrays, update.indices, 1 / (2 + self.count))
        return True

    def state_dict(self):
        return {"merged": self.merged}

    def load_state_dict(self, state):
        self.merged = state["merged"]


def test_checkpoints_from_before_a_loss_stay_and_resume(tmp_path, caplog):
    whole = own(tmp_path / "whole", aggregator=Late())
    (warning,) = [m for m in caplog.messages if "no checkpoint has" in m]
    assert warning == (
        "no checkpoint has Late.count, which load_state_dict(state_dict()) does not "
        "bring back: from here on the run has no checkpoints, and resumes from that of "
        "update 8 (see docs/checkpoints.md)"
    )
    saved = all_checkpoints(tmp_path / "whole" / "checkpoints")
    assert [newest(path).updates for path in saved] == [8, 4]
    caplog.clear()
    folder = copy_of(tmp_path / "whole", "again")
    assert own(folder, resume=folder, aggregator=Late()) == whole
    assert "resumes from that of update 8" in caplog.text


def test_an_interrupted_one_resumes_from_there(tmp_path, caplog):
    whole = own(tmp_path / "whole", aggregator=Late())
    folder = tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        own(folder, aggregator=Late(), handler=stopping_at(26))
    assert caplog.messages[-1] == (
        "interrupted; to resume from update 8: do the same with Checkpointer(folder, "
        "resume=folder)"
    )
    assert own(folder, resume=folder, aggregator=Late()) == whole


def test_checkpoints_of_versions_that_did_not_look_go(tmp_path, monkeypatch):
    def write_as_before(path, body, *more):
        return write(path, {**body, "complete": False}, *more)

    module = "flwr_asyncdrop.checkpoint.series"
    monkeypatch.setattr(f"{module}.write", write_as_before)
    own(tmp_path, aggregator=Late())
    assert not all_checkpoints(tmp_path / "checkpoints")
    with pytest.raises(CheckpointError, match=r"no checkpoint has Late\.count"):
        newest(tmp_path)


def test_another_run_in_the_folder_has_its_own_checkpoints(tmp_path):
    own(tmp_path, aggregator=Slowing())
    (tmp_path / "history.jsonl").unlink()
    own(tmp_path, aggregator=Saved())
    assert newest(tmp_path).updates == 12
    discard(tmp_path / "checkpoints")
    assert not (tmp_path / "checkpoints").exists()


def test_nothing_is_left_of_a_run_that_is_over(tmp_path):
    own(tmp_path, aggregator=Slowing())
    discard(tmp_path / "checkpoints")
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("algorithm", sorted(STRATEGIES))
def test_our_own_parts_come_back_as_they_were(algorithm, tmp_path, monkeypatch, caplog):
    """Or those that a user's class is derived from, or made of, would be refused."""
    monkeypatch.setattr(
        "flwr_asyncdrop.completeness.unsaved.has_own", lambda part: True
    )
    momentum = "server_momentum" in str(STRATEGIES[algorithm].algorithm_type)
    run(tmp_path, algorithm, **({"server_momentum": 0.5} if momentum else {}))
    assert "no checkpoint" not in caplog.text
    assert len(all_checkpoints(tmp_path / "checkpoints")) == 4
