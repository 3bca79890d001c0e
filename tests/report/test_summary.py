import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.report import summarise
from flwr_asyncdrop.report.runlog import Point, RunLog


def wall(seconds):
    return {"wall": {"seconds": seconds}}


RUN = {
    "event": "run",
    "schema": 2,
    "seed": 0,
    "full_bytes": 1_000_000,
    "algorithm": "hetero-asyncdrop",
    "devices": 104,
    "in_flight": 8,
    **wall(0.0),
}


def update(number, *, rank=0, staleness=0, time=None, num_bytes=600_000):
    return {
        "event": "update",
        "update": number,
        "round": (number + 7) // 8,
        "time": 10.0 * number if time is None else time,
        "device": 13 * rank,
        "rank": rank,
        "dispatched_at": 0.0,
        "staleness": staleness,
        "version": number,
        "bytes_down": num_bytes,
        "bytes_up": num_bytes,
        "compute": 0.5,
        "in_flight": 7,
        "metrics": {},
        **wall(0.1 * number),
    }


def evaluation(number, metrics, source="server"):
    return {
        "event": "evaluation",
        "source": source,
        "round": number,
        "update": 8 * number,
        "time": 80.0 * number,
        "bytes_down": 30 * number,
        "bytes_up": 20 * number,
        "metrics": metrics,
        **wall(1.0),
    }


def failure(reason, time=5.0):
    return {
        "event": "failure",
        "time": time,
        "device": 3,
        "rank": 0,
        "dispatched_at": 1.0,
        "kind": reason,
        "reason": reason,
        **wall(0.5),
    }


def end(**fields):
    return {
        "event": "end",
        "updates": 0,
        "time": 0.0,
        "bytes_down": 0,
        "bytes_up": 0,
        "failures": {},
        **wall(2.0),
        **fields,
    }


GOLDEN = """\
algorithm       hetero-asyncdrop
fleet           104 devices, 8 in flight
updates         1 in 1 round, 0.5 per real second
time            12.5 s, 2.0 s real without start and end
final accuracy  0.1250 at update 0, 0.0 s
best accuracy   0.1250 at update 0, 0.0 s
bytes           1.20 MB down, 600 kB up
full models     2.00 MB for the same updates: 40.0% saved
staleness       mean 3.0, max 3 versions
by rank         1 0 0 0 0 0 0 0 updates, fastest first
tasks lost      1 no-reply, 2 shape"""


def test_golden_text_of_four_lines():
    records = [
        RUN,
        evaluation(0, {"loss": 2.3, "accuracy": 0.125}),
        update(1, staleness=3),
        end(
            updates=1,
            time=12.5,
            bytes_down=1_200_000,
            bytes_up=600_000,
            failures={"no-reply": 1, "shape": 2},
        ),
    ]
    assert summarise(records).text() == GOLDEN


def test_figures_by_hand():
    summary = summarise(
        [
            RUN,
            evaluation(0, {"accuracy": 0.1}),
            update(1, rank=0, staleness=0),
            update(2, rank=3, staleness=1),
            update(9, rank=0, staleness=5),
            evaluation(1, {"accuracy": 0.9}),
            evaluation(2, {"accuracy": 0.7}),
            end(updates=3, time=170.0, bytes_down=9, bytes_up=8, wall={"seconds": 6.0}),
        ]
    )
    assert (summary.updates, summary.rounds) == (3, 2)
    assert (summary.time, summary.wall_seconds) == (170.0, 6.0)
    assert summary.updates_per_second == 0.5
    assert summary.best == Point(0.9, 80.0, 8, 50)
    assert summary.final == Point(0.7, 160.0, 16, 100)
    assert (summary.bytes_down, summary.bytes_up) == (9, 8)
    assert summary.bytes_full == 6_000_000
    assert summary.share_saved == pytest.approx(0.4)
    assert (summary.mean_staleness, summary.max_staleness) == (2.0, 5)
    assert summary.updates_by_rank == {0: 2, 3: 1}
    assert summary.complete
    shown = [" ".join(line.split()) for line in summary.text().splitlines()]
    assert shown[2:7] == [
        "updates 3 in 2 rounds, 0.5 per real second",
        "time 170.0 s, 6.0 s real without start and end",
        "final accuracy 0.7000 at update 16, 160.0 s",
        "best accuracy 0.9000 at update 8, 80.0 s",
        "bytes 0.00900 kB down, 0.00800 kB up",
    ]


def by_rank(run, *ranks):
    """Return the line of a run whose updates came from these ranks."""
    updates = (update(n, rank=rank) for n, rank in enumerate(ranks, start=1))
    text = summarise([run, *updates]).text()
    return re.search(r"^by rank +(.*)$", text, re.MULTILINE)[1]


def test_a_rank_without_an_update_has_its_place_in_the_line():
    assert by_rank(RUN, 0, 0, 3) == "2 0 0 1 0 0 0 0 updates, fastest first"
    few = {**RUN, "devices": 3, "clock": "virtual"}
    assert by_rank(few, 1, 0) == "1 1 0 updates, fastest first"


def test_ranks_have_their_numbers_where_nobody_knows_how_many_there_are():
    """A real fleet may have more ranks than devices; other projects say nothing."""
    few = {**RUN, "devices": 3, "clock": "wall"}
    silent = {key: value for key, value in RUN.items() if key != "in_flight"}
    assert by_rank(few, 0, 5, 2, 5) == "0: 1, 2: 1, 5: 2 updates, fastest first"
    assert by_rank(few, 2, 0) == "0: 1, 2: 1 updates, fastest first"
    assert by_rank(silent, 3, 0) == "0: 1, 3: 1 updates, fastest first"
    assert by_rank(silent, 1, 0) == "1 1 updates, fastest first"


def test_no_rank_is_left_out_of_the_line():
    """A history may have a rank that its first line has no place for."""
    assert by_rank(RUN, 0, 9, 9) == "0: 1, 9: 2 updates, fastest first"


def test_one_rank_has_no_order_and_one_update_is_not_several():
    one = {**RUN, "in_flight": 1}
    assert by_rank(one, 0) == "1 update"
    assert by_rank(one, 0, 0) == "2 updates"
    silent = {key: value for key, value in RUN.items() if key != "in_flight"}
    assert by_rank(silent, 3) == "3: 1 update"


def test_a_very_short_run_took_some_time():
    """It took 0.0 s, and did its updates at once."""
    short = end(updates=1, time=0.0123, wall={"seconds": 1000.0})
    text = summarise([RUN, update(1, time=0.01), short]).text()
    assert "0.0123 s, 1,000.0 s real" in text
    assert "1 in 1 round, 0.00100 per real second" in text


def test_best_loss_is_the_least():
    losses = [evaluation(n, {"loss": loss}) for n, loss in enumerate([2.0, 0.5, 1.0])]
    summary = summarise([RUN, *losses])
    assert summary.metric == "loss"
    assert summary.best == Point(0.5, 80.0, 8, 50)
    assert summary.final == Point(1.0, 160.0, 16, 100)


def test_a_small_loss_can_be_read():
    text = summarise([RUN, evaluation(0, {"loss": 1.23456e-6})]).text()
    assert re.search(r"final loss +1\.2346e-06 at update 0", text)


def test_first_of_equally_good_evaluations_is_the_best():
    same = [evaluation(n, {"accuracy": 0.5}) for n in range(3)]
    assert summarise([RUN, *same]).best == Point(0.5, 0.0, 0, 0)


def test_server_evaluation_goes_before_the_clients():
    lines = [
        evaluation(0, {"accuracy": 0.25}, source="clients"),
        evaluation(0, {"accuracy": 0.75}, source="server"),
    ]
    assert summarise([RUN, *lines]).final == Point(0.75, 0.0, 0, 0)
    assert summarise([RUN, lines[0]]).final == Point(0.25, 0.0, 0, 0)


def test_evaluation_that_diverged_is_left_out():
    lines = [
        evaluation(0, {"accuracy": 0.5}),
        evaluation(1, {"accuracy": float("nan")}),
        evaluation(2, {}),
    ]
    summary = summarise([RUN, *lines])
    assert summary.final == Point(0.5, 0.0, 0, 0)
    assert summary.diverged
    text = summary.text()
    assert re.search(r"last accuracy +0\.5000 at update 0, 0\.0 s; then it div", text)
    assert "final accuracy" not in text


def test_run_without_updates_and_evaluations():
    summary = summarise([RUN, end()])
    assert summary.metric is None
    assert summary.share_saved is None
    assert summary.mean_staleness is None
    assert summary.text().splitlines()[4:] == [
        "accuracy    not evaluated",
        "bytes       0.00 kB down, 0.00 kB up",
        "tasks lost  none",
    ]


def test_run_that_was_cut_off_is_summed_from_its_lines():
    summary = summarise([RUN, update(1), failure("late"), failure("late"), update(2)])
    assert not summary.complete
    assert (summary.bytes_down, summary.bytes_up) == (1_200_000, 1_200_000)
    assert summary.failures == {"late": 2}
    assert (summary.time, summary.wall_seconds) == (20.0, 0.5)
    assert "cut off" in summary.text().splitlines()[-1]


def test_bytes_of_lost_tasks_count_in_a_run_that_was_cut_off_too():
    counted = {**evaluation(1, {}), "bytes_down": 900_000, "bytes_up": 600_000}
    summary = summarise([RUN, failure("dropout"), update(1), counted])
    assert (summary.bytes_down, summary.bytes_up) == (900_000, 600_000)
    second = {**update(2), "bytes_up": 100_000}
    later = summarise([RUN, counted, update(1), second])
    assert (later.bytes_down, later.bytes_up) == (1_200_000, 700_000)
    assert later.share_saved == pytest.approx(1 - 1.9 / 4)


@pytest.mark.parametrize(
    ("ended", "why"),
    [
        ("timeout", "the run did not do all its rounds: no device trained any more"),
        ("failures", "the run did not do all its rounds: in the end every"),
        ("error", "an error ended the run"),
    ],
)
def test_a_run_that_ended_early_says_why(ended, why):
    run = {**RUN, "num_rounds": 2}
    text = summarise([run, update(1), end(updates=1, ended=ended)]).text()
    assert re.search(rf"cut off +{why}", text)


def test_a_run_that_an_error_ended_after_its_last_update_is_not_complete():
    run = {**RUN, "num_rounds": 1, "in_flight": 1}
    lines = [run, update(1)]
    assert summarise([*lines, end(updates=1)]).complete
    assert not summarise([*lines, end(updates=1, ended="error")]).complete


def test_a_fleet_smaller_than_what_may_be_in_flight_does_a_task_a_device_and_round():
    run = {**RUN, "num_rounds": 2, "in_flight": 8, "devices": 3}
    assert summarise([run, end(updates=6)]).complete
    assert not summarise([run, end(updates=5)]).complete


def test_a_run_that_ended_early_is_not_complete_if_nobody_says_its_rounds():
    lines = [RUN, update(1)]
    assert summarise([*lines, end(updates=1)]).complete
    assert not summarise([*lines, end(updates=1, ended="timeout")]).complete


def test_what_came_late_or_twice_is_counted():
    late = {**update(2), "late": True}
    text = summarise([RUN, update(1), late, end(updates=2, duplicates=3)]).text()
    assert re.search(r"late +1 update came after the deadline\n", text)
    assert re.search(r"duplicates +3 replies came twice, merged once$", text)


BARE = {"event": "run", "schema": 2, "seed": 0, "full_bytes": 1, **wall(0.0)}


def test_history_that_says_little_about_the_run():
    lost = failure("late")
    summary = summarise([BARE, update(1, rank=1), update(2, rank=1), lost])
    assert summary.algorithm == ""
    assert summary.text().splitlines()[0] == "fleet        2 devices"


def test_one_of_something_has_no_plural():
    lines = [{**BARE, "devices": 1}, {**update(1), "late": True}]
    text = summarise([*lines, end(updates=1, duplicates=1)]).text()
    assert re.search(r"fleet +1 device\n", text)
    assert re.search(r"updates +1 in 1 round, ", text)
    assert re.search(r"duplicates +1 reply came twice, ", text)


def test_facts_may_stand_in_the_configuration():
    run = {**BARE, "config": {"in-flight": 8, "devices": 104}}
    summary = summarise([run])
    assert (summary.in_flight, summary.devices) == (8, 104)


def test_more_bytes_than_full_models_are_not_called_a_saving():
    text = summarise([RUN, update(1, num_bytes=1_100_000)]).text()
    assert "2.00 MB for the same updates: 10.0% more sent" in text


def test_energy_is_there_if_it_was_counted():
    counted = {**evaluation(1, {"accuracy": 0.5}), "joules": 5_000.0}
    cut_off = summarise([RUN, counted])
    assert cut_off.final == Point(0.5, 80.0, 8, 50, 5_000.0)
    assert cut_off.joules == 5_000.0
    whole = summarise([RUN, counted, end(joules=12_345.0)])
    assert whole.joules == 12_345.0
    assert "energy          12.3 kJ" in whole.text().splitlines()
    silent = summarise([RUN, evaluation(1, {"accuracy": 0.5}), end()])
    assert silent.joules is None
    assert "energy" not in silent.text()


def test_history_of_another_version_is_refused():
    with pytest.raises(DataError, match="has schema 1, but this version reads 2"):
        summarise([{**RUN, "schema": 1}])


@pytest.mark.parametrize("records", [[], [update(1)]])
def test_history_without_its_first_line_is_refused(records):
    with pytest.raises(DataError, match="no 'run' record"):
        summarise(records)


@given(
    ranks=st.lists(st.integers(0, 500), max_size=300),
    reasons=st.lists(st.text(max_size=200), max_size=40),
)
def test_text_is_at_most_23_lines_of_80_columns(ranks, reasons):
    updates = [
        {**update(n, rank=rank), "late": True, "work": 1e-9 * (rank + 1)}
        for n, rank in enumerate(ranks, start=1)
    ]
    lost = Counter(reasons)
    last = end(failures=lost, joules=1.0, duplicates=9, ended="failures")
    run = {**RUN, "num_rounds": 1_000}
    records = [run, *updates, evaluation(1, {"accuracy": 0.5}), last]
    lines = summarise(records).text().splitlines()
    assert len(lines) <= 23
    assert all(len(line) <= 80 for line in lines)


def test_staleness_says_how_much_of_it_came_in_queues():
    lines = [update(1, staleness=2), {**update(2, staleness=4), "queued": 3}]
    assert summarise([RUN, *lines]).mean_queued == 1.5
    assert (
        "mean 3.0, max 4 versions; 1.5 of it in queues"
        in summarise([RUN, *lines]).text()
    )
    assert "queues" not in summarise([RUN, lines[0]]).text()


def worked(number, rank, work):
    return {**update(number, rank=rank), "work": work}


def local_steps(records):
    found = re.search(r"^local steps +(.*)$", summarise(records).text(), re.MULTILINE)
    return found and found[1]


def test_a_work_policy_gives_a_line_by_speed_group():
    lines = [worked(1, 0, 1.0), worked(2, 1, 0.8), worked(3, 7, 0.1), worked(4, 7, 0.3)]
    # Ranks 0 and 1 of the eight are a group, and 6 and 7; of two there is no update.
    said = "mean 0.550 of the usual; by speed group 0.900 - - 0.200"
    assert local_steps([RUN, *lines]) == said
    assert summarise([RUN, *lines]).mean_work == pytest.approx(0.55)
    # Nobody knows how many ranks there are.
    said = "mean 0.950 of the usual; by speed group 1.00 0.900"
    assert local_steps([BARE, worked(1, 0, 1.0), worked(2, 1, 0.9)]) == said


def test_groups_that_train_alike_are_one_number_and_none_without_a_policy():
    eight = [worked(n, n - 1, 2.5) for n in range(1, 9)]
    assert local_steps([RUN, *eight]) == "mean 2.50 of the usual"
    assert local_steps([RUN, update(1), update(2, rank=7)]) is None
    assert local_steps([RUN]) is None
    assert summarise([RUN, update(1)]).mean_work is None


def test_a_run_whose_time_is_up_is_complete():
    end = {"event": "end", "updates": 1, "time": 60.0, "bytes_down": 1, "bytes_up": 1}
    end |= {"failures": {}, **wall(61.0)}
    run = {**RUN, "num_rounds": 9, "config": {"max-seconds": 60.0}}
    assert summarise([run, update(1), end]).complete
    assert not summarise([run, update(1), {**end, "time": 59.0}]).complete
    unlimited = {**run, "config": {"max-seconds": 0.0}}
    assert not summarise([unlimited, update(1), end]).complete


def test_a_run_that_resumed_with_more_time_has_that_limit():
    end = {"event": "end", "updates": 1, "time": 60.0, "bytes_down": 1, "bytes_up": 1}
    end |= {"failures": {}, **wall(61.0)}
    run = {**RUN, "num_rounds": 9, "config": {"max-seconds": 60.0, "lr": 0.5}}
    later = {"event": "config", "config": {"max-seconds": 99.0}, **wall(30.0)}
    log = RunLog.from_records([run, update(1), later, end])
    assert not log.complete
    assert log.run["config"] == {"max-seconds": 99.0, "lr": 0.5}
