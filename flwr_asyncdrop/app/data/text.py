"""Texts: words as token ids, all of one length."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

PADDING = 0
"""The token id before the first word of a short text."""

UNKNOWN = 1
"""The token id of every word that is not in the vocabulary."""

_WORD = re.compile(r"\w+(?:'\w+)?")


def words(text: str) -> list[str]:
    """Split a text into lower-case words, without line-break tags and punctuation.

    A word is a run of letters, digits and underscores; an apostrophe inside it is
    part of it, as in ``don't``.
    """
    return _WORD.findall(text.replace("<br />", " ").lower())


def most_frequent(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """Give the most frequent words of some texts their token ids, `size` in all.

    Ids go from 2 by falling frequency; words as frequent as each other by alphabet.
    """
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

    A recurrent model so ends on words and not on padding, and reviewers pass their
    judgement last: on IMDB an LSTM was one to three points better for the last 200
    words than for the first.
    """
    encoded = np.full((len(texts), length), PADDING, np.int16)
    for row, text in zip(encoded, texts, strict=True):
        tail = [tokens.get(word, UNKNOWN) for word in text[-length:]]
        row[length - len(tail) :] = tail
    return encoded
