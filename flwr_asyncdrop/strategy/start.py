"""Puts a run together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from flwr.serverapp import Grid

from flwr_asyncdrop.checkpoint import Checkpoint, Checkpointer
from flwr_asyncdrop.server.callbacks import Callback, stateful_parts
from flwr_asyncdrop.server.clock import Clock, VirtualClock, WallClock
from flwr_asyncdrop.server.evaluation import Evaluator
from flwr_asyncdrop.server.evaluations import Evaluations
from flwr_asyncdrop.server.loop import AsyncLoop
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.probe import CapabilityProbe
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.signals import Signals
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.state_dict import Stateful


@dataclass(frozen=True)
class Link:
    """The way to the nodes; a signal ends every wait on it.

    Attributes
    ----------
    signals : Signals
        Ctrl-C and SIGTERM; who runs the loop enters it.
    nodes : Nodes
        Which nodes are connected.
    mailbox : Mailbox
        Messages to them and back.
    """

    signals: Signals
    nodes: Nodes
    mailbox: Mailbox

    @classmethod
    def over(cls, grid: Grid) -> Self:
        """Reach the nodes over Flower's grid."""
        signals = Signals()
        return cls(
            signals,
            Nodes(grid, sleep=signals.sleep),
            Mailbox(grid, check=signals.check, patiently=signals.at_once),
        )


def assemble(
    run: Run,
    link: Link,
    stopping: StoppingRule,
    *,
    evaluators: Sequence[Evaluator],
    callbacks: Sequence[Callback],
    checkpointer: Checkpointer | None = None,
    checkpoint: Checkpoint | None = None,
    probes: bool = False,
) -> AsyncLoop:
    """Build the loop of a run, and restore it if there is a checkpoint.

    Parameters
    ----------
    callbacks : sequence of Callback
        Called at every event, in this order.
    probes : bool
        Whether real devices are asked what they can do, before their first task.

    Raises
    ------
    CheckpointError
        If the checkpoint does not fit.
    """
    if checkpointer is not None:
        # The first: it saves what the others have pending before they end.
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
    clock: Clock = (
        VirtualClock(link.mailbox, stopping.patience)
        if run.simulated
        else WallClock(link.mailbox)
    )
    return AsyncLoop(
        run,
        mailbox=link.mailbox,
        clock=clock,
        stopping=stopping,
        evaluations=evaluations,
        callbacks=callbacks,
        nodes=link.nodes,
        probe=CapabilityProbe(link.mailbox, run.fleet, enabled=probes),
        resumed=checkpoint is not None,
    )
