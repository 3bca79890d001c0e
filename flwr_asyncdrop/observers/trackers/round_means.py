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
_SUMS, _COUNTS = ("sums", "step_sums"), ("counts", "step_counts")


@dataclass
class RoundMeans:
    """Sums over the updates of a round that is not full yet."""

    updates: int = 0
    staleness: int = 0
    late: int = 0
    failures: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    step_sums: dict[str, float] = field(default_factory=dict)
    step_counts: Counter[str] = field(default_factory=Counter)

    def add(self, merged: Merged) -> None:
        """Add an update."""
        self.updates += 1
        self.staleness += merged.staleness
        self.late += merged.late
        _add(wire.flat_metrics(merged.reply.metrics), self.sums, self.counts)

    def add_step(self, metrics: Mapping[str, float]) -> None:
        """Add what the aggregator says of a step."""
        _add(metrics, self.step_sums, self.step_counts)

    def values(self) -> dict[str, float]:
        """Return the means by name; of each metric over those that have it.

        NaN and infinity of some are left out: one would make NaN of all.
        """
        return {
            "round/staleness": self.staleness / max(self.updates, 1),
            "round/late": self.late,
            "round/failures": self.failures,
            **_means("train", self.sums, self.counts),
            **_means("aggregator", self.step_sums, self.step_counts),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the sums as JSON has them."""
        counts = {name: dict(getattr(self, name)) for name in _COUNTS}
        return {**asdict(self), **counts}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Return what `state_dict` was of."""
        # Versions before this one had no steps.
        sums = {name: dict(state.get(name, {})) for name in _SUMS}
        counts = {name: Counter(state.get(name, {})) for name in _COUNTS}
        return cls(**{**state, **sums, **counts})


def _add(
    values: Mapping[str, float], sums: dict[str, float], counts: Counter[str]
) -> None:
    for name, value in values.items():
        if name in counts or len(counts) < _MOST_NAMES:
            is_finite = math.isfinite(value)
            sums[name] = sums.get(name, 0.0) + (value if is_finite else 0)
            counts[name] += is_finite


def _means(
    prefix: str, sums: Mapping[str, float], counts: Mapping[str, int]
) -> dict[str, float]:
    return {
        f"{prefix}/{name}": sums[name] / count if count else math.nan
        for name, count in counts.items()
    }
