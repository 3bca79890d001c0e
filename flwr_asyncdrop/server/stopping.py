"""How long a run is, how wide, and how much of it may fail."""

import math
from dataclasses import dataclass

_FAILURES_AT_FIRST = 3
_FAILURES_LATER = 10


@dataclass(frozen=True)
class StoppingRule:
    """How long the run is, and how wide.

    Attributes
    ----------
    num_rounds : int
        Rounds to run.
    updates_per_round : int
        Updates that make a round.
    slots : int
        Most tasks in flight at any moment.
    patience : float
        Real seconds to wait for a reply, and for a device when none is left.
    evaluate_every : int
        Rounds from one evaluation to the next.
    max_seconds : float
        Seconds on the run's clock after which it ends, whatever is in flight.
    """

    num_rounds: int
    updates_per_round: int
    slots: int
    patience: float
    evaluate_every: int = 1
    max_seconds: float = math.inf

    @property
    def num_updates(self) -> int:
        """Updates in the whole run."""
        return self.num_rounds * self.updates_per_round

    def round_of(self, update: int) -> int:
        """Return the round, from 1, that update number `update`, from 0, is in."""
        return update // self.updates_per_round + 1

    def evaluates(self, number: int) -> bool:
        """Return whether the model is evaluated after round `number`."""
        return number % self.evaluate_every == 0 or number == self.num_rounds

    def most_failures(self, num_devices: int, *, changed: bool) -> int:
        """Return how many tasks may fail in a row before the run ends.

        Few while the global model has never `changed`: then something is wrong with
        the project. Later on it may pass, like an outage: so many that the quarantine
        of every device has grown to its longest.
        """
        if not changed:
            return _FAILURES_AT_FIRST * min(self.slots, max(num_devices, 1))
        return max(_FAILURES_AT_FIRST * self.slots, _FAILURES_LATER * num_devices)
