"""Small runs of every algorithm that save themselves, for tests of resuming."""

import shutil
from functools import cache, partial

import pytest
import torch
from flwr.app import Message, MessageType, MetricRecord, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from flwr_asyncdrop.seeding import torch_generator
from flwr_asyncdrop.server.schedule import StepDecay
from flwr_asyncdrop.submodel import plan_blocks, plan_submodels
from tests.grids import HandlerGrid
from tests.runs import answer, mlp, record, residual_mlp
from tests.strategies import STRATEGIES

ROUNDS = 4
INPUTS = torch.zeros(1, 4)
NETS = dict.fromkeys(STRATEGIES, mlp) | {"layerwise-asyncdrop": residual_mlp}


@cache
def plan_of(algorithm):
    """Return the plan of its network, made once for all runs."""
    plan = plan_blocks if NETS[algorithm] is residual_mlp else plan_submodels
    return plan(NETS[algorithm](), INPUTS)


# Devices that come late, lose tasks and go away for a while.
FLEET = partial(
    speed_levels, num_levels=4, jitter=0.8, dropout=0.15, availability=0.8, seed=5
)


def client(message):
    """Train, or evaluate: something that depends on all that the device is told."""
    if message.metadata.message_type == MessageType.EVALUATE:
        size = sum(t.abs().sum() for t in wire.from_record(arrays(message)).values())
        metrics = MetricRecord({"num-examples": 1, "size": float(size)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    task, lr = wire.read_task(message), wire.read_config(message)["lr"]
    generator = torch_generator(task.seed, "train", task.partition_id or 0)
    trained = {
        name: tensor + lr * torch.randn(tensor.shape, generator=generator)
        for name, tensor in wire.from_record(arrays(message)).items()
    }
    return answer(message, trained, loss=float(task.seed % 1000))


def arrays(message):
    return message.content["arrays"]


def evaluate(number, record):
    size = sum(tensor.abs().sum() for tensor in wire.from_record(record).values())
    return MetricRecord({"size": float(size), "round": number})


def run(
    folder,
    algorithm,
    *,
    resume=None,
    handler=client,
    delay=lambda message: 0.0,
    node_ids=range(1, 9),
    callbacks=(),
    rounds=ROUNDS,
    timeout=3600,
    every=1,
    late="discount",
    quarantine_after=2,
    around=lambda grid: grid,
    history_every=1,
    **changes,
):
    """Run; return the strategy's result, and what its history says."""
    settings = {
        "in_flight": 4,
        "fleet": FLEET,
        "seed": 3,
        "fraction_evaluate": 0.3,
        "schedule": StepDecay((3, 6), 0.5),
        "faults": FaultPolicy(1.2, late, quarantine_after),
        **changes,
    }
    history = HistoryWriter(folder / "history.jsonl", every=history_every)
    strategy = STRATEGIES[algorithm](
        NETS[algorithm](),
        INPUTS,
        plan=plan_of(algorithm),
        checkpointer=Checkpointer(folder, resume=resume, every=every, keep=99),
        callbacks=[history, *callbacks],
        **settings,
    )
    with pytest.MonkeyPatch.context() as patch:
        # Its nodes are all there: two looks at them need no half second in between.
        patch.setattr("flwr_asyncdrop.server.nodes._POLL", 0.01)
        result = strategy.start(
            around(HandlerGrid(handler, node_ids=node_ids, delay=delay)),
            record(NETS[algorithm]().state_dict()),
            num_rounds=rounds,
            timeout=timeout,
            evaluate_fn=evaluate,
            train_config={"lr": 0.25},
        )
    return outcome(folder, result)


def outcome(folder, result):
    """Return all that must be the same for a run that was interrupted."""
    return {
        "history": lines(folder),
        "model": {n: t.tolist() for n, t in wire.from_record(result.arrays).items()},
        "train": {n: dict(m) for n, m in result.train_metrics_clientapp.items()},
        "clients": {n: dict(m) for n, m in result.evaluate_metrics_clientapp.items()},
        "server": {n: dict(m) for n, m in result.evaluate_metrics_serverapp.items()},
    }


def lines(folder):
    return [without_wall(line) for line in read_history(folder / "history.jsonl")]


def copy_of(folder, name):
    """Return a copy of a run's folder, as it would be had the run died just now."""
    return shutil.copytree(folder, folder.with_name(name))
