import numpy as np
import pytest
import torch

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data import Dataset, Sizes, load_dataset
from flwr_asyncdrop.app.data.next_words import next_words
from flwr_asyncdrop.app.experiment import load_data, partitions
from flwr_asyncdrop.app.fingerprint import fingerprint
from flwr_asyncdrop.app.learning import Classification, NextToken, Regression
from flwr_asyncdrop.exceptions import ConfigError, DataError
from tests.reviews import write_json_lines

GROUPED = f"{__name__}:grouped"


def grouped(path):
    """Return numbers whose groups are the halves of the data set."""
    x = torch.arange(80.0)[:, None]
    groups = torch.arange(80) // 40
    return Dataset(x, x, x, x, Regression(), groups=groups)


def test_by_hand():
    tokens = torch.tensor([[0, 5, 1, 7], [0, 0, 0, 4], [9, 8, 7, 6]], dtype=torch.int16)
    x, y, kept = next_words(tokens, 3)
    # The second text is a single word: nothing comes before it.
    assert kept.tolist() == [0, 2]
    assert x.tolist() == [[0, 5, 1], [9, 8, 7]]
    # 5 follows padding, and 1 is unknown.
    assert y.tolist() == [[-100, -100, 7], [8, 7, 6]]
    assert (x.dtype, y.dtype) == (torch.int16, torch.int64)


def test_all_words_of_a_text_have_a_place_before_the_first():
    x, y, _ = next_words(torch.tensor([[9, 8, 7]]), 3)
    assert x.tolist() == [[0, 9, 8]]
    assert y.tolist() == [[-100, 8, 7]]


# "Bad, bad film. Don't!": 2 2 4 5; "A bad plot": 3 2 7; "A good film": 3 6 4. With
# five token ids, "don't", "plot" and "good" are unknown.
def test_reviews_by_hand(tmp_path):
    write_json_lines(tmp_path)
    sizes = Sizes(text_length=3, vocabulary_size=5)
    data = load_dataset("imdb-words", tmp_path, sizes=sizes)
    assert data.task == NextToken(5)
    assert data.vocabulary == 5
    assert data.train_x.tolist() == [[2, 2, 4], [0, 3, 2], [0, 3, 1]]
    assert data.train_y.tolist() == [[2, 4, -100], [-100, 2, -100], [-100, -100, 4]]
    assert data.groups.tolist() == [0, 0, 1]
    # "good good ... end" has no known word left, "Unseen, bad" one.
    assert data.test_y.tolist() == [[-100, -100, 2]]
    inputs, _ = data.batch("train", slice(0, 2))
    assert inputs.dtype == torch.int64


def test_whole_reviews(tmp_path):
    write_json_lines(tmp_path)
    data = load_dataset("imdb-words", tmp_path)
    assert data.train_x.shape == (3, 200)
    assert data.train_y[0, -4:].tolist() == [-100, 2, 4, 5]


def test_models_that_read_no_text_or_tell_no_word_are_refused():
    for model in ("lstm", "mlp"):
        with pytest.raises(ConfigError, match="choose model='transformer'"):
            RunConfig.parse({"dataset": "imdb-words", "model": model})
    RunConfig.parse({"dataset": "imdb-words", "model": "transformer"})


def test_partitions_by_labels_deal_by_groups():
    settings = {"dataset": GROUPED, "model": "mlp", "levels": 2, "shards-per-level": 1}
    config = RunConfig.parse(settings)
    halves = [set((part // 40).tolist()) for part in partitions(config, 4)]
    assert halves in ([{0}, {0}, {1}, {1}], [{1}, {1}, {0}, {0}])
    del settings["levels"], settings["shards-per-level"]
    mixed = {**settings, "partition": "dirichlet", "dirichlet-alpha": 0.001}
    parts = partitions(RunConfig.parse(mixed), 4)
    assert sum(len(np.unique(part // 40)) for part in parts) < 8


def test_groups_are_part_of_the_fingerprint():
    settings = {"dataset": GROUPED, "model": "mlp"}
    data = load_data(RunConfig.parse(settings))
    one = fingerprint(settings)
    data.groups[0] = 1
    try:
        assert (
            fingerprint(settings)[f"data set {GROUPED}"] != one[f"data set {GROUPED}"]
        )
    finally:
        data.groups[0] = 0


@pytest.mark.parametrize(
    ("groups", "task", "says"),
    [
        (torch.zeros(3, dtype=torch.int64), Classification(2), "these are: leave out"),
        (torch.zeros(2, dtype=torch.int64), Regression(), r"shape \(2,\): give int64"),
        (torch.zeros(3), Regression(), "type torch.float32"),
        (torch.tensor([0, -1, 0]), Regression(), "begin at -1: number them from 0"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, task, says):
    y = torch.tensor([0, 1, 0])
    with pytest.raises(DataError, match=says):
        Dataset(y, y, y, y, task, groups=groups)
