"""Files and modules that people might name by mistake."""

import os
from pathlib import Path

DIGITS = "9" * 5000
NESTED = "[" * 200_000
HEADER = "seconds_per_step"
TRACES = {
    "nan": f"{HEADER}\nnan\n",
    "infinite": f"{HEADER}\ninfinity\n",
    "negative": f"{HEADER}\n-1\n",
    "zero": f"{HEADER}\n0\n",
    "huge": f"{HEADER}\n1e308\n",
    "tiny": f"{HEADER}\n5e-324\n",
    "text": f"{HEADER}\nfast\n",
    "other-digits": f"{HEADER}\n４\n",
    "too-many-cells": f"{HEADER}\n1,2\n",
    "too-few-cells": f"{HEADER},latency\n1\n",
    "empty-cell": f"{HEADER},latency\n,1\n",
    "empty": "",
    "header-only": f"{HEADER}\n",
    "no-column": "seconds\n1\n",
    "column-twice": f"{HEADER},{HEADER}\n1,1\n",
    "nul": f"{HEADER}\n1\0\n",
    "nul-in-header": "seconds\0\n1\n",
    "long-line": f"{HEADER}\n{'1' * 10_000_000}\n",
    "long-header": f"{'x' * 10_000_000}\n1\n",
    "utf-16": HEADER.encode("utf-16"),
    "binary": bytes(range(256)),
    "two-boms": f"\ufeff\ufeff{HEADER}\n1\n".encode(),
    "nan-rate": f"{HEADER},down_mbps\n1,nan\n",
    "negative-rate": f"{HEADER},up_mbps\n1,-1\n",
    "nan-dropout": f"{HEADER},dropout\n1,nan\n",
    "all-lost": f"{HEADER},dropout\n1,1\n",
    "jitter": f"{HEADER},jitter\n1,1e9\n",
    "huge-latency": f"{HEADER},latency\n1,1e308\n",
    "endless-latency": f"{HEADER},latency\n1,inf\n",
    "no-interval": f"{HEADER},period,available\n1,10,5\n",
    "interval-backwards": f"{HEADER},period,available\n1,10,5-3\n",
    "endless-period": f"{HEADER},period,available\n1,inf,1-3\n",
    "nan-interval": f"{HEADER},period,available\n1,10,nan-3\n",
    "period-alone": f"{HEADER},period\n1,10\n",
}

HISTORIES = {
    "empty": "",
    "binary": b"\xff\xfe\x00" * 100,
    "nested": f"{NESTED}\n",
    "array": "[1]\n",
    "number": "1\n",
    "half-a-line": '{"event": "run"',
    "no-wall": '{"event": "run"}\n',
    "no-schema": '{"event": "run", "wall": {"seconds": 0}}\n',
    "other-schema": '{"event": "run", "schema": {}, "wall": {"seconds": 0}}\n',
    "list-of-events": '{"event": [], "wall": {"seconds": 0}}\n',
    "many-digits": f'{{"event": "run", "wall": {{"seconds": {DIGITS}}}}}\n',
    "no-times": '{"event": "run", "schema": 2, "wall": {"seconds": 1}}\n'
    '{"event": "update", "wall": {"seconds": 1}}\n{"event": "end", '
    '"wall": {"seconds": 1}}\n',
    "config-of-another-kind": '{"event": "run", "schema": 2, "config": 5, '
    '"wall": {"seconds": 1}}\n',
    "huge-line": f'{{"event": "run", "text": "{"a" * 10_000_000}"}}\n',
}

CHECKPOINTS = {
    "empty": "",
    "binary": b"\xff\x00",
    "nested": NESTED,
    "array": "[]",
    "object": "{}",
    "other-format": '{"format": "flwr-asyncdrop checkpoint"}',
}

MODULES = {
    "raises": "raise RuntimeError('no such\\nfile')",
    "exits": "import sys; sys.exit(3)",
    "circle": "import circle_too\nfrom circle_too import App",
    "circle_too": "from circle import App",
    "syntax": "def (",
    "endless": "def f():\n    f()\nf()",
    "own": """
from dataclasses import dataclass
from flwr_asyncdrop.algorithms import AsyncDrop

class Plain: pass

class Undecorated(AsyncDrop):
    def __init__(self, rate): pass

@dataclass(frozen=True)
class Raises(AsyncDrop):
    def __post_init__(self): raise RuntimeError("no way")

@dataclass(frozen=True)
class Hint(AsyncDrop):
    rate: "Nowhere" = 1

@dataclass(frozen=True)
class Needs(AsyncDrop):
    rate: float = None

    def __post_init__(self): self.rate + 1

def raises(*_): raise ValueError("bad\\nnews")
def leaves(*_): raise SystemExit("bye")
def nothing(*_): return None

def labels(_):
    import torch
    from flwr_asyncdrop.app import Classification, Dataset
    x, y = torch.zeros(200, 4), torch.full((200,), 7)
    return Dataset(x, y, x, y, Classification(3))

number = 5
""",
}


def write_files(here: Path) -> None:
    """Write what the cases name."""
    (here / "file").write_text("x")
    os.mkfifo(here / "pipe")
    (here / "piped").mkdir()
    os.mkfifo(here / "piped" / "history.jsonl")
    (here / "circle").symlink_to(here / "circle")
    for name, source in MODULES.items():
        (here / f"{name}.py").write_text(source)
    for name, text in TRACES.items():
        _write(here / f"{name}.csv", text)
    for name, text in HISTORIES.items():
        _write(here / "histories" / name / "fedavg" / "seed-0" / "history.jsonl", text)
    for name, text in CHECKPOINTS.items():
        _write(here / "runs" / name / "checkpoints" / "000001" / "state.json", text)


def _write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
