"""Say which keys of a run make no difference to its model, or to its fleet."""

import logging
from collections.abc import Iterator

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.submodel import Plan
from flwr_asyncdrop.submodel.planning import RESIDUAL

logger = logging.getLogger("flwr.asyncdrop")


def warn_of_needless(config: RunConfig, plan: Plan | None) -> None:
    """Warn of each key that was given and changes nothing in this run.

    With another model or fleet it would, so it is no reason to refuse the run.
    """
    lines = [*_of_faults(config), *([] if plan is None else _of_plan(config, plan))]
    for line in lines:
        logger.warning("%s", line)


def _of_faults(config: RunConfig) -> Iterator[str]:
    if config.clock != "virtual" or config.trace or config.jitter:
        return
    if config.is_given("late"):
        yield (
            f"late={config.late!r} makes no difference: without jitter every simulated "
            "task takes as long as is expected of its device"
        )
    if config.is_given("deadline") and config.deadline and not config.dropout:
        yield (
            f"deadline={config.deadline:g} makes no difference: it is a multiple of "
            "what is expected of each device, and without jitter and dropout every "
            "simulated task takes just that"
        )


def _of_plan(config: RunConfig, plan: Plan) -> Iterator[str]:
    model = f"makes no difference to model={config.model!r}"
    if config.scope == "internal" and RESIDUAL not in plan.left_out.values():
        yield (
            f"scope='internal' {model}: no residual stream carries units that can be "
            "dropped"
        )
    if config.scope == "stream" and all(g.kind != "stream" for g in plan.groups):
        yield (
            f"scope='stream' {model}: it has no residual stream under LayerNorm or "
            "RMSNorm"
        )
    largest = max(group.size for group in plan.groups)
    multiple = config.hyperparameters.get("round_to")
    if isinstance(multiple, int) and multiple > largest:
        yield (
            f"round-to={multiple} {model}: its layers have at most {largest} units "
            "that can be dropped"
        )
