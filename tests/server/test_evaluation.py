import logging
import signal
import threading
import time
from itertools import count

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.evaluation import ClientEvaluator, ServerEvaluator
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.state import RunState
from tests.grids import HandlerGrid
from tests.runs import Run, plus_one

PATIENCE = 60.0
DIED = "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly'>"


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


def measure(message):
    node = message.metadata.dst_node_id
    content = RecordDict({"metrics": MetricRecord({"num-examples": node})})
    return Message(content, reply_to=message)


def clients(grid, nodes=(1, 2, 3), patience=10.0, box=None, **options):
    """Return an evaluator that asks `nodes`, and what its aggregate function gets."""
    box = box or Mailbox(grid, timer=grid.timer, sleep=grid.sleep)
    aggregated = []

    def configure(number, arrays):
        content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
        return [Message(content, node, "evaluate") for node in nodes]

    def aggregate(number, replies):
        found = [reply.content["metrics"]["num-examples"] for reply in replies]
        aggregated.append((number, found))
        return MetricRecord({"count": len(found)}) if found else None

    return ClientEvaluator(box, configure, aggregate, patience, **options), aggregated


class TestClientEvaluator:
    def test_replies_are_aggregated_in_the_order_of_the_messages(self):
        delays = {1: 3.0, 2: 1.0, 3: 2.0}
        grid = HandlerGrid(measure, delay=lambda m: delays[m.metadata.dst_node_id])
        evaluator, aggregated = clients(grid)
        evaluator.submit(state(4.0), 1)
        assert weight(grid.pushed[0].content["arrays"]) == 4.0
        for now in (0.5, 1.5, 2.5):
            grid.now = now
            assert list(evaluator.collect(finish=False)) == []
        grid.now = 3.5
        (evaluation,) = evaluator.collect(finish=False)
        assert aggregated == [(1, [1, 2, 3])]
        assert (evaluation.source, evaluation.round) == ("clients", 1)

    def test_rounds_end_in_order(self):
        grid = HandlerGrid(measure, delay=lambda m: 5.0 if grid.now == 0 else 0.0)
        evaluator, _ = clients(grid)
        evaluator.submit(state(), 1)
        grid.now = 1.0
        evaluator.submit(state(), 2)
        assert list(evaluator.collect(finish=False)) == []
        grid.now = 6.0
        assert [e.round for e in evaluator.collect(finish=False)] == [1, 2]

    def test_the_last_replies_are_waited_for(self):
        grid = HandlerGrid(measure, delay=lambda m: 8.0)
        evaluator, _ = clients(grid)
        evaluator.submit(state(), 1)
        (evaluation,) = evaluator.collect(finish=True)
        assert evaluation.metrics == MetricRecord({"count": 3})

    def test_a_lost_reply_is_waited_for_once_and_not_in_every_round(
        self, caplog, monkeypatch
    ):
        monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
        grid = HandlerGrid(
            lambda m: None if m.metadata.dst_node_id == 2 else measure(m)
        )
        evaluator, aggregated = clients(grid)
        for number in range(1, 51):
            evaluator.submit(state(), number)
        assert len(list(evaluator.collect(finish=True))) == 50
        assert aggregated[0] == (1, [1, 3])
        assert aggregated[-1] == (50, [1, 3])
        assert 10 <= grid.now < 11
        said = "1 of 3 clients have not evaluated round 1 by the end of the run"
        assert said in caplog.text
        assert caplog.text.count("have not evaluated") == 1

    def test_a_silent_client_does_not_hold_up_all_rounds(self, caplog, monkeypatch):
        monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
        grid = HandlerGrid(
            lambda m: None if m.metadata.dst_node_id == 2 else measure(m)
        )
        evaluator, aggregated = clients(grid, most_rounds=2)
        for number in range(1, 6):
            evaluator.submit(state(), number)
            assert len(list(evaluator.collect(finish=False))) == (number > 2)
            assert len(evaluator.pending) == min(number, 2)
        assert aggregated == [(number, [1, 3]) for number in (1, 2, 3)]
        assert caplog.text.count("1 of 3 clients have not evaluated round 1") == 1
        assert "round 2" not in caplog.text

    def test_a_message_that_is_not_taken_is_not_waited_for(self, caplog, monkeypatch):
        monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
        grid = HandlerGrid(measure)
        evaluator, aggregated = clients(grid)
        grid.refuse = [None]
        evaluator.submit(state(), 1)
        (evaluation,) = evaluator.collect(finish=False)
        assert aggregated == [(1, [])]
        assert evaluation.metrics is None
        evaluator.submit(state(), 2)
        for node in (1, 2, 3):
            assert caplog.text.count(f"no evaluation from node {node}: the grid") == 1

    def test_rounds_that_are_closed_are_forgotten(self):
        grid = HandlerGrid(lambda message: None)
        evaluator, _ = clients(grid)
        evaluator.submit(state(), 1)
        evaluator.close()
        assert list(evaluator.collect(finish=True)) == []
        assert grid.now == 0

    def test_clients_do_not_evaluate_the_initial_model(self):
        def handle(message):
            kind = message.metadata.message_type
            return measure(message) if kind == "evaluate" else plus_one(message)

        grid = HandlerGrid(handle, node_ids=[1, 2])
        run = Run(grid, seconds=(1.0, 2.0))
        evaluator, aggregated = clients(grid, nodes=(1, 2), box=run.mailbox)
        run.evaluators = (evaluator,)
        run.go()
        assert [number for number, _ in aggregated] == [1, 2, 3]
        assert run.recorder.due == [("clients", number) for number in (1, 2, 3)]
        assert run.state.updates == 6

    def test_an_evaluation_that_a_dead_worker_answered_is_sent_again(self):
        numbers = count()

        def handle(message):
            if next(numbers) in (1, 3):
                return Message(Error(code=0, reason=DIED), reply_to=message)
            return measure(message)

        grid = HandlerGrid(handle)
        grid.has_ray_workers = True
        evaluator, aggregated = clients(grid)
        evaluator.submit(state(4.0), 1)
        assert list(evaluator.collect(finish=True))
        assert aggregated == [(1, [1, 2, 3])]
        assert [m.metadata.dst_node_id for m in grid.pushed] == [1, 2, 3, 2, 2]
        assert weight(grid.pushed[-1].content["arrays"]) == 4.0
