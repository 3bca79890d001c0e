"""What the benchmark of asyncdrop-plus's memory compares."""

import logging

import pytest
import torch

from benchmarks.persistence import Watched, cosine, persistence_figures
from flwr_asyncdrop.aggregation import Aggregator, Update
from flwr_asyncdrop.aggregation.changes import Change
from flwr_asyncdrop.algorithms import AsyncDropPlus


def change(values, kept):
    return Change(
        {"w": torch.tensor(values)}, {"w": {0: torch.tensor(kept)}}, 1.0, num_examples=1
    )


STATE = {"w": torch.zeros(4)}


def test_the_cosine_by_hand_on_what_both_trained():
    last = change([5.0, 3.0, 4.0], kept=[0, 1, 2])
    new = change([4.0, 3.0, 9.0], kept=[1, 2, 3])
    # On units 1 and 2: (3 * 4 + 4 * 3) / (5 * 5)
    assert cosine(STATE, last, new) == pytest.approx(24 / 25)


def test_the_same_direction_again_has_one_whatever_its_size():
    last, again = change([2.0, -4.0], kept=[0, 1]), change([0.2, -0.4], kept=[0, 1])
    assert cosine(STATE, last, again) == pytest.approx(1.0)


def test_who_is_watched_is_run_as_without():
    plain = AsyncDropPlus(wait_limit=3.0).aggregator(8)
    watched = Watched(plain)
    for name in Aggregator.__annotations__:
        assert getattr(watched, name) == getattr(plain, name), name
    update = Update({"w": torch.ones(4)}, {}, 0, 1, base={"w": torch.zeros(4)})
    assert not watched.merge(STATE, update)
    assert watched.flush({"w": torch.zeros(4)})


def test_a_short_run_has_figures(monkeypatch):
    seen = []
    logger = logging.getLogger("flwr.asyncdrop")
    monkeypatch.setattr(logger, "warning", lambda text, *_: seen.append(text))
    settings = {"model": "mlp", "local-steps": 10, "num-rounds": 6}
    figures = persistence_figures({"algo": "asyncdrop-plus", **settings})
    # The learning rate falls, as in the task.
    assert not [text for text in seen if "the schedule changes nothing" in text]
    assert [figure.name for figure in figures] == [
        "cosine_first_third",
        "cosine_second_third",
        "cosine_last_third",
    ]
    assert all(0 < figure.value < 1 for figure in figures)
