"""A Slurm of one machine: commands that run at once what they are given."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

_SRUN = """
import os, signal, subprocess, sys
words = sys.argv[1:]
split = next(n for n, word in enumerate(words) if not word.startswith("--"))
options, command = words[:split], words[split:]
with open(os.environ["STUB_LOG"], "a") as log:
    log.write(f"srun {' '.join(options)} : {' '.join(command)}\\n")
count = next((int(o[9:]) for o in options if o.startswith("--ntasks=")), 1)
tasks = [subprocess.Popen(command) for _ in range(count)]
def stop(*_):
    for task in tasks:
        task.terminate()
signal.signal(signal.SIGTERM, stop)
sys.exit(max(task.wait() for task in tasks))
"""
_SCONTROL = """
import sys
assert sys.argv[1:3] == ["show", "hostnames"]
print("\\n".join(sys.argv[3].split(",")))
"""
_ASYNCDROP = """
import os, sys
with open(os.environ["STUB_LOG"], "a") as log:
    log.write(f"asyncdrop {' '.join(sys.argv[1:])}\\n")
sys.exit(int(os.environ.get("STUB_STATUS", "0")))
"""
# A head listens; every node leaves a file while it is there.
_RAY = """
import os, signal, socket, sys, time
words = dict(w.partition("=")[::2] for w in sys.argv[1:])
with open(os.environ["STUB_LOG"], "a") as log:
    log.write(f"ray {' '.join(sys.argv[1:])}\\n")
if os.environ.get("STUB_RAY") == "dies" and "--head" in words:
    sys.exit("Ray cannot start")
if os.environ.get("STUB_RAY") == "alone" and "--head" not in words:
    time.sleep(60)
node = os.path.join(os.environ["STUB_NODES"], str(os.getpid()))
def leave(*_):
    os.unlink(node)
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
if "--head" in words:
    os.mkdir(words["--temp-dir"])
    place = words["--node-ip-address"], int(words["--port"])
    server = socket.create_server(place)
open(node, "w").close()
time.sleep(60)
"""
_RAY_MODULE = """
import os
def init(**_): pass
def nodes(): return [{"Alive": True} for _ in os.listdir(os.environ["STUB_NODES"])]
"""
ASYNCDROP = """
import sys
from flwr_asyncdrop.cli.main import main
if __name__ == "__main__":
    sys.exit(main())
"""
RAY = "from ray.scripts.scripts import main; main()"


class Slurm:
    """Runs batch scripts in a folder, with stubs of the commands that they call.

    `commands` replaces stubs by Python code of their own.
    """

    def __init__(self, folder: Path, **commands: str) -> None:
        self._folder = folder
        self._log = folder / "log"
        self._log.touch()
        self.nodes = folder / "nodes"
        self.scratch = folder / "my scratch"
        self.scratch.mkdir()
        self.ray_files = self.scratch / "ray-7"
        for name in ("bin", "modules", "nodes"):
            (folder / name).mkdir()
        stubs = {"srun": _SRUN, "scontrol": _SCONTROL, "ray": _RAY}
        stubs |= {"asyncdrop": _ASYNCDROP, **commands}
        for name, code in stubs.items():
            command = folder / "bin" / name
            # As pip writes it, for a Python whose path may have a space.
            start = f"""#!/bin/sh\n'''exec' "{sys.executable}" "$0" "$@"\n' '''\n"""
            command.write_text(start + code)
            command.chmod(0o755)
        python = folder / "bin" / "python"  # a link would not find its packages
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        self.variables: dict[str, str] = {}
        if "ray" not in commands:
            (folder / "modules" / "ray.py").write_text(_RAY_MODULE)
            self.variables["PYTHONPATH"] = str(folder / "modules")

    @property
    def log(self) -> list[str]:
        """The commands that were called, in their order."""
        return self._log.read_text().splitlines()

    def batch(
        self, script: Path, *arguments: str, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a batch script, as on the first node of its allocation."""
        allocation = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2"}
        allocation["RAY_FOLDER"] = str(self.scratch)
        stubs = {"STUB_LOG": str(self._log), "STUB_NODES": str(self.nodes)}
        path = f"{self._folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(script), *arguments],
            env={**os.environ, **allocation, **stubs, **self.variables}
            | {"PATH": path, **variables},
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def array(self, script: Path, *arguments: str) -> list[int]:
        """Run all tasks of an array's script; return their exit statuses."""
        found = re.search(r"^#SBATCH --array=1-(\d+)$", script.read_text(), re.M)
        assert found is not None
        return [
            self.batch(script, *arguments, SLURM_ARRAY_TASK_ID=str(number)).returncode
            for number in range(1, int(found[1]) + 1)
        ]

    def is_empty(self, seconds: float = 60.0) -> bool:
        """Return whether all nodes of the stub's cluster have left."""
        end = time.monotonic() + seconds
        while any(self.nodes.iterdir()):
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True
