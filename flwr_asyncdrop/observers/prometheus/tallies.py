"""What is counted as it happens, for Prometheus."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

BOUNDS = {
    "staleness_versions": (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, inf),
    "task_duration_seconds": (
        *(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, inf),
    ),
}
"""Upper bounds of the buckets of each histogram."""


@dataclass
class Tallies:
    """The counts and last values of one process."""

    # By name of the metric and value of its label.
    counts: Counter[tuple[str, object]] = field(default_factory=Counter)
    # Histograms by name and speed group, the former also by place of the bucket.
    buckets: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    sums: dict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(int))
    # None while nobody has said.
    lr_factor: float | None = None
    round: int | None = None
    # The last evaluation: its metrics by source and name, its round by source. None is
    # what an earlier one had: names keep their places, of which there are few.
    evaluations: dict[tuple[str, str], float | None] = field(default_factory=dict)
    evaluated: dict[str, int] = field(default_factory=dict)
    # What the aggregator said of its last step, or None of an earlier one.
    step: dict[str, float | None] = field(default_factory=dict)

    def begin(self, number: int | None) -> None:
        """Begin at a round, without the last values of a run before; counts go on."""
        self.lr_factor, self.round = None, number
        self.evaluations.clear()
        self.evaluated.clear()
        self.step.clear()

    def observe(self, name: str, group: int, value: float) -> None:
        """Count a value of a histogram."""
        self.sums[name, group] += value
        self.buckets[name, group, bisect_left(BOUNDS[name], value)] += 1

    def by_label(self, name: str) -> dict[object, int]:
        """Return the counts of one metric by the value of its label."""
        counts = self.counts.items()
        return {label: count for (metric, label), count in counts if metric == name}

    def up_to_each_bound(self, name: str, group: int) -> Sequence[tuple[str, int]]:
        """Return each bound of a histogram, and how many values are up to it."""
        counts = (self.buckets[name, group, at] for at in range(len(BOUNDS[name])))
        texts = (
            "+Inf" if bound == inf else str(float(bound)) for bound in BOUNDS[name]
        )
        return list(zip(texts, accumulate(counts), strict=True))
