"""Run every benchmark that has a goal: a JSON line a figure, and a table at the end."""

import argparse
import logging
from functools import partial
from pathlib import Path

from benchmarks.codec import codec_figures
from benchmarks.crowd import crowd_figures
from benchmarks.engine import engine_figures
from benchmarks.figures import show
from benchmarks.inflight import inflight_figures
from benchmarks.large import large_figures
from benchmarks.loop import loop_figures
from benchmarks.merge import merge_figures
from benchmarks.monitoring import monitoring_figures
from benchmarks.planning import planning_figures
from benchmarks.ray_runner import ray_figures
from benchmarks.reports import report_figures
from benchmarks.scale import scale_figures
from benchmarks.simulation import DATA_DIR_HELP, simulation_figures
from benchmarks.submodel import submodel_figures
from benchmarks.zoo import zoo_figures
from scripts.flwr_run import end_with_signals


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help=DATA_DIR_HELP)
    arguments = parser.parse_args()
    end_with_signals()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    show(
        {
            "merge": merge_figures,
            "submodel": submodel_figures,
            "codec": codec_figures,
            "planning": planning_figures,
            "zoo": zoo_figures,
            "loop": loop_figures,
            "large": large_figures,
            "inflight": inflight_figures,
            "scale": scale_figures,
            "monitoring": monitoring_figures,
            "reports": report_figures,
            "engine": engine_figures,
            "ray": ray_figures,
            "crowd": crowd_figures,
            "simulation": partial(simulation_figures, arguments.data_dir),
        }
    )


if __name__ == "__main__":
    main()
