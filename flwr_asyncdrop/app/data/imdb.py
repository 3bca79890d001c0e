"""IMDB, the Large Movie Review Dataset: 50,000 reviews, negative (0) or positive (1).

It comes in two layouts: the archive's own, a text file a review, or a single file of
JSON lines with the keys ``split`` ("train" or "test"), ``label`` and ``text``.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.app.data.files import Arrays, damaged, read_file, unreadable
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.readable import one_line

VOCABULARY = 10_000
"""Token ids: the most frequent words of the training reviews cover 94 % of the text."""

LENGTH = 200
"""Words kept of a review; 59 % of the reviews have no more."""

SAMPLES = 25_000, 25_000
"""Reviews for training, and for testing."""

PADDING = 0  # before the first word of a short text
UNKNOWN = 1  # every word that is not in the vocabulary
_WORD = re.compile(r"\w+(?:'\w+)?")

FOLDERS = ("train/neg", "train/pos", "test/neg", "test/pos")
LINES = ("imdb.jsonl",)

Reviews = Mapping[str, tuple[list[str], list[int]]]
"""Texts and labels by split."""


def read_folders(folder: Path) -> Arrays:
    """Read ``{train,test}/{neg,pos}/*.txt``, sorted by name; hidden files are none."""
    reviews: Reviews = {"train": ([], []), "test": ([], [])}
    for split, (texts, labels) in reviews.items():
        for label, name in enumerate(("neg", "pos")):
            for path in sorted((folder / split / name).glob("[!.]*.txt")):
                texts.append(_text(path))
                labels.append(label)
    return _arrays(reviews, folder)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise damaged(path, one_line(error)) from error
    except OSError as error:
        raise unreadable(path, error) from error


def read_lines(folder: Path) -> Arrays:
    """Read ``imdb.jsonl``, which may be gzip'd, in the order of its lines."""
    (name,) = LINES
    reviews: Reviews = {"train": ([], []), "test": ([], [])}
    try:
        for line in read_file(folder, name).splitlines():
            fields = json.loads(line)
            texts, labels = reviews[fields["split"]]
            texts.append(fields["text"])
            labels.append((0, 1).index(fields["label"]))
        return _arrays(reviews, folder / name)
    # The JSON, its encoding, its depth, its keys, or their values.
    except (
        ValueError,
        RecursionError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise damaged(folder / name, one_line(error)) from error


def _arrays(reviews: Reviews, source: Path) -> Arrays:
    for split, (_, labels) in reviews.items():
        if set(labels) != {0, 1}:
            raise DataError(f"{source} lacks {split} reviews; fetch IMDB again")
    texts = {split: [words(t) for t in found] for split, (found, _) in reviews.items()}
    tokens = most_frequent(texts["train"], VOCABULARY)
    train_y, test_y = (np.array(labels, np.int64) for _, labels in reviews.values())
    train_x, test_x = (encode(found, tokens, LENGTH) for found in texts.values())
    return Arrays(train_x, train_y, test_x, test_y)


def words(text: str) -> list[str]:
    """Split a text into lower-case words, without line-break tags and punctuation.

    A word is a run of letters, digits and underscores; an apostrophe inside it is
    part of it, as in ``don't``.
    """
    return _WORD.findall(text.replace("<br />", " ").lower())


def most_frequent(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """Give the most frequent words ids from 2 on, `size` in all; ties by alphabet."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    order = sorted(counts, key=lambda word: (-counts[word], word))
    first = UNKNOWN + 1
    return {word: token for token, word in enumerate(order[: size - first], first)}


def encode(
    texts: Sequence[Sequence[str]], tokens: Mapping[str, int], length: int
) -> NDArray[np.int16]:
    """Turn words into token ids: the last `length` of each text, padded in front.

    With the last 200 words an LSTM was one to three points better than with the first.
    """
    encoded = np.full((len(texts), length), PADDING, np.int16)
    for row, text in zip(encoded, texts, strict=True):
        tail = [tokens.get(word, UNKNOWN) for word in text[-length:]]
        row[length - len(tail) :] = tail
    return encoded
