"""What was saved of each part of a run is given back to that part."""

import logging

import pytest
import torch

from flwr_asyncdrop.checkpoint.checkpoint import Checkpoint
from flwr_asyncdrop.checkpoint.codec import pack
from flwr_asyncdrop.checkpoint.files import write
from flwr_asyncdrop.exceptions import CheckpointError, ShapeError
from flwr_asyncdrop.server.callbacks import Callback, stateful_parts


class Counter(Callback):
    """Counts something, with a tensor."""

    def __init__(self, count=0, name="Counter"):
        self.name = name
        self.count = count
        self.tensor = torch.full((2,), float(count))

    def state_dict(self):
        return {"count": self.count, "tensor": self.tensor}

    def load_state_dict(self, state):
        self.count, self.tensor = state["count"], state["tensor"]


class Raises:
    def __init__(self, error):
        self.error = error

    def load_state_dict(self, state):
        raise self.error


def saved(folder, parts):
    packed, tensors = pack({name: part.state_dict() for name, part in parts.items()})
    body = {"run": "a", "settings": {}, "updates": 3, "devices": 2, "parts": packed}
    return Checkpoint.read(write(folder / "checkpoints", body, tensors))


@pytest.fixture
def log(caplog):
    with caplog.at_level(logging.INFO):
        yield lambda: [(r.levelname, r.getMessage()) for r in caplog.records]


def test_callbacks_are_found_by_name_in_any_order(tmp_path, log):
    before = stateful_parts([Counter(1, "one"), Callback(), Counter(2, "two")])
    one, two = Counter(name="one"), Counter(name="two")
    saved(tmp_path, before).restore(stateful_parts([two, one]))
    assert (one.count, two.count) == (1, 2)
    assert two.tensor.tolist() == [2.0, 2.0]
    assert log() == []


def test_a_callback_that_is_not_there_now_costs_one_line(tmp_path, log):
    checkpoint = saved(tmp_path, stateful_parts([Counter(1, "one"), Counter(2)]))
    counter = Counter()
    checkpoint.restore(stateful_parts([counter]))
    assert counter.count == 2
    says = "has the state of 'callback:one', which is not there now: it is left out"
    assert log() == [("WARNING", f"{checkpoint.path} {says}")]


def test_a_callback_that_is_new_starts_afresh(tmp_path, log):
    checkpoint = saved(tmp_path, stateful_parts([Counter(2)]))
    counter, new = Counter(), Counter(7, "new")
    checkpoint.restore(stateful_parts([new, counter]))
    assert (counter.count, new.count) == (2, 7)
    says = "does not know 'callback:new': it starts afresh"
    assert log() == [("INFO", f"{checkpoint.path} {says}")]


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        TypeError("x"),
        ValueError("x"),
        AttributeError("x"),
        IndexError("x"),
    ],
)
def test_a_part_with_other_fields_is_of_another_version(error, tmp_path):
    checkpoint = saved(tmp_path, {"run": Counter()})
    says = r"000001 does not fit this version of flwr-asyncdrop \(run: '?x'?\): resume"
    with pytest.raises(CheckpointError, match=says):
        checkpoint.restore({"run": Raises(error)})


def test_a_callback_of_a_users_own_with_other_fields_is_told_by_its_class(tmp_path):
    checkpoint = saved(tmp_path, stateful_parts([Counter()]))
    says = (
        r"^Raises cannot load what its state_dict returned \(KeyError: 'x'\): correct"
    )
    with pytest.raises(CheckpointError, match=says):
        checkpoint.restore({"callback:Counter": Raises(KeyError("x"))})


def test_what_is_no_callback_must_have_been_saved(tmp_path):
    checkpoint = saved(tmp_path, {"run": Counter()})
    with pytest.raises(CheckpointError, match=r"does not fit .*\(fleet: 'fleet'\)"):
        checkpoint.restore({"run": Counter(), "fleet": Counter()})


def test_another_model_is_said_to_be_one(tmp_path):
    checkpoint = saved(tmp_path, {"run": Counter()})
    says = r"000001 is of another model \(see 'w'\): resume with the same"
    with pytest.raises(CheckpointError, match=says):
        checkpoint.restore({"run": Raises(ShapeError("see 'w'"))})


def test_what_a_part_says_itself_is_passed_on(tmp_path):
    checkpoint = saved(tmp_path, {"run": Counter()})
    with pytest.raises(CheckpointError, match=r"^its file is gone$"):
        checkpoint.restore({"run": Raises(CheckpointError("its file is gone"))})
