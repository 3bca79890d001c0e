"""A look at every node of a Ray cluster, as a runner looks, without a run."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.simulation.client_app import ClientAppSource, load_client_app
from flwr_asyncdrop.simulation.ray.actor import CallActor
from flwr_asyncdrop.simulation.ray.cluster import connect, local_modules, most_actors
from flwr_asyncdrop.simulation.ray.fleet import NODE_ID
from flwr_asyncdrop.simulation.ray.node_facts import Fingerprint, NodeFacts, hashes

_SECONDS = 90.0
_THREADS = 1


@dataclass(frozen=True)
class NodeReport:
    """What an actor found on a node.

    Attributes
    ----------
    host : str
        The node's machine.
    resources : Mapping[str, float]
        What Ray has there, as ``"CPU"`` and ``"GPU"``.
    facts : NodeFacts | None
        What has to be equal on all nodes; None if nothing was found out.
    trouble : str
        Why a runner would not use the node, in one line; "" if it would.
    """

    host: str
    resources: Mapping[str, float]
    facts: NodeFacts | None
    trouble: str


@dataclass(frozen=True)
class Survey:
    """What a cluster has.

    Attributes
    ----------
    nodes : tuple[NodeReport, ...]
        Its nodes.
    num_gone : int
        How many more have left or died.
    free : Mapping[str, float]
        What nobody uses now.
    room : int
        How many actors with a CPU each fit on the nodes that a runner would use.
    """

    nodes: tuple[NodeReport, ...]
    num_gone: int
    free: Mapping[str, float]
    room: int


def survey(
    address: str,
    client_app: ClientAppSource,
    fingerprint: Fingerprint | None = None,
    seconds: float = _SECONDS,
) -> Survey:
    """Ask an actor on each node what `RayRunner` asks; it takes no CPU from others.

    A node that has not answered after so many `seconds` is in trouble. The parameters
    and errors are those of `RayRunner`.
    """
    load_client_app(client_app)
    here = NodeFacts.here(fingerprint)
    code = hashes(local_modules())
    ray, is_mine = connect(address)
    try:
        listed = ray.nodes()
        there = [node for node in listed if node["Alive"]]
        order = (client_app, _THREADS, fingerprint, code)
        reports = tuple(_ask(ray, there, order, here.with_code(code), seconds))
        usable = [
            node
            for node, report in zip(there, reports, strict=True)
            if not report.trouble
        ]
        room = most_actors(usable, 1.0, 0.0)
        free = ray.available_resources()
        return Survey(reports, len(listed) - len(there), free, room)
    finally:
        if is_mine:
            ray.shutdown()


def _ask(
    ray: ModuleType,
    nodes: list[Mapping[str, Any]],
    order: tuple[Any, ...],
    here: NodeFacts,
    seconds: float,
) -> Iterator[NodeReport]:
    """Yield what is found on each node, in their order."""
    actors = [
        ray.remote(CallActor)
        .options(
            num_cpus=0,
            num_gpus=0,
            max_restarts=0,
            label_selector={NODE_ID: node["NodeID"]},
            enable_task_events=False,
        )
        .remote()
        for node in nodes
    ]
    prepared = [actor.prepare.remote(*order) for actor in actors]
    end = time.monotonic() + seconds
    try:
        for node, reference in zip(nodes, prepared, strict=True):
            left = max(0.0, end - time.monotonic())
            done, _ = ray.wait([reference], num_returns=1, timeout=left)
            facts, trouble = None, f"has not answered for {seconds:g} s"
            if done:
                facts, trouble = _found(ray, reference, here)
            yield NodeReport(
                node["NodeManagerHostname"], node["Resources"], facts, trouble
            )
    finally:
        for actor in actors:
            with suppress(Exception):  # the cluster may be gone
                ray.kill(actor)


def _found(
    ray: ModuleType, reference: Any, here: NodeFacts
) -> tuple[NodeFacts | None, str]:
    try:
        _, found = ray.get(reference)
    except ray.exceptions.RayError as error:
        return None, f"starts no actor: {one_line(error)}"
    if not isinstance(found, NodeFacts):
        return None, f"cannot be prepared: {found}"
    differences = found.differences(here)
    return found, f"differs: {differences}" if differences else ""
