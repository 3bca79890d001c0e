"""How many of the usual local steps a task has."""

from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.fleet.work import WorkContext, WorkPolicy, share_of
from flwr_asyncdrop.server.state import RunState


def work_of(
    policy: WorkPolicy,
    fleet: Fleet,
    state: RunState,
    device: int,
    cost: TaskCost,
    server_round: int,
) -> float:
    """Return the share of the usual local steps that a policy gives a device.

    `cost` is that of its task with all of them.
    """
    context = WorkContext(
        device,
        fleet.speeds.rank(device),
        fleet.num_ranks,
        fleet.speeds.capability(device),
        fleet.devices.usual_seconds(device, cost),
        state.time,
        server_round,
    )
    return share_of(policy, context)
