import argparse
import shlex
from pathlib import Path

import pytest

from flwr_asyncdrop.app.config import LEFT_OUT, RunConfig
from flwr_asyncdrop.cli import simulate
from flwr_asyncdrop.cli.flags import TASK_DEFAULTS, given
from flwr_asyncdrop.cli.presets import PRESETS
from flwr_asyncdrop.cli.variants import preset_settings
from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.provenance import what_made
from tests.report.histories import series


@pytest.mark.parametrize(
    "changed",
    [
        {"algo": "fedavg", "lr-milestones": "", "local-steps": 3},
        {"algo": "hetero-asyncdrop", "drop-rate": 0.5, "scale": False},
        {"algo": "asyncdrop-plus", "group-memory": True, "lr-milestones": "10s,20s"},
    ],
)
def test_the_command_on_a_page_has_the_configuration_of_the_run(changed):
    config = RunConfig.parse({**changed, "seed": 7}).settings
    recorded = config.keys() - LEFT_OUT - {"seed"}
    told = {key: config[key] for key in config if key in recorded}
    one = series("a b", {7: [0.5]}, **told)
    command, _ = what_made([one], compare([one], 0.5), ["x"]).commands
    start, end = "for seed in 7; do asyncdrop simulate ", "; done"
    assert command.startswith(start)
    assert command.endswith(end)
    body = command.removeprefix(start).removesuffix(end).replace('"$seed"', "7")
    words = shlex.split(body)

    parser = argparse.ArgumentParser()
    simulate.add_arguments(parser, words)
    arguments = parser.parse_args(words)
    assert arguments.task is None
    preset = PRESETS[TASK_DEFAULTS["task"]]
    read = RunConfig.parse(preset_settings(preset, given(arguments)))
    assert arguments.devices == 8
    assert read.settings == {
        **config,
        "out-dir": str(Path("again/a b/seed-7").absolute()),
    }
