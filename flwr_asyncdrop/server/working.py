"""How many of the usual local steps a task has."""

from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.fleet.work import WorkContext, WorkPolicy, share_of
from flwr_asyncdrop.server.order import Part
from flwr_asyncdrop.server.state import RunState


def with_work(
    part: Part,
    policy: WorkPolicy,
    fleet: Fleet,
    state: RunState,
    device: int,
    server_round: int,
) -> Part:
    """Return a part with as many local steps as a policy gives its device."""
    size = sum(tensor.nbytes for tensor in part.weights.values())
    context = WorkContext(
        device,
        fleet.rank(device),
        fleet.num_ranks,
        fleet.capability(device),
        fleet.expected(device, TaskCost(part.compute, size, size)),
        state.time,
        server_round,
    )
    return part.with_work(share_of(policy, context))
