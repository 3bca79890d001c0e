"""Whatever is wrong with what people ask for is one line, and exit status 2."""

import subprocess
import sys

import pytest
import torch

from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.cli.message import plain_line
from flwr_asyncdrop.exceptions import RunError, UnsupportedModelError
from flwr_asyncdrop.shortage import shortage
from tests.cli.bad_files import write_files
from tests.cli.bad_inputs import cases

CASES = cases()


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_files(folder)
    return folder


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(here)])


def at(here, words):
    return [word.replace("{here}", str(here)) for word in words]


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_in_one_line(name, here, capsys):
    words, says = CASES[name]
    if words[:1] == ("compare",) and not any("--out" in word for word in words):
        words = (*words, "--out=out") if len(words) > 1 else words
    assert main(at(here, words)) == 2
    shown = capsys.readouterr()
    assert shown.out.count("\n") <= 1  # that the run has started
    assert shown.err.startswith("asyncdrop: ")
    assert shown.err.count("\n") == 1
    assert shown.err.strip().isprintable()
    assert len(shown.err) < 1100
    (says,) = at(here, [says])
    assert says in shown.err


def test_there_are_many():
    assert len(CASES) >= 150


def test_a_process_of_its_own_says_the_same(here, tmp_path):
    for words in (["simulate", "--out", f"{here}/file"], ["compare", "--lr=\udcff"]):
        done = subprocess.run(
            [sys.executable, "-m", "flwr_asyncdrop", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("asyncdrop: ")


def test_a_compare_that_cannot_find_its_data_starts_no_run(here, tmp_path, capsys):
    words = ["compare", "--task=mlp-fashion-mnist", "--data-dir=/nonexistent"]
    assert main([*words, f"--out={tmp_path / 'out'}"]) == 2
    shown = capsys.readouterr()
    assert "started" not in shown.out
    assert shown.err.count("/nonexistent") == 2  # the folder and a file in it
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(28, "No space left on device", "/runs/model"), 1),
        (KeyboardInterrupt(), 130),
        (RunError("no node came"), 1),
        (UnsupportedModelError("no units"), 2),
    ],
)
def test_what_ends_a_command_decides_its_status(error, status, monkeypatch, capsys):
    def fails(*_):
        raise error

    monkeypatch.setattr("flwr_asyncdrop.cli.report.run", fails)
    assert main(["report", "."]) == status
    line = capsys.readouterr().err
    assert line.startswith("asyncdrop: ")
    assert line.count("\n") == 1
    assert type(error).__name__ in line or str(error) in line or status == 130


SHORT = [
    (MemoryError(), "no memory is left for this process: have"),
    (
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
            "allocate memory: you tried to allocate 8 bytes. Error code 12 (Cannot "
            "allocate memory)"
        ),
        "no memory is left for this process (you tried to allocate 8 bytes. Error code",
    ),
    (RuntimeError("can't start new thread"), "no thread can be started: see"),
    (torch.OutOfMemoryError("CUDA out\nof"), "left on the GPU (CUDA out of): have"),
]


@pytest.mark.parametrize(("error", "says"), SHORT)
def test_what_the_machine_has_too_little_of_is_one_line(
    error, says, monkeypatch, capsys
):
    def fails(*_):
        raise error

    monkeypatch.setattr("flwr_asyncdrop.cli.report.run", fails)
    assert main(["report", "."]) == 1
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert says in line


def test_an_error_of_a_program_keeps_its_traceback(monkeypatch):
    def fails(*_):
        raise RuntimeError("thread")

    monkeypatch.setattr("flwr_asyncdrop.cli.report.run", fails)
    with pytest.raises(RuntimeError, match="thread"):
        main(["report", "."])


def test_memory_that_pytorch_does_not_get_is_known():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**55)
    assert shortage(raised.value)


def test_a_current_folder_that_was_deleted_is_named(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["report", str(tmp_path)]) == 2
    line = "the current folder has been deleted: change to one that is there"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb\x1b[31m\udcff", "a b\\x1b[31m\\udcff"),
        ("é ü", "é ü"),
        ("x" * 2000 + "end", "x" * 500 + "..." + "x" * 497 + "end"),
    ],
)
def test_a_line_has_only_what_is_shown(text, line):
    assert plain_line(text) == line
