"""Measure a device's way from task to reply: JSON lines first, then a table.

python -m benchmarks.edge
"""

import argparse
import logging

from benchmarks.edge.turnaround import turnaround_figures
from benchmarks.edge.volume import volume_figures
from benchmarks.figures import show
from scripts.flwr_run import end_with_signals


def main() -> None:
    """Measure, and print."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    end_with_signals()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    show({"turnaround": turnaround_figures, "volume": volume_figures})


if __name__ == "__main__":
    main()
