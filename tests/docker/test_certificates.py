"""What ``make_certificates.sh`` makes, with the real OpenSSL and OpenSSH."""

import contextlib
import os
import shutil
import socket
import ssl
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_ssh_private_key,
    load_ssh_public_key,
)

SCRIPT = Path(__file__).parents[2] / "docker" / "make_certificates.sh"

pytestmark = pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("ssh-keygen")),
    reason="openssl and ssh-keygen are needed",
)


@pytest.fixture
def make(tmp_path):
    def make(*arguments, folder=tmp_path, path=""):
        environment = {"EDGE_CERTIFICATES": str(folder)}
        if path:
            environment["PATH"] = f"{path}:{os.environ['PATH']}"
        return subprocess.run(
            [SCRIPT, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return make


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def names(folder):
    certificate = x509.load_pem_x509_certificate(
        (folder / "server" / "server.crt").read_bytes()
    )
    extension = certificate.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return {str(name.value) for name in extension.value}


def test_a_second_time_changes_nothing(make, tmp_path):
    assert make("phone").returncode == 0
    before = contents(tmp_path)
    assert make("phone").stdout == ""
    assert contents(tmp_path) == before


def test_folders_that_docker_made_in_place_of_files_are_no_authority(make, tmp_path):
    """It does for each mount that is missing: whoever starts the fleet too early."""
    for name in ("ca.crt", "server", "public", "devices/phone"):
        (tmp_path / name).mkdir(parents=True)
    assert make("phone").returncode == 0
    assert (tmp_path / "ca.crt").read_text().startswith("-----BEGIN CERTIFICATE")


def test_a_folder_in_place_of_a_file_that_has_something_in_it_is_left(make, tmp_path):
    (tmp_path / "ca.crt" / "mine").mkdir(parents=True)
    done = make("phone")
    assert done.returncode == 1
    assert done.stderr == (
        f"make_certificates.sh: {tmp_path}/ca.crt is a folder: delete it\n"
    )


@pytest.mark.skipif(not os.getuid(), reason="root can write everywhere")
def test_what_docker_made_as_root_is_said(make, tmp_path):
    (tmp_path / "devices").mkdir(mode=0o555)
    done = make("phone")
    assert done.returncode == 1
    assert f"{tmp_path}/devices is not yours to write" in done.stderr
    assert "as root" in done.stderr


@pytest.mark.parametrize("program", ["openssl req -new ", "ssh-keygen -q"])
def test_what_was_made_by_half_is_made_again(make, tmp_path, program):
    """The program does its work, and the script is ended before it goes on."""
    name, _, words = program.partition(" ")
    certificates, stand_in = tmp_path / "certificates", tmp_path / "bin" / name
    make("phone", folder=certificates)
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\n{shutil.which(name)} "$@"\n'
        f'case "$*" in "{words}"*) kill -9 $PPID;; esac\n'
    )
    stand_in.chmod(0o755)
    told = ("--host", "edge.example.org", "garage")
    assert make(*told, folder=certificates, path=stand_in.parent).returncode != 0
    assert make("garage", folder=certificates).returncode == 0
    garage = certificates / "devices" / "garage"
    loads_its_key(certificates / "server")
    key = load_ssh_private_key((garage / "key").read_bytes(), None)
    public = (certificates / "public" / "garage.pub").read_bytes()
    assert load_ssh_public_key(public) == key.public_key()
    assert sorted(path.name for path in garage.iterdir()) == ["ca.crt", "key"]


@pytest.mark.parametrize("lost", ["server.key", "ca.crt", "server.crt"])
def test_what_the_server_has_lost_is_made_again(make, tmp_path, lost):
    make("phone")
    (tmp_path / "server" / lost).unlink()
    assert make("phone").returncode == 0
    loads_its_key(tmp_path / "server")
    ours = (tmp_path / "ca.crt").read_bytes()
    assert (tmp_path / "server" / "ca.crt").read_bytes() == ours


def test_a_key_whose_certificate_did_not_come_any_more_is_made_again(make, tmp_path):
    """Ended between the two: the old certificate is good for the hosts, too."""
    make("phone")
    old = (tmp_path / "server" / "server.crt").read_bytes()
    make("--host", "edge.example.org", "phone")
    (tmp_path / "server" / "server.crt").write_bytes(old)
    assert make("phone").stdout.startswith("server/: a new certificate")
    loads_its_key(tmp_path / "server")


def loads_its_key(server):
    """Raise SSLError unless a server can be one with these files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.crt", server / "server.key")


def test_two_at_once_do_not_mix_keys_and_certificates(make, tmp_path):
    (tmp_path / ".making").symlink_to(str(os.getpid()))
    done = make("phone")
    assert done.returncode == 1
    assert done.stderr == (
        f"make_certificates.sh: another one makes certificates in {tmp_path} (process "
        f"{os.getpid()}): run this again after it, or delete {tmp_path}/.making if "
        "that is something else\n"
    )
    assert not (tmp_path / "ca.crt").exists()


def test_two_of_different_users_do_not_either():
    """Who may not signal a process took it for one that has ended."""
    nobody = {"user": 65534} if os.geteuid() == 0 else {}
    if not nobody:
        with contextlib.suppress(PermissionError):
            os.kill(1, 0)
            pytest.skip("there is no process of another user")
    with tempfile.TemporaryDirectory() as name, SCRIPT.open() as script:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / ".making").symlink_to("1")
        done = subprocess.run(
            ["sh", "-s", "--", "phone"],
            stdin=script,
            cwd=folder,
            env={**os.environ, "EDGE_CERTIFICATES": name},
            capture_output=True,
            text=True,
            check=False,
            **nobody,
        )
        assert f"another one makes certificates in {name} (process 1)" in done.stderr
        assert (folder / ".making").readlink() == Path("1")


def test_one_that_was_killed_is_not_waited_for(make, tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / ".making").symlink_to(str(ended.pid))
    assert make("phone").returncode == 0
    assert not (tmp_path / ".making").is_symlink()


def test_a_device_that_was_shut_out_stays_so(make, tmp_path):
    make("lost", "phone")
    shut = tmp_path / "public" / "lost.pub"
    shut.unlink()
    done = make("lost", "phone", "garage")
    assert (done.returncode, done.stderr) == (0, "")
    assert not shut.exists()
    assert (tmp_path / "public" / "garage.pub").exists()


def test_a_key_is_what_flower_takes_and_its_owners_alone(make, tmp_path):
    make("phone")
    path = tmp_path / "devices" / "phone" / "key"
    key = load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    public = load_ssh_public_key((tmp_path / "public" / "phone.pub").read_bytes())
    assert public == key.public_key()
    for secret in (path, tmp_path / "ca.key", tmp_path / "server" / "server.key"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_new_device_leaves_the_others_alone(make, tmp_path):
    make("phone")
    before = contents(tmp_path)
    make("tablet")
    after = contents(tmp_path)
    assert {path: after[path] for path in before} == before
    assert {path.name for path in after.keys() - before.keys()} == {
        "key",
        "ca.crt",
        "tablet.pub",
    }


def test_the_server_is_known_by_the_names_that_it_was_given(make, tmp_path):
    make("--host", "edge.example.org", "--host", "10.0.0.5", "--host", "fe80::1", "a")
    given = {"edge.example.org", "10.0.0.5", "fe80::1"}
    always = {"superlink", "control", "localhost", "127.0.0.1", "::1"}
    assert names(tmp_path) == given | always
    before = contents(tmp_path)
    assert make("--host", "10.0.0.5", "a").stdout == ""
    assert contents(tmp_path) == before
    assert make("--host", "10.0.0.6", "a").stdout.startswith("server/: a new")
    assert "10.0.0.6" in names(tmp_path)


@pytest.mark.parametrize("lost", ["", "server.key"])
def test_a_new_certificate_is_for_the_hosts_of_the_old_one_too(make, tmp_path, lost):
    """As when 30 days are left: devices elsewhere would not trust it any more."""
    hosts = ["edge.example.org", "10.0.0.5", "fe80::1"]
    make(*(word for host in hosts for word in ("--host", host)), "a")
    before = names(tmp_path)
    if lost:
        (tmp_path / "server" / lost).unlink()
    more = () if lost else ("--host", "other.example.org")
    for _ in range(2):
        done = make(*more, "a")
        assert (done.returncode, done.stderr) == (0, "")
        assert names(tmp_path) == before | set(more[1:])
    (tmp_path / "server" / "server.crt").unlink()
    make("a")
    assert names(tmp_path) == before - set(hosts)


def test_its_certificate_is_signed_by_the_authority(make, tmp_path):
    make("a")
    authority, certificate = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in ("ca.crt", "server/server.crt")
    )
    certificate.verify_directly_issued_by(authority)


@pytest.mark.parametrize("host", ["", "a b", "a,DNS:evil.example", "*.org", "-x", "é"])
def test_a_host_that_is_none_is_refused(make, tmp_path, host):
    done = make("--host", host, "a")
    assert done.returncode == 1
    assert "is no host" in done.stderr
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("address", "trusted"), [("127.0.0.1", True), ("127.0.0.2", False)]
)
def test_flowers_clients_trust_the_names_of_the_certificate_alone(
    make, tmp_path, address, trusted
):
    """A server of the fleet's authority at an address that its certificate lacks."""
    make("a")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    folder = tmp_path / "server"
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_server((address, 0)) as listener:
        shaken: list[bool] = []

        def serve():
            connection, _ = listener.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as tls:
                    shaken.append(bool(tls.recv(1)))
            except OSError:
                shaken.append(False)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        call_superlink(f"{address}:{listener.getsockname()[1]}", tmp_path / "ca.crt")
        thread.join(20)
    assert shaken == [trusted]


def call_superlink(address, authority):
    """Try to reach a SuperLink as Flower's programs of this version do."""
    try:
        from flwr.supercore.protobuf.client import ProtobufClient
    except ImportError:
        from flwr.common.grpc import create_channel

        channel = create_channel(address, False, authority.read_bytes())
        with contextlib.suppress(grpc.RpcError, grpc.FutureTimeoutError):
            channel.unary_unary("/x/y")(b"", timeout=20)
        channel.close()
        return
    client = ProtobufClient.from_server_address(
        address, False, authority.read_bytes(), []
    )
    with contextlib.suppress(Exception):
        client._client.get(f"https://{address}/")


@pytest.mark.parametrize("name", ["../x", ".", "a b", "-x", ""])
def test_a_name_that_is_no_file_name_is_refused(make, tmp_path, name):
    done = make(name)
    assert done.returncode == 1
    assert "no name for a device" in done.stderr
    assert contents(tmp_path) == {}


def program(folder, name, text):
    """Write a program that comes first on the PATH, and return that."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_it_says_why_openssl_has_failed(make, tmp_path, monkeypatch):
    path = program(tmp_path / "bin", "openssl", "echo 'No space left' >&2; exit 1")
    monkeypatch.setenv("PATH", path)
    done = make("a")
    assert done.returncode == 1
    assert done.stderr == "make_certificates.sh: openssl: No space left\n"


def test_who_may_read_the_keys_stands_in_the_env_file_once(tmp_path):
    docker, bin_folder = tmp_path / "docker", tmp_path / "bin"
    docker.mkdir()
    script = shutil.copy(SCRIPT, docker)
    (docker / ".env").write_text("EDGE_BIND=0.0.0.0")
    environment = {**os.environ, "PATH": program(bin_folder, "id", "echo 1000")}
    for _ in range(2):
        subprocess.run([script, "a"], env=environment, check=True, capture_output=True)
        lines = (docker / ".env").read_text().split()
        assert lines == ["EDGE_BIND=0.0.0.0", "EDGE_UID=1000", "EDGE_GID=1000"]


@pytest.mark.parametrize("line", ["export EDGE_UID=0", " EDGE_UID = 0", "EDGE_UID: 0"])
def test_a_user_that_the_env_file_names_stays(line, tmp_path):
    docker, bin_folder = tmp_path / "docker", tmp_path / "bin"
    docker.mkdir()
    script = shutil.copy(SCRIPT, docker)
    (docker / ".env").write_text(f"{line}\n")
    environment = {**os.environ, "PATH": program(bin_folder, "id", "echo 1000")}
    subprocess.run([script, "a"], env=environment, check=True, capture_output=True)
    assert (docker / ".env").read_text() == f"{line}\n"


@pytest.mark.parametrize(
    ("lines", "owner"),
    [("", "10001:10001"), ("EDGE_UID=1000\nEDGE_GID='100'\n", "1000:100")],
)
def test_what_root_makes_is_for_the_containers_user(lines, owner, tmp_path):
    docker, bin_folder = tmp_path / "docker", tmp_path / "bin"
    docker.mkdir()
    script = shutil.copy(SCRIPT, docker)
    (docker / ".env").write_text(lines)
    program(bin_folder, "chown", f'echo "$2" >{tmp_path}/owner')
    environment = {**os.environ, "PATH": program(bin_folder, "id", "echo 0")}
    subprocess.run([script, "a"], env=environment, check=True, capture_output=True)
    assert (tmp_path / "owner").read_text() == f"{owner}\n"


def test_without_the_authoritys_key_nothing_is_signed(make, tmp_path):
    make("a")
    (tmp_path / "ca.key").unlink()
    assert make("b").returncode == 0
    refused = make("--host", "new.example.org", "b")
    assert refused.returncode == 1
    assert "ca.key" in refused.stderr


def test_a_user_without_a_name_is_told_so_before_anything_is_made(make, tmp_path):
    """`ssh-keygen` wants one: "No user exists for uid 4242" is all that it says."""
    programs, made = tmp_path / "bin", tmp_path / "made"
    programs.mkdir()
    nameless = programs / "id"
    nameless.write_text('#!/bin/sh\n[ "$1" = -u ] && echo 4242\n')
    nameless.chmod(0o755)
    done = make("phone", folder=made, path=programs)
    assert done.returncode == 1
    assert "the user 4242 has no name" in done.stderr
    assert not made.exists()
