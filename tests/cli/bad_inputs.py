"""Files and modules that people might name by mistake, and every word that is wrong.

A case is the words after ``asyncdrop`` and a part of the line that refuses them;
``{here}`` stands for a folder in which `write_files` has put what they name.
"""

import os
from pathlib import Path

from flwr_asyncdrop.app.config import key_table

SMALL = ("--model=mlp", "--num-rounds=1", "--local-steps=1", "--in-flight=2")
FLEET = ("--devices=4", "--levels=2")
RUN = ("simulate", *SMALL, *FLEET)
TRACED = ("simulate", *SMALL, "--devices=4", "--trace")
COMPARE = ("compare", *SMALL, *FLEET, "--algos=fedavg", "--seeds=0")
FILES = ("simulate", "--task=mlp-fashion-mnist")

LONG_NAME, LONG_PATH = "x" * 300, "/".join(["d" * 200] * 30)
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

PATHS = {
    "nul": ("a\0b", "cannot be shown"),
    "newline": ("a\nb", "cannot be shown"),
    "escape": ("a\x1b[31mb", "cannot be shown"),
    "not-utf-8": ("a\udcff", "cannot be shown"),
    "no-such-user": ("~no-such-user/x", "home folder that does not exist"),
    "too-long": (LONG_PATH, "longer than 4095 bytes"),
}
NO_FOLDERS = {
    "file": ("{here}/file", "it is not a folder"),
    "below-a-file": ("{here}/file/x", "Not a directory"),
    "long-name": (LONG_NAME, "File name too long"),
    "device": ("/dev/null", "it is not a folder"),
    "proc": ("/proc/x", "No such file"),
    "proc-self": ("/proc/self", "No such file"),
    "sys": ("/sys/x", ""),
}

REFERENCES = {
    "nope:X": "ModuleNotFoundError",
    ":": "cannot be imported",
    ":X": "cannot be imported",
    "json:": "cannot be imported",
    "json:nope": "AttributeError",
    ".json:X": "cannot be imported",
    "a..b:X": "cannot be imported",
    "a\0b:X": "cannot be imported",
    "\n:\n": "cannot be imported",
    "a" * 5000 + ":X": "write package.module",
    "raises:X": "RuntimeError: no such file",
    "exits:X": "SystemExit: 3",
    "circle:App": "ImportError",
    "syntax:X": "SyntaxError",
    "endless:X": "RecursionError",
}
NO_ALGORITHMS = {
    "json:loads": "is not an algorithm",
    "own:number": "is not an algorithm",
    "own:Plain": "is not an algorithm",
    "own:Undecorated": "cannot be built",
    "own:Raises": "cannot be built",
    "own:Needs": "cannot be built",
    "own:Hint": "Nowhere",
    "flwr_asyncdrop.algorithms:Algorithm": "cannot be built",
    "hetero-asyncdro": "did you mean 'hetero-asyncdrop'?",
    "": "is not known",
}

Case = tuple[tuple[str, ...], str]


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


def _numbers() -> dict[str, Case]:
    """Return every key that takes a number with what is none, or far too much."""
    cases: dict[str, Case] = {}
    for name, key in key_table().items():
        wrong = {"float": ("nan", "1e999", "４"), "int": ("1.5", "x", "４")}
        for text in wrong.get(key.kind.__name__, ()):
            cases[f"{name}={text}"] = (*RUN, f"--{name}={text}"), f"{name}="
        if key.kind is int:
            case = (*RUN, f"--{name}={'9' * 30}"), f"{name}="
            cases[f"{name}=30-digits"] = case
    return cases


def cases() -> dict[str, Case]:
    """Return every case by a name."""
    found: dict[str, Case] = {
        "no-command": ((), "are required: COMMAND"),
        "unknown-command": (("simulat",), "invalid choice: 'simulat'"),
        "unknown-flag-alone": (("--frob",), "required: COMMAND"),
        "newline-for-a-command": (("\n",), "invalid choice"),
        "close-flag": (("simulate", "--drop-rat=0.5"), "did you mean '--drop-rate'?"),
        "abbreviation": (("simulate", "--dev", "3"), "unknown: '--dev'"),
        "words": (("simulate", "x", "y\nz"), "unknown: 'x' 'y\\nz'"),
        "flag-without-value": (("simulate", "--lr"), "expected one argument"),
        "task": (("simulate", "--task=digit"), "invalid choice: 'digit'"),
        "bool-with-value": ((*RUN, "--download=maybe"), "--download"),
        "milestones": ((*RUN, "--lr-milestones=0.5,x"), "lr-milestones='0.5,x'"),
        "milestones-nan": ((*RUN, "--lr-milestones=nan"), "lr-milestones='nan'"),
        "devices": ((*RUN, "--devices=1000000000000"), "must be in [1, 1000000]"),
        "devices-as-a-float": ((*RUN, "--devices=1e12"), "must be an integer"),
        "devices-other-digits": ((*RUN, "--devices=４"), "must be an integer"),
        "devices-many-digits": ((*RUN, f"--devices={DIGITS}"), "must be an integer"),
        "devices-none": ((*RUN, "--devices="), "must be an integer"),
        "workers": ((*RUN, "--workers=1000000"), "must be in [0, "),
        "workers-negative": ((*RUN, "--workers=-1"), "must be in [0, "),
        "in-flight-of-few": ((*RUN, "--in-flight=10"), "of 4 devices cannot train"),
        "in-flight": ((*RUN, "--in-flight=1000000000"), "in-flight=1000000000"),
        "levels": ((*RUN, "--levels=1000000000"), "levels=1000000000"),
        "planned": (
            ("simulate", "--devices=90000", "--in-flight=80000", "--levels=1000"),
            "too many to plan with",
        ),
        "threads": ((*RUN, "--threads=100000"), "threads=100000"),
        "batch-size": ((*RUN, "--batch-size=1000000000000"), "batch-size="),
        "width": ((*RUN, "--width=1e9"), "more than can be counted"),
        "width-2000": (("simulate", "--width=2000"), "choose a smaller width"),
        "width-1e300": (("simulate", "--width=1e300"), "choose a smaller width"),
        "step-seconds": ((*RUN, "--step-seconds=1e308"), "step-seconds=1e+308"),
        "speed-ratio": ((*RUN, "--speed-ratio=1e308"), "speed-ratio=1e+308"),
        "bandwidth": ((*RUN, "--bandwidth-mbps=5e-324"), "bandwidth-mbps=5e-324"),
        "lr": ((*RUN, "--lr=1e308"), "lr=1e+308"),
        "buffer-size": (
            (*RUN, "--algo=fedbuff", "--buffer-size=99"),
            "the model would never change",
        ),
        "port": ((*RUN, "--metrics-port=99999"), "metrics-port=99999"),
        "seeds": ((*COMPARE, "--seeds=0-99999999999"), "more than 1000 seeds"),
        "seeds-many-digits": ((*COMPARE, f"--seeds={DIGITS}"), "neither a seed nor"),
        "seeds-other-digits": ((*COMPARE, "--seeds=٣"), "neither a seed nor"),
        "seeds-none": ((*COMPARE, "--seeds=,"), "at least one seed"),
        "runs": (
            (
                *COMPARE,
                "--seeds=0-999",
                "--vary=lr=0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,0.11,0.12",
            ),
            "11,000 runs are more than 10,000",
        ),
        "variants": (
            (
                *COMPARE,
                *(
                    f"--vary={key}={','.join(map(str, range(1, 200)))}"
                    for key in ("lr", "batch-size", "local-steps")
                ),
            ),
            "7,880,599 variants are more than 1,000",
        ),
        "jobs": ((*COMPARE, "--jobs=1000000"), "must be in [1, "),
        "ablation": ((*COMPARE, "--ablation=x"), "invalid choice: 'x'"),
        "compare-algos-none": ((*COMPARE, "--algos=,"), "--algos"),
        "compare-without-out": (("compare",), "required: --out"),
        "compare-out-empty": ((*COMPARE, "--out="), "is empty"),
        "compare-data": (
            ("compare", "--task=mlp-fashion-mnist", "--data-dir=/nonexistent"),
            "no fashion-mnist in /nonexistent",
        ),
        "compare-trace": (
            ("compare", *SMALL, "--trace=/nonexistent"),
            "cannot read the trace /nonexistent",
        ),
        "compare-imports": ((*COMPARE, "--algos=exits:X"), "SystemExit: 3"),
        "compare-dataset": ((*COMPARE, "--dataset=nope:X"), "ModuleNotFoundError"),
        "compare-model": ((*COMPARE, "--model=nope:X"), "ModuleNotFoundError"),
        "data-file": ((*FILES, "--data-dir={here}/file"), "no fashion-mnist in"),
        "data-circle": ((*FILES, "--data-dir={here}/circle"), "is no folder"),
        "report-pipe": (("report", "{here}/piped"), "it is not a file"),
        "report-circle": (("report", "{here}/circle"), "there is no history.jsonl"),
        "out-circle": ((*RUN, "--out={here}/circle"), "it is not a folder"),
        "dataset-labels": ((*RUN, "--dataset=own:labels"), "go from 7 to 7"),
        "metrics-host": (
            (*RUN, "--metrics-port=9464", "--metrics-address=no host"),
            "cannot be opened",
        ),
        "data-long-name": ((*FILES, f"--data-dir={LONG_NAME}"), "File name too long"),
        "data-download": (
            (*FILES, "--download", "--data-dir=/proc/x"),
            "could not download",
        ),
        "dataset-raises": ((*RUN, "--dataset=own:raises"), "ValueError: bad news"),
        "dataset-exits": ((*RUN, "--dataset=own:leaves"), "SystemExit: bye"),
        "dataset-nothing": ((*RUN, "--dataset=own:nothing"), "returned a NoneType"),
        "dataset-number": ((*RUN, "--dataset=own:number"), "is a int: name a function"),
        "dataset-close": ((*RUN, "--dataset=digit"), "dataset='digit'"),
        "model-raises": ((*RUN, "--model=own:raises"), "ValueError: bad news"),
        "model-nothing": ((*RUN, "--model=own:nothing"), "returned a NoneType"),
        "model-without-units": ((*RUN, "--width=1e-300"), "drop rate 0"),
        "trace-is-a-folder": ((*TRACED, "{here}"), "it is not a file"),
        "trace-is-a-pipe": ((*TRACED, "{here}/pipe"), "it is not a file"),
        "trace-without-end": ((*TRACED, "/dev/zero"), "it is not a file"),
        "trace-missing": ((*TRACED, "/nonexistent"), "No such file"),
        "trace-long-name": ((*TRACED, LONG_NAME), "File name too long"),
        "resume-file": (("simulate", "--resume={here}/file"), "has no checkpoint"),
        "resume-folder": (("simulate", "--resume={here}"), "has no checkpoint"),
        "resume-empty": (("simulate", "--resume="), "is empty"),
        "resume-long-name": (("simulate", f"--resume={LONG_NAME}"), "too long"),
        "report-nothing": (("report",), "required: DIR"),
        "report-missing": (("report", "/nonexistent"), "/nonexistent"),
        "report-file": (("report", "{here}/file"), "{here}/file"),
        "report-no-runs": (("report", "{here}/runs"), "{here}/runs"),
        "report-target": (("report", "{here}", "--target=nan"), "must be finite"),
        "poll-nan": (("supernode", "--poll=nan"), "--poll nan"),
        "poll-negative": (("supernode", "--poll=-1"), "--poll -1"),
        "poll-long": (("supernode", "--poll=1e300"), "3600 at most"),
        "preload": (("supernode", "--preload=not a module"), "is no name of a module"),
        "poll-text": (("supernode", "--poll=x"), "invalid float value: 'x'"),
        "poll-without-value": (("supernode", "--poll"), "expected one argument"),
        "preload-nul": (("supernode", "--preload=a\0b"), "a\\x00b"),
        "supernode-nul": (("supernode", "a\0b"), "a\\x00b"),
        "supernode-too-long": (("supernode", "x" * 3_000_000), "too long"),
    }
    for name, (path, says) in PATHS.items():
        for words in (RUN, COMPARE, ("doctor",)):
            found[f"{words[0]}-out-{name}"] = (*words, "--out", path), ""
        found[f"data-{name}"] = (*FILES, "--data-dir", path), ""
        found[f"doctor-data-{name}"] = ("doctor", "--data-dir", path), says
        found[f"trace-{name}"] = (*TRACED, path), ""
        found[f"resume-{name}"] = ("simulate", "--resume", path), ""
        found[f"report-{name}"] = ("report", path), says
    for name, (path, says) in NO_FOLDERS.items():
        for words in (RUN, COMPARE, ("report", "{here}")):
            found[f"{words[0]}-out-{name}"] = (*words, "--out", path), says
    for name in TRACES:
        path = f"{{here}}/{name}.csv"
        found[f"trace-{name}"] = (*TRACED, path), "the trace "
    for name in HISTORIES:
        found[f"history-{name}"] = ("report", f"{{here}}/histories/{name}"), "histor"
    for name in CHECKPOINTS:
        words = ("simulate", f"--resume={{here}}/runs/{name}")
        found[f"checkpoint-{name}"] = words, "checkpoint"
    for number, (name, says) in enumerate(REFERENCES.items()):
        found[f"algo-{number}"] = (*RUN, "--algo", name), says
    for name, says in NO_ALGORITHMS.items():
        found[f"algo-{name}"] = (*RUN, "--algo", name), says
    return {**found, **_numbers()}
