"""The ablation behind docs/batchnorm.md runs, on a small scale."""

import json

from benchmarks.batchnorm_ablation import main


def test_prints_json_lines_and_a_table(capsys):
    small = "--seeds 1 --updates 2 --steps 1 --samples 64 --drop-rates 0.5"

    main(small.split())

    *lines, _, header, _, full, off, on = capsys.readouterr().out.splitlines()
    results = [json.loads(line) for line in lines]
    assert {line["name"] for line in results} == {"batchnorm_ablation"}
    assert all(0 <= line["value"] <= 1 for line in results)
    assert len(results) == 3 * 3
    assert header == "| drop | 1/keep scaling | merged | recalibrated | test batch |"
    assert [row.split("|")[1:3] for row in (full, off, on)] == [
        [" 0% ", " – "],
        [" 50% ", " off "],
        [" 50% ", " on "],
    ]
