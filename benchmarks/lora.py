"""LoRA on unequal devices: virtual time, bytes, memory on the device, and quality.

    python -m benchmarks.lora --out lora.jsonl

The model and the devices are those of ``examples/llm-lora``, with made-up reviews, or
those of ``--data-file``. Every method has its learning rate chosen from the same grid,
by the final accuracy of a run with a seed of its own; then come the seeds that count.
Every run is a line of the file, and runs that are there are not made again. Ends with
the table of those that were asked for.

- ``fedavg``: synchronous, all ranks, each factor averaged by itself.
- ``fedbuff``: asynchronous, all ranks, each factor by itself.
- ``hetlora``: synchronous; slow devices have the first ranks only, updates are padded
  with zeros and weighed by the norm of their product (Cho et al., 2024; without its
  pruning of ranks).
- ``fslora-like``: synchronous, random ranks (Fang et al., 2025; without the factor
  ``r / k`` of its sketch).
- ``ranks`` and ``layers``: hetero-asyncdrop, the products mixed on arrival.
- ``ranks-plain``: the same, each factor by itself.
- ``ranks-buffered``: random ranks, products by ``ProductBuffered``.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from torch import Tensor, nn

from benchmarks.figures import say
from benchmarks.lines import add_result, read_results
from benchmarks.lora_baselines import ZeroPadded
from flwr_asyncdrop import (
    AsyncStrategy,
    LocalGrid,
    load_lora,
    lora_state,
    speed_levels,
    submodel,
)
from flwr_asyncdrop.aggregation import (
    Aggregator,
    Buffered,
    Mixing,
    ProductBuffered,
    ProductMixing,
    combiner,
    weighting,
)
from flwr_asyncdrop.masks import (
    MaskContext,
    MaskPolicy,
    OrderedMask,
    RandomMask,
    SmartPartition,
)
from flwr_asyncdrop.server.callbacks import Callback, Evaluation
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import LoraPlan, extract, lora_plan
from flwr_asyncdrop.submodel.lora.plan import LoraUnits

EXAMPLE = Path(__file__).parents[1] / "examples" / "llm-lora"
DEVICES, IN_FLIGHT, DROP_RATE = 20, 8, 0.25
RATES = (0.001, 0.003, 0.01)
SEEDS, TUNING_SEED = (0, 1, 2), 1000
BYTES_PER_SECOND = 600_000
"""Of the fastest devices, each way: all adapters go there and back in half a task."""

CONFIG: Mapping[str, Any] = MappingProxyType(
    {"local-epochs": 1, "batch-size": 16, "lora-rank": 8, "base-model": ""}
)


@dataclass(frozen=True)
class Method:
    """How a method merges, what it leaves out, and what its units are."""

    aggregator: Callable[[], Aggregator]
    masks: MaskPolicy | None = None
    units: LoraUnits = "ranks"


def _mean_of_all() -> Aggregator:
    return Buffered(IN_FLIGHT, combine=_combine("examples"), waits=True)


def _combine(normaliser: Any) -> Any:
    return combiner("mean", IN_FLIGHT, normaliser=normaliser)


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "fedavg": Method(_mean_of_all),
        "fedbuff": Method(
            lambda: Buffered(IN_FLIGHT // 2, weighting=weighting("polynomial"))
        ),
        "hetlora": Method(lambda: ZeroPadded(IN_FLIGHT), OrderedMask(DROP_RATE)),
        "fslora-like": Method(_mean_of_all, RandomMask(DROP_RATE)),
        "ranks": Method(ProductMixing, SmartPartition(DROP_RATE)),
        "ranks-plain": Method(Mixing, SmartPartition(DROP_RATE)),
        "ranks-buffered": Method(
            lambda: ProductBuffered(IN_FLIGHT // 2, normaliser="counts"),
            RandomMask(DROP_RATE),
        ),
        "layers": Method(ProductMixing, SmartPartition(DROP_RATE), "layers"),
    }
)


@dataclass(frozen=True)
class Case:
    """One run."""

    method: str
    lr: float
    seed: int
    rounds: int
    data_file: str = ""
    base_steps: int = 400


class Curve(Callback):
    """Notes accuracy, virtual time and bytes of every evaluation."""

    def __init__(self) -> None:
        self.points: list[dict[str, float]] = []

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Add a point."""
        if evaluation.metrics is not None:
            self.points.append(
                {
                    "time": evaluation.time,
                    "bytes": state.bytes_down + state.bytes_up,
                    **{k: float(str(v)) for k, v in evaluation.metrics.items()},
                }
            )


def run_case(case: Case) -> dict[str, Any]:
    """Run; return the case with its curve and the memory of its devices."""
    example = load_example()
    config = {
        **CONFIG,
        "data-file": case.data_file,
        "base-steps": case.base_steps,
        "units": METHODS[case.method].units,
    }
    method, models = METHODS[case.method], example["models"]
    folder = models.folder_of(config)
    torch.manual_seed(case.seed)
    model, tokenizer = models.build_model(folder, config["lora-rank"])
    tests = example["dataset"].load_test_data(case.data_file, tokenizer)
    inputs = {"input_ids": torch.ones(1, 32, dtype=torch.int64)}
    plan = lora_plan(model, inputs, units=method.units)
    initial = {name: tensor.clone() for name, tensor in lora_state(model).items()}
    memory = memory_of_slowest(models.build_model(folder, 8)[0], plan, method.masks)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        load_lora(model, arrays)
        perplexity, accuracy = models.test(model, tests, tokenizer)
        return MetricRecord({"perplexity": perplexity, "accuracy": accuracy})

    curve = Curve()
    strategy = AsyncStrategy(
        models.build_model(folder, config["lora-rank"])[0],
        inputs,
        plan=plan if method.masks else None,
        masks=method.masks,
        aggregator=method.aggregator(),
        in_flight=IN_FLIGHT,
        fleet=partial(speed_levels, bytes_per_second=BYTES_PER_SECOND),
        fraction_evaluate=0.0,
        seed=case.seed,
        callbacks=[curve],
        log_rounds=False,
    )
    with LocalGrid(
        "llm_lora.client_app:app", num_nodes=DEVICES, workers=0, run_config=config
    ) as grid:
        strategy.start(
            grid,
            ArrayRecord(initial),
            num_rounds=case.rounds,
            train_config=ConfigRecord({"lr": case.lr}),
            evaluate_fn=evaluate,
        )
    return {**asdict(case), "memory": memory, "curve": curve.points}


@cache
def load_example() -> dict[str, Any]:
    """Import the example's modules."""
    sys.path.insert(0, str(EXAMPLE))
    names = ("dataset", "models")
    return {name: import_module(f"llm_lora.{name}") for name in names}


def memory_of_slowest(
    model: nn.Module, plan: LoraPlan, masks: MaskPolicy | None
) -> dict[str, int]:
    """Estimate the bytes that training needs on the slowest device.

    What is frozen; adapters with their gradients and the two moments of Adam; and
    what a forward pass of 16 examples of 64 tokens keeps for the backward pass.
    """
    if masks is not None:
        context = MaskContext(
            plan.groups,
            IN_FLIGHT - 1,
            IN_FLIGHT,
            torch.Generator().manual_seed(0),
            compute_scores=lambda: [torch.zeros(g.size) for g in plan.groups],
        )
        indices = plan.indices(masks.choose(context))
        arrays = extract(lora_state(model), indices)
        submodel.load_lora(model, arrays)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.ones(16, 64, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.train()(input_ids=tokens, labels=tokens).loss
    del loss
    trained = [p for p in model.parameters() if p.requires_grad]
    return {
        "frozen": sum(p.nbytes for p in model.parameters() if not p.requires_grad),
        "adapters": 4 * sum(p.nbytes for p in trained),
        "activations": sum(kept.values()),
    }


def cases(
    methods: Sequence[str],
    seeds: Sequence[int],
    rounds: int,
    data: tuple[str, int],
    results: list[dict[str, Any]],
) -> Iterator[Case]:
    """Yield the runs of the grid, then, once these are there, those that count."""
    for method in methods:
        grid = [Case(method, lr, TUNING_SEED, rounds, *data) for lr in RATES]
        yield from grid
        found = [r for r in results if _case(r) in grid]
        best = max(found, key=lambda r: r["curve"][-1]["accuracy"])["lr"]
        for seed in seeds:
            yield Case(method, best, seed, rounds, *data)


def table(results: Sequence[dict[str, Any]], target: float) -> Iterator[str]:
    """Yield a table in Markdown: means over the seeds that count.

    Accuracies are in percent, with their sample standard deviation.
    """
    yield (
        f"| method | lr | s to {target:.0%} | MB to {target:.0%} | final accuracy "
        "| perplexity | ends at | MB in all | memory, MB |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    counted = [r for r in results if r["seed"] != TUNING_SEED]
    for method in dict.fromkeys(r["method"] for r in counted):
        runs = [r for r in counted if r["method"] == method]
        reached = [_first(r["curve"], target) for r in runs]
        last = [r["curve"][-1] for r in runs]
        there = [point for point in reached if point is not None]
        share = "" if len(there) == len(runs) else f" ({len(there)} of {len(runs)})"
        accuracies = [100 * point["accuracy"] for point in last]
        spread = f" ± {stdev(accuracies):.1f}" if len(runs) > 1 else ""
        cells = [
            method,
            f"{runs[0]['lr']:g}",
            f"{fmean(p['time'] for p in there):.1f}{share}" if there else "never",
            f"{fmean(p['bytes'] for p in there) / 1e6:.1f}{share}" if there else "–",
            f"{fmean(accuracies):.1f}{spread}",
            f"{fmean(p['perplexity'] for p in last):.3f}",
            f"{fmean(p['time'] for p in last):.0f} s",
            f"{fmean(p['bytes'] for p in last) / 1e6:.1f}",
            f"{sum(runs[0]['memory'].values()) / 1e6:.1f}",
        ]
        yield f"| {' | '.join(cells)} |"


def _first(curve: Sequence[dict[str, float]], target: float) -> dict[str, float] | None:
    return next((point for point in curve if point["accuracy"] >= target), None)


def _case(result: Mapping[str, Any]) -> Case:
    return Case(**{name: result[name] for name in Case.__dataclass_fields__})


def main() -> None:
    """Run what is not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("lora.jsonl"))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--data-file", default="")
    parser.add_argument("--base-steps", type=int, default=400)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    out: Path = arguments.out
    results = read_results(out)
    data = (arguments.data_file, arguments.base_steps)
    asked = []
    for case in cases(
        arguments.methods, arguments.seeds, arguments.rounds, data, results
    ):
        asked.append(case)
        if case in map(_case, results):
            continue
        say(str(case))
        results.append(run_case(case))
        add_result(out, results[-1])
    # The file may have runs of other lengths or data, or one twice, of two processes.
    found = {_case(result): result for result in results}
    print("\n".join(table([found[case] for case in asked], arguments.target)))


if __name__ == "__main__":
    main()
