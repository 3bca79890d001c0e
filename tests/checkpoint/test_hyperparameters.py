"""Hyperparameters of somebody's own algorithm that no checkpoint can have."""

from dataclasses import dataclass
from threading import Lock
from typing import Any

import pytest

from flwr_asyncdrop import AsyncStrategy, Checkpointer
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.exceptions import ConfigError
from tests.grids import HandlerGrid
from tests.runs import mlp, plus_one, record

ITSELF: dict[str, Any] = {}
ITSELF["me"] = ITSELF


@dataclass(frozen=True)
class Mine(Algorithm):
    table: Any = None

    def aggregator(self, in_flight):
        return Mixing(0.5)


@pytest.mark.parametrize(
    ("odd", "why"),
    [(ITSELF, "it contains itself, or has"), ({"lock": Lock()}, "cannot pickle")],
)
def test_the_field_is_named_before_the_run(odd, why, tmp_path):
    strategy = AsyncStrategy(
        algorithm=Mine(table=odd), in_flight=1, checkpointer=Checkpointer(tmp_path)
    )
    with pytest.raises(ConfigError, match=f"^table of Mine cannot be saved .*{why}"):
        strategy.start(HandlerGrid(plus_one), record(mlp().state_dict()))
