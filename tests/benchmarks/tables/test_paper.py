"""A table of the paper's protocol, by hand."""

from benchmarks.tables.paper import cut_off_table, paper_table
from tests.report.histories import series


def test_a_row_has_accuracies_the_end_and_what_each_target_costs() -> None:
    exact = "asyncdrop,scale=false,score-vectors=false"
    runs = [
        # 10 MB and 10 s a test: to 60 % after 20 and 30 s, to 75 % with one seed alone
        series("fedbuff", {0: [0.5, 0.6, 0.8], 1: [0.1, 0.5, 0.7]}),
        series(exact, {0: [0.6, 0.5], 1: [0.7, 0.6]}),
    ]
    assert list(paper_table(runs, [0.6, 0.75])) == [
        "| algorithm | max. accuracy | final accuracy | ends at, s "
        "| s to 60.00% | MB to 60.00% | s to 75.00% | MB to 75.00% |",
        "| --- | --: | --: | --: | --: | --: | --: | --: |",
        "| `fedbuff` | 75.0 ± 7.1 | 75.0 ± 7.1 | 30 "
        "| 25.0 | 25.0 | 30.0 (1/2) | 30.0 (1/2) |",
        "| `asyncdrop`, as in the paper | 65.0 ± 7.1 | 55.0 ± 7.1 | 20 "
        "| **10.0** | **10.0** | – | – |",
    ]


def test_one_seed_has_no_spread() -> None:
    *_, row = paper_table([series("fedavg", {0: [0.5, 0.4]})], [0.45])
    assert row == "| `fedavg` | 50.0 | 40.0 | 20 | **10.0** | **10.0** |"


def test_of_runs_that_were_cut_off_the_best_is_until_the_first_of_them_ended() -> None:
    # A test every 10 s and 8 updates, and 10 MB for each
    runs = [
        series("fedbuff", {0: [0.2, 0.4, 0.9]}, cut_off=[0]),
        series("asyncdrop-plus", {0: [0.6, 0.5]}, cut_off=[0]),
    ]
    head, _, *rows = cut_off_table(runs, [0.6])
    assert head == (
        "| algorithm | updates | ended at, s | max. accuracy until 20 s "
        "| s to 60.00% | MB to 60.00% |"
    )
    assert rows == [
        "| `fedbuff` | 24 | 30 | 40.0 | 30.0 | 30.0 |",
        "| `asyncdrop-plus` | 16 | 20 | 60.0 | **10.0** | **10.0** |",
    ]
