"""A fleet of the compose file, as processes: it trains, and keeps strangers out."""

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
