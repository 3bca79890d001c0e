"""What the passes of a model have shown, so that none has to run again for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from flwr_asyncdrop.submodel.probing.passes import Pass


@dataclass
class Seen:
    """What passes have shown that ran.

    Attributes
    ----------
    drawn : list of Pass
        Those to which random numbers matter.
    moving : set of str
        The buffers that some of them changed.
    foreign : bool
        Whether one had an operation of another package, see `FixedDraws`.
    """

    drawn: list[Pass] = field(default_factory=list)
    moving: set[str] = field(default_factory=set)
    foreign: bool = False
    _ran: list[tuple[Pass, int, int]] = field(default_factory=list)

    def note(self, way: Pass, outputs: Sequence[Any]) -> None:
        """Count the numbers in what a pass gives, and those that are finite."""
        tensors = [leaf for leaf in outputs if isinstance(leaf, Tensor)]
        finite = sum(int(tensor.isfinite().sum()) for tensor in tensors)
        self._ran.append((way, finite, sum(map(Tensor.numel, tensors))))

    def shows(self, way: Pass) -> bool:
        """Whether a pass that ran gave some number that is finite, or none at all."""
        finite, numbers = self.count_finite([way])
        return finite > 0 or numbers == 0

    def count_finite(self, ways: Sequence[Pass]) -> tuple[int, int]:
        """Return how many numbers these passes gave that are finite, and how many."""
        ran = [ran for ran in self._ran if any(ran[0] is way for way in ways)]
        return sum(finite for _, finite, _ in ran), sum(total for _, _, total in ran)
