"""What a start is given, the way to its nodes, and the loop that it runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from flwr_asyncdrop.checkpoint import Checkpoint, Checkpointer
from flwr_asyncdrop.server.callbacks import Callback, stateful_parts
from flwr_asyncdrop.server.clock import Clock, VirtualClock, WallClock
from flwr_asyncdrop.server.evaluations import Evaluations
from flwr_asyncdrop.server.evaluator import Evaluator
from flwr_asyncdrop.server.loop import AsyncLoop
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.probe import CapabilityProbe
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.server_evaluator import EvaluateFn
from flwr_asyncdrop.server.signals import Signals
from flwr_asyncdrop.server.steady_grid import SteadyGrid
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.state_dict import Stateful
from flwr_asyncdrop.strategy.train_configs import Config


@dataclass(frozen=True)
class StartArguments:
    """What `AsyncStrategy.start` is given beside the grid."""

    initial_arrays: ArrayRecord
    num_rounds: int
    timeout: float
    train_config: Config
    evaluate_config: Config
    evaluate_fn: EvaluateFn | None


@dataclass(frozen=True)
class Connection:
    """The way to the nodes of a run; a signal ends every wait for nodes and replies."""

    grid: SteadyGrid
    nodes: Nodes
    mailbox: Mailbox
    signals: Signals

    @classmethod
    def to(
        cls, grid: Grid, *, patience: float, insists: bool, packs: bool
    ) -> "Connection":
        """Return the way through a grid; see `SteadyGrid` and `Mailbox`."""
        signals = Signals()
        steady = SteadyGrid.of(
            grid, patience=patience, insists=insists, patiently=signals.at_once
        )
        mailbox = Mailbox(
            steady, check=signals.check, patiently=signals.at_once, packs=packs
        )
        nodes = Nodes(steady, sleep=signals.sleep)
        return cls(steady, nodes, mailbox, signals)


def assemble(
    run: Run,
    connection: Connection,
    stopping: StoppingRule,
    *,
    evaluators: Sequence[Evaluator],
    callbacks: Sequence[Callback],
    checkpointer: Checkpointer | None = None,
    checkpoint: Checkpoint | None = None,
    probes: bool = False,
) -> AsyncLoop:
    """Build the loop of a run, and restore it if there is a checkpoint.

    Callbacks are called in their order. With `probes`, real devices are asked what they
    can do before their first task.
    """
    if checkpointer is not None:
        # First, so that it saves what the others have pending before they end.
        callbacks = [checkpointer, *callbacks]
    evaluations = Evaluations(evaluators, callbacks, stopping)
    if checkpointer is not None:
        parts: dict[str, Stateful] = {
            "run": run,
            "evaluations": evaluations,
            **stateful_parts(callbacks),
        }
        if checkpoint is not None:
            checkpoint.restore(parts)
        checkpointer.attach(parts, run.updates_per_round)
    mailbox = connection.mailbox
    clock: Clock = (
        VirtualClock(mailbox, stopping.patience)
        if run.simulated
        else WallClock(mailbox)
    )
    return AsyncLoop(
        run,
        mailbox=mailbox,
        clock=clock,
        stopping=stopping,
        evaluations=evaluations,
        callbacks=callbacks,
        nodes=connection.nodes,
        probe=CapabilityProbe(mailbox, run.fleet, clock, enabled=probes),
        resumed=checkpoint is not None,
    )
