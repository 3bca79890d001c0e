from flwr.app import MetricRecord

from flwr_asyncdrop.cli.events import Reporter, RunProgress
from flwr_asyncdrop.server.callbacks import Evaluation
from flwr_asyncdrop.server.state import RunState


class Watched:
    """A run in which the test decides what happens and what the time is."""

    def __init__(self):
        self.now = 50.0
        self.said = []
        self.state = RunState.start_from({}, seed=0)
        self.reporter = Reporter(self.said.append, seconds=1.0, timer=lambda: self.now)

    def update(self, count=1):
        for _ in range(count):
            self.state.updates += 1
            self.state.time += 10.0
            # The reporter looks at the state alone.
            self.reporter.on_update(self.state, None)

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
    assert run.said == [RunProgress(1, 10.0, ("accuracy", 0.5), 3)]
    assert str(run.said[0]) == "t 10 s, accuracy 0.500, 3 lost"
