from itertools import pairwise

from flwr.app import MetricRecord, RecordDict

from flwr_asyncdrop.cli.events import Reporter
from flwr_asyncdrop.server.callbacks import Evaluation, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.wire import Reply
from tests.observers.orders import order_of


def merged(order):
    return Merged(order, Reply({}, 1, RecordDict(), 0), 0, 1)


class Watched:
    """A run in which the test decides what happens and what the time is."""

    def __init__(self):
        self.now = 50.0
        self.said = []
        self.state = RunState.start_from({}, seed=0)
        self.reporter = Reporter(self.said.append, seconds=1.0, timer=lambda: self.now)

    def update(self, count=1, rank=0):
        order = order_of(rank=rank)
        for _ in range(count):
            self.reporter.on_dispatch(self.state, order)
            self.state.updates += 1
            self.state.time += 10.0
            self.reporter.on_update(self.state, merged(order))

    def evaluate(self, **metrics):
        record = MetricRecord(metrics) if metrics else None
        evaluation = Evaluation("server", 1, self.state.updates, 0.0, record)
        self.reporter.on_evaluation(self.state, evaluation)


def test_progress_is_said_now_and_then_and_at_the_end():
    run = Watched()
    run.update(3)
    run.now += 1.0
    run.update(2)
    run.reporter.on_end(run.state)
    assert [progress.updates for progress in run.said] == [1, 4, 5]
    assert run.said[-1].time == 50.0


def test_progress_has_the_last_metric_and_what_was_lost():
    run = Watched()
    run.evaluate(loss=2.0, accuracy=0.5)
    run.evaluate()
    run.state.failures = {"lost": 2, "shape": 1}
    run.update()
    (said,) = run.said
    assert (said.updates, said.metric, said.lost) == (1, ("accuracy", 0.5), 3)
    assert str(said) == "t 10 s, accuracy 0.500, 3 lost"


def test_progress_has_the_curve_thinned_to_what_a_line_has_room_for():
    run = Watched()
    for number in range(40):
        run.evaluate(accuracy=number / 100)
    run.update()
    curve = [round(100 * value) for value in run.said[-1].curve]
    assert len(curve) <= 16
    assert curve[-1] == 39
    assert {b - a for a, b in pairwise(curve)} == {3}


def test_who_trains_is_counted_by_speed_group():
    run = Watched()
    for rank in (0, 1, 2, 7):
        run.reporter.on_dispatch(run.state, order_of(rank=rank))
    run.reporter.on_failure(run.state, order_of(rank=7), "shape", "it broke")
    # Ranks 0 and 1 are the first of four groups. The one that came back still counts:
    # its slot is taken again at once.
    run.reporter.on_update(run.state, merged(order_of(rank=1)))
    assert run.said[-1].in_flight == (2, 1, 0, 0)
    run.reporter.on_end(run.state)
    assert run.said[-1].in_flight == (1, 1, 0, 0)


def test_a_run_that_resumes_has_tasks_from_the_start():
    run = Watched()
    run.state.in_flight = {"7": order_of(rank=0, num_ranks=1)}
    run.state.bytes_down, run.state.bytes_up = 3, 4
    run.reporter.on_resume(run.state)
    assert run.said[-1].in_flight == (1,)
    assert run.said[-1].num_bytes == 7
