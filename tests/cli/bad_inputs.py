"""What people might ask for by mistake.

A case is the words after ``asyncdrop`` and a part of the line that refuses them;
``{here}`` stands for a folder in which `write_files` has put what they name.
"""

from flwr_asyncdrop.app.config import key_table
from tests.cli.bad_files import CHECKPOINTS, DIGITS, HISTORIES, TRACES

SMALL = ("--model=mlp", "--num-rounds=1", "--local-steps=1", "--in-flight=2")
FLEET = ("--devices=4", "--levels=2")
RUN = ("simulate", *SMALL, *FLEET)
RAY = (*RUN, "--backend=ray")
TRACED = ("simulate", *SMALL, "--devices=4", "--trace")
COMPARE = ("compare", *SMALL, *FLEET, "--algos=fedavg", "--seeds=0")
FILES = ("simulate", "--task=mlp-fashion-mnist")

LONG_NAME, LONG_PATH = "x" * 300, "/".join(["d" * 200] * 30)

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
        "bool-with-value": (
            (*RUN, "--download=maybe"),
            "takes no value: give --download or --no-download",
        ),
        "switch-with-value": ((*RUN, "--quiet=1"), "--quiet takes no value: give --qu"),
        "milestones": ((*RUN, "--lr-milestones=0.5,x"), "lr-milestones='0.5,x'"),
        "milestones-nan": ((*RUN, "--lr-milestones=nan"), "lr-milestones='nan'"),
        "devices": ((*RUN, "--devices=1000000000000"), "must be in [1, 1000000]"),
        "devices-as-a-float": ((*RUN, "--devices=1e12"), "must be an integer"),
        "devices-other-digits": ((*RUN, "--devices=４"), "must be an integer"),
        "devices-many-digits": ((*RUN, f"--devices={DIGITS}"), "must be an integer"),
        "devices-none": ((*RUN, "--devices="), "must be an integer"),
        "workers": ((*RUN, "--workers=1000000"), "must be in [0, "),
        "workers-negative": ((*RUN, "--workers=-1"), "must be in [0, "),
        "ray-address": ((*RAY, "--address=host"), "must be auto, or HOST:PORT"),
        "ray-client": ((*RAY, "--address=ray://host:1"), "must be auto, or HOST:PORT"),
        "doctor-ray": (("doctor", "--ray=host"), "must be auto, or HOST:PORT"),
        "doctor-ray-empty": (("doctor", "--ray="), "must be auto, or HOST:PORT"),
        "ray-actors": ((*RAY, "--actors=0"), "must be in [1, 10000]"),
        "ray-gpus": ((*RAY, "--gpus-per-actor=nan"), "'nan' must be in [0, 1024]"),
        "ray-workers": ((*RAY, "--workers=2"), "give --actors instead"),
        "actors-of-nothing": ((*RUN, "--actors=2"), "add --backend ray"),
        "address-of-nothing": (
            (*COMPARE, "--out=x", "--address=auto"),
            "add --backend",
        ),
        "gpus-list": ((*RUN, "--workers=2", "--gpus=0,1"), "CUDA_VISIBLE_DEVICES says"),
        "gpus-0": ((*RUN, "--workers=2", "--gpus=0"), "must be a number of GPUs"),
        "gpus-text": ((*COMPARE, "--gpus=x"), "'x' must be a number of GPUs, or all"),
        "gpus-other-digits": ((*RUN, "--gpus=２"), "must be a number of GPUs, or all"),
        "gpus-without-workers": ((*RUN, "--gpus=all"), "add --workers"),
        "gpus-of-no-workers": ((*RUN, "--gpus=1", "--workers=0"), "add --workers"),
        "gpus-and-ray": ((*RAY, "--gpus=1"), "give --gpus-per-actor instead"),
        "gpus-that-are-not-there": ((*RUN, "--workers=2", "--gpus=1024"), "sees"),
        "compare-gpus-that-are-not-there": ((*COMPARE, "--gpus=1024"), "sees"),
        "backend": ((*RUN, "--backend=spark"), "invalid choice: 'spark'"),
        "more-devices-than-samples": (
            ("simulate", *SMALL, "--devices=2000", "--partition=iid"),
            "1438 training samples are too few for 2000 devices",
        ),
        "more-devices-than-samples-of-all-runs": (
            ("compare", *SMALL, "--devices=2000", "--partition=dirichlet"),
            "1438 training samples are too few for 2000 devices",
        ),
        "in-flight-of-few": ((*RUN, "--in-flight=10"), "of 4 devices cannot train"),
        "in-flight": ((*RUN, "--in-flight=1000000000"), "in-flight=1000000000"),
        "levels": ((*RUN, "--levels=1000000000"), "levels=1000000000"),
        "threads": ((*RUN, "--threads=100000"), "threads=100000"),
        "batch-size": ((*RUN, "--batch-size=1000000000000"), "batch-size="),
        "width": ((*RUN, "--width=1e9"), "more than can be counted"),
        "width-2000": (("simulate", "--width=2000"), "choose a smaller width"),
        "width-1e300": (("simulate", "--width=1e300"), "choose a smaller width"),
        "step-seconds": ((*RUN, "--step-seconds=1e308"), "step-seconds=1e+308"),
        "speed-ratio": ((*RUN, "--speed-ratio=1e308"), "speed-ratio=1e+308"),
        "bandwidth": ((*RUN, "--bandwidth-mbps=5e-324"), "bandwidth-mbps=5e-324"),
        "lr": ((*RUN, "--lr=1e308"), "lr=1e+308"),
        "deadline": ((*RUN, "--deadline=1e308"), "deadline=1e+308"),
        "availability": ((*RUN, "--availability=1e-300"), "availability=1e-300"),
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
                    for key in ("lr", "batch-size", "test-samples")
                ),
            ),
            "7,880,599 variants are more than 1,000",
        ),
        "vary-twice": (
            (*COMPARE, "--vary=lr=0.1", "--vary=lr=0.2"),
            "lr varies twice: give all of its values at once",
        ),
        "vary-given": (
            (*COMPARE, "--lr=0.1", "--vary=lr=0.2,0.3"),
            "lr varies: leave --lr out",
        ),
        "vary-given-ablation": (
            (*COMPARE, "--ablation=drop-rate", "--drop-rate=0.5"),
            "drop-rate varies: leave --drop-rate out",
        ),
        "jobs": ((*COMPARE, "--jobs=1000000"), "must be in [1, "),
        "shard-0": ((*COMPARE, "--shard=0/4"), "the shards of 4 are 1/4 to 4/4"),
        "shard-5": ((*COMPARE, "--shard=5/4"), "the shards of 4 are 1/4 to 4/4"),
        "shard-text": ((*COMPARE, "--shard=a/b"), "'a/b' must be I/N"),
        "shard-none": ((*COMPARE, "--shard="), "'' must be I/N"),
        "shard-of-none": ((*COMPARE, "--shard=1/0"), "must be in [1, 10000]"),
        "shard-of-many": ((*COMPARE, "--shard=1/99999"), "must be in [1, 10000]"),
        "shard-alone": ((*COMPARE, "--shard=1"), "must be I/N"),
        "shard-other-digits": ((*COMPARE, "--shard=４/4"), "must be I/N"),
        "shard-of-a-run": ((*RUN, "--shard=1/2"), "unknown: '--shard=1/2'"),
        "ablation": ((*COMPARE, "--ablation=x"), "invalid choice: 'x'"),
        "compare-algos-none": ((*COMPARE, "--algos=,"), "--algos"),
        "compare-without-out": (("compare",), "required: --out"),
        "compare-out-empty": ((*COMPARE, "--out="), "is empty"),
        "compare-data": (
            ("compare", "--task=mlp-fashion-mnist", "--data-dir=/nonexistent"),
            "no fashion-mnist in /nonexistent",
        ),
        "advise-no-time": (
            ("advise", *SMALL, "--out=x", "--within=5e-324"),
            "are too short for a run: give more with --within",
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
        "dataset-nothing": ((*RUN, "--dataset=own:nothing"), "returned None"),
        "dataset-number": ((*RUN, "--dataset=own:number"), "is of type int: name a"),
        "dataset-close": ((*RUN, "--dataset=digit"), "dataset='digit'"),
        "model-raises": ((*RUN, "--model=own:raises"), "ValueError: bad news"),
        "model-nothing": ((*RUN, "--model=own:nothing"), "returned None"),
        "model-without-units": ((*RUN, "--width=1e-300"), "drop rate 0"),
        "trace-is-a-folder": ((*TRACED, "{here}"), "it is not a file"),
        "trace-is-a-pipe": ((*TRACED, "{here}/pipe"), "it is not a file"),
        "trace-without-end": ((*TRACED, "/dev/zero"), "it is not a file"),
        "trace-missing": ((*TRACED, "{here}/nowhere"), "No such file"),
        "trace-long-name": ((*TRACED, LONG_NAME), "File name too long"),
        "resume-file": (("simulate", "--resume={here}/file"), "is no folder"),
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
        found[f"advise-trace-{name}"] = ("advise", "--out=x", "--trace", path), ""
        found[f"resume-{name}"] = ("simulate", "--resume", path), ""
        found[f"report-{name}"] = ("report", path), says
    for name, (path, says) in NO_FOLDERS.items():
        for words in (RUN, COMPARE, ("report", "{here}")):
            found[f"{words[0]}-out-{name}"] = (*words, "--out", path), says
    for name in TRACES:
        path = f"{{here}}/{name}.csv"
        found[f"trace-{name}"] = (*TRACED, path), "the trace "
    for name in HISTORIES:
        begun = name not in ("empty", "half-a-line")
        says = "histor" if begun else "nothing to compare yet: fedavg seed 0 is incomp"
        found[f"history-{name}"] = ("report", f"{{here}}/histories/{name}"), says
    for name in CHECKPOINTS:
        words = ("simulate", f"--resume={{here}}/runs/{name}")
        found[f"checkpoint-{name}"] = words, "checkpoint"
    for number, (name, says) in enumerate(REFERENCES.items()):
        found[f"algo-{number}"] = (*RUN, "--algo", name), says
    for name, says in NO_ALGORITHMS.items():
        found[f"algo-{name}"] = (*RUN, "--algo", name), says
    return {**found, **_numbers()}
