"""What liars do to every algorithm, with and without the guard against outliers.

Ten devices train the embedded digits, dealt evenly; the fastest one lies, or the three
fastest. Every run is a line of the file that ``--out`` names, and runs that are there
are not made again. Ends with tables of the final accuracy.
"""

import argparse
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from benchmarks.figures import say
from benchmarks.lines import add_result, read_results
from flwr_asyncdrop import LocalGrid, wire
from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.app import client
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.evaluation import CentralTest
from flwr_asyncdrop.app.experiment import initial_model, load_data
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import State

__all__ = ["ATTACKS", "Case", "run_case"]

DEVICES = 10
COUNTS = (1, 3)
SETTINGS: Mapping[str, object] = MappingProxyType(
    {
        "num-rounds": 12,
        "in-flight": 8,
        "local-steps": 10,
        "evaluate-every": 12,
        "model": "mlp",
        "partition": "iid",
        "checkpoint-every": 0,
    }
)
BLOCKS = {"model": "resnet18", "width": 0.0625, "local-steps": 4}
ROBUST = (
    ("fedavg", "median"),
    ("fedbuff", "median"),
    ("fedbuff", "trimmed-mean"),
    ("fedbuff-wait", "median"),
    ("asyncdrop-plus", "median"),
)

Lie = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""From a tensor as it was sent and as it was trained to what the liar returns."""


def _noise(sent: Tensor, trained: Tensor, generator: torch.Generator) -> Tensor:
    return sent + torch.randn(sent.shape, generator=generator)


ATTACKS: Mapping[str, Lie | None] = MappingProxyType(
    {
        "1e10": lambda sent, trained, generator: torch.full_like(sent, 1e10),
        "change x100": lambda sent, trained, generator: sent + 100 * (trained - sent),
        "noise": _noise,
        "sign flip": lambda sent, trained, generator: sent - (trained - sent),
        "label flip": None,  # of the data, not of the weights
    }
)
"""What a liar does, by name; the noise is Gaussian with a standard deviation of 1."""


@dataclass(frozen=True)
class Case:
    """One run; no `attack` is the clean one."""

    algo: str
    combine: str = ""
    attack: str = ""
    liars: int = 0
    guard: bool = True


def cases(algorithms: list[str]) -> Iterator[Case]:
    """Yield all runs of some algorithms."""
    rows = [(name, "") for name in algorithms]
    rows += [row for row in ROBUST if row[0] in algorithms]
    for algo, combine in rows:
        yield Case(algo, combine)
        for liars in COUNTS:
            for attack in ATTACKS:
                for guard in (False, True):
                    yield Case(algo, combine, attack, liars, guard)


def run_case(case: Case, **changes: object) -> dict[str, Any]:
    """Run; return the case with what came out of it."""
    layerwise = ALGORITHMS[case.algo].units == "blocks"
    settings = {**SETTINGS, **(BLOCKS if layerwise else {}), "algo": case.algo}
    settings |= {"combine": case.combine} if case.combine else {}
    settings |= {} if case.guard else {"outlier-factor": 0.0}
    config = RunConfig.parse({**settings, **changes})
    test, books = CentralTest(config), Books(case.liars)
    app = client_app(config, case)
    with LocalGrid(
        lambda: app, num_nodes=DEVICES, workers=0, run_config=config.settings
    ) as grid:
        build_strategy(config, [test, books]).start(
            grid,
            ArrayRecord(initial_model(config).state_dict()),
            num_rounds=config.num_rounds,
            train_config=ConfigRecord({"lr": config.lr}),
            evaluate_fn=test,
        )
    return {**asdict(case), **books.found}


class Books(Callback):
    """Notes what was merged and refused, and the last accuracy."""

    def __init__(self, liars: int) -> None:
        self.found: dict[str, Any] = dict.fromkeys(
            ("accuracy", "merged", "lies_merged", "lies_refused", "honest_refused"), 0
        )
        self._liars = liars

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Count it."""
        self.found["merged"] += 1
        self.found["lies_merged"] += merged.order.device < self._liars

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """Count it."""
        lies = order.device < self._liars
        self.found["lies_refused" if lies else "honest_refused"] += 1

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Keep the accuracy."""
        if evaluation.metrics:
            self.found["accuracy"] = evaluation.metrics["accuracy"]

    def on_end(self, state: RunState) -> None:
        """Note whether the run ended early."""
        self.found["ended"] = state.ended


def client_app(config: RunConfig, case: Case) -> ClientApp:
    """Return the ready app with liars among its devices; rank 0 is the fastest."""
    app = ClientApp()
    app.evaluate()(client.evaluate)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        task = wire.read_task(message)
        if task.partition_id is None or task.partition_id >= case.liars:
            return client.train(message, context)
        lie = ATTACKS[case.attack]
        if lie is None:
            labels = load_data(config).train_y
            last = int(labels.max())
            labels.copy_(last - labels)
            try:
                return client.train(message, context)
            finally:
                labels.copy_(last - labels)
        sent = wire.from_record(message.content.array_records["arrays"])
        reply = client.train(message, context)
        trained = wire.from_record(reply.content.array_records["arrays"])
        generator = torch_generator(task.seed, "lie")
        return _reply(reply, message, _lies(sent, trained, lie, generator))

    return app


def _lies(sent: State, trained: State, lie: Lie, generator: torch.Generator) -> State:
    told = dict(trained)
    for name, tensor in sent.items():
        if tensor.is_floating_point():
            told[name] = lie(tensor, trained[name], generator)
            if name.endswith("running_var"):
                told[name] = told[name].clamp(min=0)
    return told


def _reply(reply: Message, to: Message, arrays: State) -> Message:
    records: dict[str, ArrayRecord] = {"arrays": wire.to_record(arrays)}
    metrics = dict(reply.content.metric_records)
    return Message(RecordDict({**records, **metrics}), reply_to=to)


def table(results: list[dict[str, Any]], liars: int) -> Iterator[str]:
    """Yield a table in Markdown: accuracy in percent, guard off and on."""
    found = {_key(result): result for result in results}
    yield f"| {liars} of {DEVICES} | clean | {' | '.join(ATTACKS)} |"
    yield f"|---|---|{'---|' * len(ATTACKS)}"
    for algo, combine in dict.fromkeys((r["algo"], r["combine"]) for r in results):
        cells = [f"{algo} {combine}".strip(), _shown(found, Case(algo, combine))]
        for attack in ATTACKS:
            off, on = (
                _shown(found, Case(algo, combine, attack, liars, guard))
                for guard in (False, True)
            )
            cells.append(f"{off} / {on}")
        yield f"| {' | '.join(cells)} |"


def _key(result: Mapping[str, Any]) -> Case:
    return Case(**{name: result[name] for name in asdict(Case(""))})


def _shown(found: Mapping[Case, Mapping[str, Any]], case: Case) -> str:
    if case not in found:
        return "?"
    result = found[case]
    return f"{100 * result['accuracy']:.0f}{'*' if result['ended'] else ''}"


def main() -> None:
    """Make the runs that are missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("liars.jsonl"))
    parser.add_argument("--algos", nargs="*", default=list(ALGORITHMS))
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    out: Path = arguments.out
    results = read_results(out)
    known = {_key(result) for result in results}
    for case in cases(arguments.algos):
        if case in known:
            continue
        say(str(case))
        results.append(run_case(case))
        add_result(out, results[-1])
    for liars in COUNTS:
        print("\n".join(table(results, liars)), end="\n\n")
    # The file may have a run twice, of two processes.
    guarded = {_key(r): r["honest_refused"] for r in results if r["guard"]}
    print("honest updates refused:", sum(guarded.values()))


if __name__ == "__main__":
    main()
