"""A fleet of the compose file, as processes: it trains, and keeps strangers out."""

import sys
from pathlib import Path

import pytest

from scripts.edge import __main__ as edge
from scripts.edge.__main__ import make_certificates
from scripts.edge.compose import Mount, Service
from scripts.edge.processes import ProcessFleet
from scripts.edge.trial import Plan, plaintext, stranger, try_fleet
from scripts.transport import installed_transport

DOCKER = Path(__file__).parents[2] / "docker"
FILES = {"grpc": "compose.edge.yml", "http": "compose.edge-http.yml"}


def test_strangers_are_devices_with_one_thing_wrong(tmp_path):
    data = Mount("/data", "/data")
    own = Mount("/keys/device-0", "/run/asyncdrop")
    device = Service("device-0", "image", "device", mounts=(own, data))
    unknown = stranger(device, tmp_path)
    assert set(unknown.mounts) == {data, Mount(str(tmp_path), "/run/asyncdrop")}
    assert unknown.environment == device.environment
    assert plaintext(device).environment == {"ASYNCDROP_INSECURE": "1"}
    assert plaintext(device).mounts == device.mounts


def test_the_data_are_in_the_folder_that_is_meant(tmp_path, monkeypatch):
    """Compose takes "data" for a volume's name, and "./data" as its own file's."""
    monkeypatch.chdir(tmp_path)
    assert edge._parser().parse_args(["--data", "data"]).data == tmp_path / "data"


@pytest.mark.parametrize("named", ["--data", "ASYNCDROP_TEST_DATA"])
def test_data_that_are_not_there_are_refused_before_a_fleet_starts(
    tmp_path, monkeypatch, capsys, named
):
    """The digits were trained instead, and nothing said so."""
    monkeypatch.setattr(edge, "attempt", lambda *_: pytest.fail("it starts a fleet"))
    monkeypatch.delenv("ASYNCDROP_TEST_DATA", raising=False)
    arguments = ["edge-test", "--as", "processes"]
    if named == "--data":
        arguments += ["--data", str(tmp_path / "typo")]
    else:
        monkeypatch.setenv(named, str(tmp_path / "typo"))
    monkeypatch.setattr(sys, "argv", arguments)
    assert edge.main() == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert f"no folder FashionMNIST in {tmp_path / 'typo'}" in line


def test_data_that_are_there_are_trained_and_without_a_name_the_digits(
    tmp_path, monkeypatch
):
    (tmp_path / "FashionMNIST").mkdir()
    assert edge.missing_data(tmp_path) is None
    assert edge.settings(tmp_path, "/data")["dataset"] == "fashion-mnist"
    monkeypatch.setenv("ASYNCDROP_TEST_DATA", "")
    assert edge._parser().parse_args([]).data is None
    assert edge.missing_data(None) is None
    assert "dataset" not in edge.settings(None, "/data")


@pytest.mark.e2e
@pytest.mark.skipif(
    installed_transport() != "grpc", reason="once is enough here: make edge-test"
)
def test_a_fleet_with_tls_and_keys_trains_to_the_end(tmp_path):
    certificates = tmp_path / "certificates"
    make_certificates(certificates, ("device-0", "device-1"))
    variables = {"EDGE_CERTIFICATES": str(certificates), "EDGE_DATA": str(tmp_path)}
    compose = DOCKER / FILES[installed_transport()]
    plan = Plan(
        num_rounds=1,
        in_flight=2,
        settings={"model": "mlp", "partition": "iid", "local-steps": 5},
        stranger=certificates / "devices" / "stranger",
        victim=None,
        patience=300.0,
    )
    seen: list[str] = []
    spared = ("device-2", "device-3", "device-4")
    with ProcessFleet(compose, tmp_path / "home", variables, spared) as fleet:
        outcome = try_fleet(fleet, plan, seen.append)
    assert (outcome.updates, outcome.devices) == (2, 2)
    assert len(seen) == 3
