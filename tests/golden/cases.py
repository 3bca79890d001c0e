"""Runs whose histories and models are recorded, bit for bit."""

import hashlib
import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from flwr.app import ArrayRecord, ConfigRecord
from safetensors.torch import load_file
from torch import nn

from flwr_asyncdrop import HeteroAsyncDrop, LocalGrid, speed_levels, wire
from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import initial_model, load_data
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.exceptions import Interrupted
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from flwr_asyncdrop.server.callbacks import Callback

ROOT = Path(__file__).parents[2]
CLIENT_APP = "flwr_asyncdrop.client_app:app"
DEVICES = 12
# Recorded before devices waited for its steps, and before its memory adapted
PLUS = {"algo": "asyncdrop-plus", "waits": False, "adaptive-memory": False}
# As it was before staleness counted
ADAPTIVE = {"algo": "asyncdrop-plus", "adaptive-staleness": False}
STALE = {"algo": "asyncdrop-plus"}
SMALL = {
    "num-rounds": 4,
    "local-steps": 5,
    "in-flight": 4,
    "model": "mlp",
    "levels": 4,
}
BLOCKS = {"model": "resnet18", "width": 0.0625}
UNSTEADY = {"jitter": 0.4, "dropout": 0.2, "availability": 0.7}
TRACE = {"trace": str(ROOT / "examples" / "traces" / "phones.csv"), "levels": 8}


def digest(parts):
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()[:24]


def of_history(path):
    """Return the digest of a history, without the machine and the configuration.

    The configuration is what the first line says of the run-config, whose keys may be
    renamed or get other defaults. Nor are lines of steps in it, and the clock beside a
    configuration, which came after other machines had recorded: what steps say shows in
    the model.
    """
    lines = map(without_wall, read_history(path))
    records = [record for record in lines if record["event"] != "step"]
    for name in ("config", "clock"):
        records[0].pop(name, None)
    return digest(json.dumps(record, sort_keys=True).encode() for record in records)


def of_model(state):
    tensors = sorted(state.items())
    return digest(
        part
        for name, tensor in tensors
        for part in (name.encode(), tensor.detach().contiguous().numpy().tobytes())
    )


class Interrupt(Callback):
    """Stops a run as a signal would."""

    def __init__(self, update):
        self.update = update

    def on_pause(self, state):
        if state.updates == self.update:
            raise Interrupted(2)


def go(settings, callbacks=(), workers=0):
    with LocalGrid(
        CLIENT_APP, num_nodes=DEVICES, workers=workers, run_config=settings
    ) as grid:
        run_experiment(grid, RunConfig.parse(settings), callbacks)


def ready_app(settings, interrupt_at=None, workers=0):
    """Run the ready apps; return the digests of the history and of the model."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = {**SMALL, **settings, "out-dir": str(out)}
        if interrupt_at is not None:
            settings["checkpoint-every"] = 1
            try:
                go(settings, [Interrupt(interrupt_at)])
            except Interrupted:
                settings |= {"out-dir": "", "resume": str(out)}
        go(settings, workers=workers)
        model = load_file(out / "model.safetensors")
        return [of_history(out / "history.jsonl"), of_model(model)]


def masked():
    """Run a strategy in masked mode."""
    config = RunConfig.parse(SMALL)
    model = initial_model(config)
    with TemporaryDirectory() as folder:
        history = HistoryWriter(Path(folder) / "history.jsonl")
        strategy = HeteroAsyncDrop(
            model,
            load_data(config).example_inputs(),
            mode="masked",
            in_flight=4,
            fraction_evaluate=0.0,
            fleet=partial(speed_levels, num_levels=4),
            callbacks=[history],
            min_available_nodes=1,
        )
        with LocalGrid(
            CLIENT_APP, num_nodes=DEVICES, workers=0, run_config=SMALL
        ) as grid:
            result = strategy.start(
                grid,
                ArrayRecord(model.state_dict()),
                num_rounds=4,
                train_config=ConfigRecord({"lr": 0.05}),
            )
        return [of_history(history.path), of_model(wire.from_record(result.arrays))]


def machine():
    """Return a digest of what this machine makes of some training without us.

    Histories are those of one kind of processor and one PyTorch: where this differs,
    so will they.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)
        )
        optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
        for _ in range(5):
            optimiser.zero_grad()
            logits = net(torch.randn(16, 1, 8, 8))
            nn.functional.cross_entropy(logits, torch.arange(16) % 10).backward()
            optimiser.step()
    return of_model(net.state_dict())


CASES = {
    **{
        name: partial(
            ready_app, {"algo": name, **(BLOCKS if cls.units == "blocks" else {})}
        )
        for name, cls in ALGORITHMS.items()
    },
    "asyncdrop-plus": partial(ready_app, PLUS),
    "jitter": partial(ready_app, {"jitter": 0.4}),
    "dropout": partial(ready_app, {"dropout": 0.3}),
    "jitter-dropout-plus": partial(ready_app, {**PLUS, **UNSTEADY}),
    "trace": partial(ready_app, TRACE),
    "cnn-batch": partial(ready_app, {"model": "cnn", "partition": "dirichlet"}),
    "masked": masked,
    "interrupted-hetero": partial(ready_app, {"jitter": 0.4}, 7),
    "interrupted-fedbuff-wait": partial(ready_app, {"algo": "fedbuff-wait"}, 7),
    "interrupted-plus": partial(ready_app, PLUS, 9),
    "adaptive-plus": partial(ready_app, ADAPTIVE),
    "interrupted-adaptive-plus": partial(ready_app, ADAPTIVE, 9),
    "stale-plus": partial(ready_app, STALE),
    "interrupted-stale-plus": partial(ready_app, STALE, 9),
    "workers": partial(ready_app, {"jitter": 0.4}, workers=2),
}
