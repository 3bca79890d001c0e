"""Runs of the event loop on a `HandlerGrid`, for tests of the server room."""

import math
from collections import Counter
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from torch import nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import OUTLIER_FACTOR, Mixing
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.fleet.selection import Stratified
from flwr_asyncdrop.server.assignment import Assignment
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.clock import VirtualClock, WallClock
from flwr_asyncdrop.server.dispatch import DispatchRules
from flwr_asyncdrop.server.evaluations import Evaluations
from flwr_asyncdrop.server.loop import AsyncLoop
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.opening import open_run
from flwr_asyncdrop.server.probe import CapabilityProbe
from flwr_asyncdrop.server.schedule import StepDecay
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.steady_grid import SteadyGrid
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.server.train_settings import TrainSettings

KEYS = wire.RecordKeys()


def answer(message, state, **metrics):
    """Reply to a task with these tensors."""
    content = RecordDict(
        {
            "arrays": wire.to_record(state),
            "metrics": MetricRecord({"num-examples": 1, **metrics}),
        }
    )
    return Message(content, reply_to=message)


def plus_one(message):
    """Train: add one to every weight."""
    state = wire.from_record(message.content["arrays"])
    return answer(message, {name: tensor + 1 for name, tensor in state.items()})


def failing(message, reason="it raised"):
    return Message(Error(code=3, reason=reason), reply_to=message)


def mlp(seed=0, dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
        return nn.Sequential(*layers).to(dtype)


class Added(nn.Module):
    """A residual block: a layer that adds to its input."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return x + self.layer(x).tanh()


def residual_mlp(seed=0):
    """Five residual blocks between two layers; it takes and gives what `mlp` does."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        blocks = (Added(6) for _ in range(5))
        return nn.Sequential(nn.Linear(4, 6), *blocks, nn.Linear(6, 3))


class Recorder(Callback):
    """Notes what happens, and checks what must hold at any moment."""

    def __init__(self, slots=None, tasks_each=1):
        self.slots = slots
        self.tasks_each = tasks_each
        self.orders, self.merged, self.failures = [], [], []
        self.rounds, self.evaluations, self.due = [], [], []
        self.weights, self.times, self.ends = [], [], []
        self.ended = 0

    def on_dispatch(self, state, order):
        self.orders.append(order)
        taken = (*state.in_flight.values(), *state.late.values(), *state.waiting)
        tasks = Counter(order.device for order in taken)
        assert max(tasks.values()) <= self.tasks_each, "too many tasks on one device"
        most = self.slots and self.slots * self.tasks_each
        assert most is None or len(state.in_flight) <= most

    def on_update(self, state, merged):
        self.merged.append(merged)
        self.times.append(state.time)
        self.ends.append((state.time, merged.order.device, "merged"))
        first = next(iter(state.arrays.values()))
        self.weights.append(first.flatten()[0].item())

    def on_failure(self, state, order, kind, reason):
        self.failures.append((order.device, kind, reason))
        self.ends.append((state.time, order.device, kind))

    def on_round(self, state, number):
        self.rounds.append((number, state.updates))

    def on_evaluation_due(self, state, source, number):
        self.due.append((source, number))

    def on_evaluation(self, state, evaluation):
        self.evaluations.append(evaluation)

    def on_end(self, state):
        self.ended += 1

    def history(self):
        """Return all that makes one run differ from another."""
        return [
            (
                merged.order.device,
                merged.order.base_version,
                merged.order.timing.dispatched_at,
                merged.staleness,
                merged.round,
                time,
                {name: t.tolist() for name, t in merged.reply.arrays.items()},
            )
            for merged, time in zip(self.merged, self.times, strict=True)
        ]


@dataclass
class Run:
    """One run of the loop; every part can be replaced before `go`."""

    grid: object
    seconds: tuple[float, ...] | None = None  # of a virtual fleet; None = wall clock
    profiles: tuple[DeviceProfile, ...] = ()  # of one that has more to it than speed
    in_flight: int = 2
    rounds: int = 3
    alpha: float = 0.5
    build_aggregator: object = None  # from the cohort; None = mixing with alpha
    patience: float = 100.0
    outlier_factor: float = OUTLIER_FACTOR
    arrays: dict = field(default_factory=lambda: {"w": torch.zeros(2)})
    config: dict = field(default_factory=dict)
    schedule: StepDecay = field(default_factory=StepDecay)
    faults: FaultPolicy = field(default_factory=FaultPolicy)
    assignment: object = field(default_factory=Assignment)
    probes: bool = False
    queue_ahead: int = 0
    seed: int = 0
    evaluators: tuple = ()
    evaluate_every: int = 1
    max_seconds: float = math.inf
    callbacks: tuple = ()
    saved: dict | None = None  # of the run that this one resumes

    def __post_init__(self):
        time = {"timer": self.grid.timer, "sleep": self.grid.sleep}
        grid = SteadyGrid.of(self.grid, patience=self.patience, **time)
        self.mailbox, self.nodes = Mailbox(grid, **time), Nodes(grid, **time)
        self.recorder = Recorder(self.in_flight, 1 + self.queue_ahead)
        if self.seconds:
            self.profiles = tuple(DeviceProfile(s) for s in self.seconds)

    @property
    def state(self):
        return self.run.state

    def open(self):
        profiles = self.profiles
        settings = TrainSettings(self.config, self.schedule, KEYS, ttl=self.patience)
        self.run = open_run(
            RunState.start_from(self.arrays, self.seed),
            self.nodes.ids(),
            DispatchRules(
                Stratified(), self.assignment, settings, self.faults, self.queue_ahead
            ),
            in_flight=self.in_flight,
            build_fleet=(lambda count: profiles[:count]) if profiles else None,
            build_aggregator=self.build_aggregator or (lambda _: Mixing(self.alpha)),
            outlier_factor=self.outlier_factor,
            saved=self.saved,
        )
        if self.saved is not None:
            self.run.load_state_dict(self.saved)
        return self.run

    def go(self):
        run = self.open()
        clock = (
            VirtualClock(self.mailbox, self.patience)
            if self.profiles
            else WallClock(self.mailbox, self.grid.timer)
        )
        stopping = StoppingRule(
            self.rounds,
            run.updates_per_round,
            run.slots,
            self.patience,
            self.evaluate_every,
            self.max_seconds,
        )
        callbacks = [self.recorder, *self.callbacks]
        AsyncLoop(
            run,
            mailbox=self.mailbox,
            clock=clock,
            stopping=stopping,
            evaluations=Evaluations(self.evaluators, callbacks, stopping),
            callbacks=callbacks,
            nodes=self.nodes,
            probe=CapabilityProbe(
                self.mailbox,
                run.fleet,
                clock,
                enabled=self.probes,
                timer=self.grid.timer,
            ),
            resumed=self.saved is not None,
        ).run()
        return self


def record(state):
    return ArrayRecord(dict(state))
