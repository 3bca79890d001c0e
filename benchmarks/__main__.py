"""Run every benchmark that has a goal: JSON lines first, then a table."""

import argparse
import logging
import platform
from pathlib import Path

import torch

from benchmarks.crowd import crowd_figures
from benchmarks.engine import engine_figures
from benchmarks.figures import print_json, print_table
from benchmarks.loop import loop_figures
from benchmarks.merge import merge_figures
from benchmarks.monitoring import monitoring_figures
from benchmarks.simulation import DATA_DIR_HELP, simulation_figures
from benchmarks.submodel import submodel_figures
from benchmarks.zoo import zoo_figures


def main() -> None:
    """Measure, print, and say on what machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help=DATA_DIR_HELP)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    figures = [
        *merge_figures(),
        *submodel_figures(),
        *zoo_figures(),
        *loop_figures(),
        *monitoring_figures(),
        *engine_figures(),
        *crowd_figures(),
        *simulation_figures(arguments.data_dir),
    ]
    print_json(figures)
    print_table(figures)
    print(
        f"\n{platform.machine()}, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, Python {platform.python_version()}"
    )


if __name__ == "__main__":
    main()
