"""Compose files, Dockerfile, shell scripts and the unit are what they should be."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as canonical

from flwr_asyncdrop.app.config import RunConfig
from scripts.edge.compose import read_compose

DOCKER = Path(__file__).parents[2] / "docker"
FLEETS = ["compose.edge.yml", "compose.edge-http.yml", "compose.insecure.yml"]


def lint(program, *arguments):
    """Run a linter that is installed beside this Python."""
    path = Path(sys.executable).with_name(program)
    if not path.exists():
        pytest.skip(f"{program} has no wheel for this machine")
    done = subprocess.run(
        [path, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_files_follow_the_specification():
    files = sorted(DOCKER.glob("*.yml"))
    assert {DOCKER / name for name in FLEETS} < set(files)
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files)


def test_an_image_has_what_the_package_depends_on():
    project = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())["project"]
    needed = {canonical(Requirement(each).name) for each in project["dependencies"]}
    lines = (DOCKER / "requirements-device.txt").read_text().splitlines()
    installed = {canonical(line) for line in lines if not line.startswith("#")}
    assert needed - {"torch"} <= installed  # which the Dockerfile installs by itself


def test_the_dockerfile_passes_hadolint():
    lint("hadolint", DOCKER / "Dockerfile")


def test_what_is_copied_is_readable_for_the_user_of_the_containers():
    """COPY keeps modes: with a umask of 077 a clone is readable for its owner alone."""
    _, *stages = (DOCKER / "Dockerfile").read_text().split("FROM ${BASE} AS runtime")
    (runtime,) = stages
    copied = 0
    for stage in runtime.split("\nFROM "):
        waiting = []
        for line in stage.splitlines():
            if line.startswith("COPY ") and "--from=" not in line:
                waiting.append(Path(line.split()[-1]))
                copied += 1
            elif line.startswith("RUN chmod -R a+rX "):
                opened = [Path(folder) for folder in line.split()[4:]]
                waiting = [
                    each
                    for each in waiting
                    if not any(each.is_relative_to(folder) for folder in opened)
                ]
            assert not (waiting and line.startswith("USER ")), waiting
        assert not waiting, waiting
    assert copied


@pytest.mark.parametrize("page", ["edge.md", "tutorials/real-fleet.md"])
def test_results_are_copied_into_a_folder_that_is_there(page):
    """Docker makes no folders above what it copies, and nests a second copy."""
    text = (DOCKER.parent / "docs" / page).read_text()
    copies = [line.split() for line in text.splitlines() if ".yml cp " in line]
    assert copies
    for *_, source, folder in copies:
        assert source.endswith("/.")
        assert f"mkdir -p {folder}\n" in text


def test_shell_scripts_pass_shellcheck():
    scripts = sorted(DOCKER.rglob("*.sh"))
    assert DOCKER / "make_certificates.sh" in scripts
    lint("shellcheck", *scripts)


def test_the_unit_is_one_that_systemd_understands(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd here")
    unit = DOCKER / "systemd" / "asyncdrop-device.service"
    local = tmp_path / unit.name
    installed = "/opt/asyncdrop/venv/bin/python3"
    assert installed in unit.read_text()
    (python := tmp_path / "python3").symlink_to(sys.executable)
    local.write_text(unit.read_text().replace(installed, f'"{python}"'))
    done = subprocess.run(
        ["systemd-analyze", "verify", local],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["compose.edge.yml", "compose.edge-http.yml"])
def test_an_edge_fleet_is_secured_unless_told_otherwise(name):
    services = read_compose(DOCKER / name, {})
    assert all("ASYNCDROP_INSECURE" not in s.environment for s in services.values())
    published = yaml.safe_load((DOCKER / name).read_text())["services"]["superlink"]
    ports = [
        port.replace("${EDGE_BIND:-127.0.0.1}", "127.0.0.1")
        for port in published["ports"]
    ]
    assert all(port.startswith("127.0.0.1:") for port in ports)


@pytest.mark.parametrize("name", FLEETS)
def test_devices_reach_the_superlink_and_nothing_else(name):
    document = yaml.safe_load((DOCKER / name).read_text())
    assert document["networks"] == {"devices": {"internal": True}, "operators": {}}
    for service, body in merged(name).items():
        expected = {
            "superlink": {"devices": {}, "operators": {"aliases": ["control"]}},
            "register": ["operators"],
        }.get(service, ["devices"])
        assert body["networks"] == expected
        assert service == "superlink" or "ports" not in body
    assert merged(name)["superlink"]["environment"]["ASYNCDROP_CONTROL_HOST"] == (
        "control"
    )


@pytest.mark.parametrize("name", FLEETS)
def test_no_container_has_rights_that_it_does_not_need(name):
    for body in merged(name).values():
        assert body["cap_drop"] == ["ALL"]
        assert "cap_add" not in body
        assert "privileged" not in body
        assert body["security_opt"] == ["no-new-privileges:true"]
        assert body["read_only"] is True
        written = [mount.partition(":")[0] for mount in body["tmpfs"]]
        written += [m.split(":")[1] for m in body.get("volumes", [])]
        assert {"/tmp", "/var/lib/asyncdrop"} <= set(written)  # noqa: S108


def merged(name):
    """The services of a compose file over what they extend."""
    found = {}
    for service, body in yaml.safe_load((DOCKER / name).read_text())[
        "services"
    ].items():
        base = {}
        if extends := body.get("extends"):
            others = yaml.safe_load((DOCKER / extends["file"]).read_text())
            base = others["services"][extends["service"]]
        found[service] = {**base, **body}
    return found


@pytest.mark.parametrize("name", FLEETS)
def test_no_container_asks_a_proxy_for_another(name):
    """Docker gives them the proxy of its own configuration."""
    for service in read_compose(DOCKER / name, {}).values():
        past = service.environment["no_proxy"].split(",")
        assert past == ["superlink", "control", "localhost", "127.0.0.1"]


def test_grafana_asks_no_proxy_for_prometheus():
    """Programs in Go read the variable in capitals first."""
    services = yaml.safe_load((DOCKER / "compose.monitoring.yml").read_text())[
        "services"
    ]
    assert services["grafana"]["environment"]["NO_PROXY"] == "prometheus"


@pytest.mark.parametrize("name", FLEETS)
def test_every_device_is_one_of_its_own(name):
    services = read_compose(DOCKER / name, {})
    devices = [s for s in services.values() if s.target == "device"]
    partitions = [int(device.environment["PARTITION_ID"]) for device in devices]
    assert partitions == list(range(len(devices)))
    assert {device.environment["NUM_PARTITIONS"] for device in devices} == {
        str(len(devices))
    }


@pytest.mark.parametrize("name", ["compose.edge.yml", "compose.edge-http.yml"])
def test_a_device_sees_no_other_devices_key(name):
    for service in read_compose(DOCKER / name, {}).values():
        keys = [m.source for m in service.mounts if "/certificates/devices" in m.source]
        if service.target == "device":
            expected = str(DOCKER / "certificates" / "devices" / service.name)
            assert keys == [expected]
        else:
            assert keys == []
        authority = [m.source for m in service.mounts if m.source.endswith("ca.key")]
        assert authority == []


def test_both_transports_have_the_same_fleet():
    grpc, http = (read_compose(DOCKER / name, {}) for name in FLEETS[:2])
    assert list(grpc) == list(http)
    for name, service in grpc.items():
        assert service.mounts == http[name].mounts
        if name != "register":
            assert service.environment == http[name].environment


def test_the_run_config_of_the_fleet_is_one():
    settings = tomllib.loads((DOCKER / "edge.toml").read_text())
    project = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())
    known = project["tool"]["flwr"]["app"]["config"]
    assert settings.keys() <= known.keys()
    assert RunConfig.parse({**known, **settings}).clock == "wall"
