"""Puts a run together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from flwr.serverapp import Grid

from flwr_asyncdrop.checkpoint.keeper import Keeper
from flwr_asyncdrop.checkpoint.saving import Saving
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.clock import Clock, VirtualClock, WallClock
from flwr_asyncdrop.server.evaluation import Evaluator
from flwr_asyncdrop.server.loop import AsyncLoop
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.probe import CapabilityProbe
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.signals import Signals
from flwr_asyncdrop.server.stopping import StoppingRule


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
    session: Run,
    link: Link,
    limits: StoppingRule,
    *,
    evaluators: Sequence[Evaluator],
    callbacks: Sequence[Callback],
    saving: Saving,
    greets: bool = False,
) -> AsyncLoop:
    """Build the loop of a run.

    Parameters
    ----------
    session : Run
        The state of the run, and those who change it.
    link : Link
        The way to the nodes.
    limits : StoppingRule
        When to end.
    evaluators : sequence of Evaluator
        Run after every round.
    callbacks : sequence of Callback
        Told of everything, in this order. A checkpoint knows them by their place.
    saving : Saving
        Whether the run saves itself. If it goes on, all of these do so with it.
    greets : bool
        Whether real devices are asked what they can do, before their first task.

    Raises
    ------
    CheckpointError
        If the checkpoint that it goes on from does not fit.
    """
    under_way = None
    if saving.checkpoints is not None:
        keeper = Keeper(saving.checkpoints, session, evaluators, callbacks)
        if saving.checkpoint is not None:
            under_way = keeper.restore(saving.checkpoint)
        # The first: it saves what the others are at before they end.
        callbacks = [keeper, *callbacks]
    clock: Clock = (
        VirtualClock(link.mailbox, limits.patience)
        if session.simulated
        else WallClock(link.mailbox)
    )
    return AsyncLoop(
        session,
        mailbox=link.mailbox,
        clock=clock,
        limits=limits,
        evaluators=evaluators,
        callbacks=callbacks,
        nodes=link.nodes,
        greeter=CapabilityProbe(link.mailbox, session.dispatcher.fleet, enabled=greets),
        under_way=under_way,
    )
