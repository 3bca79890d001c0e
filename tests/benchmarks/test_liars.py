"""The benchmark of liars on the smallest runs."""

import pytest

from benchmarks import liars
from benchmarks.liars import ATTACKS, Case, run_case, table
from benchmarks.lines import add_result
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import load_data

SMALL = {"num-rounds": 2, "local-steps": 1, "evaluate-every": 2}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_liar_lies_and_the_others_do_not(attack):
    labels = load_data(RunConfig()).train_y.clone()
    found = run_case(Case("async-fedavg", attack=attack, liars=1, guard=False), **SMALL)
    assert found["merged"] == 16
    assert 0 < found["lies_merged"] < 16
    assert (load_data(RunConfig()).train_y == labels).all()


def test_the_guard_is_on_or_off():
    lie = {"attack": "1e10", "liars": 3}
    on = run_case(Case("fedbuff", **lie), **SMALL)
    off = run_case(Case("fedbuff", **lie, guard=False), **SMALL)
    assert on["lies_merged"] == on["honest_refused"] == off["lies_refused"] == 0
    assert on["lies_refused"] > 0
    assert off["lies_merged"] > 0


@pytest.mark.parametrize(("attack", "seed"), [("label flip", 102), ("sign flip", 106)])
def test_a_fast_liar_has_no_more_say_as_what_is_new_counts(attack, seed):
    """They end at 0.58 and 0.51 if each update that is new counts more."""
    found = run_case(Case("asyncdrop-plus", attack=attack, liars=1), seed=seed)
    assert found["lies_merged"] > 0
    assert found["accuracy"] > 0.85


def test_runs_that_are_there_are_not_made_again(tmp_path, monkeypatch, capsys):
    made = []

    def fake(case):
        made.append(case)
        return {
            **vars(case),
            "accuracy": 0.5,
            "honest_refused": 0,
            "ended": "",
        }

    monkeypatch.setattr(liars, "run_case", fake)
    out = tmp_path / "liars.jsonl"
    monkeypatch.setattr("sys.argv", ["liars", "--out", str(out), "--algos", "fedavg"])
    liars.main()
    assert len(made) == 2 * (1 + 2 * 2 * len(ATTACKS))
    liars.main()
    assert len(made) == len(set(made))
    assert "| fedavg median | 50 | 50 / 50 |" in capsys.readouterr().out


def test_a_run_that_two_processes_have_made_counts_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(liars, "cases", lambda algorithms: [])
    out = tmp_path / "liars.jsonl"
    ended = {"accuracy": 0.5, "ended": ""}
    for guard, refused in ((True, 3), (True, 3), (False, 5)):
        case = Case("fedavg", attack="noise", liars=1, guard=guard)
        add_result(out, {**vars(case), **ended, "honest_refused": refused})
    monkeypatch.setattr("sys.argv", ["liars", "--out", str(out)])
    liars.main()
    assert "honest updates refused: 3\n" in capsys.readouterr().out


def test_a_run_that_is_not_there_or_ended_early_shows():
    clean = {**vars(Case("fedavg")), "accuracy": 0.912, "ended": "failures"}
    row = list(table([clean], 1))[-1]
    assert row.startswith("| fedavg | 91* | ? / ? |")
