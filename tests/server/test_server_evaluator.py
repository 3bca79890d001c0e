import signal
import threading
import time

import pytest
import torch
from flwr.app import MetricRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.server_evaluator import ServerEvaluator
from flwr_asyncdrop.server.state import RunState
from tests.grids import HandlerGrid
from tests.runs import Run, plus_one

PATIENCE = 60.0


@pytest.fixture
def server():
    """Make server evaluators that are closed in the end."""
    made = []

    def make(evaluate_fn):
        made.append(ServerEvaluator(evaluate_fn))
        return made[-1]

    yield make
    for evaluator in made:
        evaluator.close()


def weight(arrays):
    return wire.from_record(arrays)["w"][0].item()


def state(value=0.0):
    return RunState.start_from({"w": torch.full((2,), value)}, seed=0)


class Release(Callback):
    """Lets a blocked evaluation go on once so many updates are merged."""

    def __init__(self, updates):
        self.updates, self.event = updates, threading.Event()

    def on_update(self, state, merged):
        if state.updates == self.updates:
            self.event.set()


class TestServerEvaluator:
    def test_merging_goes_on_beside_a_blocked_evaluation(self, server):
        # The initial model's evaluation ends only once rounds 1 and 2 are merged.
        release, weights = Release(updates=4), []

        def evaluate(number, arrays):
            assert release.event.wait(PATIENCE), "the loop waited for the evaluation"
            weights.append(weight(arrays))
            return MetricRecord({"round": number})

        run = Run(
            HandlerGrid(plus_one, node_ids=[1, 2]),
            seconds=(1.0, 2.5),
            evaluators=(server(evaluate),),
            callbacks=(release,),
        ).go()
        # The weights of the golden run, at the end of its rounds of 2 updates.
        assert weights == [0.0, 1.0, 1.5, 2.0]
        found = [(e.round, e.update, e.time) for e in run.recorder.evaluations]
        assert found == [(0, 0, 0.0), (1, 2, 2.0), (2, 4, 3.0), (3, 6, 5.0)]
        assert all(
            evaluation.metrics["round"] == evaluation.round
            for evaluation in run.recorder.evaluations
        )

    def test_no_more_than_two_snapshots_are_held(self, server):
        go_on, third = threading.Event(), threading.Event()

        def evaluate(number, arrays):
            assert go_on.wait(PATIENCE)

        evaluator = server(evaluate)
        evaluator.submit(state(), 0)
        evaluator.submit(state(), 1)

        def submit_third():
            evaluator.submit(state(), 2)
            third.set()

        thread = threading.Thread(target=submit_third)
        thread.start()
        assert not third.wait(0.1)
        go_on.set()
        assert third.wait(PATIENCE)
        thread.join()
        assert [e.round for e in evaluator.collect(finish=True)] == [0, 1, 2]

    @pytest.mark.parametrize("at", ["the end", "the third"])
    def test_ctrl_c_ends_a_wait_also_where_another_thread_heard_it(self, server, at):
        """Python has the main thread heed it, whom nothing wakes from a lock then."""
        go_on, begun = threading.Event(), threading.Event()

        def evaluate(number, arrays):
            if number == 0:
                begun.wait(PATIENCE)
                time.sleep(0.3)  # the main thread waits by then
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)
                go_on.wait(PATIENCE)

        evaluator = server(evaluate)
        evaluator.submit(state(), 0)
        if at == "the third":
            evaluator.submit(state(), 1)
        wait = {
            "the end": lambda: list(evaluator.collect(finish=True)),
            "the third": lambda: evaluator.submit(state(), 2),
        }

        def begin():
            begun.set()
            wait[at]()

        started = time.monotonic()
        try:
            with pytest.raises(KeyboardInterrupt):  # wherever this thread is by then
                begin()
            assert time.monotonic() - started < PATIENCE / 2
        finally:
            go_on.set()

    def test_a_snapshot_is_not_changed_by_later_merges(self, server):
        go_on = threading.Event()

        def evaluate(number, arrays):
            assert go_on.wait(PATIENCE)
            return MetricRecord({"weight": weight(arrays)})

        evaluator, run = server(evaluate), state(1.0)
        evaluator.submit(run, 0)
        run.arrays["w"].add_(5)
        run.updates += 3
        go_on.set()
        (evaluation,) = evaluator.collect(finish=True)
        assert evaluation.metrics["weight"] == 1.0
        assert evaluation.update == 0

    def test_what_has_not_ended_is_not_waited_for(self, server):
        go_on = threading.Event()
        evaluator = server(lambda number, arrays: go_on.wait(PATIENCE) and None)
        evaluator.submit(state(), 0)
        assert list(evaluator.collect(finish=False)) == []
        go_on.set()
        (evaluation,) = evaluator.collect(finish=True)
        assert evaluation.metrics is None

    def test_an_error_is_raised_where_it_is_collected(self, server):
        def evaluate(number, arrays):
            raise KeyError("no such layer")

        evaluator = server(evaluate)
        evaluator.submit(state(), 0)
        with pytest.raises(KeyError, match="no such layer"):
            list(evaluator.collect(finish=True))

    def test_a_strategy_that_starts_again_has_it_again(self, server):
        """What the run before has left, as one that failed, is none of the next's."""
        go_on = threading.Event()
        evaluator = server(lambda number, arrays: go_on.wait(PATIENCE) and None)
        for number in (1, 2):
            evaluator.submit(state(), number)
        go_on.set()
        evaluator.close()
        assert evaluator.pending == []
        evaluator.submit(state(), 3)
        assert [e.round for e in evaluator.collect(finish=True)] == [3]

    def test_an_error_ends_the_run_and_no_thread_is_left(self, server):
        def evaluate(number, arrays):
            if number == 2:
                raise KeyError("no such layer")

        run = Run(
            HandlerGrid(plus_one, node_ids=[1, 2]),
            seconds=(1.0, 1.0),
            rounds=200,
            evaluators=(server(evaluate),),
        )
        with pytest.raises(KeyError, match="no such layer"):
            run.go()
        assert run.recorder.ended == 1
        names = [thread.name for thread in threading.enumerate()]
        assert not any(name.startswith("evaluate") for name in names)

    def test_a_run_that_has_failed_waits_for_no_queue(self, server):
        go_on, begun = threading.Event(), []

        def evaluate(number, arrays):
            begun.append(number)
            assert go_on.wait(PATIENCE)

        evaluator = server(evaluate)
        evaluator.submit(state(), 0)
        evaluator.submit(state(), 1)
        _, queued = evaluator._begun[1]
        closing = threading.Thread(target=evaluator.close)
        closing.start()
        deadline = time.monotonic() + PATIENCE / 2
        while not queued.cancelled() and time.monotonic() < deadline:
            time.sleep(0.001)
        go_on.set()
        closing.join()
        assert begun == [0]


@pytest.mark.parametrize(
    ("every", "rounds", "expected"),
    [(1, 3, [0, 1, 2, 3]), (2, 5, [0, 2, 4, 5]), (9, 4, [0, 4]), (2, 4, [0, 2, 4])],
)
def test_every_so_many_rounds_and_the_last(server, every, rounds, expected):
    run = Run(
        HandlerGrid(plus_one, node_ids=[1, 2]),
        seconds=(1.0, 2.0),
        rounds=rounds,
        evaluators=(server(lambda number, arrays: MetricRecord()),),
        evaluate_every=every,
    ).go()
    assert [e.round for e in run.recorder.evaluations] == expected
    assert run.recorder.due == [("server", number) for number in expected]
