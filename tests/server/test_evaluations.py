"""What evaluators have pending is saved by source, and begun again."""

from dataclasses import replace

import pytest
import torch
from flwr.app import MetricRecord

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.server.callbacks import Callback, Evaluation
from flwr_asyncdrop.server.evaluations import Evaluations
from flwr_asyncdrop.server.evaluator import Evaluator, PendingEvaluation
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.stopping import StoppingRule
from tests.grids import HandlerGrid
from tests.runs import Run, plus_one
from tests.states import saved_and_read

STOPPING = StoppingRule(3, 2, 2, 10.0, 1)


class Patient(Evaluator):
    """One of a user: it has nothing to say before it must."""

    def __init__(self, source="patient"):
        self.source = source
        self.begun = []
        self.closed = False

    def begin(self, evaluation):
        self.begun.append(evaluation)

    @property
    def pending(self):
        return self.begun

    def collect(self, *, finish):
        while finish and self.begun:
            evaluation = self.begun.pop(0)
            total = float(evaluation.arrays["w"].sum())
            yield evaluation.ended(self.source, MetricRecord({"total": total}))

    def close(self):
        self.closed = True


def state(value, updates=0):
    run = RunState.start_from({"w": torch.full((2,), value)}, seed=0)
    run.updates, run.time = updates, updates / 2
    return run


def described(pending):
    return [(p.round, p.update, p.time, p.arrays["w"].tolist()) for p in pending]


def saved(*evaluators):
    return saved_and_read(Evaluations(evaluators, (), STOPPING).state_dict())


def test_what_is_pending_is_begun_again_when_the_run_is_ready():
    first = Patient()
    first.submit(state(1.0, 2), 1)
    first.submit(state(2.0, 4), 2)
    again = Patient()
    evaluations = Evaluations([again], (), STOPPING)
    evaluations.load_state_dict(saved(first))
    assert again.begun == []
    evaluations.resume(state(1.0))
    assert described(again.begun) == [(1, 2, 1.0, [1.0, 1.0]), (2, 4, 2.0, [2.0, 2.0])]
    evaluations.resume(state(1.0))
    assert len(again.begun) == 2


def test_a_run_that_is_interrupted_while_it_resumes_forgets_nothing():
    class Interrupted(Patient):
        def begin(self, evaluation):
            super().begin(evaluation)
            raise KeyboardInterrupt

    first, between = Patient(), Interrupted()
    for number in (1, 2, 3):
        first.submit(state(float(number)), number)
    evaluations = Evaluations([between], (), STOPPING)
    evaluations.load_state_dict(saved(first))
    with pytest.raises(KeyboardInterrupt):
        evaluations.resume(state(1.0))
    again = Patient()
    last = Evaluations([again], (), STOPPING)
    last.load_state_dict(saved(between))
    last.resume(state(1.0))
    assert described(again.begun) == described(first.begun)


def test_evaluators_are_found_by_source_and_may_come_and_go(caplog):
    here, gone = Patient("here"), Patient("gone")
    for evaluator in (here, gone):
        evaluator.submit(state(1.0), 1)
    again, new = Patient("here"), Patient("new")
    evaluations = Evaluations([new, again], (), STOPPING)
    evaluations.load_state_dict(saved(gone, here))
    evaluations.resume(state(1.0))
    assert (len(again.begun), len(new.begun)) == (1, 0)
    assert caplog.messages == ["nobody resumes the evaluations of 'gone'"]


def test_the_evaluations_of_a_source_that_is_gone_end_without_metrics(caplog):
    class Noting(Callback):
        def on_evaluation(self, state, evaluation):
            ended.append(evaluation)

    ended, gone, idle = [], Patient("gone"), Patient("idle")
    gone.submit(state(1.0, 2), 1)
    evaluations = Evaluations([], [Noting()], STOPPING)
    evaluations.load_state_dict(saved(gone, idle))
    evaluations.resume(state(2.0, 4))
    assert ended == [Evaluation("gone", 1, 2, 1.0, None)]
    assert caplog.messages == ["nobody resumes the evaluations of 'gone'"]


def test_two_of_one_source_are_refused():
    with pytest.raises(ConfigError, match=r"a source each, and have \['a', 'a'\]"):
        Evaluations([Patient("a"), Patient("a")], (), STOPPING)


def test_a_pending_evaluation_has_other_fields_in_another_version():
    evaluations = Evaluations([Patient()], (), STOPPING)
    odd = {"patient": {"pending": [{"round": 1}]}}
    with pytest.raises(ValueError, match="other fields: arrays, time, update"):
        evaluations.load_state_dict(odd)


def test_an_evaluator_of_a_user_takes_part_in_a_run():
    patient = Patient()
    run = Run(
        HandlerGrid(plus_one, node_ids=[1, 2]),
        seconds=(1.0, 2.5),
        evaluators=(patient,),
    ).go()
    found = [(e.source, e.round, e.update) for e in run.recorder.evaluations]
    assert found == [("patient", number, 2 * number) for number in (1, 2, 3)]
    # The weights of the golden run, at the end of its rounds of 2 updates.
    totals = [e.metrics["total"] for e in run.recorder.evaluations]
    assert totals == [2.0, 3.0, 4.0]
    assert patient.closed


def test_a_pending_evaluation_says_what_came_of_it():
    pending = PendingEvaluation(3, 6, 1.5, {})
    outcome = pending.ended("server", None)
    assert (outcome.source, outcome.round, outcome.update) == ("server", 3, 6)
    assert (outcome.time, outcome.metrics) == (1.5, None)


@pytest.mark.parametrize(
    ("source", "number", "says"),
    [
        ("mine", 1, "has the source 'patient', and returned an evaluation of 'mine'"),
        ("patient", 7, "of round 7, which is none of those that it was asked for"),
    ],
)
def test_an_evaluation_that_nobody_asked_for_is_refused(source, number, says):
    class Other(Patient):
        def collect(self, *, finish):
            for evaluation in super().collect(finish=finish):
                yield replace(evaluation, source=source, round=number)

    evaluations = Evaluations([Other()], [], StoppingRule(1, 1, 1, 1.0))
    evaluations.submit(state(1.0), 1)
    with pytest.raises(ConfigError, match=says):
        evaluations.collect(state(1.0), finish=True)
