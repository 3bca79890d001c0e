"""What the entrypoints make of their environment."""

import importlib.metadata
import os
import resource
import shlex
import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from flwr.common.config import parse_config_args
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

EDGE = Path(__file__).parents[2] / "docker" / "edge"


def run(script, environment, *arguments):
    return subprocess.run(
        [sys.executable, EDGE / script, *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def is_grpc():
    version = importlib.metadata.version("flwr")
    return tuple(map(int, version.split(".")[:2])) < (1, 35)


@pytest.fixture
def device(entrypoint):
    return entrypoint("device")


@pytest.fixture
def server(entrypoint):
    return entrypoint("server")


def test_a_device_trusts_its_authority_and_shows_its_key(device, credentials):
    environment = {
        "SUPERLINK": "edge.example.org:9092",
        "ASYNCDROP_CREDENTIALS": str(credentials),
    }
    own = (
        ["--clientappio-api-address", "127.0.0.1:9094"]
        if is_grpc()
        else ["--host", "127.0.0.1", "--port", "9094"]
    )
    assert device.command(environment) == [
        "flower-supernode",
        *("--superlink", "edge.example.org:9092"),
        *("--root-certificates", str(credentials / "ca.crt")),
        *("--auth-supernode-private-key", str(credentials / "key")),
        *own,
    ]


@pytest.mark.parametrize("script", ["device", "server"])
def test_a_flower_with_both_transports_is_refused(script, entrypoint, monkeypatch):
    """Its runtime API, which has no TLS, would listen where devices are served."""
    settings, environment = entrypoint("settings"), {"ASYNCDROP_INSECURE": "1"}
    environment["SUPERLINK"] = "edge:9092"
    for number in ((1, 35), (1, 39)):
        monkeypatch.setattr(settings, "FLOWER", number)
        with pytest.raises(settings.InvalidError, match="install flwr 1"):
            entrypoint(script).command(environment)
    monkeypatch.setattr(settings, "FLOWER", (1, 40))
    assert entrypoint(script).command(environment)


def test_flower_reads_the_node_config_as_it_was_meant(device):
    environment = {
        "PARTITION_ID": "0",
        "NUM_PARTITIONS": "5",
        "ASYNCDROP_CAPACITY": "0.2",
        "ASYNCDROP_MEMORY_MB": "512",
        "ASYNCDROP_BANDWIDTH_MBPS": "8",
        "ASYNCDROP_DATA": "/mnt/my data/sets",
        "ASYNCDROP_DEVICE_ID": 'the "old" phone',
    }
    assert parse_config_args([device.node_config(environment)]) == {
        "partition-id": 0,
        "num-partitions": 5,
        "capacity": 0.2,
        "memory-mb": 512,
        "bandwidth-mbps": 8.0,
        "data-dir": "/mnt/my data/sets",
        "device-id": 'the "old" phone',
    }


def test_what_is_not_set_is_not_said(device):
    assert device.node_config({"PARTITION_ID": "3", "ASYNCDROP_CAPACITY": ""}) == (
        "partition-id=3"
    )
    insecure = {"SUPERLINK": "here:9092", "ASYNCDROP_INSECURE": "1"}
    assert "--node-config" not in device.command(insecure)


def test_systemd_tells_a_device_where_its_credentials_are(device, credentials):
    environment = {"SUPERLINK": "s:1", "CREDENTIALS_DIRECTORY": str(credentials)}
    assert str(credentials / "key") in device.command(environment)


def test_a_warm_device_is_the_same_with_another_program(device):
    environment = {"SUPERLINK": "here:9092", "ASYNCDROP_INSECURE": "1"}
    _, *plain = device.command(environment)
    warm = device.command({**environment, "ASYNCDROP_WARM": "1"})
    assert warm == [sys.executable, "-m", "flwr_asyncdrop.device", *plain]


def test_a_device_that_looks_seldom_is_warm_only_if_asked(device):
    environment = {
        "SUPERLINK": "here:9092",
        "ASYNCDROP_INSECURE": "1",
        "ASYNCDROP_MAX_POLL": "30",
    }
    plain = device.command({**environment, "ASYNCDROP_MAX_POLL": ""})[1:]
    ours = [sys.executable, "-m", "flwr_asyncdrop.device"]
    found = device.command(environment)
    assert found == [*ours, "--no-warm", "--max-poll", "30", *plain]
    found = device.command({**environment, "ASYNCDROP_WARM": "1"})
    assert found == [*ours, "--max-poll", "30", *plain]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ASYNCDROP_CAPACITY", "fast"),
        ("ASYNCDROP_CAPACITY", "0"),
        ("ASYNCDROP_CAPACITY", "nan"),
        ("ASYNCDROP_CAPACITY", "inf"),
        ("ASYNCDROP_MEMORY_MB", "1.5"),
        ("ASYNCDROP_MEMORY_MB", "0"),
        ("ASYNCDROP_PORT", "-1"),
        ("ASYNCDROP_PORT", "65536"),
        ("ASYNCDROP_HEALTH_PORT", "65536"),
        ("ASYNCDROP_INSECURE", "yes"),
        ("ASYNCDROP_WARM", "true"),
        ("ASYNCDROP_MAX_POLL", "0"),
        ("ASYNCDROP_MAX_POLL", "never"),
        ("ASYNCDROP_DEVICE_ID", "it's"),
        ("ASYNCDROP_DATA", "/data\r"),  # of a file that Windows has written
        ("SUPERLINK", "here:9092\r"),
        ("SUPERLINK", "https://here:9092"),
        ("SUPERLINK", "here"),
        ("SUPERLINK", ":9092"),
        ("SUPERLINK", "here:99999"),
        ("SUPERLINK", "here:0"),
        ("SUPERLINK", "here:٩"),
        ("PARTITION_ID", "first"),
        ("NUM_PARTITIONS", "0"),
    ],
)
def test_a_wrong_variable_is_refused_by_name(name, value):
    environment = {"SUPERLINK": "here:9092", "ASYNCDROP_INSECURE": "1", name: value}
    done = run("device.py", environment)
    assert done.returncode == 1
    assert done.stderr.startswith(f"device: {name}={value!r} ")
    assert done.stderr.count("\n") == 1


def test_a_share_beyond_the_last_is_refused(device):
    """Who counts from 1 would have a device all of whose tasks fail."""
    with pytest.raises(ValueError, match="PARTITION_ID='5' must be below NUM_PART"):
        device.node_config({"PARTITION_ID": "5", "NUM_PARTITIONS": "5"})
    assert device.node_config({"PARTITION_ID": "4", "NUM_PARTITIONS": "5"}) == (
        "partition-id=4 num-partitions=5"
    )


def test_the_command_that_is_shown_can_be_given_to_a_shell(tmp_path):
    program = tmp_path / "flower-supernode"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "SUPERLINK": "here:9092",
        "ASYNCDROP_INSECURE": "1",
        "ASYNCDROP_DATA": "/my data",
        "PARTITION_ID": "0",
    }
    done = run("device.py", environment)
    shown, ran = done.stdout.splitlines()
    again = ["flower-supernode", *ran.removesuffix("|").split("|")]
    assert shlex.split(shown.removeprefix("device: ")) == again


def test_a_device_says_which_credential_it_lacks(tmp_path):
    environment = {"SUPERLINK": "here:9092", "ASYNCDROP_CREDENTIALS": str(tmp_path)}
    done = run("device.py", environment)
    assert done.returncode == 1
    assert str(tmp_path / "ca.crt") in done.stderr
    assert "make_certificates.sh" in done.stderr


def test_a_folder_in_place_of_a_credential_is_said(tmp_path):
    """Docker makes one where the file of a mount is missing."""
    (tmp_path / "ca.crt").mkdir()
    environment = {"SUPERLINK": "here:9092", "ASYNCDROP_CREDENTIALS": str(tmp_path)}
    done = run("device.py", environment)
    assert done.returncode == 1
    assert f"{tmp_path / 'ca.crt'} is a folder" in done.stderr
    assert "make_certificates.sh" in done.stderr


def test_a_device_needs_to_know_its_server():
    done = run("device.py", {})
    assert done.stderr.startswith("device: SUPERLINK is not set")


def test_a_device_without_flower_on_its_path_says_so(tmp_path):
    environment = {"SUPERLINK": "here:9092", "ASYNCDROP_INSECURE": "1"}
    done = run("device.py", {**environment, "PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr == (
        "device: flower-supernode is not on the PATH: pip install flwr\n"
    )


@pytest.mark.parametrize("script", ["device.py", "server.py"])
def test_a_python_without_flower_is_said(script):
    """As that of the system, in place of the environment's."""
    done = subprocess.run(
        [sys.executable, "-S", EDGE / script], env={}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"Flower is not installed for {sys.executable}: pip install flwr\n"
    )


def test_a_flower_whose_python_is_gone_is_not_said_to_be_missing(tmp_path):
    """An environment that was moved, or copied from another machine."""
    flower = tmp_path / "flower-supernode"
    flower.write_text("#!/no/such/python\n")
    flower.chmod(0o755)
    environment = {"SUPERLINK": "here:9092", "ASYNCDROP_INSECURE": "1"}
    done = run("device.py", {**environment, "PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr == (
        f"device: {flower} cannot be started: No such file or directory; its first "
        "line names its Python\n"
    )


def test_a_server_asks_devices_for_their_keys(server, credentials):
    command = server.command({"ASYNCDROP_CREDENTIALS": str(credentials)})
    assert ("flower-superlink" if is_grpc() else server.sys.executable) == command[0]
    assert "--enable-supernode-auth" in command
    assert "--insecure" not in command
    assert str(credentials / "server.key") in command


def test_an_insecure_server_has_to_be_asked_for(server, tmp_path):
    assert "--insecure" in server.command({"ASYNCDROP_INSECURE": "1"})
    done = run("server.py", {"ASYNCDROP_CREDENTIALS": str(tmp_path)})
    assert done.returncode == 1
    assert "ca.crt" in done.stderr


def test_the_server_app_is_met_on_the_loopback_interface(server):
    if not is_grpc():
        pytest.skip("with HTTP there is one address for all")
    addresses = server.addresses({})
    assert addresses[addresses.index("--serverappio-api-address") + 1] == (
        "127.0.0.1:9091"
    )


@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1"])
def test_the_control_api_is_at_the_operators_host_alone(server, host):
    environment = {"ASYNCDROP_CONTROL_HOST": host, "ASYNCDROP_INSECURE": "1"}
    command = server.command(environment)
    if is_grpc():
        at = command.index("--control-api-address") + 1
        assert command[at] == "127.0.0.1:9093"
    else:
        at = command.index("--")
        assert Path(command[1]).name == "guard.py"
        assert command[2:at] == ["127.0.0.1"]


def test_a_control_host_that_is_none_is_refused():
    environment = {"ASYNCDROP_CONTROL_HOST": "no such host", "ASYNCDROP_INSECURE": "1"}
    done = run("server.py", environment)
    assert done.returncode == 1
    assert done.stderr.startswith("server: ASYNCDROP_CONTROL_HOST='no such host' ")
    assert done.stderr.count("\n") == 1


def test_a_connection_is_added_and_replaced(entrypoint, tmp_path):
    connect = entrypoint("connect")
    other = '[superlink]\ndefault = "local"\n\n[superlink.local]\naddress = ":local:"\n'
    first = connect.with_connection(other, "edge", "here:1", str(tmp_path / "ca.crt"))
    assert tomllib.loads(first)["superlink"] == {
        "default": "local",
        "local": {"address": ":local:"},
        "edge": {"address": "here:1", "root-certificates": str(tmp_path / "ca.crt")},
    }
    second = connect.with_connection(first, "edge", "there:2", None)
    assert tomllib.loads(second)["superlink"]["edge"] == {
        "address": "there:2",
        "insecure": True,
    }
    assert connect.with_connection(second, "edge", "there:2", None) == second


@pytest.mark.parametrize("after", [" ", "  # the fleet at home"])
def test_what_stands_behind_a_heading_is_no_second_connection(entrypoint, after):
    connect = entrypoint("connect")
    before = f'[superlink.edge]{after}\naddress = "here:1"\n\n[superlink.b]\nx = 1\n'
    found = tomllib.loads(connect.with_connection(before, "edge", "there:2", None))
    edge = {"address": "there:2", "insecure": True}
    assert found["superlink"] == {"b": {"x": 1}, "edge": edge}


def test_what_is_written_of_the_next_connection_stays(entrypoint):
    connect = entrypoint("connect")
    before = (
        '[superlink.edge]\n# of Tuesday\naddress = "here:1"\n\n'
        "  # The one at work.\n# Ask first.\n[superlink.b]\nx = 1\n# Last.\n"
    )
    after = connect.with_connection(before, "edge", "there:2", None)
    kept = "  # The one at work.\n# Ask first.\n[superlink.b]\nx = 1\n# Last.\n"
    block = '\n[superlink.edge]\naddress = "there:2"\ninsecure = true\n'
    assert after == kept + block
    assert connect.with_connection(after, "edge", "there:2", None) == after


def test_the_connection_of_an_operator(tmp_path):
    certificates = tmp_path / "certificates"
    home = {"FLWR_HOME": str(tmp_path / "flwr")}
    refused = run("connect.py", home, "--certificates", str(certificates))
    assert refused.returncode == 2
    assert "make_certificates.sh" in refused.stderr
    certificates.mkdir()
    (certificates / "ca.crt").touch()
    run("connect.py", home, "--certificates", str(certificates))
    written = tomllib.loads((tmp_path / "flwr" / "config.toml").read_text())
    assert written["superlink"]["edge"]["address"] == "127.0.0.1:9093"
    # What Flower itself writes where there is nothing: `flwr run .` simulates.
    assert written["superlink"]["default"] == "local"
    assert written["superlink"]["local"] == {"address": ":local:"}


@pytest.mark.parametrize("folder", ["fleet 😀 é", 'the "old" one', r"a\b"])
def test_a_folder_of_any_name_is_one_for_toml(
    entrypoint, monkeypatch, tmp_path, folder
):
    connect = entrypoint("connect")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    authority = tmp_path / folder / "ca.crt"
    path = connect.write_connection("edge", "here:1", str(authority))
    edge = tomllib.loads(path.read_text(encoding="utf-8"))["superlink"]["edge"]
    assert edge["root-certificates"] == str(authority)


@pytest.mark.parametrize(
    ("before", "name", "said"),
    [
        (b"[superlink]\nedge = {address = ':local:'}\n", "edge", "in another form"),
        (b"superlink = 1\n", "edge", "in another form"),
        (b"", "a fleet", "cannot have [superlink.a fleet]"),
        (b"", "a.fleet", "cannot have [superlink.a.fleet]"),
        (b"[superlink\n", "edge", "is no TOML"),
        (b"# caf\xe9\n", "edge", "is no TOML"),
    ],
)
def test_a_configuration_that_would_be_none_stays_as_it_is(
    tmp_path, before, name, said
):
    """Flower reads nothing at all from a file that is no TOML."""
    path = tmp_path / "config.toml"
    path.write_bytes(before)
    home = {"FLWR_HOME": str(tmp_path)}
    done = run("connect.py", home, "--insecure", "--name", name)
    assert done.returncode == 1
    assert done.stderr.startswith(f"connect: {path} ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert path.read_bytes() == before


def test_an_authority_that_cannot_be_read_is_no_connection(tmp_path):
    """Docker makes a folder where the file of a mount is missing, and root its own."""
    (tmp_path / "ca.crt").mkdir()
    home = {"FLWR_HOME": str(tmp_path / "flwr")}
    done = run("connect.py", home, "--certificates", str(tmp_path))
    assert done.returncode == 2
    said = f"{tmp_path / 'ca.crt'} cannot be read (Is a directory): run docker/make_"
    assert said in done.stderr
    assert not (tmp_path / "flwr").exists()


def test_a_disk_that_is_full_costs_no_configuration(entrypoint, tmp_path, monkeypatch):
    """A link to a file elsewhere stays one, and the file keeps its mode."""
    connect = entrypoint("connect")
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    kept, config = tmp_path / "kept.toml", tmp_path / "flwr" / "config.toml"
    config.parent.mkdir()
    config.symlink_to(kept)
    kept.write_text("# mine\n" * 1000)
    kept.chmod(0o600)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            connect.write_connection("edge", "here:1", None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert kept.read_text() == "# mine\n" * 1000
    assert connect.write_connection("edge", "here:1", None) == config
    assert "here:1" in kept.read_text()
    assert config.is_symlink()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert sorted(tmp_path.iterdir()) == [config.parent, kept]
    assert list(config.parent.iterdir()) == [config]


@pytest.mark.parametrize("script", ["connect.py", "server.py", "register.py"])
def test_a_home_that_takes_no_file_is_named_in_one_line(script, tmp_path, credentials):
    (tmp_path / "flwr").touch()
    (credentials / "device.pub").touch()
    environment = {
        "FLWR_HOME": str(tmp_path / "flwr"),
        "SUPERLINK": "here:9093",
        "ASYNCDROP_CREDENTIALS": str(credentials),
        "ASYNCDROP_PUBLIC_KEYS": str(credentials),
        "EDGE_CERTIFICATES": str(credentials),
    }
    done = run(script, environment)
    assert done.returncode == 1
    assert done.stderr.endswith(f"File exists: '{tmp_path / 'flwr'}'\n")
    assert done.stderr.count("\n") == 1


def test_a_key_that_is_refused_keeps_no_other_out(tmp_path, credentials):
    flower = tmp_path / "flwr"
    flower.write_text('#!/bin/sh\ncase "$*" in *a.pub*) echo no key; exit 1;; esac\n')
    flower.chmod(0o700)
    for name in "ab":
        (tmp_path / f"{name}.pub").touch()
    done = run(
        "register.py",
        {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(tmp_path / "home"),
            "SUPERLINK": "control:9093",
            "ASYNCDROP_CREDENTIALS": str(credentials),
            "ASYNCDROP_PUBLIC_KEYS": str(tmp_path),
        },
    )
    assert done.returncode == 1
    assert done.stdout == "register: b registered\n"
    assert done.stderr == "register: a.pub: no key\n"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "localhost,127.0.0.1"),
        ({"no_proxy": "a.org"}, "a.org,localhost,127.0.0.1"),
        ({"NO_PROXY": "b.org"}, "b.org,localhost,127.0.0.1"),
    ],
)
def test_no_proxy_is_asked_for_the_devices_own_processes(tmp_path, given, expected):
    flower = tmp_path / "flower-supernode"
    flower.write_text('#!/bin/sh\necho "past: $no_proxy"\n')
    flower.chmod(0o700)
    environment = {"SUPERLINK": "x:9092", "ASYNCDROP_INSECURE": "1", **given}
    environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run("device.py", environment)
    assert done.stdout.splitlines()[-1] == f"past: {expected}"


def test_a_health_check_asks_no_proxy(entrypoint, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    with ThreadPoolExecutor() as threads:
        server, servicer = grpc.server(threads), HealthServicer()
        add_HealthServicer_to_server(servicer, server)
        number = server.add_insecure_port("127.0.0.1:0")
        server.start()
        assert entrypoint("healthcheck").serves(number)
        server.stop(None)


def test_how_far_flower_lets_clocks_differ_is_what_the_documentation_says():
    text = (EDGE.parents[1] / "docs" / "edge.md").read_text()
    ahead, behind = SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE / 60
    assert f"more than {ahead} s ahead of the server's, or {behind:g} minutes" in text


def test_nobody_serves_on_a_closed_port(entrypoint):
    assert not entrypoint("healthcheck").serves(1)
