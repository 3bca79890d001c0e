"""What the units of a residual stream are worth: a small Transformer, by scope.

The model, the made-up reviews and the client of ``examples/text-transformer`` under
`LocalGrid`: ``hetero-asyncdrop`` with the full model, and without a quarter of what
each scope lets go. Every run ends at the same time on the virtual clock.
``docs/models.md`` has the table.

    python -m benchmarks.stream_scope --seeds 0 1 2
"""

import argparse
import logging
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from flwr_asyncdrop import HeteroAsyncDrop, LocalGrid, speed_levels
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_reading import read_history

NODES = 10
LR = 2e-3
CLIENT: dict[str, int | str] = {"batch-size": 32, "local-epochs": 1, "data-file": ""}
LAST_EVALUATIONS = 4
EXAMPLE = Path(__file__).parents[1] / "examples" / "text-transformer"


class Variant(NamedTuple):
    """What is left out."""

    name: str
    scope: Literal["all", "stream"]
    rate: float


class Outcome(NamedTuple):
    """What a run has come to when its time is over."""

    accuracy: float
    updates: float
    megabytes: float
    bytes_ratio: float  # of an update, over the full model's
    compute: float  # of a step, over the full model's


VARIANTS = (
    Variant("full model", "all", 0.0),
    Variant("all, 25 %", "all", 0.25),
    Variant("stream, 25 %", "stream", 0.25),
)


def run(variant: Variant, seed: int, seconds: float) -> Outcome:
    """Train until the virtual clock says `seconds`."""
    from text_transformer import task  # type: ignore[import-not-found]  # of the example

    torch.manual_seed(seed)
    model = task.TextClassifier()
    loader = task.load_test_data("")

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        tested = task.TextClassifier()
        tested.load_state_dict(arrays.to_torch_state_dict())
        _, accuracy = task.test(tested, loader, torch.device("cpu"))
        return MetricRecord({"accuracy": accuracy})

    with TemporaryDirectory() as folder:
        history = HistoryWriter(Path(folder) / "history.jsonl")
        strategy = HeteroAsyncDrop(
            model,
            torch.zeros(1, task.LENGTH, dtype=torch.int64),
            scope=variant.scope,
            drop_rate=variant.rate,
            in_flight=8,
            fraction_evaluate=0.0,
            fleet=partial(speed_levels, num_levels=8),
            seed=seed,
            max_seconds=seconds,
            callbacks=[history],
        )
        with LocalGrid(
            "text_transformer.client_app:app",
            num_nodes=NODES,
            workers=0,
            run_config=CLIENT,
        ) as grid:
            strategy.start(
                grid,
                ArrayRecord(model.state_dict()),
                num_rounds=10_000,
                train_config=ConfigRecord({"lr": LR}),
                evaluate_fn=evaluate,
            )
        return outcome(list(read_history(history.path)))


def outcome(history: Sequence[dict[str, Any]]) -> Outcome:
    """Sum a history up; the accuracy is the mean of the last evaluations."""
    accuracies = [
        event["metrics"]["accuracy"]
        for event in history
        if event["event"] == "evaluation"
    ]
    updates = [event for event in history if event["event"] == "update"]
    full, end = history[0]["full_bytes"], history[-1]
    return Outcome(
        statistics.fmean(accuracies[-LAST_EVALUATIONS:]),
        len(updates),
        (end["bytes_down"] + end["bytes_up"]) / 1e6,
        statistics.fmean(update["bytes_up"] for update in updates) / full,
        statistics.fmean(update["compute"] for update in updates),
    )


def main() -> None:
    """Print a row for each variant: means over the seeds, and their extremes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=40.0)
    args = parser.parse_args()
    sys.path.append(str(EXAMPLE))
    logging.getLogger("flwr").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    print(
        "| scope | accuracy (least, most) | updates | MB sent | an update's bytes "
        "| a step's FLOPs |\n|---|--:|--:|--:|--:|--:|"
    )
    for variant in VARIANTS:
        found = [run(variant, seed, args.seconds) for seed in args.seeds]
        mean = Outcome(*map(statistics.fmean, zip(*found, strict=True)))
        least, most = (pick(o.accuracy for o in found) for pick in (min, max))
        print(
            f"| {variant.name} | {mean.accuracy:.3f} ({least:.3f}, {most:.3f}) "
            f"| {mean.updates:.0f} | {mean.megabytes:.0f} | {mean.bytes_ratio:.2f} "
            f"| {mean.compute:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
