"""What runs did before there were some of the keys."""

from flwr_asyncdrop.algorithms import AsyncDropPlus
from flwr_asyncdrop.app.config.keys import Value
from flwr_asyncdrop.app.config.run_config import RunConfig


def earlier_values(config: RunConfig) -> dict[str, Value]:
    """Return the values of keys that a run of this algorithm may be too old to have.

    They are the defaults of today, but for asyncdrop-plus: up to version 0.2.0 its
    devices did not wait, its memory did not adapt, staleness did not count, and it sent
    submodels whatever they save.
    """
    plus = isinstance(config.algorithm, AsyncDropPlus)
    earlier: dict[str, Value] = {
        "waits": False,
        "adaptive-memory": False,
        "adaptive-staleness": False,
        "least-saving": 0.0,
    }
    return {**RunConfig().settings, **(earlier if plus else {})}
