"""The commands behind the tables of the pages of results."""

import hashlib
import json
import re
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks import fair
from benchmarks.tables.__main__ import PAGES
from benchmarks.tables.archives import HISTORIES
from flwr_asyncdrop.algorithms import AsyncDropPlus
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.cli import compare, tune
from flwr_asyncdrop.cli.flags import given
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.cli.presets import PRESETS
from flwr_asyncdrop.cli.race import Terms, lanes_of
from flwr_asyncdrop.cli.searched import Search
from flwr_asyncdrop.cli.variants import preset_settings
from flwr_asyncdrop.exceptions import ConfigError
from tests.nightly import nightly

KEPT = [
    name if name.startswith("mlp-small") else nightly(name, id=name)
    for name in fair.NAMES
    if (HISTORIES / f"{name}.tar.xz").exists()
]


@pytest.fixture(autouse=True)
def baselines_found(monkeypatch):
    for folder in fair.OUTSIDE:
        monkeypatch.syspath_prepend(folder)
    yield
    packages = ("baselines", "custom_algorithm")
    for name in [name for name in sys.modules if name.startswith(packages)]:
        del sys.modules[name]


@pytest.mark.parametrize("name", fair.NAMES)
def test_both_commands_make_runs_of_the_same_length_on_the_same_fleet(name):
    ground = fair.GROUNDS[fair.ground_of(name)]
    tuned_on = fair.GROUNDS[ground.tuned_on] if ground.tuned_on else ground
    words = fair.commands(name, Path("runs"), ("--data-dir", "DATA"))
    found = []
    of_commands = ((tune, tuned_on), (compare, ground))
    for command, (module, measured) in zip(words, of_commands, strict=True):
        parser = Parser(prog="asyncdrop")
        module.add_arguments(parser, command[1:])
        arguments = parser.parse_args(command[1:])
        settings = preset_settings(PRESETS[arguments.task], given(arguments))
        found.append((arguments.devices, arguments.algos, settings))
        config = RunConfig.parse(settings)
        assert config.max_seconds == measured.seconds
        first, second = config.milestones
        assert (first, second) == (config.max_seconds / 2, config.max_seconds * 0.75)
    if ground.tuned_on:
        assert found[0][1] == found[1][1]
    else:
        assert found[0] == found[1]


@pytest.mark.parametrize("name", KEPT)
def test_kept_runs_have_the_settings_of_their_ground_and_those_chosen_for_it(name):
    with tarfile.open(HISTORIES / f"{name}.tar.xz") as packed:
        found = {
            each.name.partition("/")[2]: packed.extractfile(each).read()
            for each in packed
        }
    tuned = json.loads(found.pop("tuned.json"))
    _, command = fair.commands(name, Path("runs"), ())
    parser = Parser(prog="asyncdrop")
    compare.add_arguments(parser, command[1:])
    arguments = parser.parse_args(command[1:])
    wanted = preset_settings(PRESETS[arguments.task], given(arguments))
    histories = [path for path in found if path.endswith("history.jsonl")]
    assert histories
    for path in histories:
        label, seed, _ = path.split("/")
        mark = json.loads(found[f"{label}/{seed}/done.json"])["files"]["history.jsonl"]
        assert mark["sha256"] == hashlib.sha256(found[path]).hexdigest()
        first = json.loads(found[path].partition(b"\n")[0])
        assert first["devices"] == (arguments.devices or 104)
        assert seed == f"seed-{first['seed']}"
        assert first["seed"] not in tuned["seeds"]
        own = {each.partition("=")[0] for each in label.split(",")[1:]}
        chosen = tuned["chosen"].get(label, {})
        assert own or chosen
        config = first["config"]
        assert chosen.items() <= config.items()
        for key in wanted.keys() - chosen.keys() - own:
            # "": it is no setting of this algorithm
            assert config[key] in (wanted[key], ""), (path, key)


def test_all_algorithms_have_as_many_settings_to_choose_from():
    counts = set()
    for end in fair.ENDS:
        command, _ = fair.commands(f"mlp-small{end}", Path("runs"), ())
        parser = Parser(prog="asyncdrop")
        tune.add_arguments(parser, command[1:])
        arguments = parser.parse_args(command[1:])
        search = Search.read(arguments.search, arguments.algos)
        preset = PRESETS[arguments.task]
        terms = Terms(preset, given(arguments), search, 27, 1, 3, [1000], 104)
        counts |= {len(lane.candidates) for lane in lanes_of(arguments.algos, terms)}
    assert counts == {6}


def test_a_ground_may_take_the_choice_of_another():
    tune, compare = fair.commands("mlp-full", Path("runs"), ())
    assert tune == fair.commands("mlp-small", Path("runs"), ())[0]
    assert compare[compare.index("--tuned") + 1] == "runs/tune-mlp-small/tuned.json"
    assert compare[compare.index("--out") + 1] == "runs/mlp-full"


def test_the_same_loss_is_that_of_asyncdrop_plus():
    for words in fair.commands(f"mlp-small{fair.ADJUSTED}", Path("runs"), ()):
        given = float(words[words.index("--logit-adjustment") + 1])
        assert given == AsyncDropPlus().logit_adjustment


@pytest.mark.parametrize(
    "flags",
    [("--seeds", "0-1"), ("--rungs=3",), ("--tie", "0.1"), ("--max-seconds", "9")],
    ids=" ".join,
)
def test_what_makes_a_ground_is_not_given_again(flags):
    """Settings were chosen on seeds of the table, say: the last of two flags counts."""
    with pytest.raises(ConfigError, match=f"^{flags[0].partition('=')[0]} is set by"):
        fair.check("mlp-small", flags)


def test_a_flag_that_compare_does_not_know_is_refused_before_settings_are_tuned():
    flags = ("--candidates", "3")
    with pytest.raises(ConfigError, match="--candidates"):
        fair.check("mlp-small", flags)


def test_what_makes_no_other_ground_may_be_given():
    flags = ("--jobs", "2", "--threads", "1", "--algos", "fedavg,async-fedavg")
    fair.check("mlp-small", flags)


def test_a_wrong_name_is_an_error_of_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fair", "mlp-smal", "--out", "runs"])
    monkeypatch.setenv("PYTHONPATH", "")
    assert fair.main() == 2
    said = capsys.readouterr().err
    assert "did you mean 'mlp-small'?" in said
    assert said.count("\n") == 1


def test_every_table_has_its_commands():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    names = {*re.findall(r"<!-- ([\w-]+) -->", pages)} - {"end"}
    assert names
    assert names <= {*fair.NAMES}
