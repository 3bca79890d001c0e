"""Every check on machines that are well, and on those that are not."""

import errno
import os
import re
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import flwr
import psutil
import pytest
import torch
from flwr.supercore.utils import get_flwr_home
from packaging.requirements import Requirement

from flwr_asyncdrop.app.data import files
from flwr_asyncdrop.doctor import examine, machine, software, superlink
from flwr_asyncdrop.doctor.data import check_data
from flwr_asyncdrop.doctor.machine import (
    check_gpu,
    check_memory,
    check_output,
    check_shared,
)
from flwr_asyncdrop.doctor.software import (
    check_optional,
    check_package,
    check_python,
    check_required,
)
from flwr_asyncdrop.doctor.superlink import (
    check_installation,
    check_ports,
    check_ray,
    check_ray_cluster,
    check_variables,
    listener,
)

HTTP, CONTROL = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT"


def by_name(findings):
    return {each.name: each for each in findings}


class TestSoftware:
    def test_this_environment_will_do(self):
        assert check_python().level == "ok"
        found = by_name(check_required())
        assert {each.level for each in found.values()} == {"ok"}
        assert {"flwr-asyncdrop", "flwr", "torch", "other packages"} == found.keys()
        assert "numpy" in found["other packages"].found

    def test_what_the_commands_print_with_is_looked_for(self, monkeypatch):
        """They name the doctor if it is missing, and it did not mention it."""
        monkeypatch.setattr(software, "_OPTIONAL", {"rich": software._OPTIONAL["rich"]})
        (found,) = check_optional()
        assert "rich" in found.found

    def test_an_old_python(self):
        finding = check_python("3.10.4", ">=3.11")
        assert finding.level == "problem"
        assert "3.10.4" in finding.found
        assert ">=3.11" in finding.found

    @pytest.mark.parametrize(
        ("requirement", "level", "says"),
        [
            ("numpy", "ok", ""),
            ("numpy<1", "problem", "is not in <1"),
            ("no-such-package>=2", "problem", "is not installed"),
        ],
    )
    def test_a_package(self, requirement, level, says):
        finding = check_package(Requirement(requirement))
        assert finding.level == level
        assert says in finding.found
        assert (finding.fix == f"pip install '{requirement}'") == (level != "ok")

    def test_an_optional_package_must_work_if_it_is_there(self, monkeypatch):
        def fail(name):
            raise RuntimeError(f"{name}::nms\ndoes not exist")

        optional = {"numpy": ("numpy", "x", "y"), "no-such": ("no", "report", "slow")}
        monkeypatch.setattr(software, "_OPTIONAL", optional)
        absent, there = check_optional()
        assert (absent.level, there.level) == ("ok", "ok")
        assert there.found.startswith("numpy ")
        assert absent.found == (
            "is not installed: slow (pip install 'flwr-asyncdrop[report]')"
        )
        monkeypatch.setattr(software, "import_module", fail)
        broken, _ = check_optional()
        assert broken.level == "warning"
        assert "RuntimeError: numpy::nms does not exist" in broken.found

    def test_an_optional_package_must_be_new_enough(self, monkeypatch):
        """It was fine in any version, and a run failed."""
        old = {"numba": "0.60.0", "peft": "0.17.1"}
        monkeypatch.setattr(software, "version", lambda name: old.get(name, "99"))
        monkeypatch.setattr(software, "import_module", lambda _: None)
        found = by_name(check_optional())
        assert found["numba"].level == "warning"
        assert found["numba"].found == "0.60.0 is not in >=0.61"
        assert found["numba"].fix == "pip install 'numba>=0.61'"
        assert found["peft"].found.startswith("0.17.1 is not in ")
        assert "psutil 99" in found["extras"].found

    def test_a_build_of_ones_own_may_have_a_version_that_is_none(self, monkeypatch):
        """The doctor ended with a traceback."""
        monkeypatch.setattr(software, "version", lambda _: "2.6.0-of-mine")
        finding = check_package(Requirement("numpy>=2"))
        says = "2.6.0-of-mine is no version that can be compared with >=2"
        assert (finding.level, finding.found) == ("problem", says)
        found = by_name(check_optional())
        assert found["numba"].found == says.replace(">=2", ">=0.61")

    def test_every_module_that_names_the_doctor_is_looked_at(self):
        """What an extra brings and cannot be imported says: see `asyncdrop doctor`."""
        looked_at = {
            module.partition(".")[0] for module, *_ in software._OPTIONAL.values()
        }
        package = Path(software.__file__).parents[1]
        named = {
            name
            for file in package.rglob("*.py")
            for name in re.findall(r'require\("(\w+)', file.read_text(encoding="utf-8"))
        }
        assert named
        assert named <= looked_at


class TestGpu:
    def test_none_is_fine_unless_there_is_a_driver(self, tmp_path, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert check_gpu(tmp_path / "driver").level == "ok"
        (tmp_path / "driver").touch()
        finding = check_gpu(tmp_path / "driver")
        assert finding.level == "warning"
        assert torch.__version__ in finding.found

    @pytest.mark.parametrize(
        ("computed", "level", "says"),
        [
            (2.0, "ok", "T4, T4: 3.00 GB of 16.0 GB free"),
            (3.0, "problem", "1 + 1 is 3"),
            (RuntimeError("no kernel\nimage"), "problem", "fails: no kernel image"),
        ],
    )
    def test_one_must_compute(self, computed, level, says, monkeypatch):
        def ones(*shape, device):
            if isinstance(computed, Exception):
                raise computed
            return torch.tensor(computed)

        cuda = {
            "is_available": lambda: True,
            "device_count": lambda: 2,
            "get_device_name": lambda number: "T4",
            "mem_get_info": lambda: (3 * 10**9, 16 * 10**9),
        }
        for name, function in cuda.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(machine.torch, "ones", ones)
        finding = check_gpu()
        assert finding.level == level
        assert says in finding.found


class TestData:
    def test_nobody_said_where(self):
        (finding,) = check_data(None)
        assert finding.level == "ok"
        assert "--data-dir" in finding.found

    def test_no_such_folder(self, tmp_path):
        (finding,) = check_data(tmp_path / "nowhere")
        assert finding.level == "problem"

    def test_what_is_there_and_what_is_not(self, tmp_path):
        raw = tmp_path / "FashionMNIST" / "raw"
        raw.mkdir(parents=True)
        for split in ("train", "t10k"):
            (raw / f"{split}-images-idx3-ubyte.gz").touch()
            (raw / f"{split}-labels-idx1-ubyte").touch()
        found = by_name(check_data(tmp_path))
        assert found["digits"].level == "ok"
        assert found["fashion-mnist"].level == "ok"
        assert found["fashion-mnist"].found == str(raw)
        assert found["cifar10"].level == "warning"
        assert "cifar-10-batches-py" in found["cifar10"].fix
        assert "--download" in found["cifar10"].fix
        assert "--download" not in found["imdb"].fix


class TestMachine:
    def test_a_folder_that_is_made_later_is_not_made_now(self, tmp_path):
        out = tmp_path / "a" / "b"
        output, disk = check_output(out)
        assert output.level == "ok"
        assert str(out) in output.found
        assert str(tmp_path) in disk.found
        assert list(tmp_path.iterdir()) == []

    def test_a_file_in_the_way(self, tmp_path):
        (tmp_path / "runs").touch()
        output, _ = check_output(tmp_path / "runs" / "one")
        assert output.level == "problem"
        assert "--out" in output.fix

    def test_a_link_to_nowhere_in_the_way(self, tmp_path):
        """It was said that files can be written, and a run was refused."""
        link = tmp_path / "runs"
        link.symlink_to(tmp_path / "nowhere")
        output, disk = check_output(link / "one")
        assert output.level == "problem"
        assert str(link) in output.found
        assert disk.found.endswith(str(tmp_path))
        home, *_ = check_variables({"FLWR_HOME": str(link)})
        assert home.level == "problem"

    @pytest.mark.parametrize(
        ("free", "level"),
        [(10**8, "problem"), (10**9, "warning"), (10**10, "ok")],
    )
    def test_space_on_the_disk(self, free, level, tmp_path, monkeypatch):
        usage = type("Usage", (), {"free": free, "total": 10**11})
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage)
        _, disk = check_output(tmp_path)
        assert disk.level == level

    @pytest.mark.parametrize(
        ("megabytes", "limit", "used", "level", "says"),
        [
            (8000, None, 0, "ok", "8.19 GB free, "),
            (1000, None, 0, "warning", "1.02 GB free, "),
            (8000, "max", 0, "ok", "8.19 GB free, "),
            (8000, "3000000000", 2_800_000_000, "warning", "1.20 GB free to this cont"),
            (8000, "3000000000", 3_800_000_000, "problem", "200.00 MB free to this"),
            (100, "3000000000", 0, "problem", "102 MB free, "),
        ],
    )
    def test_memory(self, megabytes, limit, used, level, says, tmp_path, monkeypatch):
        memory = SimpleNamespace(available=megabytes * 1_024_000)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        if limit is not None:
            (tmp_path / "memory.max").write_text(f"{limit}\n")
            (tmp_path / "memory.current").write_text(f"{used}\n")
            (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 1000000000\n")
        finding = check_memory(tmp_path)
        assert finding.level == level
        assert finding.found.startswith(says.replace("200.00", "200"))

    def test_a_system_that_does_not_say(self, tmp_path, monkeypatch):
        assert check_shared(tmp_path / "none").level == "ok"
        monkeypatch.setitem(sys.modules, "psutil", None)
        monkeypatch.setattr(machine, "available_memory", lambda: None)
        assert "nobody says" in check_memory(tmp_path).found

    def test_linux_says_how_much_is_free_without_psutil(self, tmp_path, monkeypatch):
        """A machine with hardly any memory was fine."""
        monkeypatch.setitem(sys.modules, "psutil", None)
        monkeypatch.setattr(machine, "available_memory", lambda: 100_000_000)
        finding = check_memory(tmp_path)
        assert finding.level == "problem"
        assert finding.found.startswith("100 MB free")

    @pytest.mark.parametrize(
        ("free", "level"), [(64 * 10**6, "warning"), (10**9, "ok")]
    )
    def test_shared_memory(self, free, level, tmp_path, monkeypatch):
        usage = type("Usage", (), {"free": free, "total": free})
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage)
        finding = check_shared(tmp_path)
        assert finding.level == level
        assert ("--shm-size" in finding.fix) == (level == "warning")


@pytest.fixture
def taken():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield str(listening.getsockname()[1])


@pytest.fixture
def free():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return str(closed.getsockname()[1])


class TestPorts:
    def test_free_and_taken_by_a_program(self, taken, free):
        found = by_name(check_ports({HTTP: taken, CONTROL: free}))
        assert found[f"port {free}"].level == "ok"
        finding = found[f"port {taken}"]
        assert finding.level == "problem"
        assert HTTP in finding.fix
        if sys.platform == "linux":
            assert f"process {os.getpid()}" in finding.found

    @pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who listens")
    def test_taken_by_a_superlink(self, free):
        code = (
            "import socket, sys, time; s = socket.socket(); "
            f"s.bind(('127.0.0.1', {free})); s.listen(); print(flush=True); "
            "time.sleep(60)"
        )
        command = [sys.executable, "-c", code, "flower-superlink"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as superlink:
            superlink.stdout.readline()
            finding, _ = check_ports({HTTP: free})
            superlink.kill()
        assert finding.level == "warning"
        assert f"kill {superlink.pid}" in finding.fix

    def test_taken_by_nobody_knows_whom(self, taken, monkeypatch):
        monkeypatch.setitem(sys.modules, "psutil", None)
        finding, _ = check_ports({HTTP: taken})
        assert finding.level == "problem"
        assert "this user cannot see" in finding.found

    def test_one_that_this_user_may_not_open(self, monkeypatch):
        def forbid(address):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(socket, "create_server", forbid)
        finding, _ = check_ports({HTTP: "80"})
        assert finding.level == "problem"
        assert finding.found == "this user may not listen there (Permission denied)"
        assert "from 1024 on" in finding.fix

    def test_one_on_a_machine_without_loopback(self, monkeypatch):
        def refuse(address):
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

        monkeypatch.setattr(socket, "create_server", refuse)
        finding, _ = check_ports({HTTP: "9"})
        assert finding.level == "problem"
        assert "Cannot assign requested address" in finding.found

    def test_two_that_are_the_same(self, free):
        first, second = check_ports({HTTP: free, CONTROL: free})
        assert (first.level, second.level) == ("ok", "problem")
        assert second.found == f"{HTTP} names it, too"

    def test_who_only_talks_does_not_listen(self, taken):
        with socket.create_connection(("127.0.0.1", int(taken))) as talking:
            assert listener(talking.getsockname()[1]) is None

    def test_flowers_own_ports_unless_told_otherwise(self):
        assert [each.name for each in check_ports({})] == ["port 39091", "port 39093"]

    @pytest.mark.parametrize("value", ["", "http", "-1", "0", "65536", "1.5", "٣" * 9])
    def test_no_port(self, value, free):
        finding, _ = check_ports({HTTP: value, CONTROL: free})
        assert finding.level == "problem"
        assert repr(value) in finding.found

    def test_a_number_that_python_does_not_read(self, free):
        finding, _ = check_ports({HTTP: "9" * 5000, CONTROL: free})
        assert finding.level == "problem"
        assert len(finding.found) < 200

    def test_a_command_line_that_a_terminal_would_obey(self, taken, monkeypatch):
        monkeypatch.setattr(superlink, "listener", lambda _: (7, "x\n\033[31my" * 99))
        finding, _ = check_ports({HTTP: taken})
        assert finding.found.startswith("taken by process 7: x [31myx ")
        assert len(finding.found) < 100
        assert finding.found.isprintable()


class TestVariables:
    def test_an_environment_of_its_own_is_worth_a_warning(self, tmp_path):
        environment = {"FLWR_HOME": str(tmp_path / "new"), "FLWR_X": "7", "HOME": "y"}
        found = by_name(check_variables(environment))
        assert found["FLWR_HOME"].level == "ok"
        assert found["FLWR_HOME"].found == str(tmp_path / "new")
        assert found["environment"].level == "warning"
        assert found["FLWR_*"].found == "FLWR_X=7"

    def test_what_is_secret_is_not_shown(self):
        """Flower has such variables, and what the doctor says goes into logs."""
        environment = {"FLWR_MODEL_API_KEY": "s3", "FLWR_SLACK_CLIENT_SECRET": "s4"}
        found = by_name(check_variables(environment))["FLWR_*"].found
        assert found == "FLWR_MODEL_API_KEY=***, FLWR_SLACK_CLIENT_SECRET=***"

    def test_what_a_terminal_would_obey_is_not_shown(self, tmp_path):
        odd = "a\nb\033[31m\udcff"
        (tmp_path / "file").touch()
        for home in (tmp_path, tmp_path / "file"):
            environment = {"FLWR_HOME": str(home / odd), "FLWR_X": odd}
            for each in check_variables(environment):
                assert each.found.isprintable(), each

    @pytest.mark.parametrize("value", ["1", "true", ""])
    def test_whose_environment_flower_uses_is_what_flower_says(
        self, value, monkeypatch
    ):
        name = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
        monkeypatch.setenv(name, value)
        flower = import_module("flwr.superlink.cli.flower_superlink")
        builds_one = flower._runtime_dependency_install_default()
        found = by_name(check_variables({name: value}))
        assert found["environment"].level == ("warning" if builds_one else "ok")
        assert "FLWR_*" not in found

    @pytest.mark.parametrize("value", ["~/flower", "flower", ""])
    def test_the_home_is_where_flower_has_it(self, value, monkeypatch):
        """It does not expand ~: a folder of that name is made where it starts."""
        monkeypatch.setenv("FLWR_HOME", value)
        found = by_name(check_variables({"FLWR_HOME": value}))
        assert found["FLWR_HOME"].found == str(get_flwr_home().absolute())

    def test_a_home_that_cannot_be(self, tmp_path):
        (tmp_path / "file").touch()
        finding, *_ = check_variables({"FLWR_HOME": str(tmp_path / "file" / "home")})
        assert finding.level == "problem"


def test_everything_is_looked_at_and_whatever_is_amiss_has_its_fix(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(software, "_OPTIONAL", {})
    found = list(examine(tmp_path, tmp_path))
    names = [each.name for each in found]
    for name in ("python", "flwr", "torch", "gpu", "cifar10", "output", "disk"):
        assert names.count(name) == 1
    assert {"memory", "shared memory", "FLWR_HOME", "environment"} <= set(names)
    for each in found:
        assert bool(each.fix) == (each.level != "ok"), each
        assert "\n" not in each.found + each.fix


def test_a_check_that_this_user_may_not_do_ends_no_other(tmp_path, monkeypatch):
    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    def has_no_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(software, "_OPTIONAL", {})
    monkeypatch.setattr(files, "find_file", refuse)
    monkeypatch.setattr(Path, "expanduser", has_no_home)
    monkeypatch.delenv("FLWR_HOME", raising=False)
    found = list(examine(tmp_path, tmp_path))
    (data,) = (each for each in found if each.name == "data")
    assert data.level == "problem"
    assert "PermissionError: [Errno 13] Permission denied: " in data.found
    assert {"digits", "output", "memory", "port 39091"} <= {each.name for each in found}
    assert found[-1].level == "problem"
    assert found[-1].found.endswith("RuntimeError: Could not determine home directory.")
    assert all(bool(each.fix) == (each.level != "ok") for each in found)


BARE = """
import sys
from importlib import import_module
for name in {blocked!r}:
    sys.modules[name] = None
from pathlib import Path
from flwr_asyncdrop.doctor import examine
for each in examine(Path({out!r}), Path({out!r})):
    print(each.level, each.name, each.found)
"""


def test_a_machine_without_any_extra_is_examined_to_the_end(tmp_path):
    blocked = [module for module, _, _ in software._OPTIONAL.values()]
    code = BARE.format(blocked=blocked, out=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    lines = done.stdout.splitlines()
    for name in software._OPTIONAL:
        (line,) = (line for line in lines if line.split()[1] == name)
        assert "cannot be imported" in line or "is not installed" in line
    assert lines[-1].split()[1] in ("environment", "FLWR_*")
    assert "Traceback" not in done.stderr


def test_a_backend_that_matplotlib_does_not_know_is_the_variables_fault(tmp_path):
    code = BARE.format(blocked=[], out=str(tmp_path)).replace("found)", "fix)")
    environment = {**os.environ, "MPLBACKEND": "nope"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    (line,) = (line for line in done.stdout.splitlines() if " matplotlib " in line)
    assert line == "warning matplotlib unset MPLBACKEND"


def test_a_folder_that_matplotlib_cannot_use_is_a_warning_of_its_own(tmp_path):
    code = BARE.format(blocked=[], out=str(tmp_path)).replace("found)", "fix)")
    (tmp_path / "file").touch()
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path / "file" / "x")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment
    )
    (line,) = (line for line in done.stdout.splitlines() if " matplotlib " in line)
    fix = "set MPLCONFIGDIR to a folder that can be written"
    assert (line, done.stderr) == (f"warning matplotlib {fix}", "")


class TestInstallation:
    def test_here(self):
        folder = str(Path(flwr.__file__).resolve().parent)
        finding = check_installation()
        assert folder in finding.found
        assert finding.level == ("warning" if set(" ,%") & set(folder) else "ok")

    @pytest.mark.parametrize("name", ["my project", "a,b", "100%"])
    def test_a_path_that_alembic_does_not_read(self, name):
        finding = check_installation(f"/home/me/{name}/.venv/flwr/__init__.py")
        assert finding.level == "warning"
        assert name in finding.found
        assert "make run" in finding.fix

    @pytest.mark.parametrize("name", ["my project", "it's", "a;b"])
    def test_a_python_that_ray_does_not_start(self, name):
        python = f"/home/me/{name}/bin/python"
        finding = check_ray({}, python)
        assert finding.level == "warning"
        assert python in finding.found
        hooks = dict([finding.fix.split("set ")[1].split(",")[0].split("=")])
        assert check_ray(hooks, python).level == "ok"

    def test_a_python_that_ray_starts(self):
        assert check_ray({}, "/usr/bin/python3.11").level == "ok"

    def test_a_ray_cluster_that_is_gone(self):
        found = check_ray_cluster({"RAY_ADDRESS": "127.0.0.1:1"})
        assert found.level == "warning"
        assert "127.0.0.1:1" in found.found
        assert found.fix == "start the cluster, or unset RAY_ADDRESS"

    def test_a_ray_cluster_that_ray_starts(self, tmp_path):
        assert check_ray_cluster({"RAY_TMPDIR": str(tmp_path)}).level == "ok"

    @pytest.mark.parametrize("name", ["it's", "naïve", "a;b"])
    def test_other_letters_do_no_harm(self, name):
        origin = f"/home/me/{name}/.venv/flwr/__init__.py"
        assert check_installation(origin).level == "ok"
