"""How many devices a fleet has, where nobody says it: those of its trace."""

import re
from importlib import import_module

import pytest

from flwr_asyncdrop.app.config.key_table import key_table
from flwr_asyncdrop.app.fleets import FLEET_KEYS
from flwr_asyncdrop.cli.flags import DEVICES
from flwr_asyncdrop.cli.fleet_size import fleet_size
from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.exceptions import ConfigError


@pytest.fixture
def traces(tmp_path):
    """Return traces of three and four devices."""
    paths = []
    for count in (3, 4):
        path = tmp_path / f"{count}.csv"
        path.write_text("# made up\nseconds_per_step\n" + "1\n" * count)
        paths.append(str(path))
    return paths


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("simulate", []),
        ("compare", ["--algos=fedavg"]),
        ("tune", ["--algos=fedavg", "--search=lr=0.1,0.2"]),
    ],
)
@pytest.mark.parametrize("given", [None, 7])
def test_every_command_has_the_devices_of_the_trace(
    command, flags, given, traces, tmp_path, monkeypatch, capsys
):
    def told(settings, devices):
        raise ConfigError(f"{devices} devices")

    module = import_module(f"flwr_asyncdrop.cli.{command}")
    monkeypatch.setattr(module, "check_inputs", told)
    more = [f"--devices={given}"] if given else []
    out = tmp_path / "out"
    assert main([command, *flags, *more, f"--trace={traces[0]}", f"--out={out}"]) == 2
    assert f"asyncdrop: {given or 3} devices" in capsys.readouterr().err


def test_without_a_trace_it_is_the_usual_number():
    assert fleet_size(None, [{"lr": 0.1}, {"trace": ""}]) == DEVICES
    assert fleet_size(None, []) == DEVICES
    assert fleet_size(9, [{"trace": "/nowhere"}]) == 9


def test_traces_of_one_length_are_one_fleet_and_others_are_refused(traces, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("seconds_per_step\n1\n2\n3\n")
    assert fleet_size(None, [{"trace": traces[0]}, {"trace": str(other)}]) == 3
    said = re.escape("the fleets to compare have 3 and 4 devices: give --devices")
    with pytest.raises(ConfigError, match=said):
        fleet_size(None, [{"trace": path} for path in traces])


def test_every_key_of_a_fleet_is_a_key():
    assert (
        {"trace", "levels", "dropout", "clock", "duration"}
        < FLEET_KEYS
        < key_table().keys()
    )


@pytest.mark.parametrize("owner", ["", "fedavg:"])
@pytest.mark.parametrize("command", ["tune", "advise"])
@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("trace", ""),
        ("dropout", "0,0.5"),
        ("clock", "virtual,wall"),
        ("duration", "flops,paper"),
        ("test-samples", "10,100"),
        ("partition", "iid,dirichlet"),
    ],
)
def test_no_search_chooses_the_fleet_or_the_data(
    command, key, values, owner, traces, tmp_path, capsys
):
    """The easiest ones would win. Traces had the usual number of devices, too."""
    values = values or ",".join(traces)
    flags = ["--algos=fedavg", f"--search={owner}{key}={values}"]
    assert main([command, *flags, f"--out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert f"{key} is " in said
    assert "the same for all" in said
    assert "leave it out of --search" in said
    assert not (tmp_path / "out").exists()
