import argparse

import pytest

from flwr_asyncdrop.cli.lists import names, seeds, values


def test_names_are_parted_by_commas():
    assert names("fedavg, asyncdrop,") == ["fedavg", "asyncdrop"]


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", [0]), ("0,1,5", [0, 1, 5]), ("0-2", [0, 1, 2]), ("7,3-4", [7, 3, 4])],
)
def test_seeds_are_numbers_and_ranges(text, numbers):
    assert seeds(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "2-1", "1.5"])
def test_what_is_no_seed_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        seeds(text)


def test_a_key_varies_over_values_of_its_type():
    assert values("drop-rate=0,0.5") == ("drop-rate", [0.0, 0.5])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("drop-rate", "must be a key and its values"),
        ("drop-rate=", "must be a key and its values"),
        ("drop-rat=0.5", "did you mean 'drop-rate'"),
        ("drop-rate=much", "must be a number"),
        ("algo=asyncdrop", "algo varies by --algos"),
        ("seed=1,2", "seed varies by --seeds"),
    ],
)
def test_what_cannot_vary_is_refused(text, says):
    with pytest.raises(argparse.ArgumentTypeError, match=says):
        values(text)
