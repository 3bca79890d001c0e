from dataclasses import replace

import pytest

from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.report.comparison import Spread, compare
from flwr_asyncdrop.report.markdown import markdown
from flwr_asyncdrop.report.tables import notes
from flwr_asyncdrop.report.target import choose_target
from tests.report.histories import series

# Accuracy after 10, 20, 30 s, by seed; 1 MB is sent in every second.
FJORD = series("async-fjord", {0: [0.1, 0.2, 0.3], 1: [0.1, 0.2, 0.1]})
PLAIN = series("async-fedavg", {0: [0.1, 0.3, 0.6], 1: [0.2, 0.4, 0.3]})
BUFFER = series("fedbuff", {0: [0.2, 0.5, 0.7], 1: [0.3, 0.6, 0.6]})
SYNC = series("fedavg", {0: [0.0, 0.1, 0.1]})
HETERO = series("hetero-asyncdrop", {0: [0.1, 0.5, 0.6], 1: [0.5, 0.4, 0.8]})
ALL = [SYNC, FJORD, PLAIN, BUFFER, HETERO]


def rows(comparison):
    return {row.label: row for row in comparison.rows}


def test_the_papers_target_is_the_second_lowest_maximum_of_the_baselines():
    # Means of the maxima: FjORD 0.25, plain (0.6 + 0.4) / 2, FedBuff 0.65. The
    # control is lower than all, ours higher, and neither counts.
    target = choose_target(ALL)
    assert target.value == pytest.approx(0.5)
    assert target.rule == "the second-lowest maximum of the baselines, async-fedavg's"


def test_the_other_targets():
    # Final means: FjORD 0.2, plain 0.45, FedBuff 0.65.
    target = choose_target(ALL, "0.8best")
    assert target.value == pytest.approx(0.52)
    assert "fedbuff" in target.rule
    assert choose_target(ALL, 0.4).value == 0.4
    assert choose_target(ALL, "0.4").value == 0.4


def test_the_best_of_all_algorithms_if_that_is_asked_for():
    # HETERO's final mean is 0.7, and no baseline's is more than 0.65.
    target = choose_target(ALL, "0.5best", of_all=True)
    assert target.value == pytest.approx(0.35)
    assert "best algorithm's final accuracy, hetero-asyncdrop's" in target.rule
    assert compare(ALL, target).target is target


def test_without_baselines_all_algorithms_stand_in_for_them():
    target = choose_target([SYNC, SYNC, HETERO])
    assert target.value == pytest.approx(0.1)
    assert "second-lowest maximum of the algorithms" in target.rule
    assert "best algorithm's" in choose_target([SYNC, HETERO], "0.9best").rule


def test_of_one_or_two_baselines_it_is_a_share_of_the_best_one():
    # Final means: plain 0.45, FedBuff 0.65.
    for baselines in ([BUFFER], [PLAIN, BUFFER]):
        target = choose_target([SYNC, *baselines, HETERO])
        assert target.value == pytest.approx(0.95 * 0.65)
        assert target.rule == "0.95 of the best baseline's final accuracy, fedbuff's"


def test_there_is_no_share_of_what_is_not_positive():
    worse = series("fedbuff", {0: [-3.0, -2.0]}, metric="r2")
    bad = series("async-fedavg", {0: [-3.0, -1.0]}, metric="r2")
    # 0.95 of -1 would be better than -1.
    assert choose_target([worse, bad]).value == -1.0
    assert choose_target([bad]).rule == (
        "the only maximum of the baselines, async-fedavg's"
    )
    with pytest.raises(DataError, match="with every seed: name a value"):
        choose_target([worse, bad], "0.95best")


@pytest.mark.parametrize("wish", ["best", "high", "0best", 0.0, 1.5, "-1"])
def test_a_target_that_makes_no_sense_is_refused(wish):
    with pytest.raises(ConfigError, match="must be 'auto', an accuracy in"):
        choose_target(ALL, wish)


def test_the_table_by_hand():
    table = compare(ALL)
    assert table.reference == "hetero-asyncdrop"
    hetero, plain = rows(table)["hetero-asyncdrop"], rows(table)["async-fedavg"]
    assert hetero.best == Spread(pytest.approx(0.7), pytest.approx(0.1414214), 2)
    assert hetero.final == Spread(pytest.approx(0.7), pytest.approx(0.1414214), 2)
    # To 0.5: seed 0 at 20 s, seed 1 at 10 s, though it fell below again.
    assert hetero.seconds == Spread(15.0, pytest.approx(7.0710678), 2)
    assert hetero.num_bytes.mean == 15e6
    assert (hetero.time_overhead.value, hetero.byte_overhead.value) == (0.0, 0.0)
    # Only seed 0 of async-fedavg comes to 0.5, at 30 s: 20 s of hetero's seed 0.
    assert plain.seconds == Spread(30.0, 0.0, 1)
    assert plain.time_overhead.value == pytest.approx(0.5)
    assert plain.byte_overhead.value == pytest.approx(0.5)
    # The last values: 0.5 and 0.4 against 0.6 and 0.8, seed by seed.
    assert plain.final_difference.value == pytest.approx(plain.final.mean - 0.7)
    assert hetero.final_difference is None
    # FedBuff: 20 s and 20 s, against 20 s and 10 s.
    assert rows(table)["fedbuff"].time_overhead.value == pytest.approx(1 / 3)


def test_who_never_reaches_the_target_has_no_time():
    fjord = rows(compare(ALL))["async-fjord"]
    assert fjord.seconds is None
    assert fjord.num_bytes is None
    assert fjord.time_overhead is None


def test_bytes_are_those_of_the_evaluation_that_reached_the_target():
    cheap = series("asyncdrop", {0: [0.1, 0.5, 0.6]}, megabytes_per_second=0.25)
    table = compare([cheap, HETERO], target=0.5)
    row = rows(table)["asyncdrop"]
    assert row.num_bytes.mean == 5e6
    assert row.byte_overhead.value == -0.75
    assert row.time_overhead.value == 0.0


def test_an_overhead_is_of_exact_sums():
    # Ten times 0.1 s are 1 s, and not a little less: on any Python.
    label = "hetero-asyncdrop"
    moments = {label: [0.125] * 6 + [0.0625] * 4, "fedbuff": [0.1] * 10}
    runs = [
        replace(
            one,
            runs={
                seed: replace(log, evaluations=({**log.evaluations[0], "time": time},))
                for (seed, log), time in zip(one.runs.items(), times, strict=True)
            },
        )
        for name, times in moments.items()
        for one in [series(name, {seed: [0.5] for seed in range(10)})]
    ]
    assert rows(compare(runs, target=0.5))["fedbuff"].time_overhead.value == 0.0


def test_overheads_are_relative_to_the_label_that_is_named():
    table = compare(ALL, reference="fedbuff")
    assert table.reference == "fedbuff"
    assert rows(table)["hetero-asyncdrop"].time_overhead.value == pytest.approx(-0.25)


def test_without_the_papers_reference_it_is_who_gets_there_first_and_most_often():
    early = series("async-weighted", {0: [0.9, 0.9, 0.9], 1: [0.0, 0.0, 0.0]})
    assert compare([PLAIN, early, BUFFER], 0.5).reference == "fedbuff"
    assert compare([PLAIN, FJORD], 0.9).reference is None


def test_a_reference_that_was_not_run_is_refused():
    with pytest.raises(ConfigError, match="reference='x' was not run: choose one of"):
        compare(ALL, reference="x")


def test_a_run_that_diverged_has_no_final_value_and_neither_has_its_mean():
    nan = float("nan")
    runs = [
        series(
            "fedbuff", {0: [8.0, 6.0, nan], 1: [8.0, 7.0, 4.0]}, metric="perplexity"
        ),
        series("hetero-asyncdrop", {0: [8.0, 5.0], 1: [8.0, 5.0]}, metric="perplexity"),
    ]
    comparison = compare(runs, 6.5)
    fedbuff, hetero = comparison.rows
    assert fedbuff.diverged == [0]
    assert fedbuff.final is None
    assert fedbuff.final_difference is None
    assert fedbuff.best.mean == pytest.approx(5.0)
    assert [point.time for point in fedbuff.arrivals.values()] == [20.0, 30.0]
    assert hetero.final.mean == 5.0
    said = " ".join(notes(comparison))
    assert "fedbuff diverged with seed 0: its last evaluation has no finite" in said
    assert "N/A" in markdown(comparison).splitlines()[2]


def test_no_last_value_is_compared_with_that_of_a_reference_that_diverged():
    values = {0: [0.2, float("nan")], 1: [0.2, 0.5]}
    runs = [series("fedbuff", {0: [0.6], 1: [0.7]}), series("hetero-asyncdrop", values)]
    fedbuff, hetero = compare(runs, 0.2).rows
    assert hetero.diverged == [0]
    assert fedbuff.final_difference is None
    assert fedbuff.time_overhead.value == 0.0


def test_there_is_no_overhead_over_a_seed_that_needed_nothing():
    """Its model was good enough before anything was sent."""

    def mixed(label, **rates):
        own = [
            series(label, {int(seed[1:]): [0.5]}, megabytes_per_second=rate)
            for seed, rate in rates.items()
        ]
        runs = {seed: log for one in own for seed, log in one.runs.items()}
        return replace(own[0], runs=runs)

    own = mixed("fedbuff", _0=1.0, _1=1.0)
    for rates in ({"_0": 0.0, "_1": 0.0}, {"_0": 0.0, "_1": 1.0}):
        fedbuff, _ = compare([own, mixed("hetero-asyncdrop", **rates)], 0.5).rows
        assert fedbuff.byte_overhead is None
        assert fedbuff.time_overhead.value == 0.0


def test_the_best_baseline_is_one_that_did_not_diverge():
    nan = float("nan")
    lost = series("fedbuff", {0: [2.0, nan]}, metric="perplexity")
    kept = series("async-fedavg", {0: [8.0, 6.0]}, metric="perplexity")
    assert choose_target([lost, kept], "0.5best").value == 12.0
    partly = series("fedbuff", {0: [2.0, nan], 1: [2.0, 1.0]}, metric="perplexity")
    assert choose_target([partly, kept], "0.5best").value == 12.0
    with pytest.raises(DataError, match="no positive one with every seed"):
        choose_target([lost], "0.5best")
    assert choose_target([lost]).value == 2.0


def test_incomplete_runs_are_counted_and_left_out():
    runs = {0: [0.1, 0.5, 0.6], 1: [0.9, 0.9, 0.9]}
    row = rows(compare([series("fedbuff", runs, cut_off=[1])]))["fedbuff"]
    assert row.best == Spread(0.6, 0.0, 1)
    assert row.incomplete == (1,)


def test_nothing_complete_is_nothing_to_compare():
    with pytest.raises(DataError, match="no run has come to its end"):
        compare([series("fedbuff", {0: [0.1]}, cut_off=[0])])


def test_a_reference_has_a_complete_run():
    cut_off = series("hetero-asyncdrop", {0: [0.5]}, cut_off=[0])
    table = compare([cut_off, PLAIN, BUFFER], 0.2)
    assert table.reference in (PLAIN.label, BUFFER.label)
    with pytest.raises(ConfigError, match="'hetero-asyncdrop' has no complete run"):
        compare([cut_off, PLAIN], reference="hetero-asyncdrop")
