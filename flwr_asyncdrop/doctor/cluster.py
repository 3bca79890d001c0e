"""The nodes of a Ray cluster, and whether a run would use them."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from flwr_asyncdrop.doctor.data import check_data
from flwr_asyncdrop.doctor.finding import Finding, ok, problem, warning
from flwr_asyncdrop.exceptions import AsyncDropError, MissingExtraError
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.simulation.ray.survey import NodeReport, Survey, survey

_NAME = "Ray cluster"
_CLIENT_APP = "flwr_asyncdrop.client_app:app"
_VERSIONS = ("python", "flwr", "torch", "numpy")
_SHOWN = ("CPU", "GPU")


def check_cluster(address: str, data_dir: Path | None = None) -> Iterator[Finding]:
    """Look at each node of a cluster as ``--backend ray`` does before it uses it.

    With `data_dir` each node is to have the data sets that are found there here.
    """
    fingerprint = partial(data_sets, data_dir) if data_dir is not None else None
    try:
        found = survey(address, _CLIENT_APP, fingerprint)
    except MissingExtraError as error:
        what, _, fix = str(error).partition(": ")
        yield problem(_NAME, what, fix)
    except AsyncDropError as error:
        yield problem(_NAME, str(error), "")
    else:
        yield _check_room(address, found)
        for node in found.nodes:
            yield _check_node(node, others_fit=bool(found.room))
        yield from _check_processors(found)


def data_sets(data_dir: Path) -> dict[str, str]:
    """Return which data sets are found in a folder, as facts of a node."""
    return {
        f"data {each.name}": "found" if each.level == "ok" else "not found"
        for each in check_data(data_dir)
    }


def _check_room(address: str, found: Survey) -> Finding:
    count = len(found.nodes)
    gone = f" ({found.num_gone} more have left)" if found.num_gone else ""
    resources = [node.resources for node in found.nodes]
    total = {name: sum(each.get(name, 0) for each in resources) for name in _SHOWN}
    text = (
        f"{address}: {counted(count, 'node')}{gone} with "
        f"{_quantities(total)}, now free {_quantities(found.free)}; room for "
        f"{counted(found.room, 'actor')} with a CPU each"
    )
    if found.room:
        return ok(_NAME, text)
    return problem(
        _NAME, text, "fix a node, or start one with a CPU: ray start --num-cpus N ..."
    )


def _check_node(node: NodeReport, *, others_fit: bool) -> Finding:
    name = f"node {node.host}"
    if node.trouble:
        fix = (
            "see Ray's logs there, or run without the node"
            if node.facts is None
            else "install and copy there what is here, or run without the node"
        )
        say = warning if others_fit else problem
        return say(name, f"{node.trouble}; it is not used", fix)
    facts: Mapping[str, str] = node.facts.facts if node.facts else {}
    versions = ", ".join(f"{each} {facts[each]}" for each in _VERSIONS)
    return ok(name, f"{_quantities(node.resources)}; {versions}; all as here")


def _check_processors(found: Survey) -> Iterator[Finding]:
    kinds = dict.fromkeys(
        node.facts.processors
        for node in found.nodes
        if node.facts is not None and not node.trouble
    )
    if len(kinds) > 1:
        yield warning(
            "processors",
            f"nodes compute with {', others with '.join(kinds)}: results may differ in "
            "their last bits by where a task runs",
            "use nodes of one kind where that matters",
        )


def _quantities(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in _SHOWN)
