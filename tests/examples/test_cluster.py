"""The files of examples/cluster: on a Slurm of stubs, and by KubeRay's fields."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import jsonschema
import psutil
import pytest
import yaml

from flwr_asyncdrop.cli import compare, simulate
from flwr_asyncdrop.cli.backend import Backend, backend_of
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from tests.examples.slurm import ASYNCDROP, RAY, Slurm
from tests.nightly import by_night

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "cluster"
COMPARE, ON_RAY = FOLDER / "compare.sbatch", FOLDER / "ray.sbatch"
MANIFEST = FOLDER / "kuberay.yaml"
SMALL = ["--model=mlp", "--num-rounds=2", "--local-steps=2", "--in-flight=3"]
SMALL += ["--devices=6", "--levels=3"]
COMMANDS = {"compare": compare, "simulate": simulate}
PORT_OF_JOB_7 = 20014


@pytest.fixture
def slurm(tmp_path):
    return Slurm(tmp_path)


def parsed(line):
    """Read a line as the command does; what is wrong with it is raised."""
    program, name, *words = shlex.split(line)
    assert program == "asyncdrop"
    parser = Parser()
    COMMANDS[name].add_arguments(parser, words)
    return parser.parse_args(words)


@pytest.mark.parametrize("script", [COMPARE, ON_RAY], ids=lambda path: path.name)
def test_scripts_are_sound(script):
    subprocess.run(["bash", "-n", script], check=True)
    options = re.findall(r"^#SBATCH (\S+)$", script.read_text(), re.M)
    assert len(options) >= 7
    assert all(re.fullmatch(r"--[a-z-]+(=\S+)?", option) for option in options)
    shellcheck = Path(sys.executable).with_name("shellcheck")
    if not shellcheck.exists():
        pytest.skip("shellcheck has no wheel for this machine")
    done = subprocess.run([shellcheck, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_an_array_does_each_shard_once(slurm):
    out = ["--out", "/shared/a b", "--seeds", "0-4"]
    assert slurm.array(COMPARE, *out) == [0] * 4
    lines = [line for line in slurm.log if line.startswith("srun")]
    assert all(
        line.startswith("srun --ntasks=1 --cpus-per-task=2 : ") for line in lines
    )
    commands = [line for line in slurm.log if line.startswith("asyncdrop")]
    asked = [parsed(line.replace("a b", "a")) for line in commands]
    assert [str(each.shard) for each in asked] == ["1/4", "2/4", "3/4", "4/4"]
    assert {(str(each.out), each.jobs) for each in asked} == {("/shared/a", 2)}


def test_one_task_of_an_array_again_is_the_same_shard(slurm):
    again = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "1"}
    assert slurm.batch(COMPARE, "--out=x", **again).returncode == 0
    assert slurm.log[-1].endswith("--shard 3/4")
    failed = slurm.batch(COMPARE, "--out=x", **again, STUB_STATUS="1", SHARDS="8")
    assert failed.returncode == 1
    assert slurm.log[-1].endswith("--shard 3/8")


def test_the_jobs_that_are_asked_for_count(slurm):
    assert slurm.array(COMPARE, "--out=x", "--gpus=all", "--jobs=6") == [0] * 4
    commands = [line for line in slurm.log if line.startswith("asyncdrop")]
    assert {parsed(line).jobs for line in commands} == {6}


NODES = {"SLURM_JOB_NODELIST": "n1,n2,n3", "HEAD_IP": "127.0.0.1"}


def test_a_ray_cluster_is_started_used_and_ended(slurm):
    mine = slurm.scratch / "mine"
    mine.touch()
    run = ["simulate", "--model", "mlp", "--out", "/shared/run"]
    done = slurm.batch(ON_RAY, *run, **NODES)
    assert done.returncode == 0, done.stderr
    address = f"127.0.0.1:{PORT_OF_JOB_7}"
    steps = [line for line in slurm.log if line.startswith("srun")]
    assert [line.partition(" : ")[0] for line in steps] == [
        f"srun --overlap --nodes={count} --ntasks={count} --cpus-per-task=2{place}"
        for count, place in (
            (1, " --nodelist=n1"),
            (2, " --exclude=n1"),
            (1, " --nodelist=n1"),
            (3, ""),
        )
    ]
    starts = [line for line in slurm.log if line.startswith("ray")]
    assert len(starts) == 3
    head = (
        f"ray start --head --block --node-ip-address=127.0.0.1 --port={PORT_OF_JOB_7}"
    )
    assert starts[0].startswith(f"{head} ")
    assert "--num-cpus=1 " in starts[0]
    assert set(starts[1:]) == {f"ray start --block --address={address} --num-cpus=2"}
    assert slurm.log[-2] == (
        f"asyncdrop {' '.join(run)} --backend ray --address {address}"
    )
    assert backend_of(parsed(slurm.log[-2])) == Backend(address=address)
    assert slurm.is_empty()
    # An address that stayed would be joined by who runs on the node afterwards.
    assert f" --temp-dir={slurm.ray_files} " in starts[0]
    assert [*slurm.scratch.iterdir()] == [mine]


def test_the_status_is_that_of_the_run_and_one_node_is_enough(slurm):
    one = {**NODES, "SLURM_JOB_NODELIST": "n1"}
    done = slurm.batch(ON_RAY, "simulate", "--resume=/x", **one, STUB_STATUS="7")
    assert done.returncode == 7
    assert f"Ray's logs are in {slurm.ray_files} on each node" in done.stderr
    assert slurm.ray_files.is_dir()
    assert sum(line.startswith("ray") for line in slurm.log) == 1
    assert slurm.is_empty()


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("dies", f"no Ray head at 127.0.0.1:{PORT_OF_JOB_7}: see what it says above"),
        ("alone", "1 of 3 nodes have joined the Ray cluster at 127.0.0.1:"),
    ],
)
def test_a_cluster_that_does_not_come_up_ends_the_job(fault, says, slurm):
    few = {"STUB_RAY": fault, "SECONDS_TO_START": "2"}
    done = slurm.batch(ON_RAY, "simulate", "--out=x", **NODES, **few)
    assert done.returncode == 1
    assert says in done.stderr
    assert not any(line.startswith("asyncdrop") for line in slurm.log)
    assert slurm.is_empty()


@pytest.mark.e2e
@by_night
def test_an_array_of_real_shards_comes_to_a_whole_comparison(tmp_path):
    slurm = Slurm(tmp_path, asyncdrop=ASYNCDROP)
    slurm.variables["PYTHONPATH"] = str(ROOT)
    flags = ["--algos=fedavg,fedbuff", "--seeds=0-1", *SMALL, f"--out={tmp_path / 'o'}"]
    assert slurm.array(COMPARE, *flags) == [0] * 4
    assert len(list((tmp_path / "o").rglob("done.json"))) == 4


@pytest.mark.e2e
@by_night
@pytest.mark.parametrize("nodes", ["n1", "n1,n2"])
def test_a_real_ray_in_an_allocation_gives_the_same_history(nodes, tmp_path):
    pytest.importorskip("ray")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # Sockets lie in it: a path of at most 107 bytes.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    slurm = Slurm(tmp_path, asyncdrop=ASYNCDROP, ray=RAY)
    variables = {"PYTHONPATH": str(ROOT), "RAY_FOLDER": folder, "PORT": port}
    variables |= {"SLURM_JOB_NODELIST": nodes, "HEAD_IP": "127.0.0.1"}
    run = ["simulate", "--algo=fedavg", *SMALL, f"--out={tmp_path / 'ray'}"]
    try:
        done = slurm.batch(ON_RAY, *run, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        left = [
            each.info["cmdline"]
            for each in psutil.process_iter(["cmdline"])
            if any(folder in word for word in each.info["cmdline"] or ())
        ]
        assert left == []
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    alone = ["simulate", "--algo=fedavg", *SMALL, f"--out={tmp_path / 'alone'}"]
    command = [sys.executable, "-m", "flwr_asyncdrop", *alone]
    subprocess.run(command, check=True, cwd=ROOT, env=dict(os.environ))
    assert history(tmp_path / "ray") == history(tmp_path / "alone")


def history(folder):
    return [without_wall(line) for line in read_history(folder / "history.jsonl")]


def thing(required=(), **properties):
    """Return the schema of an object that has no other fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT, WHOLE = {"type": "string"}, {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}
QUANTITY = {"type": "string", "pattern": r"^[0-9]+(Mi|Gi)?$"}
QUANTITIES = thing(("cpu", "memory"), cpu=QUANTITY, memory=QUANTITY)
CONTAINER = thing(
    ("name", "image", "resources"),
    name=TEXT,
    image=TEXT,
    env={"type": "array", "items": thing(("name", "value"), name=TEXT, value=TEXT)},
    resources=thing(("requests", "limits"), requests=QUANTITIES, limits=QUANTITIES),
    volumeMounts={
        "type": "array",
        "items": thing(("name", "mountPath"), name=TEXT, mountPath=TEXT),
    },
)
VOLUME = thing(
    ("name",),
    name=TEXT,
    persistentVolumeClaim=thing(("claimName",), claimName=TEXT),
    emptyDir=thing((), medium=TEXT, sizeLimit=QUANTITY),
)
POD = thing(
    ("spec",),
    spec=thing(
        ("containers",),
        containers={"type": "array", "items": CONTAINER, "minItems": 1},
        volumes={"type": "array", "items": VOLUME},
    ),
)
POD_OF_RAY = ("rayStartParams", "template")
# The fields of KubeRay's RayJob that the manifest uses, and those that it requires.
RAY_JOB = thing(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    metadata=thing(("name",), name=TEXT),
    spec=thing(
        ("entrypoint", "rayClusterSpec"),
        entrypoint=TEXT,
        backoffLimit=WHOLE,
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=WHOLE,
        rayClusterSpec=thing(
            ("headGroupSpec",),
            rayVersion=TEXT,
            headGroupSpec=thing(POD_OF_RAY, rayStartParams=TEXTS, template=POD),
            workerGroupSpecs={
                "type": "array",
                "items": thing(
                    ("groupName", "minReplicas", "maxReplicas", *POD_OF_RAY),
                    groupName=TEXT,
                    replicas=WHOLE,
                    minReplicas=WHOLE,
                    maxReplicas=WHOLE,
                    rayStartParams=TEXTS,
                    template=POD,
                ),
            },
        ),
    ),
)


def version_of_the_package():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture
def job():
    return yaml.safe_load(MANIFEST.read_text())


def test_the_manifest_has_the_fields_that_kuberay_knows(job):
    jsonschema.Draft202012Validator(RAY_JOB).validate(job)
    del job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["minReplicas"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(RAY_JOB).validate(job)


def test_the_manifests_pods_fit_together(job):
    cluster = job["spec"]["rayClusterSpec"]
    pods = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    specs = [pod["template"]["spec"] for pod in pods]
    containers = [spec["containers"][0] for spec in specs]
    (image,) = {each["image"] for each in containers}
    assert image.rpartition(":")[2] == version_of_the_package()
    for spec, container in zip(specs, containers, strict=True):
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys()
        assert container["resources"]["requests"] == container["resources"]["limits"]
    for group in cluster["workerGroupSpecs"]:
        replicas = [group[name] for name in ("minReplicas", "replicas", "maxReplicas")]
        assert replicas == sorted(replicas)


def test_the_manifests_command_is_one_that_the_command_line_takes(job):
    asked = parsed(job["spec"]["entrypoint"])
    assert backend_of(asked) == Backend(address="auto")
    ray = job["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"ray=={ray}" in (ROOT / "constraints.txt").read_text().splitlines()
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0"}
    mounts = head["template"]["spec"]["containers"][0]["volumeMounts"]
    folder = next(each["mountPath"] for each in mounts if each["name"] == "shared")
    assert asked.out.is_relative_to(folder)
