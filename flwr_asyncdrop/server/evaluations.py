"""All evaluations of a run: when they are due, and who is told of them."""

from collections.abc import Sequence

from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.evaluation import Evaluator, UnderWay
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.stopping import StoppingRule


class Evaluations:
    """Has the global model evaluated, and tells the callbacks of it.

    Parameters
    ----------
    evaluators : sequence of Evaluator
        Who evaluates.
    callbacks : sequence of Callback
        Told when an evaluation is due, and what came out.
    limits : StoppingRule
        Says after which rounds.
    """

    def __init__(
        self,
        evaluators: Sequence[Evaluator],
        callbacks: Sequence[Callback],
        limits: StoppingRule,
    ) -> None:
        self._evaluators = evaluators
        self._callbacks = callbacks
        self._limits = limits

    def submit(self, state: RunState, number: int) -> None:
        """Have the model evaluated as it is after round `number`; 0 at the start."""
        for evaluator in self._evaluators:
            if number < evaluator.first_round:
                continue
            for callback in self._callbacks:
                callback.on_evaluation_due(state, evaluator.source, number)
            evaluator.submit(state, number)

    def submit_rest(self, state: RunState) -> None:
        """Have the last model evaluated, unless the end of its round saw to it."""
        number = self._limits.round_of(state.updates - 1)
        ended = state.updates % self._limits.updates_per_round == 0
        if state.updates and not (ended and self._limits.evaluates(number)):
            self.submit(state, number)

    def collect(self, state: RunState, *, finish: bool) -> None:
        """Pass on what has come out; with `finish`, wait for all of it."""
        for evaluator in self._evaluators:
            for evaluation in evaluator.collect(finish=finish):
                for callback in self._callbacks:
                    callback.on_evaluation(state, evaluation)

    def restore(self, under_way: Sequence[UnderWay]) -> None:
        """Go on with what each evaluator was at."""
        for evaluator, memory in zip(self._evaluators, under_way, strict=True):
            evaluator.restore(memory)

    def close(self) -> None:
        """Give up what has not come out."""
        for evaluator in self._evaluators:
            evaluator.close()
