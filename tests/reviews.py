"""A few reviews in IMDB's two layouts."""

import gzip
import json
from pathlib import Path

# Split, label and text of each; folders hold them in this order too.
REVIEWS = (
    ("train", 0, "Bad, bad film.<br /><br />Don't!"),
    ("train", 0, "A bad plot"),
    ("train", 1, "A good film"),
    ("test", 0, "Unseen, bad"),
    ("test", 1, "good " * 250 + "end"),
)


def json_lines(reviews: tuple[tuple[str, int, str], ...] = REVIEWS) -> bytes:
    keys = ("split", "label", "text")
    lines = (json.dumps(dict(zip(keys, review, strict=True))) for review in reviews)
    return "\n".join(lines).encode()


def write_json_lines(root: Path) -> Path:
    """Write ``imdb/imdb.jsonl.gz`` under `root`."""
    (root / "imdb").mkdir()
    path = root / "imdb" / "imdb.jsonl.gz"
    path.write_bytes(gzip.compress(json_lines()))
    return path


def write_folders(root: Path) -> Path:
    """Write ``aclImdb/{train,test}/{neg,pos}/*.txt`` under `root`."""
    for number, (split, label, text) in enumerate(REVIEWS):
        folder = root / "aclImdb" / split / ("neg", "pos")[label]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}_7.txt").write_text(text, encoding="utf-8")
    return root / "aclImdb"
