"""What the benchmark of batch normalisation's statistics compares."""

import json

import pytest

from benchmarks import bn_calibration
from benchmarks.bn_calibration import accuracies, main, rows

SOURCES = ["merged", "test inputs", "held out", "a sixteenth of it", "devices"]


def test_the_table_by_hand():
    one = {"test inputs": [0.5, 0.4], "held out": [0.51, 0.38]}
    other = {"test inputs": [0.3, 0.6], "held out": [0.3, 0.61]}
    *_, tested, held_out = rows([one, other])
    assert tested == "| test inputs | 55.0 ± 7.1 | 50.0 ± 14.1 | +0.00 | +0.00 |"
    # (+1, -2, 0, +1) / 4 and the farthest of them
    assert held_out == "| held out | 56.0 ± 7.1 | 49.5 ± 16.3 | +0.00 | -2.00 |"
    assert len(next(iter(rows([one]))).split("|")) == 7


def test_every_source_is_tested_at_every_test():
    small = {"local-steps": 2, "num-rounds": 2, "in-flight": 2, "width": 0.1}
    found = accuracies({**small, "algo": "hetero-asyncdrop", "batch-size": 16})
    assert list(found) == SOURCES
    assert {len(values) for values in found.values()} == {2}
    assert len({tuple(values) for values in found.values()}) > 1


def test_what_is_there_is_not_run_again(tmp_path, capsys):
    done = {"test inputs": [0.25]}
    path = tmp_path / "digits-asyncdrop-4-3.json"
    path.write_text(json.dumps(done))
    flags = ["--algos=asyncdrop", "--seeds=4", "--num-rounds=3", f"--out={tmp_path}"]
    main(flags)
    assert "| test inputs | 25.0 | 25.0 | +0.00 | +0.00 |" in capsys.readouterr().out


@pytest.mark.parametrize("cut", ["", '{"test inputs": [0.'])
def test_what_was_cut_off_is_run_again(cut, tmp_path, capsys, monkeypatch):
    path = tmp_path / "digits-asyncdrop-4-3.json"
    path.write_text(cut)
    found = {"test inputs": [0.25]}
    monkeypatch.setattr(bn_calibration, "accuracies", lambda settings: found)
    flags = ["--algos=asyncdrop", "--seeds=4", "--num-rounds=3", f"--out={tmp_path}"]
    main(flags)
    assert "| test inputs | 25.0 | 25.0 | +0.00 | +0.00 |" in capsys.readouterr().out
    assert json.loads(path.read_text()) == found
