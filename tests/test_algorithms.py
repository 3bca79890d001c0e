import pytest

from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.algorithms import ALGORITHMS, algorithm
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import RandomMask, SmartPartition
from flwr_asyncdrop.strategy import STRATEGIES


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("async-fedavg", None),
        ("asyncdrop", RandomMask),
        ("hetero-asyncdrop", SmartPartition),
        ("layerwise-asyncdrop", SmartPartition),
    ],
)
def test_the_papers_algorithms(name, mask):
    rules = algorithm(name)
    assert isinstance(rules.aggregator(0.5), Mixing)
    built = None if rules.mask is None else rules.mask(0.25)
    assert built is mask is None or isinstance(built, mask)
    assert (rules.units == "blocks") == (name == "layerwise-asyncdrop")


def test_every_algorithm_has_a_strategy_of_its_name():
    assert STRATEGIES.keys() == ALGORITHMS.keys()
    assert all(cls.algorithm == name for name, cls in STRATEGIES.items())


def test_an_unknown_algorithm_is_refused_with_those_there_are():
    with pytest.raises(ConfigError, match="algo='fedsgd' is not known") as caught:
        algorithm("fedsgd")
    assert all(name in str(caught.value) for name in ALGORITHMS)
    assert "\n" not in str(caught.value)


def test_the_table_cannot_be_changed_by_accident():
    with pytest.raises(TypeError):
        ALGORITHMS["mine"] = ALGORITHMS["asyncdrop"]
