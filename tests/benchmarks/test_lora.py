"""The benchmark of LoRA: its baseline by hand, its table, and that it resumes."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import lora
from benchmarks.lora_baselines import ZeroPadded
from flwr_asyncdrop.aggregation import Update

A, B = "q.lora_A.weight", "q.lora_B.weight"


def state(a, b):
    return {A: torch.tensor(a), B: torch.tensor(b)}


def test_zero_padding_by_hand():
    """Norms 4 and 12, so weights 1/4 and 3/4; component 1 is zero for the first."""
    full = state([[9.0], [9.0]], [[9.0, 9.0]])
    kept = {A: {0: torch.tensor([0])}, B: {1: torch.tensor([0])}}
    aggregator = ZeroPadded(2)
    small, whole = state([[2.0]], [[2.0]]), state([[4.0], [4.0]], [[2.0, 1.0]])
    assert not aggregator.merge(full, Update(small, kept, 0, 1))
    assert aggregator.merge(full, Update(whole, {}, 0, 1))
    assert full[A].tolist() == [[0.25 * 2 + 0.75 * 4], [0.75 * 4]]
    assert full[B].tolist() == [[0.25 * 2 + 0.75 * 2, 0.75 * 1]]


def made_up(case):
    accuracy = {0.001: 0.6, 0.003: 0.9, 0.01: 0.7}[case.lr]
    curve = [
        {"time": 1.0, "bytes": 1e6, "accuracy": 0.5, "perplexity": 2.0},
        {"time": 2.0, "bytes": 3e6, "accuracy": accuracy, "perplexity": 1.5},
    ]
    return {**vars(case), "memory": {"frozen": 10**6}, "curve": curve}


def test_every_method_is_tuned_and_runs_that_are_there_are_not_made_again(
    tmp_path, monkeypatch, capsys
):
    made = []

    def fake(case):
        made.append(case)
        return made_up(case)

    monkeypatch.setattr(lora, "run_case", fake)
    out = tmp_path / "lora.jsonl"
    monkeypatch.setattr("sys.argv", ["lora", "--out", str(out)])
    lora.main()
    assert len(made) == len(lora.METHODS) * (len(lora.RATES) + len(lora.SEEDS))
    counted = [case for case in made if case.seed != lora.TUNING_SEED]
    assert {case.lr for case in counted} == {0.003}
    lora.main()
    assert len(made) == len(set(made)) == len(out.read_text().splitlines())
    assert json.loads(out.read_text().splitlines()[0])["method"] == "fedavg"
    row = "| layers | 0.003 | 2.0 | 3.0 | 90.0 ± 0.0 | 1.500 | 2 s | 3.0 | 1.0 |"
    assert row in capsys.readouterr().out


def test_runs_of_another_length_are_in_no_mean(tmp_path, monkeypatch, capsys):
    def fake(case):
        found = made_up(case)
        found["curve"][-1]["time"] = float(case.rounds)
        return found

    monkeypatch.setattr(lora, "run_case", fake)
    given = ["lora", "--out", str(tmp_path / "lora.jsonl"), "--methods", "ranks"]
    for rounds in ("12", "2"):
        monkeypatch.setattr("sys.argv", [*given, "--rounds", rounds])
        lora.main()
        row = f"| ranks | 0.003 | {rounds}.0 | 3.0 |"
        assert row in capsys.readouterr().out


def test_a_target_that_some_miss_shows():
    runs = [made_up(lora.Case("ranks", lr, n, 2)) for n, lr in enumerate((0.003, 0.01))]
    row = list(lora.table(runs, 0.85))[-1]
    assert "| 2.0 (1 of 2) | 3.0 (1 of 2) | 80.0 ± 14.1 |" in row
    assert "| never | – |" in list(lora.table(runs, 0.95))[-1]


def test_the_table_is_that_of_the_page():
    page = Path(lora.__file__).parents[1] / "docs" / "lora.md"
    head = next(lora.table([], 0.85)).replace("85%", "85 %")
    assert head in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("method", lora.METHODS)
def test_methods_make_new_aggregators(method):
    make = lora.METHODS[method].aggregator
    assert make() is not make()
