import math

import pytest

from flwr_asyncdrop.readable import (
    byte_unit,
    headline,
    lower_is_better,
    readable_bytes,
)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"loss": 0.5, "accuracy": 0.9}, ("accuracy", 0.9)),
        ({"loss": 0.5, "f1": 0.9}, ("loss", 0.5)),
        ({"per-class": [0.1, 0.9], "name": "x", "f1": 1}, ("f1", 1.0)),
        ({"accuracy": math.nan, "loss": 0.5}, ("loss", 0.5)),
        ({"per-class": [0.1, 0.9]}, None),
        ({}, None),
    ],
)
def test_headline_is_the_accuracy_or_the_first_finite_number(metrics, expected):
    assert headline(metrics) == expected


def test_losses_fall_and_accuracies_rise():
    falls = ["loss", "val_loss", "eval-Loss", "top1_error", "perplexity"]
    assert all(lower_is_better(name) for name in falls)
    assert not any(lower_is_better(name) for name in ["accuracy", "f1", "lossless"])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0.00 kB"),
        (512, "0.51 kB"),
        (1_234, "1.23 kB"),
        (12_345_678, "12.3 MB"),
        (999_400_000, "999 MB"),
        (1_000_000_000, "1.00 GB"),
        (1_234_567_000_000, "1.23 TB"),
        (1_234_567_000_000_000, "1,235 TB"),
    ],
)
def test_bytes_have_three_digits_and_a_unit(count, text):
    assert readable_bytes(count) == text


def test_unit_fits_the_largest_number():
    assert byte_unit(999_999) == ("kB", 1_000)
    assert byte_unit(1_000_000) == ("MB", 1_000_000)
