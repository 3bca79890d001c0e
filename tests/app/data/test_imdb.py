import gzip
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.app.data import load_dataset
from flwr_asyncdrop.app.data.imdb import (
    LENGTH,
    PADDING,
    UNKNOWN,
    encode,
    most_frequent,
    read_folders,
    read_lines,
    words,
)
from flwr_asyncdrop.exceptions import DataError
from tests.reviews import REVIEWS, json_lines, write_folders, write_json_lines

# "bad" thrice, "a" and "film" twice each, "don't", "good" and "plot" once.
BAD, A, FILM, DONT, GOOD, PLOT = range(2, 8)


def check(arrays):
    assert arrays.train_x.shape == (3, LENGTH)
    assert arrays.train_x[:, -5:].tolist() == [
        [0, BAD, BAD, FILM, DONT],
        [0, 0, A, BAD, PLOT],
        [0, 0, A, GOOD, FILM],
    ]
    assert not arrays.train_x[:, :-5].any()
    assert arrays.train_y.tolist() == [0, 0, 1]
    # A word that only test reviews have is unknown; a long review loses its beginning.
    assert arrays.test_x[0, -3:].tolist() == [0, 1, BAD]
    assert arrays.test_x[1].tolist() == [GOOD] * (LENGTH - 1) + [1]
    assert arrays.test_y.tolist() == [0, 1]
    assert arrays.test_y.dtype == np.int64


def test_lines_by_hand(tmp_path):
    check(read_lines(write_json_lines(tmp_path).parent))


def test_plain_lines(tmp_path):
    (tmp_path / "imdb.jsonl").write_bytes(json_lines())
    check(read_lines(tmp_path))


def test_folders_by_hand(tmp_path):
    check(read_folders(write_folders(tmp_path)))


def test_what_macos_writes_beside_a_file_is_no_review(tmp_path):
    folder = write_folders(tmp_path)
    for path in list(folder.rglob("*.txt")):
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    check(read_folders(folder))


@pytest.mark.parametrize("write", [write_json_lines, write_folders])
@pytest.mark.parametrize("below", [False, True])
def test_loads_from_either_layout(tmp_path, write, below):
    place = write(tmp_path)
    own = place if place.is_dir() else place.parent
    data = load_dataset("imdb", own if below else tmp_path)
    assert data.train_y.tolist() == [0, 0, 1]
    assert (data.num_classes, data.vocabulary) == (2, 10_000)
    assert data.input_shape == (LENGTH,)


@pytest.mark.parametrize(
    "content",
    [
        b"not json",
        b"\xff\xfe",
        b"[1, 2]",
        b'{"split": "train", "label": 1}',
        b'{"split": "val", "label": 1, "text": "a"}',
        b'{"split": "train", "label": 2, "text": "a"}',
        b'{"split": "train", "label": 1, "text": ["a"]}',
        b"[" * 100_000,
    ],
)
def test_damaged_lines(tmp_path, content):
    (tmp_path / "imdb.jsonl").write_bytes(json_lines() + b"\n" + content)
    with pytest.raises(DataError, match=r"imdb\.jsonl is damaged") as caught:
        read_lines(tmp_path)
    assert "\n" not in str(caught.value)
    assert "download=true" not in str(caught.value)


def test_truncated_gzip(tmp_path):
    (tmp_path / "imdb.jsonl.gz").write_bytes(gzip.compress(json_lines())[:-9])
    with pytest.raises(DataError, match=r"imdb\.jsonl\.gz is damaged"):
        read_lines(tmp_path)


@pytest.mark.parametrize("missing", [("train", 1), ("test", 0)])
def test_a_part_without_reviews(tmp_path, missing):
    rest = tuple(review for review in REVIEWS if review[:2] != missing)
    (tmp_path / "imdb.jsonl").write_bytes(json_lines(rest))
    with pytest.raises(DataError, match=f"lacks {missing[0]} reviews"):
        read_lines(tmp_path)


def test_a_review_that_is_no_text(tmp_path):
    folder = write_folders(tmp_path)
    (folder / "test" / "pos" / "9_9.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"pos/9_9\.txt is damaged .*UnicodeDecode"):
        read_folders(folder)


def test_a_link_to_itself_is_no_review(tmp_path):
    path = write_folders(tmp_path) / "test" / "pos" / "9_9.txt"
    path.symlink_to(path.name)
    with pytest.raises(DataError, match=r"cannot read .*pos/9_9\.txt") as caught:
        load_dataset("imdb", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("download", [False, True])
def test_absent(tmp_path, download):
    with pytest.raises(DataError) as caught:
        load_dataset("imdb", tmp_path, download)
    assert "aclImdb" in str(caught.value)
    assert "download=true" not in str(caught.value)


texts = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=12), max_size=8)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Great film!<br /><br />Really.", ["great", "film", "really"]),
        ("I don't -- 'can't' -- know", ["i", "don't", "can't", "know"]),
        ("10/10, a café noir", ["10", "10", "a", "café", "noir"]),
        ("it's the 1930s'", ["it's", "the", "1930s"]),
        ("...", []),
        ("", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_most_frequent_by_hand():
    # b thrice, a and c twice each, d once; 2 of the 5 ids are no words.
    counted = [["c", "b", "a"], ["b", "c", "d"], ["a", "b"]]
    assert most_frequent(counted, 5) == {"b": 2, "a": 3, "c": 4}


def test_fewer_words_than_ids():
    assert most_frequent([["b", "a"]], 100) == {"a": 2, "b": 3}


@given(texts, st.integers(2, 12))
def test_most_frequent_against_a_selection_one_by_one(texts, size):
    counts = Counter(word for text in texts for word in text)
    expected = {}
    while counts and len(expected) < size - 2:
        best = min(word for word in counts if counts[word] == max(counts.values()))
        expected[best] = len(expected) + 2
        del counts[best]
    assert most_frequent(texts, size) == expected


def test_encode_by_hand():
    tokens = {"good": 2, "film": 3}
    encoded = encode(
        [["good"], ["a", "film"], ["film", "a", "good", "film"]], tokens, 3
    )
    assert encoded.tolist() == [
        [PADDING, PADDING, 2],
        [PADDING, UNKNOWN, 3],
        [UNKNOWN, 2, 3],
    ]
    assert encoded.dtype == np.int16


@given(texts, st.integers(1, 15))
def test_encode_ends_as_the_text_does(texts, length):
    tokens = most_frequent(texts, 7)
    for row, text in zip(encode(texts, tokens, length), texts, strict=True):
        kept = min(len(text), length)
        assert row[: length - kept].tolist() == [PADDING] * (length - kept)
        tail = text[len(text) - kept :]
        assert row[length - kept :].tolist() == [tokens.get(w, UNKNOWN) for w in tail]


@pytest.mark.parametrize("name", ["imdb", "imdb-words"])
def test_a_part_of_it_is_said_to_be_one(name, tmp_path, caplog):
    """An archive that was unpacked until the disk was full has all of its folders."""
    folder = write_folders(tmp_path)
    load_dataset(name, folder)
    assert caplog.messages == [
        f"{name} in {folder} has 3 samples for training and 2 for testing, and all "
        "of it has 25,000 and 25,000: unless you want a part, fetch it again"
    ]
