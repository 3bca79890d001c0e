import errno
import json
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from flwr_asyncdrop.app.fleets import trace_digest
from flwr_asyncdrop.app.run_folder import RunFolder
from flwr_asyncdrop.checkpoint.files import write as write_checkpoint
from flwr_asyncdrop.cli.runs import (
    all_runs,
    is_complete,
    is_trained,
    progress_of,
    refuse_changes,
    resumed,
)
from flwr_asyncdrop.cli.variants import Variant
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError, DataError
from flwr_asyncdrop.observers.history import SCHEMA

SETTINGS = {"algo": "asyncdrop", "lr": 0.1, "in-flight": 4, "num-rounds": 3}
UPDATE = {"event": "update", "time": 8.0, "device": 1, "rank": 0, "staleness": 0}
UPDATE |= {
    "round": 1,
    "bytes_down": 9,
    "bytes_up": 9,
    "metrics": {},
    "dispatched_at": 0.0,
}
VARIANTS = [Variant("one", SETTINGS), Variant("other", {**SETTINGS, "lr": 0.2})]


@pytest.fixture
def run(tmp_path):
    return all_runs(VARIANTS[:1], [7], devices=10, out=tmp_path)[0]


def write(run, updates=12, *, ended=True, whole=True, devices=10, first=(), **config):
    """Leave a run; `config` is what differs, `whole` whether it has all its files."""
    recorded = {**SETTINGS, "seed": 7, "partition": "speed-level", **config}
    told = {"schema": SCHEMA, "devices": devices, "full_bytes": 9, "config": recorded}
    lines = [{"event": "run", **told, **dict(first)}]
    lines += [{**UPDATE, "update": number + 1} for number in range(updates)]
    if ended:
        lines.append({**UPDATE, "event": "end", "updates": updates, "failures": {}})
    run.folder.mkdir(parents=True, exist_ok=True)
    text = "".join(
        f"{json.dumps({**line, 'wall': {'seconds': 0}})}\n" for line in lines
    )
    folder = RunFolder(run.folder)
    folder.history.write_text(text)
    if whole:
        save_file({"w": torch.zeros(1)}, folder.model)
        folder.picture.touch()
        folder.mark()


def test_runs_are_all_variants_of_the_first_seed_then_of_the_next(tmp_path):
    runs = all_runs(VARIANTS, [0, 3], devices=10, out=tmp_path)
    assert [run.folder.relative_to(tmp_path).as_posix() for run in runs] == [
        "one/seed-0",
        "other/seed-0",
        "one/seed-3",
        "other/seed-3",
    ]
    assert (runs[3].config.seed, runs[3].config.lr) == (3, 0.2)
    assert runs[3].config.out_dir == str(runs[3].folder)


def test_a_run_has_as_many_updates_as_rounds_of_devices_in_flight(run):
    assert run.num_updates == 12
    assert replace(run, devices=3).num_updates == 9


def test_what_is_asked_for_twice_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="one seed 1 is asked for more than once"):
        all_runs(VARIANTS, [1, 1], devices=10, out=tmp_path)


def test_two_algorithms_of_one_name_would_share_a_folder(tmp_path):
    two = [Variant("Mine", {"algo": f"{module}:Mine"}) for module in ("one", "other")]
    with pytest.raises(ConfigError, match="two algorithms are called Mine"):
        all_runs(two, [7], devices=10, out=tmp_path)


def test_a_run_that_is_absent_is_to_be_done(run):
    assert not is_complete(run)
    run.folder.mkdir(parents=True)
    RunFolder(run.folder).history.touch()
    assert not is_complete(run)
    RunFolder(run.folder).history.write_text('{"event": "run", "schema": 2, "se')
    assert not is_complete(run)


def test_a_run_that_did_all_its_rounds_is_complete(run):
    write(run)
    assert is_complete(run)


def test_a_complete_run_by_a_trace_is_known_by_the_name_of_the_file(run):
    traced = replace(run, settings={**run.settings, "trace": "/some/fleet.csv"})
    write(traced, trace="fleet.csv")
    assert is_complete(traced)
    other = replace(run, settings={**run.settings, "trace": "/some/other.csv"})
    with pytest.raises(
        ConfigError, match=r"trace 'fleet\.csv', now '/some/other\.csv'"
    ):
        is_complete(other)


def test_a_trace_that_was_edited_is_another_one(run, tmp_path):
    trace = tmp_path / "fleet.csv"
    trace.write_text("seconds_per_step\n1\n")
    traced = replace(run, settings={**run.settings, "trace": str(trace)})
    write(traced, trace="fleet.csv", **trace_digest(traced.config))
    assert is_complete(traced)
    trace.write_text("seconds_per_step\n100\n")
    with pytest.raises(ConfigError, match="the trace had other devices"):
        is_complete(traced)


def test_a_complete_run_that_ended_at_another_time_is_an_error(run):
    write(run, **{"max-seconds": 12.0})
    longer = replace(run, settings={**run.settings, "max-seconds": 60.0})
    with pytest.raises(ConfigError, match=re.escape("max-seconds 12.0, now 60.0")):
        is_complete(longer)


def test_a_run_that_was_killed_is_to_be_done_whatever_it_was(run):
    write(run, updates=12, ended=False, lr=0.5)
    assert not is_complete(run)


def test_a_run_that_an_error_ended_is_to_be_done(run):
    write(run, updates=11, lr=0.5)
    assert not is_complete(run)


@pytest.mark.parametrize(
    ("difference", "says"),
    [
        ({"lr": 0.5}, "(lr 0.5, now 0.1)"),
        ({"partition": "iid"}, "(partition 'iid', now 'speed-level')"),
        ({"devices": 9}, "(devices 9, now 10)"),
        ({"drop-rate": 0.5}, "(drop-rate 0.5, now 0.25)"),
        ({"width": 0.5, "lr": 0.5}, "(width 0.5, now 1.0; lr 0.5, now 0.1)"),
    ],
)
def test_a_complete_run_of_another_configuration_is_an_error(run, difference, says):
    write(run, **difference)
    with pytest.raises(ConfigError, match=re.escape(says)):
        is_complete(run)


def save(run, devices=10, run_id="a", lacks=(), **config):
    """Leave a checkpoint of the run, as if it had been killed."""
    settings = run.config.settings | config
    settings = {key: value for key, value in settings.items() if key not in lacks}
    body = {"settings": settings, "updates": 4, "devices": devices}
    body |= {"run": run_id, "parts": {}}
    return write_checkpoint(run.folder / "checkpoints", body, {})


def begun_again(run):
    return replace(run, settings={**run.settings, "overwrite": True})


def test_half_a_run_goes_on_from_its_checkpoint(run):
    assert resumed(run) == begun_again(run)
    save(run)
    again = resumed(run)
    assert again.settings == {**run.settings, "resume": str(run.folder)}
    assert again.config.out_dir == str(run.folder)


@pytest.mark.parametrize(
    ("difference", "says"),
    [
        ({"lr": 0.5}, "(lr 0.5, now 0.1)"),
        ({"devices": 9}, "(devices 9, now 10)"),
        ({"max-seconds": 12.0}, "(max-seconds 12.0, now 0.0)"),
    ],
)
def test_half_a_run_of_another_configuration_is_an_error(run, difference, says):
    save(run, **difference)
    with pytest.raises(ConfigError, match=re.escape(says)) as caught:
        is_complete(run)
    assert "has a run that is interrupted, with another" in str(caught.value)


PLUS = {**SETTINGS, "algo": "asyncdrop-plus"}
BEFORE = {
    "waits": False,
    "adaptive-memory": False,
    "adaptive-staleness": False,
    "least-saving": 0.0,
}
"""What asyncdrop-plus did up to version 0.2.0."""


@pytest.mark.parametrize(
    ("leave", "complete"),
    [
        (partial(write, algo="asyncdrop-plus"), True),
        (partial(save, lacks=tuple(BEFORE)), False),
    ],
)
def test_a_run_of_before_the_recipe_changed_is_of_another_configuration(
    tmp_path, leave, complete
):
    """0.2.0 has no keys for what the recipe does since."""
    new, old = (
        all_runs([Variant("plus", settings)], [7], devices=10, out=tmp_path)[0]
        for settings in (PLUS, {**PLUS, **BEFORE})
    )
    leave(new)
    with pytest.raises(ConfigError) as caught:
        is_complete(new)
    for difference in (
        "waits False, now True",
        "adaptive-memory False, now True",
        "adaptive-staleness False, now True",
        "least-saving 0.0, now 0.5",
    ):
        assert difference in str(caught.value)
    assert is_complete(old) == complete


def test_half_a_run_with_a_damaged_checkpoint_begins_again(run):
    (save(run) / "state.json").write_text("{")
    assert resumed(run) == begun_again(run)


def test_half_a_run_with_a_checkpoint_of_another_run_is_an_error(run):
    save(run)
    save(run, run_id="b")
    with pytest.raises(CheckpointError, match="are of different runs"):
        is_complete(run)


def test_half_a_run_of_another_version_is_an_error(run):
    state = save(run) / "state.json"
    state.write_text(
        state.read_text().replace('"format_version": ', '"format_version": 9')
    )
    with pytest.raises(CheckpointError, match="resume with that version"):
        is_complete(run)


def test_half_a_run_that_is_to_have_no_checkpoints_begins_again(run):
    save(run)
    without = replace(run, settings={**run.settings, "checkpoint-every": 0})
    assert resumed(without) == begun_again(without)


@pytest.mark.parametrize("codec", ["none", "q4", "auto"])
def test_half_a_run_with_a_codec_that_keeps_nothing_on_clients_goes_on(run, codec):
    settings = {**run.settings, "codec": codec, "bandwidth-mbps": 50.0}
    coded = replace(run, settings=settings)
    save(coded)
    assert resumed(coded).settings["resume"] == str(run.folder)


def test_half_a_run_whose_clients_keep_what_coding_has_lost_begins_again(run):
    coded = replace(run, settings={**run.settings, "codec": "topk-q4"})
    save(coded)
    assert resumed(coded) == begun_again(coded)


def test_a_run_whose_algorithm_keeps_state_on_its_clients_begins_again(run):
    keeps = replace(run, settings={**run.settings, "algo": "tests.app.own:Kept"})
    save(keeps)
    assert resumed(keeps) == begun_again(keeps)


@pytest.mark.parametrize("lost", ["run.png", "done.json", "model.safetensors"])
def test_a_run_that_lacks_a_file_is_not_complete(run, lost):
    """The picture and the mark can be made again, the model takes training."""
    write(run)
    (run.folder / lost).unlink()
    assert not is_complete(run)
    assert is_trained(run) == (lost != "model.safetensors")
    assert progress_of(run).updates == 12


def test_a_model_that_is_cut_off_is_not_there(run):
    write(run, whole=False)
    model = RunFolder(run.folder).model
    save_file({"w": torch.zeros(9)}, model)
    assert is_trained(run)
    model.write_bytes(model.read_bytes()[:-3])
    assert not is_trained(run)


def test_a_model_of_a_flipped_bit_is_not_the_one_that_was_marked(run):
    write(run)
    model = RunFolder(run.folder).model
    model.write_bytes(model.read_bytes()[:-1] + b"1")
    assert not is_complete(run)
    assert not is_trained(run)


def test_a_model_that_may_not_be_read_is_not_trained_again(run, monkeypatch):
    """It may be another user's, and whole."""
    write(run)
    opened = Path.open

    def refuse(file, *args, **kwargs):
        if file.name == "model.safetensors":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(file, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    for ask in (is_complete, is_trained):
        with pytest.raises(DataError, match=r"cannot read the model .*: Permission"):
            ask(run)


def test_a_history_that_was_changed_after_the_end_is_refused(run):
    write(run)
    history = RunFolder(run.folder).history
    history.write_text(history.read_text().replace('"lr": 0.1', '"lr": 0.2'))
    with pytest.raises(DataError, match="was changed after its run had ended"):
        is_complete(run)


def test_folders_and_patience_make_no_other_run(run):
    write(run, **{"timeout": 1.0, "data-dir": "elsewhere"})
    assert is_complete(run)


def test_a_hyperparameter_that_was_left_out_is_the_algorithms_own(run):
    write(run, **{"drop-rate": 0.25, "alpha": "", "server-lr": 0.7})
    assert is_complete(run)


def own_run(folder, monkeypatch, module, *fields):
    """Return the settings and the run of an algorithm of one's own."""
    lines = "from dataclasses import dataclass", "from collections.abc import Callable"
    kind = "from flwr_asyncdrop.algorithms import FedBuff", "@dataclass(frozen=True)"
    own = "class Mine(FedBuff):", *(f"    {field}" for field in fields)
    (folder / f"{module}.py").write_text("\n".join((*lines, *kind, *own)))
    monkeypatch.syspath_prepend(folder)
    settings = {**SETTINGS, "algo": f"{module}:Mine"}
    variant = Variant("mine", settings)
    return settings, all_runs([variant], [7], devices=10, out=folder)[0]


def test_a_default_of_an_algorithm_of_ones_own_that_changed_makes_another_run(
    tmp_path, monkeypatch
):
    """Both seeds passed for one configuration."""
    fields = "boost: float = 2.0", "limit: float = float('inf')"
    fields += ("none: float | None = None",)
    settings, run = own_run(tmp_path, monkeypatch, "changed_runs", *fields)
    assert run.config.defaults["boost"] == 2.0
    assert "limit" not in run.config.defaults
    write(run, first={"defaults": {"boost": 2.0, "none": None}}, **settings)
    assert is_complete(run)
    assert is_complete(replace(run, settings={**run.settings, "boost": 2.0}))
    write(run, first={"defaults": {"boost": 2.0, "none": 4.0}}, **settings)
    with pytest.raises(ConfigError, match=r"none 4\.0, now None"):
        is_complete(run)
    write(run, first={"defaults": {"boost": 3.0}}, **settings)
    with pytest.raises(ConfigError, match=r"boost 3\.0, now 2\.0"):
        is_complete(run)
    log = RunFolder(run.folder).log
    refuse_changes(run.folder, log, {"algo": "changed_runs:Mine", "boost": 3.0})
    with pytest.raises(ConfigError, match=r"boost 3\.0, now 2\.0"):
        refuse_changes(run.folder, log, {"algo": "changed_runs:Mine", "boost": 2.0})
    refuse_changes(run.folder, log, {"algo": "changed_runs:Mine"})
    with pytest.raises(ConfigError, match=r"configuration \(lr 0\.1, now 0\.2\)"):
        refuse_changes(run.folder, log, {"lr": 0.2})  # boost was not asked for


def test_a_default_that_no_key_can_give_is_not_in_the_history(tmp_path, monkeypatch):
    """A tuple came back as a list, another configuration; a function is no JSON."""
    fields = (
        "boost: float | tuple[float, ...] = (1.0, 2.0)",
        "other: float | None = None",
    )
    fields += ("limit: float | Callable[[float], float] = abs",)
    settings, run = own_run(tmp_path, monkeypatch, "union_defaults", *fields)
    assert run.config.defaults.keys() & {"boost", "limit", "other"} == {"other"}
    write(run, first={"defaults": run.config.defaults}, **settings)
    assert is_complete(run)


def test_the_defaults_of_the_packages_algorithms_are_those_of_its_version(run):
    assert run.config.defaults == {}
