"""The lines of a history, without ``wall`` and metrics, from what has happened."""

from collections.abc import Mapping
from typing import Any

from flwr_asyncdrop.observers.outcomes import Outcome
from flwr_asyncdrop.server.callbacks import Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState

Record = dict[str, Any]
"""One line of a history."""

TRACE_DIGEST = "trace-sha256"
"""What configs that are saved have beside the name of a trace: it is no key."""


def update_line(state: RunState, merged: Merged) -> Record:
    """Return the line of a reply that has been merged."""
    order = merged.order
    return {
        "event": "update",
        "update": state.updates,
        "round": merged.round,
        "time": state.time,
        "device": order.device,
        "rank": order.rank,
        "dispatched_at": order.timing.dispatched_at,
        "staleness": merged.staleness,
        "version": state.version,
        "bytes_down": order.cost.bytes_down,
        "bytes_up": merged.reply.num_bytes,
        "compute": order.cost.compute,
        "in_flight": len(state.in_flight),
        **({} if order.part.work is None else {"work": order.part.work}),
        **({"codec": order.coding.name} if order.coding.name else {}),
        **({"late": True} if merged.late else {}),
        **({"queued": merged.queued} if merged.queued else {}),
    }


def step_line(state: RunState) -> Record:
    """Return the line of a step of which the aggregator says something."""
    return {
        "event": "step",
        "version": state.version,
        "update": state.updates,
        "time": state.time,
    }


def failure_line(state: RunState, order: Order, kind: str, reason: str) -> Record:
    """Return the line of a task that was lost."""
    return {
        "event": "failure",
        "time": state.time,
        "device": order.device,
        "rank": order.rank,
        "dispatched_at": order.timing.dispatched_at,
        "kind": kind,
        "reason": reason,
    }


def due_line(state: RunState, source: str, number: int) -> Record:
    """Return the beginning of the line of an evaluation that was asked for."""
    return {
        "event": "evaluation",
        "source": source,
        "round": number,
        "update": state.updates,
        **_totals(state),
    }


def config_line(before: object, now: object) -> Record:
    """Return the line of what a run resumes with that it did not begin with, if any."""
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return {}
    changed = {
        key: now[key] for key in now if key in before and before[key] != now[key]
    }
    return {"event": "config", "config": changed} if changed else {}


def end_line(state: RunState, outcome: Outcome) -> Record:
    """Return the last line."""
    ended = "error" if outcome == "failed" else state.ended
    return {
        "event": "end",
        "updates": state.updates,
        **_totals(state),
        "failures": state.failures,
        **({"duplicates": state.duplicates} if state.duplicates else {}),
        **({"ended": ended} if ended else {}),
    }


def _totals(state: RunState) -> Record:
    joules = {} if state.joules is None else {"joules": state.joules}
    return {
        "time": state.time,
        "bytes_down": state.bytes_down,
        "bytes_up": state.bytes_up,
        **joules,
    }
