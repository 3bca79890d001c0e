"""Runs of the ready app on any simulated fleet are what the naive `Timeline` says.

So are the sums of their summaries.
"""

from collections import Counter

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import initial_model, weights_of
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.client.codec_mod import CodecMod
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.report import summarise
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.simulation import LocalGrid
from tests.app.timeline import BUFFERED, SPREADS, Timeline
from tests.nightly import NIGHTLY

COLUMNS = (
    "seconds_per_step,down_mbps,up_mbps,latency,jitter,dropout,period,available,"
    "watts,joules_per_megabyte"
)
BASE = {
    "model": "mlp",
    "width": 1 / 16,
    "partition": "iid",
    "local-steps": 2,
    "outlier-factor": 0.0,
    "num-rounds": 5,
}


class Costs(Callback):
    """Notes the bytes of every task, and the factor of its learning rate."""

    def __init__(self):
        self.bytes, self.lr_factors, self.up = {}, [], 0

    def on_dispatch(self, state, order):
        self.lr_factors.append(order.lr_factor)
        self.bytes[order.number] = order.cost.bytes_down, order.cost.bytes_up, 0

    def on_update(self, state, merged):
        self.note(state, merged.order)

    def on_failure(self, state, order, kind, reason):
        self.note(state, order)

    def note(self, state, order):
        """All that came up since the reply before is this one's."""
        came, self.up = state.bytes_up - self.up, state.bytes_up
        assert came <= order.cost.bytes_up
        self.bytes[order.number] = (*self.bytes[order.number][:2], came)


def client():
    """Return a ClientApp that adds a little to every weight."""
    app = ClientApp(mods=[CodecMod()])

    @app.train()
    def train(message, context):
        state = message.content["arrays"].to_torch_state_dict()
        moved = {name: tensor + 0.01 for name, tensor in state.items()}
        content = {"arrays": ArrayRecord(moved)}
        content["metrics"] = MetricRecord({"num-examples": 1})
        return Message(RecordDict(content), reply_to=message)

    return app


def check(folder, count, settings):
    """Do a run, and compare it with its timeline, line by line and bit by bit."""
    config = RunConfig.parse({**BASE, **settings})
    costs, path = Costs(), folder / "history.jsonl"
    strategy = build_strategy(config, [costs, HistoryWriter(path, overwrite=True)])
    with LocalGrid(client, num_nodes=count, workers=0) as grid:
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(weights_of(initial_model(config))),
            num_rounds=config.num_rounds,
            train_config=ConfigRecord({"lr": config.lr}),
            evaluate_fn=lambda number, arrays: MetricRecord({"accuracy": 0.5}),
        )
    coded = config.codec not in ("none", "packed")
    wanted = Timeline(config.settings, count, costs.bytes if coded else None)
    unsaid = {"wall", "metrics", "reason", "codec"}
    found = [
        {name: value for name, value in line.items() if name not in unsaid}
        for line in read_history(path)
        if line["event"] not in ("run", "units", "step")
    ]
    assert found == wanted.lines
    steps = [line["version"] for line in read_history(path) if line["event"] == "step"]
    assert steps == list(range(1, len(steps) + 1))
    if config.milestones_in_seconds:
        assert costs.lr_factors == [task.lr_factor for task in wanted.tasks]
    check_summary(summarise(read_history(path)), wanted)
    return wanted


def check_summary(summary, wanted):
    merged = [line for line in wanted.lines if line["event"] == "update"]
    staleness = [line["staleness"] for line in merged]
    sent = sum(line["bytes_down"] + line["bytes_up"] for line in merged)
    assert summary.updates_by_rank == Counter(line["rank"] for line in merged)
    assert summary.failures == wanted.failures
    assert (summary.time, summary.updates) == (wanted.time, len(merged))
    assert (summary.bytes_down, summary.bytes_up) == (wanted.down, wanted.up)
    assert summary.late == sum("late" in line for line in merged)
    assert summary.max_staleness == max(staleness, default=None)
    if merged:
        assert summary.mean_staleness == sum(staleness) / len(merged)
        assert summary.share_saved == 1 - sent / summary.bytes_full


def any_settings(draw, trace):
    """Return a number of devices, and keys that do not contradict each other."""

    def pick(options):
        return options[int(draw.integers(len(options)))]

    algorithms = "fedavg async-fedavg fedbuff fedbuff-wait asyncdrop asyncdrop-plus"
    keys = {
        "algo": pick(algorithms.split()),
        "in-flight": pick([1, 2, 3, 5, 8, 12]),
        "seed": int(draw.integers(1000)),
        "selection": pick(["stratified", "uniform"]),
        "duration": pick(["flops", "flops", "paper"]),
        "deadline": pick([1.0, 1.5, 3.0]),
        "late": pick(["merge", "discount", "drop"]),
        "quarantine-after": pick([0, 1, 3]),
        "evaluate-every": pick([1, 2]),
        "codec": pick(["none", "none", "q8", "q2"]),
    }
    count, second = pick([1, 2, 3, 5, 8, 13, 20]), 2.0
    slots = min(count, keys["in-flight"])
    if draw.random() < 0.3:
        cells = (
            [1e-9, 0.5, 1, 1, 3.3, 1e9],
            *(["", 0.001, 8], ["", 0.001, 1], [0, 0.25], ["", 0.5], ["", 0.3]),
            ["7,0-7", "7,1-3 5-6", "10,6-7", "7,0-0.001 6.999-7", ","],
            *([0, 3], [0, 2.5]),
        )
        lines = (",".join(str(pick(cell)) for cell in cells) for _ in range(4))
        trace.write_text("\n".join([COLUMNS, *lines]) + "\n")
        keys["trace"] = str(trace)
    else:
        speeds = [(1, 1.0), (2, 2.0), (3, 1.0), (8, 5.0), (8, 100.0)]
        keys["levels"], keys["speed-ratio"] = pick(speeds)
        keys["step-seconds"] = pick([1e-9, 0.3, 1.0, 1.0, 1e9])
        keys["jitter"] = pick([0.0, 0.0, 0.5, 3.0])
        keys["dropout"] = pick([0.0, 0.0, 0.5])
        keys["availability"] = pick([1.0, 1.0, 0.3])
        keys["bandwidth-mbps"] = pick([0.0, 1e-6, 0.01, 1000.0])
        keys["watts"], keys["joules-per-megabyte"] = pick([(0.0, 0.0), (4.5, 1.2)])
        second *= keys["step-seconds"]
    if keys["algo"] in SPREADS:
        keys["drop-rate"] = pick([0.0, 0.25, 0.33])
    if keys["algo"] in BUFFERED:
        keys["buffer-size"] = 1 + int(draw.integers(slots))
    if keys["algo"] == "asyncdrop-plus":
        keys["wait-limit"], keys["least-saving"] = pick([0.0, 1.0, 8.0]), 0.0
    if draw.random() < 0.4:
        keys["max-seconds"] = second * pick([0.5, 1.0, 2.0, 5.0, 7.3])
    if draw.random() < 0.5:
        keys["lr-milestones"] = f"{second}s,{2.5 * second}s"
    return count, keys


@pytest.mark.parametrize("number", range(200 if NIGHTLY else 20))
def test_any_run_of_any_fleet(number, tmp_path):
    draw = np.random.default_rng(number)
    check(tmp_path, *any_settings(draw, tmp_path / "trace.csv"))


def test_a_round_that_ends_with_the_time_is_done(tmp_path):
    fleet = {"levels": 1, "speed-ratio": 1.0, "in-flight": 4, "algo": "fedavg"}
    assert check(tmp_path, 5, {**fleet, "max-seconds": 6.0}).version == 3


def test_a_rate_decays_for_a_task_that_is_sent_at_the_milestone(tmp_path):
    fleet = {"levels": 2, "speed-ratio": 2.0, "in-flight": 2, "algo": "async-fedavg"}
    found = check(tmp_path, 2, {**fleet, "lr-milestones": "2.0s,4.0s"})
    assert [(task.sent, round(task.lr_factor, 9)) for task in found.tasks[:5]] == [
        *((0.0, 1.0), (0.0, 1.0), (2.0, 0.1), (4.0, 0.01), (4.0, 0.01)),
    ]
