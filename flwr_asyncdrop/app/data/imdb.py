"""IMDB, the Large Movie Review Dataset: 50,000 reviews, negative (0) or positive (1).

It comes in two layouts: the archive's own, a text file a review, or a single file of
JSON lines with the keys ``split`` ("train" or "test"), ``label`` and ``text``.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from flwr_asyncdrop.app.data.dataset import Arrays, Split
from flwr_asyncdrop.app.data.files import Layout, damaged, describe, read_file
from flwr_asyncdrop.app.data.text import encode, most_frequent, words
from flwr_asyncdrop.exceptions import DataError

VOCABULARY = 10_000
"""Token ids: the most frequent words of the training reviews cover 94 % of the text."""

LENGTH = 200
"""Words kept of a review; 59 % of the reviews have no more."""

_LABELS = {"neg": 0, "pos": 1}
_SPLITS: tuple[Split, Split] = ("train", "test")

FOLDERS = Layout(
    folder="aclImdb",
    files=tuple(f"{split}/{sentiment}" for split in _SPLITS for sentiment in _LABELS),
)
LINES = Layout(folder="imdb", files=("imdb.jsonl",))


class Review(NamedTuple):
    """One review as it stands in the files; the label is 0 or 1."""

    split: Split
    label: int
    text: str


def read_folders(folder: Path) -> Arrays:
    """Read ``{train,test}/{neg,pos}/*.txt``, sorted by name.

    Raises
    ------
    DataError
        A file cannot be read, or a part has none.
    """
    return _arrays(list(_reviews_in_folders(folder)), str(folder))


def read_lines(folder: Path) -> Arrays:
    """Read ``imdb.jsonl``, which may be gzip'd, in the order of its lines.

    Raises
    ------
    DataError
        The file is missing or damaged.
    """
    (name,) = LINES.files
    content = read_file(folder, name)
    try:
        reviews = [_review(line) for line in content.splitlines()]
    # The JSON, its encoding, its keys, or their values.
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(folder, name, describe(error)) from error
    return _arrays(reviews, str(folder / name))


def _reviews_in_folders(folder: Path) -> Iterator[Review]:
    for split in _SPLITS:
        for sentiment, label in _LABELS.items():
            for path in sorted((folder / split / sentiment).glob("*.txt")):
                try:
                    text = path.read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError) as error:
                    raise damaged(path.parent, path.name, describe(error)) from error
                yield Review(split, label, text)


def _review(line: bytes) -> Review:
    fields = json.loads(line)
    split, label, text = fields["split"], fields["label"], fields["text"]
    if split not in _SPLITS or label not in (0, 1) or not isinstance(text, str):
        msg = f"a review of split {split!r}, label {label!r} and text {text!r:.20}"
        raise ValueError(msg)
    return Review(split, label, text)


def _arrays(reviews: list[Review], source: str) -> Arrays:
    texts = {
        split: [words(review.text) for review in reviews if review.split == split]
        for split in _SPLITS
    }
    labels = {
        split: [review.label for review in reviews if review.split == split]
        for split in _SPLITS
    }
    for split in _SPLITS:
        if set(labels[split]) != set(_LABELS.values()):
            msg = f"{source} lacks {split} reviews; fetch IMDB again"
            raise DataError(msg)
    tokens = most_frequent(texts["train"], VOCABULARY)
    return Arrays(
        encode(texts["train"], tokens, LENGTH),
        np.array(labels["train"], np.int64),
        encode(texts["test"], tokens, LENGTH),
        np.array(labels["test"], np.int64),
    )
