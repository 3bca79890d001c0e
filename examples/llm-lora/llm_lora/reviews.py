"""Movie reviews: IMDB's, from a file, or made up from a few phrases."""

import gzip
import json
import random
from functools import cache
from pathlib import Path

Review = tuple[str, int]
"""A text, and whether it is positive."""

ASPECTS = ("plot", "cast", "ending", "music", "dialogue", "camera work", "pacing")
PRAISE = ("moving", "brilliant", "charming", "clever", "gripping", "a delight")
BLAME = ("dull", "clumsy", "predictable", "lifeless", "a mess", "painful to watch")
NUM_TRAIN, NUM_TEST = 2000, 400


@cache
def load_reviews(data_file: str, split: str) -> list[Review]:
    """Return the reviews of a split, ``"train"`` or ``"test"``.

    `data_file` has a JSON object per line with ``split``, ``label`` (0 or 1) and
    ``text``; if it is empty, the reviews are made up.
    """
    if data_file:
        with gzip.open(Path(data_file).expanduser(), "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        return [(row["text"], row["label"]) for row in rows if row["split"] == split]
    random_ = random.Random(split)
    count = NUM_TRAIN if split == "train" else NUM_TEST
    return [made_up_review(random_) for _ in range(count)]


def made_up_review(random_: random.Random) -> Review:
    """Return three opinions such as ``"The plot was not dull."``."""
    label = random_.randrange(2)
    aspects = random_.sample(ASPECTS, 3)
    return " ".join(opinion(aspect, label, random_) for aspect in aspects), label


def opinion(aspect: str, label: int, random_: random.Random) -> str:
    """Return a sentence that praises, or blames."""
    negated = random_.random() < 0.2
    likes = bool(label) != negated
    words = random_.choice(PRAISE if likes else BLAME)
    return f"The {aspect} was {'not ' if negated else ''}{words}."
