"""Sizes of a grid may be NumPy's numbers."""

import numpy as np
import pytest

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import integer_in

APP = "flwr_asyncdrop.client_app:app"


def test_a_grid_takes_them():
    sizes = {"num_nodes": np.int64(3), "threads_per_worker": np.uint8(1)}
    with LocalGrid(APP, workers=np.int32(0), **sizes) as grid:
        assert len(list(grid.get_node_ids())) == 3


@pytest.mark.parametrize("wrong", [np.float64(2), np.array([2]), np.int64(0)])
def test_others_are_refused_as_pythons_are(wrong):
    with pytest.raises(ConfigError, match=r"num_nodes=.* must be an integer"):
        LocalGrid(APP, num_nodes=wrong, workers=0)


@pytest.mark.parametrize("wrong", [-1, 9, np.float32(3), "3", None])
def test_integers_of_an_interval_are_no_other_numbers(wrong):
    assert type(integer_in(0, 8).check("actors", np.int64(8))) is int
    with pytest.raises(ConfigError, match=r"actors=.* must be an integer in \[0, 8\]"):
        integer_in(0, 8).check("actors", wrong)


def test_an_actor_takes_them():
    pytest.importorskip("ray")
    from flwr_asyncdrop.simulation.ray.runner import _quantity

    assert type(_quantity("cpus_per_actor", np.float32(0.5))) is float
