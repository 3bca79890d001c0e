"""Files of results, after their process was killed."""

import sys

import pytest

from benchmarks import liars, lora
from benchmarks.lines import add_result, read_results


def test_results_are_added_to_those_that_are_there(tmp_path):
    path = tmp_path / "results.jsonl"
    assert read_results(path) == []
    for number in range(3):
        add_result(path, {"é": number})
    assert read_results(path) == [{"é": number} for number in range(3)]


@pytest.mark.parametrize("left", range(1, 12))
def test_half_a_last_line_is_made_again(left, tmp_path):
    path = tmp_path / "results.jsonl"
    for number in (10, 20):
        add_result(path, {"seed": number})
    path.write_bytes(path.read_bytes()[:-left])
    ends_whole = left == 1  # the line's end alone is missing
    assert read_results(path) == [{"seed": n} for n in (10, 20)[: 1 + ends_whole]]
    add_result(path, {"seed": 30})
    assert [each["seed"] for each in read_results(path)][-1] == 30


def test_another_line_that_is_no_result_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"seed": 1}\n{"se\n{"seed": 2}\n')
    with pytest.raises(SystemExit, match=r"line 2 of .* is no result: delete the line"):
        read_results(path)


CASES = {
    liars: liars.Case("fedavg"),
    lora: lora.Case("ranks", 0.01, 0, 1),
}


@pytest.mark.parametrize("benchmark", CASES)
def test_a_benchmark_goes_on_after_half_a_line(benchmark, tmp_path, monkeypatch):
    path, made = tmp_path / "results.jsonl", []

    def run_case(case):
        made.append(case)
        return vars(case) | {"honest_refused": 0}

    monkeypatch.setattr(benchmark, "cases", lambda *_: [CASES[benchmark]])
    monkeypatch.setattr(benchmark, "table", lambda *_: ())
    monkeypatch.setattr(benchmark, "run_case", run_case)
    monkeypatch.setattr(sys, "argv", ["benchmark", f"--out={path}"])
    for _ in range(2):
        benchmark.main()
    assert made == [CASES[benchmark]]
    path.write_bytes(path.read_bytes()[:-9])
    benchmark.main()
    assert made == [CASES[benchmark]] * 2
