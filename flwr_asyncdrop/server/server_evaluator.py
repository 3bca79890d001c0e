"""Evaluating the global model on the server, in a thread."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext

import torch
from flwr.app import ArrayRecord, MetricRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import Interrupted
from flwr_asyncdrop.server.callbacks import Evaluation
from flwr_asyncdrop.server.evaluator import Evaluator, PendingEvaluation
from flwr_asyncdrop.submodel import steady_kernels

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
"""Flower's ``evaluate_fn``: round and global model to metrics."""

_MOST_PENDING = 2
_SLICE_SECONDS = 0.5


class ServerEvaluator(Evaluator):
    """Runs Flower's ``evaluate_fn`` in a thread of its own.

    At most two snapshots wait. Beyond that `begin` blocks, so that a slow
    ``evaluate_fn`` costs time but not memory. `patiently` is entered around each wait
    for it; it may raise Interrupted. Not `beside` the loop, `begin` waits for the end:
    where clients train in this process, all draw from the same global generators.
    """

    source = "server"
    first_round = 0

    def __init__(
        self,
        evaluate_fn: EvaluateFn,
        patiently: Callable[[], AbstractContextManager[None]] = nullcontext,
        *,
        beside: bool = True,
    ) -> None:
        self._evaluate_fn = evaluate_fn
        self._patiently = patiently
        self._beside = beside
        self._threads = torch.get_num_threads()
        self._executor: ThreadPoolExecutor | None = None
        self._begun: deque[tuple[PendingEvaluation, Future[Evaluation]]] = deque()

    def begin(self, evaluation: PendingEvaluation) -> None:
        """Evaluate a model in the thread, after those that wait there."""
        unfinished = [future for _, future in self._begun if not future.done()]
        if len(unfinished) >= _MOST_PENDING:
            try:
                with self._patiently():
                    _wait_for(unfinished[0])
            except Interrupted:
                self._resumed = [evaluation, *self._resumed]
                raise
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="evaluate")
        future = self._executor.submit(self._evaluate, evaluation)
        self._begun.append((evaluation, future))
        if not self._beside:
            with self._patiently():
                _wait_for(future)

    @property
    def pending(self) -> Sequence[PendingEvaluation]:
        """Those that run, wait, or have ended without being collected."""
        return [evaluation for evaluation, _ in self._begun]

    def collect(self, *, finish: bool) -> Iterable[Evaluation]:
        """Return what has ended; an error in ``evaluate_fn`` is raised here."""
        while self._begun and (finish or self._begun[0][1].done()):
            future = self._begun[0][1]
            with self._patiently() if finish else nullcontext():
                _wait_for(future)
            evaluation = future.result()
            self._begun.popleft()
            yield evaluation

    def close(self) -> None:
        """End the thread after the evaluation that it runs, and forget all others."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._executor = None  # the next run has another one
        self._begun.clear()

    def _evaluate(self, evaluation: PendingEvaluation) -> Evaluation:
        arrays = wire.to_record(evaluation.arrays)
        # The loop may count the FLOPs of a new submodel meanwhile.
        with steady_kernels():
            # Each thread has a setting of its own, and this one's must be known.
            torch.set_num_threads(self._threads)
            found = self._evaluate_fn(evaluation.round, arrays)
        metrics = wire.metric_record(found, f"evaluate_fn({evaluation.round}, ...)")
        return evaluation.ended(self.source, metrics)


def _wait_for(future: Future[Evaluation]) -> None:
    """Wait in slices: without an end, a lock may never let go for Ctrl-C."""
    while not wait([future], _SLICE_SECONDS).done:
        pass
