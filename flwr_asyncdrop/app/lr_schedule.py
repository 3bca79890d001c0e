"""When the learning rate decays: at which update of the fastest devices, or when."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.fleets import build_fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.fleet.work import WorkContext, WorkPolicy, share_of
from flwr_asyncdrop.server.schedule import StepDecay


class ExpectedSchedule:
    """Builds the schedule of a run by `expected_schedule`.

    Attributes
    ----------
    built : StepDecay
        The schedule that was built last.
    num_updates : int
        Updates in the whole run.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self.built = StepDecay()
        self.num_updates = 0

    def __call__(self, costs: Sequence[TaskCost], num_devices: int) -> StepDecay:
        """Return the schedule, from a task of each rank and the number of devices."""
        self.built = expected_schedule(self._config, costs, num_devices)
        self.num_updates = self._config.num_rounds * len(costs)
        return self.built


def expected_schedule(
    config: RunConfig, costs: Sequence[TaskCost], num_devices: int
) -> StepDecay:
    """Place the milestones on the updates that the fastest rank will do.

    No milestone is before the first of them. Milestones in seconds stay what they are.

    `costs` has a task of each rank: as many as devices in flight, of `num_devices`.
    Of real devices nothing is known yet, and others may join: the simulated fleet that
    the run-config describes stands for them.
    """
    if config.milestones_in_seconds:
        return StepDecay(config.milestones, config.lr_gamma, unit="seconds")
    in_flight = len(costs)
    slots, size = in_flight, num_devices
    if config.clock == "wall":
        # More may join, and the buffer is as large as for all of them.
        slots = config.in_flight
        size = in_flight if in_flight < slots else config.levels * in_flight
    aggregator = config.algorithm.clipped_aggregator(slots)
    share = fastest_share(
        build_fleet(config)(size),
        costs,
        uniform=config.selection == "uniform" and size > in_flight,
        waits_for=min(aggregator.waits_for, in_flight),
        wait_limit=aggregator.wait_limit,
        deadline=config.deadline,
        work=config.algorithm.checked_work(),
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
    work: WorkPolicy | None = None,
) -> float:
    """Return the expected share of a run's updates that the fastest rank does.

    `profiles` is the fleet, and `costs` has a task of each rank.

    One task of each rank is in flight at any moment, so a rank does updates at the
    rate at which its devices end theirs. If any idle device may be next (`uniform`),
    every device does equally many instead, in a fleet that is much larger than what is
    in flight. Where devices wait until `waits_for` updates are there, the fastest rank
    has at most one among these; it does not wait if the median device takes more than
    `wait_limit` times as long. Lost tasks are no updates; they show after `deadline`
    times their expected duration, or with 0 as late as others end. Absences do not
    count: another device of the rank takes the place. Local steps are those that `work`
    gives at the start of a run.
    """
    ranks = _slot_updates(profiles, costs, deadline, work)
    rates = [
        updates if uniform or not updates else updates / seconds
        for updates, seconds in ranks
    ]
    durations = [profile.duration(costs[0]) for profile in profiles]
    if median(durations) > wait_limit * min(durations):
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
    profiles: Sequence[DeviceProfile],
    costs: Sequence[TaskCost],
    deadline: float,
    work: WorkPolicy | None = None,
) -> list[tuple[float, float]]:
    """Return for each rank the updates of a task for each device, and their seconds."""
    ranks: list[list[tuple[DeviceProfile, TaskCost]]] = [[] for _ in costs]
    ordered = sorted(enumerate(profiles), key=lambda each: each[1].duration(costs[0]))
    quickest = min(profile.seconds_per_task for profile in profiles)
    for place, (device, profile) in enumerate(ordered):
        rank = place * len(costs) // len(ordered)
        cost = costs[rank]
        if work is not None:
            context = WorkContext(
                device=device,
                rank=rank,
                num_ranks=len(costs),
                capability=quickest / profile.seconds_per_task,
                seconds=profile.duration(cost),
                time=0.0,
                round=1,
            )
            share = share_of(work, context)
            cost = replace(cost, compute=cost.compute * share)
        ranks[rank].append((profile, cost))
    found = []
    for tasks in ranks:
        updates = sum(1 - profile.dropout for profile, _ in tasks)
        seconds = sum(_slot_seconds(profile, cost, deadline) for profile, cost in tasks)
        found.append((float(updates), float(seconds)))
    return found


def _slot_seconds(device: DeviceProfile, cost: TaskCost, deadline: float) -> float:
    """Return how long a device's task takes a slot on average, lost ones included."""
    done = device.mean_duration(cost)
    lost = deadline * device.duration(cost) if deadline else done
    return (1 - device.dropout) * done + device.dropout * lost
