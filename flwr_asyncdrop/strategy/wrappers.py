"""Flower's strategies around one of ours, of which some fit whole models only."""

from traceback import walk_stack

from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.server.state import RunState

# They subtract the model of the round from the arrays of each reply.
_SUBTRACT = (
    DifferentialPrivacyServerSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
)


def check_wrapper(strategy: Strategy, state: RunState) -> None:
    """Raise ConfigError if the caller's wrapper cannot read the replies of a round.

    It is called from a hook that the wrapper has called; the round's orders are made.
    """
    name = next(
        (
            type(caller).__name__
            for frame, _ in walk_stack(None)
            if isinstance(caller := frame.f_locals.get("self"), _SUBTRACT)
            and caller.strategy is strategy
        ),
        "",
    )
    if name and (why := _unlike_the_model(state)):
        raise ConfigError(
            f"{name} subtracts the whole model from each reply, and {why}: wrap the "
            f"strategy in {name.replace('Server', 'Client')}, whose mod clips on the "
            "devices (docs/robustness.md)"
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
