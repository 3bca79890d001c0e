"""Which idle device gets the next task."""

from collections.abc import Collection
from functools import partial

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.selection import QuickSelection, Selection, check_chosen
from flwr_asyncdrop.seeding import numpy_generator
from flwr_asyncdrop.server.state import RunState


class DeviceChooser:
    """Asks the selection, and checks what it has chosen.

    One broken device must not take every task: those whose tasks were lost since the
    last update are asked for only if no other is idle. A `QuickSelection` is spared the
    look at every device, and chooses the same one.
    """

    def __init__(self, fleet: Fleet, selection: Selection) -> None:
        self._fleet = fleet
        self._selection = selection

    def next_idle(self, state: RunState, taken: Collection[int]) -> int | None:
        """Choose an idle device that is not `taken`; None if there is none.

        ConfigError if the selection chooses another one.
        """
        selection = self._selection
        if isinstance(selection, QuickSelection) and selection.is_quick:
            return self._quickly(selection, state, taken)
        idle = self._fleet.readiness.idle(taken, state.time)
        return self.choose(state, idle) if len(idle) else None

    def choose(self, state: RunState, idle: NDArray[np.int64]) -> int:
        """Choose one of these devices, at least one; ConfigError as above."""
        fresh = np.setdiff1d(idle, np.array(state.lost_in_a_row, dtype=np.int64))
        among = fresh if len(fresh) else idle
        chosen = self._selection.choose(
            among.copy(),  # a user's own may change both
            self._fleet.speeds.ranks.copy(),
            (order.rank for order in state.in_slots),
            _generator(state),
        )
        return check_chosen(self._selection, chosen, lambda device: device in among)

    def _quickly(
        self, selection: QuickSelection, state: RunState, taken: Collection[int]
    ) -> int | None:
        """Return what `choose` returns among the idle devices, if there are any."""
        readiness, generator = self._fleet.readiness, _generator(state)
        for lost in (state.lost_in_a_row, []):
            among = readiness.idle_devices(
                taken, state.time, lost=lost, by_rank=selection.by_rank
            )
            busy = (order.rank for order in state.in_slots)
            device = selection.choose_idle(among, busy, generator)
            if device is not None or any(map(among.count, range(among.num_ranks))):
                busy_now = {*taken, *lost}
                can = partial(readiness.can_train, busy=busy_now, time=state.time)
                return check_chosen(selection, device, can)
            if not state.lost_in_a_row:
                return None
        return None


def _generator(state: RunState) -> np.random.Generator:
    return numpy_generator(state.seed, "device", state.dispatched)
