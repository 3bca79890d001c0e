"""The named strategies by the name of their algorithm."""

from flwr_asyncdrop.strategy import named
from flwr_asyncdrop.strategy.async_strategy import AsyncStrategy

STRATEGIES = {
    cls.algorithm_type.name: cls
    for cls in vars(named).values()
    if isinstance(cls, type) and issubclass(cls, AsyncStrategy) and cls.algorithm_type
}
