"""The ready app: run-config, data, models, training.

What an own data set and an own model are made of is exported here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr_asyncdrop.app.data.dataset import Dataset, Normalise
    from flwr_asyncdrop.app.learning import (
        Classification,
        LearningTask,
        NextToken,
        Regression,
    )

__all__ = [
    "Classification",
    "Dataset",
    "LearningTask",
    "NextToken",
    "Normalise",
    "Regression",
]


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first asked for: torch takes a second."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    in_data = name in ("Dataset", "Normalise")
    module = f"{__name__}.{'data.dataset' if in_data else 'learning'}"
    return getattr(import_module(module), name)
