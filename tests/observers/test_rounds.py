"""The log of a run reads like Flower's own."""

import logging

import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from flwr_asyncdrop import AsyncFedAvg
from flwr_asyncdrop.observers.rounds import RoundLog
from flwr_asyncdrop.server.callbacks import Evaluation
from tests.runs import plus_one, record
from tests.strategy.test_strategy import ZEROS, RoundGrid, log, measuring  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_settling")


def lines(caplog):
    return [entry.getMessage() for entry in caplog.records]


def run(caplog, flower=False, rounds=3, **changes):
    strategy = AsyncFedAvg(in_flight=2, **changes)
    grid = RoundGrid(measuring(plus_one), node_ids=[1, 2])
    caplog.clear()
    start = Strategy.start if flower else AsyncFedAvg.start
    start(
        strategy,
        grid,
        record(ZEROS),
        num_rounds=rounds,
        evaluate_fn=lambda number, arrays: MetricRecord({"accuracy": 0.5}),
    )
    return lines(caplog)


def final(found):
    """Return the results in the log, without the blank lines around them."""
    rest = (line.strip() for line in found[found.index("Final results:") + 1 :])
    return [line for line in rest if line]


def test_rounds_and_final_results_look_like_flowers(log):  # noqa: F811
    with log.at_level(logging.INFO, logger="flwr"):
        ours, theirs = run(log), run(log, flower=True)
    for number in (1, 2, 3):
        assert f"[ROUND {number}/3]" in ours
        assert f"[ROUND {number}/3]" in theirs
        assert f"[ROUND {number}/3] ClientApp-side evaluation" in ours
        assert f"[ROUND {number}/3] ServerApp-side evaluation" in ours
    shown = [line for line in ours if "Aggregated MetricRecord: " in line]
    assert len(shown) == 3
    # The same clients with the same metrics: the same results.
    assert final(ours) == final(theirs)


def test_a_project_may_do_without(log):  # noqa: F811
    assert not any("ROUND" in line for line in run(log, log_rounds=False))


def test_of_many_rounds_it_shows_a_hundred(log):  # noqa: F811
    result = Result()
    rounds = RoundLog(result, num_rounds=1005)
    log.clear()
    for number in range(1, 1006):
        metrics = MetricRecord({"loss": 1.0})
        result.train_metrics_clientapp[number] = metrics
        rounds.on_round(None, number)
        rounds.on_evaluation(None, Evaluation("server", number, 0, 0.0, metrics))
    shown = [line for line in lines(log) if line.startswith("[ROUND")]
    assert len(shown) == 2 * 92
    assert shown[0] == "[ROUND 11/1005]"
    assert "[ROUND 1005/1005]" in shown
    log.clear()
    rounds.on_end(None)
    assert lines(log)[0] == "Final results (every 11 rounds):"
    assert len(lines(log)) < 120
    assert len(result.train_metrics_clientapp) == 1005
