"""Say which keys of submodels make no difference to the model of a run."""

import logging
from collections.abc import Iterator

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.submodel import Plan
from flwr_asyncdrop.submodel.planning import RESIDUAL

logger = logging.getLogger("flwr.asyncdrop")


def warn_of_needless(config: RunConfig, plan: Plan | None) -> None:
    """Warn of each key that was given and leaves the submodels of a plan as they are.

    Another model may need it, so it is no reason to refuse the run.
    """
    if plan is not None:
        for line in _needless(config, plan):
            logger.warning("%s makes no difference to model=%r: %s", *line)


def _needless(config: RunConfig, plan: Plan) -> Iterator[tuple[str, str, str]]:
    kinds = {group.kind for group in plan.groups}
    if config.scope == "internal" and RESIDUAL not in plan.left_out.values():
        reason = "no residual stream carries units that can be dropped"
        yield "scope='internal'", config.model, reason
    if config.scope == "stream" and "stream" not in kinds:
        reason = "it has no residual stream under LayerNorm or RMSNorm"
        yield "scope='stream'", config.model, reason
    largest = max(group.size for group in plan.groups)
    multiple = config.hyperparameters.get("round_to")
    if isinstance(multiple, int) and multiple > largest:
        reason = f"its layers have at most {largest} units that can be dropped"
        yield f"round-to={multiple}", config.model, reason
