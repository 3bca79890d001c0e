"""What the SuperLink over HTTP answers at which of its addresses."""

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from tests.docker.conftest import EDGE
from tests.docker.test_entrypoints import is_grpc


def ask(entrypoint, path, server, kind="http"):
    guard = entrypoint("guard")
    sent, passed = [], []

    async def app(scope, receive, send):
        passed.append(scope["path"])

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "server": server}
    asyncio.run(guard.guarded(app, {"10.0.0.2"})(scope, None, send))
    return bool(passed), sent


@pytest.mark.parametrize(
    ("path", "server", "passes"),
    [
        ("/v1/fleet/pull", ("10.0.0.3", 9092), True),
        ("/v1/control/start", ("10.0.0.3", 9092), False),
        ("/v1/control/start", ("10.0.0.2", 9092), True),
        ("/v1/control/start", ("127.0.0.1", 9092), True),
        ("/v1/control/start", ("::1", 9092), True),
        ("/v1/control/start", ("::ffff:10.0.0.2", 9092), True),
        ("/v1/control/start", ("::ffff:10.0.0.3", 9092), False),
        ("/v1/fleet", ("10.0.0.3", 9092), False),
        ("/V1/FLEET/x", ("10.0.0.3", 9092), False),
        ("//v1/fleet/x", ("10.0.0.3", 9092), False),
        ("/docs", ("10.0.0.3", 9092), False),
        ("/v1/runtime/x", ("10.0.0.3", 9092), False),
        ("/v1/control/x", ("/a/socket", None), False),
        ("/v1/control/x", None, False),
    ],
)
def test_a_request_passes_for_devices_or_at_an_own_address(
    entrypoint, path, server, passes
):
    passed, sent = ask(entrypoint, path, server)
    assert passed is passes
    if not passes:
        assert [m["type"] for m in sent] == [
            "http.response.start",
            "http.response.body",
        ]
        assert sent[0]["status"] == 403


def test_a_websocket_is_closed(entrypoint):
    passed, sent = ask(entrypoint, "/v1/control/x", ("10.0.0.3", 1), "websocket")
    assert (passed, sent[0]["type"]) == (False, "websocket.close")


def own_address():
    """An address of this machine that is not the loopback interface's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has the loopback interface alone")
        return asked.getsockname()[0]


@pytest.mark.e2e
def test_flowers_superlink_is_behind_it(tmp_path):
    if is_grpc():
        pytest.skip("with gRPC the control API has a port of its own")
    outside = own_address()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(EDGE / "guard.py"), "--", "--insecure"]
    everywhere = "0.0.0.0"  # noqa: S104  # as in a container
    own = ["--host", everywhere, "--port", str(port), "--isolation", "process"]
    with subprocess.Popen([*command, *own], cwd=tmp_path) as superlink:
        try:
            deadline = time.monotonic() + 60
            while status("127.0.0.1", port, "/openapi.json") is None:
                assert superlink.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.2)
            paths = json.loads(read("127.0.0.1", port, "/openapi.json"))["paths"]
            assert any(path.startswith("/v1/control/") for path in paths)
            refused = {p for p in paths if status(outside, port, p) == 403}
            fleet = {path for path in paths if path.startswith("/v1/fleet/")}
            assert refused == set(paths) - fleet
            assert all(status("127.0.0.1", port, path) != 403 for path in paths)
        finally:
            superlink.terminate()


def read(host, port, path):
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=10) as answer:
        return answer.read()


def status(host, port, path):
    try:
        read(host, port, path)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None
    return 200
