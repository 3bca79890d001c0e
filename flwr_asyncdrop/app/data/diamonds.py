"""The diamonds of ggplot2: 53,940 stones, and how well each is cut.

A CSV file with a line of names. Further columns, such as row numbers, are not read.
"""

import csv
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.app.data.digits import stratified_split
from flwr_asyncdrop.app.data.files import Arrays, damaged, read_file
from flwr_asyncdrop.readable import one_line

FILES = ("diamonds.csv",)
NUMBERS = ("carat", "depth", "table", "price", "x", "y", "z")
COLOURS = ("D", "E", "F", "G", "H", "I", "J")
CLARITIES = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")
CUTS = ("Fair", "Good", "Very Good", "Premium", "Ideal")
"""The classes, in this order."""

SAMPLES = 43_153, 10_787
"""Stones for training, and for testing."""

FEATURES = len(NUMBERS) + len(COLOURS) + len(CLARITIES)


def read_diamonds(folder: Path) -> Arrays:
    """Read ``diamonds.csv``, a fixed fifth of each class for testing.

    Inputs are float32: the numbers, of zero mean and unit variance over the training
    rows, and ones at the colour and the clarity.
    """
    (name,) = FILES
    try:
        lines = read_file(folder, name).decode("utf-8-sig").splitlines()
        rows = [_row(fields) for fields in csv.DictReader(lines)]
        labels = np.array([label for _, label in rows], np.int64)
        values = np.array([features for features, _ in rows], np.float64)
        train, test = stratified_split(labels, 0.2, np.random.default_rng(0))
        values = _standardised(values, train).astype(np.float32)
        return Arrays(values[train], labels[train], values[test], labels[test])
    # The encoding, the CSV, a column that is missing, or a value.
    except (ValueError, KeyError, TypeError, IndexError, csv.Error) as error:
        raise damaged(folder / name, one_line(error)) from error


def _row(fields: dict[str, str]) -> tuple[list[float], int]:
    numbers = [float(fields[name]) for name in NUMBERS]
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"a row has the numbers {numbers}")
    colour, clarity = fields["color"], fields["clarity"]
    kinds = [*_one_hot(colour, COLOURS), *_one_hot(clarity, CLARITIES)]
    return [*numbers, *kinds], CUTS.index(fields["cut"])


def _one_hot(value: str, choices: tuple[str, ...]) -> list[float]:
    place = choices.index(value)
    return [float(k == place) for k in range(len(choices))]


def _standardised(
    values: NDArray[np.float64], train: NDArray[np.int64]
) -> NDArray[np.float64]:
    numbers = values[:, : len(NUMBERS)]
    deviation = numbers[train].std(axis=0)
    deviation[deviation == 0] = 1
    scaled = (numbers - numbers[train].mean(axis=0)) / deviation
    return np.concatenate([scaled, values[:, len(NUMBERS) :]], axis=1)
