"""The wall clock on a real SuperLink with real SuperNodes, one of them killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from importlib.metadata import version
from pathlib import Path

import pytest

from flwr_asyncdrop.history import read_history
from scripts.flwr_run import end_processes, free_ports

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
NODES = 3
# Up to 1.34 every API has a gRPC port of its own; later there is one HTTP port.
GRPC = tuple(int(part) for part in version("flwr").split(".")[:2]) < (1, 35)


class Deployment:
    """A SuperLink and SuperNodes on free ports, with a home of their own."""

    def __init__(self, home):
        self.home = home
        self.mark = uuid.uuid4().hex
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(home),
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "ASYNCDROP_RUN": self.mark,
        }
        fleet, control, runtime, *self.node_ports = free_ports(3 + NODES)
        self.fleet = f"127.0.0.1:{fleet}"
        if GRPC:
            self.address = f"127.0.0.1:{control}"
            apis = ["--fleet-api-address", self.fleet]
            apis += ["--serverappio-api-address", f"127.0.0.1:{runtime}"]
        else:
            self.address = self.fleet
            apis = ["--host", "127.0.0.1", "--port", str(fleet)]
        apis += ["--control-api-address", f"127.0.0.1:{control}"]
        self.processes = []
        self.start("flower-superlink", *apis)
        wait_for_port(self.address)
        wait_for_port(self.fleet)
        self.nodes = [self.start_node(number) for number in range(NODES)]
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "{self.address}"\ninsecure = true\n'
        )

    def start(self, program, *arguments):
        log = self.home / f"{program}-{len(self.processes)}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(BIN / program), "--insecure", *arguments],
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def end(self):
        end_processes(self.mark)
        for process in self.processes:
            process.communicate(timeout=10)

    def start_node(self, number):
        port = self.node_ports[number]
        own = (
            ["--clientappio-api-address", f"127.0.0.1:{port}"]
            if GRPC
            else ["--host", "127.0.0.1", "--port", str(port)]
        )
        config = f"partition-id={number} num-partitions={NODES}"
        return self.start(
            "flower-supernode", "--superlink", self.fleet, "--node-config", config, *own
        )

    def run(self, **settings):
        toml = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        process = subprocess.Popen(
            [str(BIN / "flwr"), "run", str(ROOT), "--run-config", toml, "--stream"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def logs(self):
        return "\n".join(path.read_text() for path in self.home.glob("*.log"))


def wait_for_port(address, patience=60):
    host, port = address.split(":")
    deadline = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens on {address}"
            time.sleep(0.2)
        else:
            return


@pytest.fixture
def deployment(tmp_path):
    deployment = Deployment(tmp_path)
    yield deployment
    deployment.end()


def updates(out_dir):
    path = out_dir / "history.jsonl"
    lines = list(read_history(path)) if path.exists() else []
    return [line for line in lines if line["event"] == "update"]


def wait_for_updates(run, out_dir, count, deadline):
    while len(updates(out_dir)) < count:
        assert run.poll() is None, run.stdout.read()
        assert time.monotonic() < deadline, "no update in time"
        time.sleep(0.5)


@pytest.mark.e2e
def test_a_real_fleet_trains_to_the_end_though_a_device_dies(deployment, tmp_path):
    out = tmp_path / "out"
    run = deployment.run(
        **{
            "clock": "wall",
            "model": "mlp",
            "num-rounds": 4,
            "in-flight": NODES,
            "local-steps": 3,
            "timeout": 45.0,
            "out-dir": str(out),
        }
    )
    deadline = time.monotonic() + 360
    wait_for_updates(run, out, 2, deadline)
    victim = deployment.nodes[NODES - 1]
    victim.send_signal(signal.SIGKILL)
    output, _ = run.communicate(timeout=deadline - time.monotonic())
    assert "model.safetensors" in output, output + deployment.logs()
    merged = updates(out)
    assert len(merged) == 4 * NODES
    assert len({line["device"] for line in merged}) >= 2
    assert all(line["bytes_down"] < 60_000 for line in merged)  # submodels
    first, *_, last = read_history(out / "history.jsonl")
    assert first["config"]["clock"] == "wall"
    assert last["event"] == "end"
    assert 0 < last["time"] < 240
