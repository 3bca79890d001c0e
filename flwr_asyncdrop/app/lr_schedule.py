"""When the learning rate decays: at which update of the fastest devices, or when."""

import math
from collections.abc import Sequence
from statistics import median

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.fleets import build_fleet, typical_fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.server.schedule import StepDecay


def expected_schedule(config: RunConfig, costs: Sequence[TaskCost]) -> StepDecay:
    """Place the milestones on the updates that the fastest rank will do.

    No milestone is before the first of them. Milestones in seconds stay what they are.

    `costs` has a task of each rank: as many as devices in flight. Where those are fewer
    than the run-config allows, there are no others. Of real devices nothing is known
    yet: the simulated fleet that the run-config describes stands for them.
    """
    if config.milestones_in_seconds:
        return StepDecay(config.milestones, config.lr_gamma, unit="seconds")
    in_flight = len(costs)
    all_train = in_flight < config.in_flight
    # More real devices may join, and the buffer is as large as for all of them.
    slots = in_flight if config.clock == "virtual" else config.in_flight
    aggregator = config.algorithm.clipped_aggregator(slots)
    share = fastest_share(
        build_fleet(config)(in_flight) if all_train else typical_fleet(config),
        costs,
        uniform=config.selection == "uniform" and not all_train,
        waits_for=min(aggregator.waits_for, in_flight),
        wait_limit=aggregator.wait_limit,
        deadline=config.deadline,
    )
    updates = config.num_rounds * in_flight * share
    milestones = tuple(max(round(part * updates), 1) for part in config.milestones)
    return StepDecay(milestones, config.lr_gamma)


def fastest_share(
    profiles: Sequence[DeviceProfile],
    costs: Sequence[TaskCost],
    *,
    uniform: bool = False,
    waits_for: int = 1,
    wait_limit: float = math.inf,
    deadline: float = 0.0,
) -> float:
    """Return the expected share of a run's updates that the fastest rank does.

    `profiles` is the fleet, fastest first, and `costs` has a task of each rank.

    One task of each rank is in flight at any moment, so a rank does updates at the
    rate at which its devices end theirs. If any idle device may be next (`uniform`),
    every device does equally many instead, in a fleet that is much larger than what is
    in flight. Where devices wait until `waits_for` updates are there, the fastest rank
    has at most one among these; it does not wait if the median device takes more than
    `wait_limit` times as long. Lost tasks are no updates; they show after `deadline`
    times their expected duration, or with 0 as late as others end. Absences do not
    count: another device of the rank takes the place.
    """
    ranks = _slot_updates(profiles, costs, deadline)
    rates = [
        updates if uniform or not updates else updates / seconds
        for updates, seconds in ranks
    ]
    durations = [profile.duration(costs[0]) for profile in profiles]
    if median(durations) > wait_limit * durations[0]:
        waits_for = 1
    return min(rates[0] / sum(rates), 1 / waits_for)


def updates_per_second(
    profiles: Sequence[DeviceProfile],
    costs: Sequence[TaskCost],
    *,
    uniform: bool = False,
    deadline: float = 0.0,
) -> float:
    """Return how many updates a run is expected to get a second if nobody waits.

    The parameters, and what is assumed, are those of `fastest_share`.
    """
    ranks = _slot_updates(profiles, costs, deadline)
    if uniform:
        updates, seconds = map(sum, zip(*ranks, strict=True))
        return len(costs) * updates / seconds
    return sum(updates / seconds for updates, seconds in ranks if updates)


def _slot_updates(
    profiles: Sequence[DeviceProfile], costs: Sequence[TaskCost], deadline: float
) -> list[tuple[float, float]]:
    """Return for each rank the updates of a task for each device, and their seconds."""
    found = []
    for rank, cost in enumerate(costs):
        devices = [
            profile
            for place, profile in enumerate(profiles)
            if place * len(costs) // len(profiles) == rank
        ]
        updates = sum(1 - device.dropout for device in devices)
        seconds = sum(_slot_seconds(device, cost, deadline) for device in devices)
        found.append((float(updates), float(seconds)))
    return found


def _slot_seconds(device: DeviceProfile, cost: TaskCost, deadline: float) -> float:
    """Return how long a device's task takes a slot on average, lost ones included."""
    done = device.mean_duration(cost)
    lost = deadline * device.duration(cost) if deadline else done
    return (1 - device.dropout) * done + device.dropout * lost
