"""The package and its command line start without what only some uses need."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import flwr_asyncdrop
from flwr_asyncdrop.exceptions import AsyncDropError, MissingExtraError
from flwr_asyncdrop.extras import require
from tests.nightly import nightly

INIT = Path(flwr_asyncdrop.__file__)
HEAVY = ("torch", "ray", "matplotlib", "sklearn", "PIL", "torchvision")

MEASURE = """
import json, resource, sys
{code}
used = resource.getrusage(resource.RUSAGE_SELF)
seconds = used.ru_utime + used.ru_stime
print(json.dumps([seconds, [name for name in sys.modules if "." not in name]]))
"""
HELP = """
import contextlib, io
from flwr_asyncdrop.cli.main import main
with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
    main(["--help"])
assert "simulate" in text.getvalue()
"""


def measured(code: str) -> tuple[float, set[str]]:
    """Return the least CPU seconds of three processes, and what was imported."""
    command = [sys.executable, "-c", MEASURE.format(code=code)]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(3)
    ]
    return min(seconds for seconds, _ in runs), set(runs[0][1])


def test_the_package_imports_nothing_heavy():
    seconds, modules = measured("import flwr_asyncdrop")
    assert modules.isdisjoint({*HEAVY, "rich", "flwr"})
    assert seconds <= 0.6


def test_help_imports_nothing_heavy():
    seconds, modules = measured(HELP)
    assert modules.isdisjoint({*HEAVY, "rich"})
    assert seconds <= 1


def test_every_public_name_is_there_and_is_listed():
    assert set(flwr_asyncdrop.__all__) <= set(dir(flwr_asyncdrop))
    for name in flwr_asyncdrop.__all__:
        assert getattr(flwr_asyncdrop, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        flwr_asyncdrop.nothing  # noqa: B018


def test_editors_see_each_name_where_it_is_imported_from():
    tree = ast.parse(INIT.read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {
        name: flwr_asyncdrop._HOMES.get(name, flwr_asyncdrop._NAMED)
        for name in flwr_asyncdrop.__all__
    }
    assert seen == homes


class TestExtras:
    def test_what_is_there_is_imported(self):
        assert require("json", "report") is json

    def test_what_is_missing_names_its_extra_in_one_line(self):
        with pytest.raises(MissingExtraError) as caught:
            require("no_such_package.part", "report")
        assert isinstance(caught.value, AsyncDropError)
        assert isinstance(caught.value, ImportError)
        assert str(caught.value) == (
            "no_such_package is not installed: pip install 'flwr-asyncdrop[report]'"
        )

    def test_a_part_of_a_namespace_that_is_missing_names_its_extra(
        self, tmp_path, monkeypatch
    ):
        (tmp_path / "some_namespace" / "there").mkdir(parents=True)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(MissingExtraError, match="some_namespace is not"):
            require("some_namespace.gone.part", "report")

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            ("import no_such_package", "ModuleNotFoundError: No module named 'no_such"),
            (
                "raise ValueError('numpy.dtype size\\nchanged')",
                "ValueError: numpy.dtype",
            ),
        ],
    )
    def test_a_package_that_is_broken_says_why_in_one_line(
        self, code, reason, tmp_path, monkeypatch
    ):
        """A raw error ended runs after their last round, where no picture was drawn."""
        (tmp_path / "half_installed.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(MissingExtraError) as caught:
            require("half_installed", "report")
        assert str(caught.value).startswith(
            f"half_installed cannot be imported ({reason}"
        )
        assert "install it anew" in str(caught.value)
        assert "\n" not in str(caught.value)


BLOCKED = """
import sys
import flwr.serverapp  # which imports Rich for itself
sys.modules[{module!r}] = None
from flwr_asyncdrop.exceptions import AsyncDropError
try:
    {code}
except AsyncDropError as error:
    print(error)
"""
USES = {
    "matplotlib-run": ("matplotlib", "report", "draw_run(Path(), Path())"),
    "matplotlib-report": ("matplotlib", "report", "write_report([], Path())"),
    "jinja2": ("jinja2", "report", "write_report([], Path())"),
    "rich": ("rich", "report", "comparison_table([])"),
    "prometheus": ("prometheus_client", "monitoring", ""),
    "tensorboard": ("tensorboard", "tensorboard", ""),
    "mlflow": ("mlflow", "mlflow", ""),
    "wandb": ("wandb", "wandb", ""),
    "opentelemetry": ("opentelemetry", "tracing", ""),
}
GATE = {"matplotlib-report", "rich", "opentelemetry"}
CODE = {
    "prometheus": "from flwr_asyncdrop.observers.prometheus import PrometheusMetrics; "
    "PrometheusMetrics(9464)",
    "tensorboard": "from flwr_asyncdrop.observers import TensorBoardTracker; "
    "TensorBoardTracker(None)",
    "mlflow": "from flwr_asyncdrop.observers import MlflowTracker; MlflowTracker()",
    "wandb": "from flwr_asyncdrop.observers import WandbTracker; WandbTracker()",
    "opentelemetry": "from flwr_asyncdrop.observers import OpenTelemetryTracing; "
    "OpenTelemetryTracing()",
}


@pytest.mark.parametrize(
    "use", [use if use in GATE else nightly(use, id=use) for use in USES]
)
def test_what_misses_an_extra_says_which(use):
    module, extra, call = USES[use]
    code = CODE.get(use) or (
        f"from pathlib import Path; import flwr_asyncdrop.report as r; r.{call}"
    )
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(module=module, code=code)],
        capture_output=True,
        text=True,
    )
    (line,) = done.stdout.splitlines() or [done.stderr]
    assert f"{module} is not installed" in line
    assert f"pip install 'flwr-asyncdrop[{extra}]'" in line


WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
from flwr_asyncdrop import LocalGrid
from benchmarks.noop import make_client_app, run_strategy
with LocalGrid(make_client_app, num_nodes=8, workers=0) as grid:
    run_strategy(grid, 8)
"""


def test_local_grid_runs_without_ray():
    subprocess.run([sys.executable, "-c", WITHOUT_RAY], check=True, timeout=600)


WITHOUT_EXTRAS = """
import sys
for name in ("matplotlib", "sklearn", "scipy", "PIL", "torchvision", "numba", "ray"):
    sys.modules[name] = None
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.simulation import LocalGrid
settings = {{"num-rounds": 1, "in-flight": 2, "local-steps": 1, "out-dir": {out!r}}}
with LocalGrid(
    "flwr_asyncdrop.client_app:app", num_nodes=8, workers=0, run_config=settings
) as grid:
    run_experiment(grid, RunConfig.parse(settings))
"""


def test_a_run_without_any_extra_ends_well_and_says_what_the_picture_needs(tmp_path):
    code = WITHOUT_EXTRAS.format(out=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert {"history.jsonl", "model.safetensors"} <= {
        p.name for p in tmp_path.iterdir()
    }
    assert not (tmp_path / "run.png").exists()
    (line,) = (line for line in done.stderr.splitlines() if "no picture" in line)
    assert "pip install 'flwr-asyncdrop[report]'" in line
