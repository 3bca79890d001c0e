"""How long a run is, how many devices train at once, and how much may fail."""

import math
from dataclasses import dataclass

_FAILURES_AT_FIRST = 3
_FAILURES_LATER = 10


@dataclass(frozen=True)
class StoppingRule:
    """How long a run is, and how many devices train at once."""

    num_rounds: int
    updates_per_round: int
    slots: int  # most tasks in flight at any moment
    patience: float  # real seconds to wait for a reply, or for a device if none is left
    evaluate_every: int = 1  # rounds
    max_seconds: float = math.inf  # on the run's clock

    @property
    def num_updates(self) -> int:
        """Updates in the whole run."""
        return self.num_rounds * self.updates_per_round

    def round_of(self, update: int) -> int:
        """Return the round, from 1, of update number `update`, from 0."""
        return update // self.updates_per_round + 1

    def ends_round(self, updates: int) -> bool:
        """Return whether a round is over when so many updates, at least 1, are merged.

        It is `round_of(updates - 1)`.
        """
        return updates % self.updates_per_round == 0

    def is_over(self, updates: int, seconds: float, *, more_comes_now: bool) -> bool:
        """Return whether the run is over: all that happens at its end counts.

        `updates` are merged, and it is `seconds` on the run's clock. `more_comes_now`
        says whether another event is known to be at this very time.
        """
        if updates >= self.num_updates or seconds > self.max_seconds:
            return True
        return seconds == self.max_seconds and not more_comes_now

    def progress(self, updates: int, seconds: float) -> float:
        """Return the share of the run that is over, in [0, 1]: what ends it first.

        `updates` are merged, and it is `seconds` on the run's clock.
        """
        share = max(updates / self.num_updates, seconds / self.max_seconds)
        return min(share, 1.0)

    def evaluates(self, number: int) -> bool:
        """Return whether the model is evaluated after round `number`."""
        return number % self.evaluate_every == 0 or number == self.num_rounds

    def most_failures(self, num_devices: int, *, changed: bool) -> int:
        """Return how many tasks may fail in a row before the run ends.

        Few while the global model has never `changed`: then the project has an error.
        Later, as after an outage, so many that every device has reached its longest
        quarantine.
        """
        if not changed:
            return _FAILURES_AT_FIRST * min(self.slots, max(num_devices, 1))
        return max(_FAILURES_AT_FIRST * self.slots, _FAILURES_LATER * num_devices)
