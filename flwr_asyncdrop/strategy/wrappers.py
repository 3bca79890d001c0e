"""Flower's strategies around one of ours, of which some fit whole models only."""

import logging
import math
from dataclasses import replace
from inspect import currentframe
from traceback import walk_stack

import torch
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState

logger = logging.getLogger("flwr.asyncdrop")

# They subtract the model of the round from the arrays of each reply.
_SUBTRACT = (
    DifferentialPrivacyServerSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
)
# Their mods clip on the devices, before a codec codes what is left.
_CLIP = (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyClientSideAdaptiveClipping,
)


def check_wrapper(state: RunState) -> None:
    """Raise ConfigError if the caller's wrapper cannot read the replies of a round.

    It is called from a hook that the wrapper has called; the round's orders are made.
    """
    wrapper = _wrapper_of(_SUBTRACT)
    if wrapper is not None and (why := _unlike_the_model(state)):
        name = type(wrapper).__name__
        raise ConfigError(
            f"{name} subtracts the whole model from each reply, and {why}: wrap the "
            f"strategy in {name.replace('Server', 'Client')}, whose mod clips on the "
            "devices (docs/robustness.md)"
        )


def warn_of_codes(strategy: Strategy, state: RunState) -> None:
    """Warn if a user's wrapper gets the replies of a round before they are decoded.

    It calls `configure_train`, as in `check_wrapper`, and Flower's loop gives it what
    the grid has. Many a wrapper reads no arrays: what is coded cannot be read.
    """
    if not any(order.coding.up for order in state.in_flight.values()):
        return
    for frame, _ in walk_stack(currentframe()):  # None skips some, by the version
        caller = frame.f_locals.get("self", strategy)
        hook = getattr(type(caller), "aggregate_train", None)
        if frame.f_code.co_name != "configure_train" or caller is strategy:
            continue
        if hook is not None and not hook.__module__.startswith("flwr."):
            logger.warning(
                "%s wraps a strategy with a codec, and its aggregate_train gets the "
                "replies as they came: it cannot read coded arrays. A subclass of %s "
                "gets them decoded (docs/compression.md#hooks-and-wrappers)",
                type(caller).__name__,
                type(strategy).__name__,
            )


def clipping_norm() -> float:
    """Return how long a change may be for the noise of the caller's wrapper.

    Infinity if there is none whose mods clip on the devices.
    """
    wrapper = _wrapper_of(_CLIP)
    return math.inf if wrapper is None else float(vars(wrapper)["clipping_norm"])


@torch.no_grad()
def within_norm(reply: wire.Reply, order: Order, norm: float) -> wire.Reply:
    """Return a reply whose change is at most `norm` long, if a codec has coded it.

    Rounding makes a change longer than the device's mod has clipped it to, and what a
    codec with feedback owes of others comes on top. What counts is what the mod clips:
    also running statistics, and nothing without dims.
    """
    if norm == math.inf or not order.coding.up:
        return reply
    sent = order.part.weights
    changes = {
        name: tensor.double() - sent[name].double()
        for name, tensor in reply.arrays.items()
        if tensor.is_floating_point() and tensor.dim()
    }
    length = math.sqrt(sum(float(each.square().sum()) for each in changes.values()))
    if length <= norm:
        return reply
    clipped = {
        name: (sent[name].double() + change * (norm / length)).to(sent[name].dtype)
        for name, change in changes.items()
    }
    return replace(reply, arrays={**reply.arrays, **clipped})


def _wrapper_of(kinds: tuple[type[Strategy], ...]) -> Strategy | None:
    """Return the wrapper of these kinds whose hook calls one of ours.

    A wrapper of a user's may be between the two.
    """
    hooks = ("configure_train", "aggregate_train")
    return next(
        (
            caller
            for frame, _ in walk_stack(None)
            if frame.f_code.co_name in hooks
            and isinstance(caller := frame.f_locals.get("self"), kinds)
        ),
        None,
    )


def _unlike_the_model(state: RunState) -> str:
    """Return in what the replies of a round will differ from whole models."""
    orders = list(state.in_flight.values())
    if any(order.part.indices for order in orders):
        return "these are of submodels"
    if state.frozen.tensors:
        return "these leave out what does not train"
    if any(order.coding.name for order in orders):
        return "the codec codes these"
    return ""
