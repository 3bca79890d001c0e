"""The examples run, and their diffs lead back to plain Flower projects."""

import gzip
import json
import random
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
import torch
from flwr.app import Context, RecordDict
from flwr.serverapp.strategy import FedAvg

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.observers.progress import ProgressLog
from flwr_asyncdrop.strategy import async_strategy
from flwr_asyncdrop.strategy.async_strategy import AsyncStrategy
from tests.examples.shown import (
    before,
    blocks,
    logged_progress,
    printed,
    progress_of,
    same_progress,
    same_record,
    settle,
)
from tests.nightly import NIGHTLY, by_night
from tests.processes import run_engine

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    path.parent.name: path.parent
    for path in (ROOT / "examples").glob("*/pyproject.toml")
    if path.parent.name != "custom-algorithm"  # which began without Flower's FedAvg
}
NEEDS = {
    "huggingface": "transformers",
    "keras": "keras",
    "lightning": "lightning",
    "llm-lora": "peft",
    "lora": "peft",
}
UNTOUCHED_CLIENTS = {"keras", "sklearn-masked"}
# Usually one line loads the model, and one says whose data a task is about.
LINES_OF_CLIENTS = {
    "advanced-pytorch": (7, 20),  # its personal head, and whose data twice
    "custom-mods": (3, 3),  # whose data twice
    "llm-lora": (3, 3),  # what it replies
    "numpy": (1, 1),  # the model is loaded as it was
    "pytorch-quickstart": (3, 3),  # whose data twice
}
SMALL = {"llm-lora": {"base-steps": 80, "batch-size": 32, "learning-rate": 0.005}}
"""What is smaller in every test."""
SHORT_RUNS = {
    "advanced-pytorch": ({"num-server-rounds": 8}, 0.4),
    "custom-mods": ({"num-server-rounds": 4, "log-dir": "."}, 0.3),
    "huggingface": ({"num-server-rounds": 3}, 0.4),
    "keras": ({"num-server-rounds": 3}, 0.3),
    "lightning": ({"num-server-rounds": 3}, 0.3),
    "llm-lora": ({"num-server-rounds": 2}, 0.6),
    "lora": ({"num-server-rounds": 4}, 0.6),
    "numpy": ({"num-server-rounds": 3}, 0.6),
    "pytorch-quickstart": ({"num-server-rounds": 4}, 0.4),
    "sklearn-masked": ({"num-server-rounds": 3}, 0.3),
    "text-transformer": ({"num-server-rounds": 6}, 0.55),
}
"""Settings of a run of seconds, and an accuracy well above chance and below its own."""
AS_FEDAVG_ALONE = {"text-transformer", "llm-lora", "lora", "huggingface", "lightning"}
"""Those that the gate runs as the FedAvg project that their diff leads back to."""
NOT_COMPARED = {"llm-lora": ["IMDB, which takes an hour"]}
"""Outputs without a test, each with the reason."""

pytestmark = pytest.mark.filterwarnings(
    # Lightning uses what torch 2.13 deprecates, and would rather load data in workers.
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning",
    "ignore:.*does not have many workers",
    "ignore:The `srun` command is available",  # on a machine with Slurm
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",
    # PEFT asks transformers for what it has renamed.
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",
)


@pytest.fixture(params=sorted(EXAMPLES))
def example(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = EXAMPLES[request.param]
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    # Where a base is kept that an example trains first: for all of its tests.
    cache = tmp_path_factory.getbasetemp() / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    if request.param in NEEDS:
        if find_spec("torchvision"):  # which both import if it is there
            request.getfixturevalue("vision_models")
        pytest.importorskip(NEEDS[request.param])
    return folder


@pytest.fixture(autouse=True)
def own_modules() -> Iterator[None]:
    """Forget the packages of an example: the next test may bring another version."""
    before = set(sys.modules)
    yield
    packages = {package_of(folder) for folder in EXAMPLES.values()}
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in packages:
            del sys.modules[name]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list:
    """Collect each strategy that is started, and its result."""
    runs = []

    def spy(start):
        def start_and_tell(strategy, *args, **kwargs):
            runs.append((strategy, start(strategy, *args, **kwargs)))
            return runs[-1][1]

        return start_and_tell

    for strategy in (AsyncStrategy, FedAvg):
        monkeypatch.setattr(strategy, "start", spy(strategy.start))
    return runs


@pytest.fixture
def progress(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, str]]:
    """Log the progress at each update, and collect it."""
    often = partial(ProgressLog, seconds=0.0)
    monkeypatch.setattr(async_strategy, "ProgressLog", often)
    with logged_progress() as by_update:
        yield by_update


def app_of(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]


def package_of(folder: Path) -> str:
    return app_of(folder)["components"]["serverapp"].partition(".")[0]


def nodes_of(folder: Path) -> int:
    """Return how many nodes the command of a README has."""
    (command,) = blocks(folder, "bash")
    return int(re.search(r"num-supernodes=(\d+)", command)[1])


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_nodes: int,
    *,
    node_config: Callable[[int], dict[str, str]] | None = None,
    **settings,
):
    """Run an example's apps on a LocalGrid, in this process."""
    random.seed(0)  # from which Keras seeds itself
    np.random.seed(0)  # noqa: NPY002  # which scikit-learn uses
    monkeypatch.syspath_prepend(str(folder))
    app = app_of(folder)
    config = {**app["config"], **SMALL.get(folder.name, {}), **settings}
    module, attribute = app["components"]["serverapp"].split(":")
    server = getattr(import_module(module), attribute)
    with LocalGrid(
        app["components"]["clientapp"],
        num_nodes=num_nodes,
        workers=0,
        node_config=node_config,
        run_config=config,
    ) as grid:
        server(grid, Context(1, 0, {}, RecordDict(), config))


def without_partition(_: int) -> dict[str, str]:
    """Return what says nothing: whose data a task is about comes with the task."""
    return dict.fromkeys(("partition-id", "num-partitions"), "the task has it")


def as_it_was(folder: Path, destination: Path) -> Path:
    """Copy an example and take back the diff of its README."""
    copy = shutil.copytree(
        folder, destination / folder.name, ignore=shutil.ignore_patterns("__pycache__")
    )
    (diff,) = blocks(folder, "diff")
    subprocess.run(
        ["git", "apply", "-R", "-"], input=diff, text=True, cwd=copy, check=True
    )
    return copy


def test_a_short_run_learns(example, started, progress, monkeypatch, tmp_path):
    if example.name in AS_FEDAVG_ALONE and not NIGHTLY:
        pytest.skip("make nightly")
    monkeypatch.chdir(tmp_path)  # some write files
    settings, least = SHORT_RUNS[example.name]
    untouched = example.name in UNTOUCHED_CLIENTS
    run(
        example,
        monkeypatch,
        nodes_of(example),
        node_config=None if untouched else without_partition,
        **settings,
    )
    ((strategy, result),) = started
    rounds = settings["num-server-rounds"]
    accuracies = [
        metrics["accuracy"]
        for _, metrics in sorted(result.evaluate_metrics_serverapp.items())
    ]
    assert len(accuracies) == 1 + rounds
    assert max(accuracies[1:]) > max(least, accuracies[0])
    assert len(result.train_metrics_clientapp) == rounds
    if "fraction-evaluate" in app_of(example)["config"]:
        evaluated = result.evaluate_metrics_clientapp
        assert len(evaluated) == rounds
        assert all("eval_acc" in metrics for metrics in evaluated.values())
    updates = max(progress)
    # Until nothing new is sent, a run is as a longer one.
    shown = before(progress_of(example), updates - updates // rounds, updates)
    ours = printed(shown, progress)
    assert same_progress(shown, ours), f"{shown}{ours}"
    for table in blocks(example, ""):
        if table.startswith("group"):
            assert strategy.plan.report().startswith(table)
    logs = [path.read_text() for path in tmp_path.glob("node-*.jsonl")]
    records = [json.loads(line) for log in logs for line in log.splitlines()]
    for record in blocks(example, "json"):
        assert any(same_record(json.loads(record), each) for each in records)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_all_outputs_are_compared(name):
    outputs = blocks(EXAMPLES[name], "")
    progress, *others = (each for each in outputs if not each.startswith("group"))
    assert progress == progress_of(EXAMPLES[name])
    assert len(others) == len(NOT_COMPARED.get(name, []))


@by_night
def test_outputs(example, started, progress, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SMALL, example.name, {})
    run(example, monkeypatch, nodes_of(example))
    ((strategy, _),) = started
    shown = progress_of(example)
    ours = printed(shown, progress)
    settle(example, shown, ours, same=same_progress(shown, ours))
    for table in blocks(example, ""):
        if table.startswith("group"):
            lines = 1 + len(strategy.plan.groups)
            ours = "".join(
                f"{line}\n" for line in strategy.plan.report().splitlines()[:lines]
            )
            settle(example, table, ours, same=table == ours)


def test_the_diff_leads_back_to_a_fedavg_project_that_runs(
    example, started, monkeypatch, tmp_path
):
    plain = as_it_was(example, tmp_path)
    monkeypatch.chdir(tmp_path)
    sources = {path.name: path.read_text() for path in plain.glob("*/*.py")}
    assert any("import FedAvg" in source for source in sources.values())
    assert not any("asyncdrop" in source.lower() for source in sources.values())
    run(plain, monkeypatch, num_nodes=2, **{"num-server-rounds": 1})
    ((strategy, result),) = started
    assert isinstance(strategy, FedAvg)
    assert 1 in result.train_metrics_clientapp


def test_the_diff_changes_few_lines_of_the_client_besides_its_imports(example):
    (diff,) = blocks(example, "diff")
    client = next(
        (part for part in diff.split("--- a/") if "client_app.py" in part[:60]), ""
    )
    lines = client.splitlines()[2:]
    added = [line for line in lines if line.startswith("+") and "import" not in line]
    removed = [line for line in lines if line.startswith("-") and "import" not in line]
    usual = (0, 0) if example.name in UNTOUCHED_CLIENTS else (2, 2)
    expected = LINES_OF_CLIENTS.get(example.name, usual)
    assert (len(added), len(removed)) == expected


def test_a_base_needs_no_token_for_padding(monkeypatch, request):
    """Those of GPT-2 and Llama have none."""
    if find_spec("torchvision"):
        request.getfixturevalue("vision_models")
    pytest.importorskip("peft")
    monkeypatch.syspath_prepend(str(EXAMPLES["llm-lora"]))
    dataset = import_module("llm_lora.dataset")
    tokenizer = import_module("llm_lora.base").train_tokenizer(["The plot was dull."])
    reviews = [("The plot was dull.", 0), ("dull", 0)]
    padded = dataset.encode(reviews, tokenizer)
    tokenizer.pad_token = None
    batch = dataset.encode(reviews, tokenizer)
    assert all(torch.equal(batch[name], padded[name]) for name in padded)


def test_a_review_without_words_is_read(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES["text-transformer"]))
    task = import_module("text_transformer.task")
    model = task.TextClassifier()
    for texts in (["10/10", "good film"], ["10/10"]):
        tokens, _ = task.collate([(text, 1) for text in texts])
        assert model(tokens).isfinite().all()


def test_a_base_is_that_of_the_reviews_in_the_file(monkeypatch, request, tmp_path):
    if find_spec("torchvision"):
        request.getfixturevalue("vision_models")
    pytest.importorskip("peft")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLES["llm-lora"]))
    base = import_module("llm_lora.base")
    reviews = tmp_path / "reviews.jsonl.gz"
    folders = []
    for text in ("A dull plot.", "A moving plot.", "A dull plot."):
        base.load_reviews.cache_clear()
        line = json.dumps({"split": "train", "label": 0, "text": text})
        reviews.write_bytes(gzip.compress(line.encode(), mtime=0))
        folders.append(base.base_folder("", str(reviews), 1))
    assert folders[0] == folders[2] != folders[1]


@pytest.mark.e2e
def test_the_command_of_the_readme():
    folder = EXAMPLES["pytorch-quickstart"]
    (command,) = blocks(folder, "bash")
    python, *words = shlex.split(command.replace("\\\n", ""))
    assert python == "python"
    done = run_engine([*words, "--run-config", "num-server-rounds=2"], cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "update 16/16" in done.stdout


@by_night
def test_personal_heads_are_worth_as_much_as_with_fedavg(
    started, monkeypatch, tmp_path
):
    folder = EXAMPLES["advanced-pytorch"]
    accuracies = []
    for number, project in enumerate([as_it_was(folder, tmp_path), folder]):
        out = tmp_path / str(number)
        with monkeypatch.context() as patch:
            torch.manual_seed(0)
            run(project, patch, num_nodes=10, **{"out-dir": str(out)})
        for name in [n for n in sys.modules if n.startswith(package_of(folder))]:
            del sys.modules[name]
        text = (out / "metrics.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        by_round = [line["eval_acc"] for line in lines if "eval_acc" in line]
        accuracies.append(fmean(by_round[-5:]))
    before, after = accuracies
    assert before > 0.95
    assert after > before - 0.03
