from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.app.data.text import PADDING, UNKNOWN, encode, most_frequent, words

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
