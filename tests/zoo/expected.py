"""What is known of each entry: the share that can be dropped, or why none can.

``python -m tests.zoo.expected`` measures all entries again, or those that are named,
and writes `expected.json`. Shares may rise without that; what was refused and is not
any longer has to be written down.
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path

import torch

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import Plan, droppable_share, plan_submodels
from tests.zoo.catalogue import ZOO
from tests.zoo.entries import Entry
from tests.zoo.passes import Arguments

__all__ = ["EXPECTED", "plan_of", "reasons"]

_FILE = Path(__file__).with_name("expected.json")

EXPECTED: dict[str, float | list[str]] = json.loads(_FILE.read_text(encoding="utf-8"))
"""Entry -> the least share of elements at a droppable unit, or the reasons for none."""

# Which module it is differs from reason to reason, what is wrong with it does not.
_REASON = re.compile(
    "used by [\\w.:]+, for which there is no rule"
    "|goes into a loss"
    "|(?:combined with|meets) positions (?:that are )?always kept"
    "|a Python value was read from the data"
    "|normalised together"
    "|reduced over"
    "|a narrower model does not run"
    "|cannot be copied"
    "|does not run on the example inputs"
    "|cannot be traced"
    "|not interchangeable"
    "|divided by a spectral norm"
)


def plan_of(entry: Entry, model: torch.nn.Module) -> Plan:
    """Plan the submodels of an entry's model from one example."""
    given: Arguments = entry.example(1)
    if not given.args:
        return plan_submodels(model, given.kwargs)
    return plan_submodels(model, given.args, example_kwargs=given.kwargs)


def reasons(error: UnsupportedModelError) -> list[str]:
    """Return why nothing can be dropped, without the modules' names."""
    return sorted(set(_REASON.findall(str(error))))


def measure(name: str) -> float | list[str]:
    """Return what is to be expected of an entry."""
    entry = ZOO[name]
    try:
        plan = plan_of(entry, entry.model().eval())
    except UnsupportedModelError as error:
        return reasons(error)
    return int(droppable_share(plan) * 1000) / 1000  # rounded down


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, show what has changed, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="entry")
    torch.set_num_threads(1)
    for name in parser.parse_args(argv).names or ZOO:
        before, EXPECTED[name] = EXPECTED.get(name), measure(name)
        if before != EXPECTED[name]:
            print(f"{name}: {before} -> {EXPECTED[name]}", flush=True)
        known = {name: EXPECTED[name] for name in ZOO if name in EXPECTED}
        _FILE.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
