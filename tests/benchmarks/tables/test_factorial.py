"""Effects of parts, by hand."""

from itertools import product

from benchmarks.tables.factorial import factorial
from tests.report.histories import series


def run(submodels, memory, loss, average, seed):
    """Return accuracies after 10, 20, 30 and 40 s.

    Submodels are worth 4 points, the average loses 1 to 5 by seed. With memory a run
    arrives after 10 s, else after 30 s; without the loss and memory never.
    """
    end = 0.80 + 0.04 * submodels - 0.01 * (seed + 1) * average
    if not memory and not loss:
        return [0.1, 0.1, 0.1, 0.7 + (end - 0.80)]
    return [0.76 if memory else 0.1, 0.1, 0.76, end]


def label(submodels, memory, loss, average):
    return (
        f"asyncdrop-plus,drop-rate={0.25 * submodels},group-memory="
        f"{str(bool(memory)).lower()},logit-adjustment={float(loss)},"
        f"averaging={0.8 * average}"
    )


def test_the_effects_are_means_over_all_that_else_is_the_same():
    cells = [
        series(label(*cell), {seed: run(*cell, seed) for seed in range(5)})
        for cell in product((0, 1), repeat=4)
    ]
    lines = list(factorial(cells))
    effects = {line.split(" | ")[0][2:]: line.split(" | ")[1:] for line in lines[2:6]}
    assert effects["submodels"] == ["+4.0 [+4.0, +4.0]\\*", "1.00x [1.00, 1.00] |"]
    assert effects["average"][0].startswith("-3.0 [")
    assert effects["average"][0].endswith("]\\*")
    # 10 s with it; without, 30 s in one half and, never, 40 s in the other.
    assert effects["memory"][1] == "0.29x [0.29, 0.29]\\* |"
    # With it (10 + 30) / 2, without (10 + 40) / 2.
    assert effects["loss"][1] == "0.80x [0.80, 0.80]\\* |"
    assert lines[9] == "| on | on | on | on | 81.0 | 10 |"
    assert lines[-1] == "|  |  |  |  | 70.0 | – |"
