"""Smart partition: what a device drops follows from its speed (Algorithm 3)."""

import torch

from flwr_asyncdrop.masks.policy import MaskContext, MaskPolicy
from flwr_asyncdrop.masks.rates import DropRate
from flwr_asyncdrop.parameters import A_SWITCH
from flwr_asyncdrop.submodel import Keep


class SmartPartition(MaskPolicy):
    """The i-th fastest device drops the window of units with the i-th largest scores.

    So fast devices train what has moved least, slow devices what has moved most.
    Units are ordered by descending score, equal scores by unit number; of a group of
    ``n`` units the device of rank ``i`` among ``S`` drops those at
    :func:`dropped_window`. How many, where ``n * drop_rate`` is no whole number, is
    rounded by chance, see `DropRate.draw`; which ones is not.

    Parameters
    ----------
    drop_rate : float
        The share of units to drop, in [0, 1).
    round_to : int
        Widths are multiples of it; see `DropRate`.
    score_vectors : bool
        Whether a unit's score counts its biases and norm weights. The authors' script
        counts the rows and columns of weights alone.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    def __init__(
        self, drop_rate: float, round_to: int = 1, *, score_vectors: bool = True
    ) -> None:
        self._drop_rate = DropRate(drop_rate, round_to)
        self.is_full = self._drop_rate.rate == 0
        self.score_vectors = A_SWITCH.check("score_vectors", score_vectors)

    def choose(self, context: MaskContext) -> Keep:
        """Keep what lies outside the window of the rank."""
        counts = self._drop_rate.draw(context.groups, context.generator)
        keep = []
        for group, score, drop in zip(
            context.groups, context.scores, counts, strict=True
        ):
            window = dropped_window(group.size, drop, context.rank, context.num_ranks)
            order = torch.argsort(score.cpu(), descending=True, stable=True)
            kept = torch.ones(group.size, dtype=torch.bool)
            kept[order[window]] = False
            keep.append(kept.nonzero().squeeze(1))
        return tuple(keep)


def dropped_window(size: int, drop: int, rank: int, num_ranks: int) -> slice:
    """Return which places of the order by descending score a rank drops.

    The ``q = drop`` places ``[i * (n // S), +q)`` of ``n``, for rank ``i`` of ``S``; a
    window that would reach past the end is the last ``q``. So it is in the authors'
    script; the paper has ``q = int(n * rate)``. With fewer units than ranks all windows
    would be the first one: there they begin at ``i * (n - q) // (S - 1)``, from the
    largest scores to the smallest.
    """
    if size < num_ranks:
        start = rank * (size - drop) // (num_ranks - 1)
    else:
        start = min(rank * (size // num_ranks), size - drop)
    return slice(start, start + drop)
