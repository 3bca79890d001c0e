"""What runs did before there were some of the keys."""

from flwr_asyncdrop.algorithms import AsyncDropPlus
from flwr_asyncdrop.app.config.keys import Value
from flwr_asyncdrop.app.config.run_config import RunConfig


def earlier_values(config: RunConfig) -> dict[str, Value]:
    """Return the values of keys that a run of this algorithm may be too old to have.

    They are the defaults of today, but for `waits`: up to version 0.2.0 the devices of
    asyncdrop-plus did not wait.
    """
    plus = isinstance(config.algorithm, AsyncDropPlus)
    return {**RunConfig().settings, **({"waits": False} if plus else {})}
