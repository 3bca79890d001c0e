"""Puts the loop of a run together."""

from collections.abc import Sequence

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
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.state_dict import Stateful


def assemble(
    run: Run,
    nodes: Nodes,
    mailbox: Mailbox,
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
        nodes=nodes,
        probe=CapabilityProbe(mailbox, run.fleet, enabled=probes),
        resumed=checkpoint is not None,
    )
