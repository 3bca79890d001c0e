"""A plan runs a model no more often than it has to."""

import itertools

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import plan_submodels
from flwr_asyncdrop.submodel.probing import probe, running_passes
from flwr_asyncdrop.submodel.types import examples_of
from flwr_asyncdrop.submodel.verification import verify
from tests.submodel.networks import seeded, vectors


class Counted(nn.Module):
    """Notes the precision and the hidden width of each pass that does not fail."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.second = nn.Linear(8, 3)

    def forward(self, x):
        x = self.second(torch.relu(self.first(x)))
        RUNS.append((x.dtype, self.first.out_features))
        return x


RUNS: list[tuple[torch.dtype, int]] = []


def test_what_a_pass_has_shown_is_not_asked_again():
    model = seeded(Counted)
    RUNS.clear()

    found = probe.make_probe(model, examples_of(vectors()))

    assert len(RUNS) == len(found.passes) > 2


@pytest.mark.parametrize(
    ("most", "widths"), [(running_passes._MANY, [3, 3, 1, 7, 7, 4]), (10, [3, 3])]
)
def test_one_narrower_model_a_round(monkeypatch, most, widths):
    """A small model is also tried with a single unit, one less, and an even number."""
    made = []

    def narrow(*args, **kwargs):
        made.append(verify_narrow(*args, **kwargs))
        return made[-1]

    verify_narrow = verify.narrow
    monkeypatch.setattr(verify, "narrow", narrow)
    monkeypatch.setattr(running_passes, "_MANY", most)  # weights

    plan_submodels(seeded(Counted), vectors())

    assert [small.first.out_features for small in made] == widths


SMALL = [
    *((8, 17), (3, 12), (8, 6), (3, 10), (8, 5), (1, 10), (8, 5)),
    *((7, 10), (8, 20), (7, 10), (8, 20), (4, 10), (8, 6), (3, 2)),
]
LARGE = [(8, 9), (3, 4), (8, 2), (3, 2), (8, 2), (3, 2)]


@pytest.mark.parametrize(("most", "runs"), [(running_passes._MANY, SMALL), (10, LARGE)])
def test_all_runs_of_a_plan(monkeypatch, most, runs):
    """Widths, and how often each ran in a row.

    A narrower model runs twice on a pass, the second time with its weights shifted. The
    full one does so once, and three times more where its units are reordered.
    """
    monkeypatch.setattr(running_passes, "_MANY", most)  # weights
    RUNS.clear()

    plan_submodels(seeded(Counted), vectors())

    widths = itertools.groupby(width for _, width in RUNS)
    assert [(width, len([*found])) for width, found in widths] == runs


def test_a_large_model_trains_twice_in_double_precision(monkeypatch):
    monkeypatch.setattr(probe, "_LARGE", 10)  # bytes
    model = seeded(Counted).float()
    RUNS.clear()

    plan_submodels(model, vectors())

    assert [width for dtype, width in RUNS if dtype is torch.float64] == [8, 3]


def test_whole_numbers_beside_tokens_may_be_lengths():
    """They were drawn below the rows of the embedding: gigabytes, for a few words."""
    lengths = []

    class Speech(nn.Module):
        """Repeats each word's features as often as it lasts."""

        def __init__(self):
            super().__init__()
            self.words, self.frames = nn.Embedding(100_000, 4), nn.Linear(4, 2)

        def forward(self, words, durations):
            lengths.append(int(durations.max()))
            features = self.words(words).repeat_interleave(durations, dim=0)
            return self.frames(features)

    with pytest.raises(UnsupportedModelError, match="no units of Speech"):
        plan_submodels(Speech(), (torch.tensor([7, 9, 8]), torch.tensor([2, 1, 3])))
    assert 3 < max(lengths) < 64 * 4
