"""The commands as people call them, on the smallest runs there are."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path

import psutil
import pytest

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.run_folder import output_dir
from flwr_asyncdrop.cli.events import Reporter
from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from flwr_asyncdrop.report.reading import read_if_begun
from flwr_asyncdrop.storage.lock import FolderLock
from tests.nightly import by_night, nightly
from tests.report.histories import history as made_history
from tests.report.histories import write

ROOT = Path(__file__).parents[2]
SMALL = ["--model=mlp", "--num-rounds=2", "--local-steps=2", "--in-flight=3"]
FLEET = ["--devices=6", "--levels=3"]


def in_a_process(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "flwr_asyncdrop", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def history(folder):
    return [without_wall(line) for line in read_history(folder / "history.jsonl")]


def test_the_script_asyncdrop_is_this_command():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    script = EntryPoint("asyncdrop", project["scripts"]["asyncdrop"], "console_scripts")
    assert script.load() is main


def test_workers_make_no_difference_to_a_run(tmp_path, capsys):
    for workers in (0, 2):
        out = tmp_path / str(workers)
        flags = [*SMALL, *FLEET, f"--workers={workers}", f"--out={out}"]
        assert main(["simulate", "--seed=3", *flags]) == 0
        shown = capsys.readouterr().out
        assert "complete hetero-asyncdrop seed 3 [1/1]: 6/6 updates" in shown
        for name in ("history.jsonl", "model.safetensors", "run.png"):
            assert str(out / name) in shown
    first, *rest = history(tmp_path / "0")
    assert first["config"]["seed"] == 3
    assert first["devices"] == 6
    assert rest[-1]["updates"] == 6
    assert history(tmp_path / "2") == [first, *rest]


def test_a_comparison_is_done_once_and_resumed_where_it_was(tmp_path, capsys):
    flags = [*SMALL, *FLEET, f"--out={tmp_path}", "--seeds=0-1", "--jobs=2"]
    compare = ["compare", "--algos=async-fedavg,asyncdrop", *flags, "--drop-rate=0.5"]
    done = in_a_process(*compare)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = sorted(path.parent for path in tmp_path.rglob("history.jsonl"))
    assert [run.relative_to(tmp_path).as_posix() for run in runs] == [
        f"{algo}/seed-{seed}"
        for algo in ("async-fedavg", "asyncdrop")
        for seed in (0, 1)
    ]
    assert done.stdout.count("started") == done.stdout.count("complete") == 4
    assert "max. accuracy" in done.stdout
    written = {run: history(run) for run in runs}
    for run, lines in written.items():
        assert lines[-1]["event"] == "end"
        assert lines[0]["algorithm"] == run.parent.name
    assert written[runs[0]] != written[runs[1]]
    assert written[runs[2]][0]["config"]["drop-rate"] == 0.5

    # Half a run is done again, from the start, and so is one that has lost its model;
    # a picture is drawn again, and a whole run is left alone.
    cut = runs[2] / "history.jsonl"
    cut.write_text("".join(cut.read_text().splitlines(keepends=True)[:3]))
    (runs[2] / "done.json").unlink()
    (runs[1] / "model.safetensors").unlink()
    (runs[3] / "run.png").unlink()
    times = {run: (run / "history.jsonl").stat().st_mtime_ns for run in runs}
    assert main(compare) == 0
    shown = capsys.readouterr().out
    assert "1 of 4 runs complete already" in shown
    assert shown.count("started") == 3
    assert shown.count(": 6/6 updates") == 3
    assert {run: history(run) for run in runs} == written
    same = [(run / "history.jsonl").stat().st_mtime_ns == times[run] for run in runs]
    assert same == [True, False, False, True]
    names = {"done.json", "history.jsonl", "model.safetensors", "run.log", "run.png"}
    for run in runs:
        assert {path.name for path in run.iterdir()} >= names - {"run.log"}

    assert main([*compare, "--lr=0.5"]) == 2
    assert "(lr 0.05, now 0.5): choose another --out" in capsys.readouterr().err

    # One bit of a complete run: neither taken for complete nor done again unasked.
    bad = runs[0] / "history.jsonl"
    bad.write_text(bad.read_text().replace('"update": 1,', '"update": 3,', 1))
    for command in (compare, ["report", str(tmp_path)]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert f"{bad} was changed after its run had ended" in error
        assert error.count("\n") == 1


def test_a_folder_that_has_a_run_is_replaced_only_on_demand(tmp_path, capsys):
    out = tmp_path / "a run"
    simulate = ["simulate", "--algo=fedavg", *SMALL, *FLEET, f"--out={out}"]
    assert main(simulate) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    assert main([*simulate, "--seed=3"]) == 2
    error = capsys.readouterr().err
    assert f"{out} has a run that is over: choose another out-dir; to replace" in error
    assert error.count("\n") == 1
    # What is complete resumes to what it is.
    assert main(["simulate", f"--resume={out}"]) == 0
    assert "updates         6 in 2 rounds" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert main(["simulate", f"--resume={out}", f"--out={out}", "--seed=0"]) == 0
    capsys.readouterr()
    assert main(["simulate", f"--resume={out}", "--num-rounds=9"]) == 2
    assert "configuration (num-rounds 2, now 9): leave" in capsys.readouterr().err

    with pytest.raises(SystemExit):  # as SIGTERM ends it, with a checkpoint
        stopped(simulate, ["--overwrite", "--seed=3"])
    capsys.readouterr()
    assert main(simulate) == 2
    error = capsys.readouterr().err
    resume = re.search(r"to resume it: asyncdrop (.*); to replace it", error)[1]
    assert main(shlex.split(resume)) == 0
    assert history(out)[0]["config"]["seed"] == 3
    assert main([*simulate, "--overwrite"]) == 0
    assert history(out)[0]["config"]["seed"] == 0


@pytest.mark.parametrize(
    "below", ["seed-0", "fedbuff/seed-0", "rung-1/fedbuff,lr=0.1/seed-3"]
)
def test_a_run_is_not_put_among_those_of_a_comparison(below, tmp_path, capsys):
    write(tmp_path / below, made_history("fedbuff", 0, [0.5]))
    before = sorted(tmp_path.rglob("*"))
    for more in ((), ("--overwrite",)):
        assert main(["simulate", *SMALL, *FLEET, f"--out={tmp_path}", *more]) == 2
        error = capsys.readouterr().err
        assert f"{tmp_path} has the runs of a comparison, such as {below}:" in error
        assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--algos=fedavg"),
        ("tune", "--algos=fedavg", "--search=lr=0.1,0.2", "--rungs=1"),
        ("advise", "--model=mlp"),
    ],
    ids=lambda words: words[0],
)
def test_runs_are_not_put_into_the_folder_of_a_single_one(words, tmp_path, capsys):
    write(tmp_path / "run", made_history("fedbuff", 7, [0.5]))
    out = tmp_path / "run"
    assert main([*words, *FLEET, "--in-flight=3", f"--out={out}"]) == 2
    error = capsys.readouterr().err
    assert f"{out} has a run: choose another --out" in error
    assert error.count("\n") == 1
    assert [path.name for path in out.iterdir()] == ["history.jsonl"]


@pytest.mark.parametrize(
    ("words", "below"),
    [
        (("compare",), "rung-1/fedbuff/seed-1000"),
        (("compare",), "seed-0"),
        (("tune", "--search=lr=0.1,0.2", "--rungs=1"), "fedbuff/seed-0"),
        (("advise", "--model=mlp"), "fedbuff/seed-0"),
    ],
)
def test_comparisons_and_searches_are_not_put_into_one_folder(
    words, below, tmp_path, capsys
):
    """The next table had the runs of both."""
    write(tmp_path / below, made_history("fedbuff", 0, [0.5]))
    before = sorted(tmp_path.rglob("*"))
    given = [*words, "--algos=fedavg", *FLEET, "--in-flight=3", f"--out={tmp_path}"]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path} has other runs, such as {below}: choose another --out" in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("is_told", [False, True], ids=["found", "told"])
def test_a_run_resumes_from_any_folder(is_told, tmp_path, monkeypatch, capsys):
    """By a trace with a relative name it did from the folder where it began alone."""
    monkeypatch.chdir(tmp_path)
    Path("fleet.csv").write_text("seconds_per_step\n1\n1\n2\n2\n")
    with pytest.raises(SystemExit):
        stopped(["simulate", *SMALL, "--trace=fleet.csv", "--out=run"], [])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if is_told:
        Path("fleet.csv").rename(elsewhere / "moved.csv")
    monkeypatch.chdir(elsewhere)
    told = ["--trace=moved.csv"] if is_told else []
    assert main(["simulate", "--resume=../run", *told]) == 0
    assert "updates         6 in 2 rounds" in capsys.readouterr().out


def stopped(command, more):
    """Run a command that SIGTERM stops after its first update."""

    class Stops(Reporter):
        def on_update(self, state, merged):
            signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flwr_asyncdrop.cli.worker.Reporter", Stops)
        main([*command, *more])


HOLDS = [
    ("simulate", ["simulate", "--overwrite", *SMALL, *FLEET, "--out={}"]),
    ("resume", ["simulate", "--resume={}"]),
    ("compare", ["compare", "--algos=fedavg", "--seeds=0", *SMALL, "--out={}"]),
]


@pytest.mark.parametrize(
    "words", [w for _, w in HOLDS], ids=[name for name, _ in HOLDS]
)
def test_a_folder_in_use_is_refused_at_once(words, tmp_path, capsys):
    with ThreadPoolExecutor(1) as other, FolderLock(tmp_path):
        command = [word.format(tmp_path) for word in words]
        assert other.submit(main, command).result() == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"asyncdrop: {tmp_path} is in use by another thread")
    assert shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_what_all_runs_would_refuse_is_said_once(tmp_path, capsys):
    out, nowhere = tmp_path / "out", tmp_path / "nowhere"
    flags = ["--task=mlp-fashion-mnist", f"--data-dir={nowhere}", f"--out={out}"]
    assert main(["compare", "--seeds=0-9", *flags]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert str(nowhere) in shown.err
    assert shown.err.count("\n") == 1
    assert not out.exists()

    two = ["--algos=layerwise-asyncdrop", "--seeds=0-9", *SMALL, *FLEET]
    assert main(["compare", *two, f"--out={out}"]) == 2
    assert "0 residual blocks" in capsys.readouterr().err


SLOW = """
import os
import time
from dataclasses import dataclass

from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.algorithms import AsyncDrop

class Waiting(Mixing):
    def merge(self, state, update):
        time.sleep(float(os.environ.get("SECONDS_AN_UPDATE", 0)))
        return super().merge(state, update)

@dataclass(frozen=True)
class Slow(AsyncDrop):
    def aggregator(self, in_flight):
        return Waiting(0.5)
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        # Ctrl-C goes to the whole group of processes.
        pytest.param(
            lambda process: os.killpg(process.pid, signal.SIGINT), 130, id="ctrl-c"
        ),
        nightly(subprocess.Popen.terminate, 143, id="sigterm"),
        nightly(subprocess.Popen.kill, -signal.SIGKILL, id="sigkill"),
    ],
)
def test_a_comparison_that_is_stopped_ends_its_runs_and_is_resumed(end, code, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    out = tmp_path / "out"
    flags = [*SMALL, "--num-rounds=40", "--evaluate-every=20", *FLEET]
    compare = [sys.executable, "-m", "flwr_asyncdrop", "compare", *flags, "--jobs=1"]
    command = [*compare, "--algos=slow:Slow", "--seeds=0", f"--out={out}"]
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split()])
    known = {**os.environ, "PYTHONPATH": path}
    # Ninety updates are left when it is stopped: on no machine is it over by then.
    slow = {**known, "SECONDS_AN_UPDATE": "0.03"}
    run = out / "Slow" / "seed-0"
    with subprocess.Popen(command, cwd=ROOT, env=slow, process_group=0) as process:
        while not (run / "checkpoints" / "000002").exists():  # the first has no update
            assert process.poll() is None
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        end(process)
        assert process.wait(300) == code
    assert not psutil.wait_procs(children, 300)[1]
    before = (run / "history.jsonl").read_text()
    assert '"end"' not in before
    again = subprocess.run(command, cwd=ROOT, env=known, check=False)
    assert again.returncode == 0
    if code < 0:  # what came after the newest checkpoint was done again
        before = "".join(before.splitlines(keepends=True)[:2])
    assert (run / "history.jsonl").read_text().startswith(before)


ROLLING = """
from dataclasses import dataclass

from flwr_asyncdrop.algorithms import AsyncDrop
from flwr_asyncdrop.parameters import at_least, parameter

@dataclass(frozen=True)
class Rolling(AsyncDrop):
    window: int = parameter(1, "units that it moves on by", at_least(1))
"""


def test_an_algorithm_of_the_current_folder_runs_by_name(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "rolling.py").write_text(ROLLING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    algo, window = "my_package.rolling:Rolling", "--window=2"
    flags = [window, *SMALL, *FLEET]
    one = [f"--algo={algo}", f"--out={tmp_path / 'one'}", "--workers=1"]
    assert main(["simulate", *one, *flags]) == 0
    several = [f"--algos=async-fedavg,{algo}", f"--out={tmp_path / 'all'}"]
    assert main(["compare", *several, "--seeds=0", *flags]) == 0
    first, *_ = history(tmp_path / "one")
    assert (first["algorithm"], first["config"]["window"]) == (algo, 2)
    assert history(tmp_path / "all" / "Rolling" / "seed-0") == history(tmp_path / "one")
    assert (tmp_path / "all" / "async-fedavg" / "seed-0" / "run.png").exists()

    capsys.readouterr()
    assert main(["simulate", *one, "--window=0"]) == 2
    assert "window=0 must be at least 1" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["simulate", "--algo", algo, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--window INT units that it moves on by (default: 1)" in text


BREAKS = """
from dataclasses import dataclass
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.algorithms import Algorithm

class Breaking(Mixing):
    def merge(self, state, update):
        for tensor in state.values():
            tensor.fill_(1e38)  # what devices compute with it is not finite
        return True

@dataclass(frozen=True)
class Breaks(Algorithm):
    def aggregator(self, in_flight):
        return Breaking(0.5)
"""


@pytest.mark.parametrize("command", ["simulate --algo", "compare --seeds=0 --algos"])
def test_a_run_that_ends_early_has_failed(command, tmp_path, monkeypatch, capsys):
    (tmp_path / "breaks.py").write_text(BREAKS)
    monkeypatch.chdir(tmp_path)
    flags = [*SMALL, *FLEET, f"--out={tmp_path / 'out'}"]
    assert main([*command.split(), "breaks:Breaks", *flags]) == 1
    shown = capsys.readouterr().out
    assert "the run did not do all its rounds: in the end every task failed" in shown
    assert "FAILED   Breaks seed 0 [1/1]" in shown
    assert "complete Breaks" not in shown


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, capsys):
    """An MLP has no residual blocks to leave out."""
    algos = "--algos=layerwise-asyncdrop,async-fedavg"
    out = ["--seeds=0", "--jobs=1", f"--out={tmp_path}"]
    assert main(["compare", algos, *SMALL, *FLEET, *out]) == 1
    shown = capsys.readouterr().out
    failed = next(line for line in shown.splitlines() if "FAILED" in line)
    assert "layerwise-asyncdrop seed 0 [1/2]" in failed
    assert "0 residual blocks" in failed
    assert "complete async-fedavg seed 0 [2/2]" in shown
    assert "1 of 2 runs failed: the same command tries again" in shown
    log = tmp_path / "layerwise-asyncdrop" / "seed-0" / "run.log"
    assert str(log) in shown
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize(
    ("label", "seed", "config", "flags", "says"),
    [
        ("fedbuff", 7, {"dataset": "cifar10"}, [], "data sets, cifar10 (fedbuff seed"),
        ("fedavg", 7, {"clock": "wall"}, [], "virtual time (s) (fedavg seed 0)"),
        ("of/more/fedavg", 0, {}, [], "a second run of fedavg with seed 0"),
        ("fedavg", 7, {}, ["--vary=dataset=digits,made:up"], "made:up (fedavg,"),
    ],
)
def test_runs_without_a_table_are_refused_before_the_first(
    label, seed, config, flags, says, tmp_path, monkeypatch, capsys
):
    (tmp_path / "made.py").write_text("def up(folder): ...")
    monkeypatch.syspath_prepend(tmp_path)
    there = tmp_path / "out" / label / f"seed-{seed}"
    write(there, made_history(label.split("/")[-1], seed, [0.5], **config))
    out = ["--seeds=0", "--jobs=1", f"--out={tmp_path / 'out'}"]
    assert main(["compare", "--algos=fedavg", *SMALL, *FLEET, *flags, *out]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert "choose another --out" in shown.err
    assert shown.err.count("\n") == 1
    assert "started" not in shown.out
    assert len([*tmp_path.rglob("history.jsonl")]) == 1


@pytest.mark.parametrize(
    "command",
    [
        ["simulate"],
        ["compare", "--algos=fedavg"],
        ["tune", "--algos=fedavg", "--search=lr=0.1,0.2"],
        ["advise", "--algos=fedavg", "--search=lr=0.1,0.2"],
    ],
)
def test_a_tracker_that_is_not_installed_is_said_once(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main([*command, "--track=wandb", f"--out={tmp_path / 'out'}"]) != 0
    error = capsys.readouterr().err
    assert "wandb is not installed: pip install 'flwr-asyncdrop[wandb]'" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare", "--algos=nope"], "algo='nope' is not known: choose one of"),
        (["compare", "--algos=fedavg", "--drop-rate=0.5"], "means nothing to fedavg"),
        (["compare", "--lr=-1"], "lr=-1.0 must be in (0, 1000000]"),
        (["simulate", "--algo=fedavg", "--drop-rate=0.5"], "makes no difference"),
        (["simulate", "--task=mlp-fashion-mnist"], "set data-dir"),
        (["simulate", "--resume=/nowhere"], "/nowhere is no folder: nothing can be"),
        (["simulate", "--resume=/x", "--task=lstm-imdb"], "--task makes no difference"),
        (["simulate", "--resume=/x", "--devices=8"], "--devices makes no difference"),
        (["simulate", "--resume=/x", "--devices=104"], "--devices makes no difference"),
        (["simulate", "--resume=/x", "--task=digits"], "--task makes no difference"),
        (["simulate", "--resume=/"], "--out makes no difference to --resume"),
        (["simulate", "--algo=layerwise-asyncdrop", "--model=mlp"], "0 residual block"),
        (["report", "/nowhere"], "there is no history.jsonl in"),
        (["report", "/nowhere", "--target=later"], "there is no history.jsonl in"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(arguments, says, tmp_path, capsys):
    assert main([*arguments, f"--out={tmp_path / 'a' / 'folder'}"]) == 2
    assert list(tmp_path.iterdir()) == []
    error = capsys.readouterr().err
    assert error.startswith("asyncdrop: ")
    assert says in error
    assert error.count("\n") == 1


def test_a_comparison_says_once_what_its_runs_warn_of(tmp_path, capsys):
    algos = ["--algos=fedbuff,async-fedavg", "--max-seconds=1"]
    flags = [*SMALL, *FLEET, "--seeds=0", f"--out={tmp_path}"]
    assert main(["compare", *algos, *flags]) == 0
    said = capsys.readouterr().out.splitlines()
    (line,) = (line for line in said if line.startswith("warning  "))
    assert "seed 0: max-seconds=1 ended the run when lr had decayed 0 of 2" in line
    logs = [each.read_text() for each in tmp_path.glob("*/*/run.log")]
    assert ["max-seconds=1 ended the run" in log for log in logs] == [True, True]


def test_a_report_has_a_table_and_a_page(tmp_path, capsys):
    run = tmp_path / "fedavg" / "seed-0"
    assert main(["simulate", "--algo=fedavg", *SMALL, *FLEET, f"--out={run}"]) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path), "--target=0.01", "--paper"]) == 0
    shown = capsys.readouterr().out
    assert "fedavg" in shown
    assert "s to 1.00%" in " ".join(shown.split())
    page = tmp_path / "report" / "report.html"
    assert str(page) in shown
    assert page.read_text().startswith("<!doctype html>")
    assert (page.parent / "paper" / "table.tex").exists()

    assert main(["report", str(tmp_path / "fedavg" / "nothing")]) == 2
    assert capsys.readouterr().err.startswith("asyncdrop: ")


def test_the_table_and_the_page_of_a_report_are_of_the_same_runs(
    tmp_path, capsys, monkeypatch
):
    """One that another process ended in between was in the page alone."""
    history = write(tmp_path / "fedavg" / "seed-0", made_history("fedavg", 0, [0.5]))
    read = []

    def reading(path):
        read.append(path)
        return read_if_begun(path)

    monkeypatch.setattr("flwr_asyncdrop.report.series.read_if_begun", reading)
    assert main(["report", str(tmp_path)]) == 0
    assert read == [history]


@by_night
def test_a_code_without_the_signs_of_a_table(tmp_path):
    flags = ["--algos=fedavg", "--seeds=0,1", *SMALL, *FLEET, f"--out={tmp_path / 'ü'}"]
    done = subprocess.run(
        [sys.executable, "-m", "flwr_asyncdrop", "compare", *flags],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0
    assert r"\xb1" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_hint_of_a_comparison_can_be_pasted(tmp_path, capsys):
    out = tmp_path / "my runs"
    arguments = ["--algos=fedavg", "--seeds=0", *SMALL, *FLEET, f"--out={out}"]
    assert main(["compare", *arguments]) == 0
    hint = capsys.readouterr().out.splitlines()[-1].partition(": ")[2]
    assert shlex.split(hint) == ["asyncdrop", "report", str(out)]


def test_a_run_that_is_refused_leaves_no_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["simulate", "--algo=layerwise-asyncdrop", "--model=mlp"]) == 2
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    assert main(["simulate", "--algo=layerwise-asyncdrop", "--model=mlp"]) == 2
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]


def test_a_run_of_an_algorithm_with_a_slash_has_one_folder(tmp_path, monkeypatch):
    """It was refused, as a folder that nobody had named could not be written."""
    (tmp_path / "slashed.py").write_text(
        "from flwr_asyncdrop.algorithms import FedAvg\n"
        "class Mine(FedAvg): name = 'mine/2'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = RunConfig.parse({"algo": "slashed:Mine"})
    with output_dir(config) as out:
        assert out.parent == tmp_path / "runs"
        assert out.name.endswith("-mine_2")
