"""All evaluations of a run: when they are due, and where their results go."""

import logging
from collections.abc import Collection, Sequence

from flwr_asyncdrop.exceptions import ConfigError, GridLostError, Interrupted
from flwr_asyncdrop.server.callbacks import Callback, Evaluation
from flwr_asyncdrop.server.evaluator import Evaluator, PendingEvaluation
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.state_dict import StateDict, from_plain, load_saved, state_to_save

logger = logging.getLogger("flwr.asyncdrop")


class Evaluations:
    """Begins the evaluations of the global model and passes results to the callbacks.

    The evaluators, each with its own source, evaluate after the rounds that `stopping`
    names.
    """

    def __init__(
        self,
        evaluators: Sequence[Evaluator],
        callbacks: Sequence[Callback],
        stopping: StoppingRule,
    ) -> None:
        self._evaluators = {evaluator.source: evaluator for evaluator in evaluators}
        if len(self._evaluators) < len(evaluators):
            sources = [evaluator.source for evaluator in evaluators]
            raise ConfigError(f"evaluators need a source each, and have {sources}")
        self._callbacks = callbacks
        self._stopping = stopping
        self._given_up: list[Evaluation] = []

    def submit(self, state: RunState, number: int) -> None:
        """Begin to evaluate the model as it is after round `number`; 0 at the start."""
        state.evaluated = state.updates
        stop: BaseException | None = None
        for source, evaluator in self._evaluators.items():
            if number < evaluator.first_round:
                continue
            for callback in self._callbacks:
                callback.on_evaluation_due(state, source, number)
            try:
                evaluator.submit(state, number)
            except (GridLostError, Interrupted) as error:
                stop = error  # after the others: what has begun is saved
        if stop is not None:
            raise stop

    def submit_rest(self, state: RunState) -> None:
        """Begin to evaluate the last model, unless that has begun before."""
        if state.updates > state.evaluated:
            self.submit(state, self._stopping.round_of(state.updates - 1))

    def collect(self, state: RunState, *, finish: bool) -> None:
        """Pass on what has ended; with `finish`, wait for all of it.

        GridLostError, after what can be passed on, if clients cannot be reached.
        """
        lost: GridLostError | None = None
        for evaluator in self._evaluators.values():
            rounds = {pending.round for pending in evaluator.pending}
            try:
                for evaluation in evaluator.collect(finish=finish):
                    _check(evaluator, rounds, evaluation)
                    for callback in self._callbacks:
                        callback.on_evaluation(state, evaluation)
            except GridLostError as error:
                lost = error
        if lost is not None:
            raise lost

    def state_dict(self) -> StateDict:
        """Return what is pending, by source."""
        return {name: state_to_save(each) for name, each in self._evaluators.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what was pending; sources may be other ones now."""
        for source, saved in state.items():
            if source in self._evaluators:
                load_saved(self._evaluators[source], saved)
            elif pending := from_plain(
                list[PendingEvaluation], saved.get("pending", [])
            ):
                logger.warning("nobody resumes the evaluations of %r", source)
                self._given_up += [each.ended(source, None) for each in pending]

    def resume(self, state: RunState) -> None:
        """Begin the evaluations that were pending; those of other sources end."""
        for evaluation in self._given_up:
            for callback in self._callbacks:
                callback.on_evaluation(state, evaluation)
        for evaluator in self._evaluators.values():
            evaluator.resume()

    def close(self) -> None:
        """Give up what has not ended."""
        for evaluator in self._evaluators.values():
            evaluator.close()


def _check(evaluator: Evaluator, rounds: Collection[int], found: Evaluation) -> None:
    """Raise ConfigError for an evaluation that its evaluator was not asked for."""
    kind, source = type(evaluator).__name__, evaluator.source
    if found.source != source:
        raise ConfigError(
            f"{kind} has the source {source!r}, and returned an evaluation of "
            f"{found.source!r}: return what `ended(self.source, metrics)` of the "
            "pending evaluation returns"
        )
    if found.round not in rounds:
        raise ConfigError(
            f"{kind} returned an evaluation of round {found.round}, which is none of "
            f"those that it was asked for and has pending ({sorted(rounds)})"
        )
