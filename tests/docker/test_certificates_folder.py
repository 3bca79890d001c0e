"""Both scripts look for certificates where Compose does."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DOCKER = Path(__file__).parents[2] / "docker"

pytestmark = pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")),
    reason="openssl and ssh-keygen are needed",
)


@pytest.fixture
def docker(tmp_path):
    """Return a copy of the two scripts, in their folders."""
    folder = tmp_path / "a fleet" / "docker"
    (folder / "edge").mkdir(parents=True)
    shutil.copy(DOCKER / "make_certificates.sh", folder)
    shutil.copy(DOCKER / "edge" / "connect.py", folder / "edge")
    return folder


def run(docker, **environment):
    """Make certificates for a device, and connect; return how both have ended."""
    kept = {k: v for k, v in os.environ.items() if k != "EDGE_CERTIFICATES"}
    environment = {**kept, "FLWR_HOME": str(docker / "flwr"), **environment}
    make = [docker / "make_certificates.sh", "phone"]
    connect = [sys.executable, docker / "edge" / "connect.py"]
    return [
        subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        )
        for command in (make, connect)
    ]


def trusted(docker):
    """Return the authority that Flower's command has been told to trust."""
    written = tomllib.loads((docker / "flwr" / "config.toml").read_text())
    return Path(written["superlink"]["edge"]["root-certificates"])


@pytest.mark.parametrize(
    "line",
    [
        "EDGE_CERTIFICATES={}",
        "EDGE_CERTIFICATES={}  \r",
        'EDGE_CERTIFICATES="{}" # of the fleet',
        "EDGE_CERTIFICATES='{}'",
        "export EDGE_CERTIFICATES={} # of the fleet",
        "  EDGE_CERTIFICATES = {}",
        "EDGE_CERTIFICATES: {}",
        "EDGE_CERTIFICATES=/elsewhere\n# EDGE_CERTIFICATES=/nor/here\n"
        "EDGE_CERTIFICATES={}",
    ],
)
def test_the_folder_of_the_env_file_is_taken(docker, tmp_path, line):
    folder = tmp_path / "kept#1 here"
    (docker / ".env").write_text(f"EDGE_UID=1\n{line.format(folder)}\nEDGE_GID=1\n")
    for done in run(docker):
        assert done.returncode == 0, done.stderr
    assert trusted(docker) == folder / "ca.crt"
    assert trusted(docker).is_file()
    assert not (docker / "certificates").exists()


@pytest.mark.parametrize("there", ["", "/elsewhere"])
def test_the_environment_counts_more(docker, tmp_path, there):
    """Even an empty variable, as for Compose: then it is the usual folder."""
    (docker / ".env").write_text("EDGE_CERTIFICATES=/nowhere\n")
    folder = there and f"{tmp_path}{there}"
    for done in run(docker, EDGE_CERTIFICATES=folder):
        assert done.returncode == 0, done.stderr
    assert trusted(docker) == Path(folder or docker / "certificates") / "ca.crt"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("./certificates", "must be an absolute path"),
        ("certificates", "must be an absolute path"),
        ("{}/a:b", "has a ':', where Compose ends a path"),
    ],
)
@pytest.mark.parametrize("by", ["environment", "file"])
def test_what_compose_would_look_for_elsewhere_is_refused(
    docker, tmp_path, value, says, by
):
    value = value.format(tmp_path)
    environment = {"EDGE_CERTIFICATES": value} if by == "environment" else {}
    if by == "file":
        (docker / ".env").write_text(f"EDGE_CERTIFICATES={value}\n")
    for done in run(docker, **environment):
        assert done.returncode != 0
        assert f"EDGE_CERTIFICATES='{value}' {says}" in done.stderr.splitlines()[-1]
    assert not (docker / "flwr").exists()
    assert not (tmp_path / "a:b").exists()


@pytest.mark.parametrize("value", ["$HOME/certificates", r'"/a\"b"', r"/a\b"])
def test_what_compose_would_expand_is_refused(docker, value):
    (docker / ".env").write_text(f"EDGE_CERTIFICATES={value}\n")
    for done in run(docker):
        assert done.returncode != 0
        assert "write the path without $ and \\" in done.stderr.splitlines()[-1]


@pytest.mark.skipif(not os.getuid(), reason="root can read everything")
def test_an_env_file_of_another_user_is_not_passed_over(docker):
    (docker / ".env").write_text("EDGE_CERTIFICATES=/srv/fleet\n")
    (docker / ".env").chmod(0)
    for done in run(docker):
        assert done.returncode != 0
        assert str(docker / ".env") in done.stderr.splitlines()[-1]
    assert not (docker / "certificates").exists()
