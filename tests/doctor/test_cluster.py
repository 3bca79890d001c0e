"""What is said of a Ray cluster: on a Ray of one process, and on a real one."""

import socket
import time

import pytest

from benchmarks.ray_nodes import RayNodes
from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.doctor import cluster, examination
from flwr_asyncdrop.doctor.cluster import check_cluster
from flwr_asyncdrop.exceptions import MissingExtraError
from flwr_asyncdrop.simulation.ray import survey as survey_module
from flwr_asyncdrop.simulation.ray.node_facts import NodeFacts
from tests.nightly import by_night
from tests.simulation.fake_ray import FakeRay, Node


@pytest.fixture
def use(monkeypatch):
    def install(*nodes, **options):
        ray = FakeRay(list(nodes), **options)
        monkeypatch.setattr(survey_module, "connect", lambda _: (ray, False))
        monkeypatch.setattr(
            "flwr_asyncdrop.simulation.ray.actor.require", lambda *_: ray
        )
        return ray

    return install


@pytest.fixture
def on_nodes(monkeypatch, use):
    """Let nodes have facts and processors of their own, by name."""

    def install(ray, facts=(), processors=()):
        here = NodeFacts.here

        def look(_=None):
            name = ray.current.name if ray.current else ""
            found = here()
            kind = dict(processors).get(name, found.processors)
            return NodeFacts({**found.facts, **dict(facts).get(name, {})}, kind)

        monkeypatch.setattr(NodeFacts, "here", look)

    return install


def found(**options):
    return [(each.level, each.name, each.found) for each in check_cluster("auto")]


def test_nodes_that_are_as_here(use):
    ray = use(Node("one", 3), Node("two", 2), Node("x", 9, alive=False))
    (level, name, text), *nodes = found()
    assert (level, name) == ("ok", "Ray cluster")
    assert text == (
        "auto: 2 nodes (1 more have left) with 5 CPU, 0 GPU, now free 5 CPU, 0 GPU; "
        "room for 5 actors with a CPU each"
    )
    assert [each[:2] for each in nodes] == [("ok", "node one"), ("ok", "node two")]
    facts = NodeFacts.here().facts
    assert nodes[0][2] == (
        f"3 CPU, 0 GPU; python {facts['python']}, flwr {facts['flwr']}, torch "
        f"{facts['torch']}, numpy {facts['numpy']}; all as here"
    )
    assert [method for method, _ in ray.calls] == ["prepare"] * 2
    assert all(handle.is_dead for handle in ray.handles)


def test_a_node_is_asked_though_it_has_no_cpu_left(use):
    ray = use(Node("busy", 1))
    ray.remote(object).options(num_cpus=1).remote()
    ray._place()
    assert [level for level, *_ in found()] == ["ok", "ok"]


def test_a_node_that_differs_is_a_warning_and_the_last_one_a_problem(use, on_nodes):
    other = {"bad": {"torch": "2.12.0", "module mine": "code 01"}}
    here = NodeFacts.here().facts["torch"]
    says = (
        f"differs: torch 2.12.0 there and {here} here, module mine code 01 there and "
        "absent here; it is not used"
    )
    on_nodes(use(Node("good"), Node("bad")), other)
    first, good, bad = found()
    assert "room for 2 actors" in first[2]
    assert good[0] == "ok"
    assert bad == ("warning", "node bad", says)
    on_nodes(use(Node("bad")), other)
    (level, _, text), bad = found()
    assert level == "problem"
    assert "room for 0 actors with a CPU each" in text
    assert bad == ("problem", "node bad", says)


def test_nodes_without_a_cpu_have_no_room(use):
    use(Node("one", room=0))
    assert [level for level, *_ in found()] == ["problem", "ok"]


def test_an_actor_that_does_not_start(use):
    use(Node("one"), stillborn=True)
    assert found()[1] == (
        "problem",
        "node one",
        "starts no actor: RayError: The actor died unexpectedly.; it is not used",
    )


def test_a_node_that_says_nothing(use, monkeypatch):
    ray = use(Node("silent"), Node("other"))
    monkeypatch.setattr(survey_module.survey, "__defaults__", (None, 0.1))

    def fits(handle):
        wanted = handle.options["label_selector"]["ray.io/node-id"]
        return lambda node: node.name == wanted == "other"

    monkeypatch.setattr(ray, "_fits", fits)
    _, silent, other = found()
    assert silent[0] == "warning"
    assert silent[2] == "has not answered for 0.1 s; it is not used"
    assert other[0] == "ok"


def test_two_kinds_of_processors_are_a_warning(use, on_nodes):
    on_nodes(use(Node("one"), Node("two")), processors={"two": "arm64 NEON"})
    level, name, text = found()[-1]
    assert (level, name) == ("warning", "processors")
    assert "others with arm64 NEON: results may differ in their last bits" in text


def test_data_sets_that_a_node_lacks(use, monkeypatch, tmp_path):
    ray = use(Node("one"))
    monkeypatch.setattr(
        cluster,
        "check_data",
        lambda _: [cluster.ok("digits", "")] if ray.current is None else [],
    )
    _, one = check_cluster("auto", tmp_path)
    assert one.found.startswith("differs: data digits absent there and found here")


def test_without_ray_the_extra_is_named(monkeypatch):
    def missing(_):
        raise MissingExtraError("ray is not installed: pip install 'x[simulation]'")

    monkeypatch.setattr(survey_module, "connect", missing)
    (finding,) = check_cluster("auto")
    assert finding.level == "problem"
    assert (finding.found, finding.fix) == (
        "ray is not installed",
        "pip install 'x[simulation]'",
    )


@pytest.fixture
def only_the_cluster(monkeypatch):
    for name in ("_software", "_data", "_machine", "_flower"):
        monkeypatch.setattr(examination, name, lambda *_: iter(()))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.usefixtures("only_the_cluster")
def test_the_command_says_at_once_that_nobody_listens(capsys):
    pytest.importorskip("ray")
    address = f"127.0.0.1:{free_port()}"
    begin = time.monotonic()
    assert main(["doctor", "--ray", address]) == 1
    assert time.monotonic() - begin < 50  # Ray itself would wait for a minute
    shown = " ".join(capsys.readouterr().out.split())
    assert f"problem Ray cluster no Ray cluster answers at {address}" in shown
    assert shown.endswith("problems: 1, warnings: 0")


@pytest.mark.usefixtures("only_the_cluster")
def test_the_command_without_an_address_and_with_a_wrong_one(use, capsys):
    use(Node("one"))
    assert main(["doctor", "--ray"]) == 0
    assert "auto: 1 node with 2 CPU" in capsys.readouterr().out
    assert main(["doctor", "--ray=ray://host:1"]) == 2
    assert "must be auto, or HOST:PORT" in capsys.readouterr().err
    assert main(["doctor"]) == 0
    assert "Ray" not in capsys.readouterr().out


@pytest.mark.e2e
@by_night
@pytest.mark.usefixtures("only_the_cluster")
def test_a_real_cluster_without_a_dashboard(capsys):
    pytest.importorskip("ray")
    with RayNodes(1, {"PYTHONPATH": ""}) as nodes:
        assert main(["doctor", "--ray", nodes.address]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{nodes.address}: 1 node with 2 CPU, 0 GPU" in shown
    assert "room for 2 actors" in shown
    assert "all as here" in shown
    assert "problems: 0, warnings: 0" in shown
