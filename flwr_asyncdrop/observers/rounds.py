"""The rounds of a run in the log, as Flower shows them."""

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from flwr_asyncdrop.server.callbacks import Callback, Evaluation
from flwr_asyncdrop.server.state import RunState

logger = logging.getLogger("flwr.asyncdrop")

_MOST_ROUNDS = 100
_SIDES = {"clients": "ClientApp-side", "server": "ServerApp-side"}


class RoundLog(Callback):
    """Logs the metrics of each round, and all of them at the end.

    An evaluation has a line of its own, as it ends when the next round has begun. Of
    more than 100 rounds it shows every second, every third and so on, and the last.
    `result` is filled by others.
    """

    def __init__(self, result: Result, num_rounds: int) -> None:
        self._result = result
        self._num_rounds = num_rounds
        self._every = math.ceil(num_rounds / _MOST_ROUNDS)

    def on_round(self, state: RunState, number: int) -> None:
        """Log what the clients measured while they trained."""
        if self._shows(number):
            metrics = self._result.train_metrics_clientapp.get(number)
            logger.info("[ROUND %d/%d]", number, self._num_rounds)
            logger.info("\t└──> Aggregated MetricRecord: %s", metrics)

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Log what was measured of the global model."""
        if evaluation.metrics is None or not self._shows(evaluation.round):
            return
        side = _SIDES.get(evaluation.source, evaluation.source)
        logger.info(
            "[ROUND %d/%d] %s evaluation", evaluation.round, self._num_rounds, side
        )
        logger.info("\t└──> MetricRecord: %s", evaluation.metrics)

    def on_end(self, state: RunState) -> None:
        """Log the result."""
        shown = replace(
            self._result,
            train_metrics_clientapp=self._few(self._result.train_metrics_clientapp),
            evaluate_metrics_clientapp=self._few(
                self._result.evaluate_metrics_clientapp
            ),
            evaluate_metrics_serverapp=self._few(
                self._result.evaluate_metrics_serverapp
            ),
        )
        every = f" (every {self._every} rounds)" if self._every > 1 else ""
        logger.info("Final results%s:", every)
        for line in str(shown).splitlines():
            logger.info("\t%s", line)

    def _shows(self, number: int) -> bool:
        return number % self._every == 0 or number == self._num_rounds

    def _few(self, by_round: Mapping[int, MetricRecord]) -> dict[int, MetricRecord]:
        return {n: metrics for n, metrics in by_round.items() if self._shows(n)}
