"""What the updates of a round come to."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from flwr_asyncdrop import wire
from flwr_asyncdrop.server.callbacks import Merged

# Clients choose the names, and every name is one more curve.
_MOST_NAMES = 32


@dataclass
class RoundMeans:
    """Sums over the updates of a round that is not full yet."""

    updates: int = 0
    staleness: int = 0
    late: int = 0
    failures: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, merged: Merged) -> None:
        """Add an update."""
        self.updates += 1
        self.staleness += merged.staleness
        self.late += merged.late
        for name, value in wire.flat_metrics(merged.reply.metrics).items():
            if name in self.counts or len(self.counts) < _MOST_NAMES:
                is_finite = math.isfinite(value)
                self.sums[name] = self.sums.get(name, 0.0) + (value if is_finite else 0)
                self.counts[name] += is_finite

    def values(self) -> dict[str, float]:
        """Return the means by name; of each metric over the updates that have it.

        NaN and infinity of some are left out: one would make NaN of all.
        """
        means = {
            f"train/{name}": self.sums[name] / count if count else math.nan
            for name, count in self.counts.items()
        }
        return {
            "round/staleness": self.staleness / max(self.updates, 1),
            "round/late": self.late,
            "round/failures": self.failures,
            **means,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as JSON has them."""
        return {**asdict(self), "counts": dict(self.counts)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return what `state_dict` was of."""
        copies = {"sums": dict(state["sums"]), "counts": Counter(state["counts"])}
        return cls(**{**state, **copies})
