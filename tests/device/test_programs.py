import os
import subprocess

import pytest

from flwr_asyncdrop.device.programs import load_program, program_path, write_program


def test_a_written_program_passes_its_arguments_on_as_they_are(tmp_path):
    program = tmp_path / "say"
    write_program(program, ["printf", "%s|", "it's", "$HOME"])
    done = subprocess.run(
        [str(program), "a b", "*"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "it's|$HOME|a b|*|"


def test_where_nothing_can_be_started_it_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)
    write_program(tmp_path / "say", ["printf"])
    assert f"no program can be started from {tmp_path}, so say is" in caplog.text


def test_flowers_programs_are_found_beside_this_python():
    path = program_path("flwr-clientapp")
    assert path is not None
    assert path.is_file()
    assert load_program("flwr-clientapp").__name__ == "flwr_clientapp"


def test_what_there_is_not_is_not_found():
    assert program_path("no-such-program-of-flower") is None
    with pytest.raises(LookupError, match="no-such-program"):
        load_program("no-such-program-of-flower")
