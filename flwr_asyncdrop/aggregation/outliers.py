"""A guard that refuses updates whose change is far outside what others send."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from flwr_asyncdrop.aggregation.aggregator import Update
from flwr_asyncdrop.aggregation.changes import as_real, is_weight, wide
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.parameters import Range, more_than
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State
from flwr_asyncdrop.submodel.types import is_inexact

OUTLIER_FACTOR = 30.0
"""Times the usual size of a change that an update may have, unless the user says so."""

OUTLIER_FACTORS = Range(
    lambda factor: factor == 0 or 1 < factor < math.inf,
    "more than 1 (times the usual change), or 0 for no guard",
)

Sizes = dict[str, float]
"""The root mean square of a change, by group of tensors."""

_Totals = dict[str, tuple[float, int]]  # sum of squares and number of coordinates

# Devices whose latest change counts. Half of them would have to lie.
_RECENT = 32
# Replies after which a device that has not come again is forgotten.
_FORGOTTEN_AFTER = 4 * _RECENT
# Devices that must have replied before they say what is usual: 3 liars are no majority
# of them. After so many replies nobody waits for more. Of two, neither is the outlier.
_QUORUM = 7
_LEAST_QUORUM = 3

# The change of all weights together.
ALL = "all weights"
# How the names of the groups of running statistics begin.
_STATISTIC = "the statistic"
# A share of the weights that never is too large a change.
_SMALL = 0.1
# Of the factor, while nobody knows what is usual: over the size of the weights.
_AT_FIRST = 0.5
# What is too large for a statistic, which follows the data, over its first values.
_LARGE_STATISTIC = 1e4
# A size that overflows is one that JSON has, too.
_LARGEST = 1e300


@torch.no_grad()
def change_sizes(update: Update, sent: State) -> Sizes:
    """Return the root mean square of an update's change from `sent`, by group.

    A matrix, or a tensor of more dims, is a group of its own, as is a running
    statistic. The vectors of a layer, its bias and scale, are one group, and so is each
    record beside the model, whose values count as they are. Counters are no changes.
    The mean makes sizes of submodels comparable with those of the full model.
    """
    totals = _totals_of(update.arrays, lambda name, own: _distance(own, sent[name]))
    for record, arrays in update.extra.items():
        for tensor in filter(is_inexact, arrays.values()):
            _add(totals, f"the record {record!r}", _length(tensor), tensor)
    return _root_mean_squares(totals)


def group_of(name: str, tensor: Tensor) -> str:
    """Return the group of a tensor, in words that a message can use."""
    if not is_weight(name, tensor):
        return f"{_STATISTIC} {name!r}"
    if tensor.dim() > 1:
        return repr(name)
    layer = name.rpartition(".")[0]
    return f"the vectors of {layer!r}" if layer else repr(name)


@dataclass
class _Latest:
    """The latest change of a device; `number` counts the replies before it."""

    number: int
    sizes: Sizes
    accepted: bool


class OutlierGuard:
    """Refuses an update whose change is far outside what recent ones were.

    What is usual is the median, over the devices that replied last, of the size of the
    latest change of each. A device counts once, however often it replies, and whether
    its update was refused or not: a few liars do not move the median, and honest
    devices whose changes all become larger are refused only until they are the
    majority. A change that is small beside the weights is never refused.

    Before enough devices have replied, a change must not be much larger than the
    weights themselves, or than those that were accepted. So it is later for a tensor,
    or a record beside the model, that fewer than three of these devices have sent: who
    sends it alone would say what is usual.

    Parameters
    ----------
    factor : float
        Times the usual size that a change may have, more than 1.
    """

    def __init__(self, factor: float = OUTLIER_FACTOR) -> None:
        self._factor: float = more_than(1).check("outlier_factor", factor)
        self._count = 0
        self._latest: dict[int, _Latest] = {}

    def check(
        self,
        state: State,
        update: Update,
        sent: State,
        *,
        num_devices: int,
    ) -> None:
        """Raise a ReplyError of kind ``"outlier"`` if an update is refused.

        Parameters
        ----------
        state : dict of str to Tensor
            The global model; only read.
        update : Update
            What has arrived.
        sent : dict of str to Tensor
            What its change is taken from, of the submodel's shapes.
        num_devices : int
            How many devices there are.
        """
        sizes = change_sizes(update, sent)
        latest = _Latest(self._count, sizes, accepted=False)
        self._remember(update.device, latest)
        known = [each.sizes for each in self._latest.values()]
        enough = _QUORUM if self._count < _FORGOTTEN_AFTER else _LEAST_QUORUM
        enough = max(min(enough, num_devices), _LEAST_QUORUM)
        seen: Counter[str] = Counter()
        # Where most devices change nothing, nothing is usual.
        if len(known) >= enough and _median(known, ALL) > 0:
            seen.update(chain.from_iterable(known))
        usual = {g: size for g, size in sizes.items() if seen[g] >= _LEAST_QUORUM}
        self._check_usual(state, usual, known)
        if new := {g: size for g, size in sizes.items() if g not in usual}:
            accepted = [each.sizes for each in self._latest.values() if each.accepted]
            self._check_first(state, new, accepted)
        latest.accepted = True

    def state_dict(self) -> StateDict:
        """Return the latest changes of the devices."""
        return {"count": self._count, "latest": to_plain(self._latest)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore them."""
        self._count = state["count"]
        self._latest = from_plain(dict[int, _Latest], state["latest"])

    def _remember(self, device: int, latest: _Latest) -> None:
        # Last come last, so that the first are the oldest.
        self._latest.pop(device, None)
        self._latest[device] = latest
        self._count += 1
        oldest = max(self._count - _FORGOTTEN_AFTER, 0)
        recent = list(self._latest.items())[-_RECENT:]
        self._latest = {
            device: each for device, each in recent if each.number >= oldest
        }

    def _check_usual(self, state: State, sizes: Sizes, known: list[Sizes]) -> None:
        """Refuse a change that is far outside what is usual.

        Some parts of a model hardly move on most devices, as experts that get no token.
        They may move as far as the model as a whole does, in proportion to its weights.
        """
        usual = {group: _median(known, group) for group in sizes}
        large = [g for g, size in sizes.items() if not size <= self._factor * usual[g]]
        known_weights = _sizes_of_weights(state) if large else {}
        for group in large:
            size, weights = sizes[group], _size_of(known_weights, group)
            if group.startswith(_STATISTIC):
                most = self._factor * weights
            else:
                share = usual[ALL] / _size_of(known_weights, ALL)
                most = max(self._factor * share, _SMALL) * weights
            if size > most:
                raise _refusal(
                    f"its change of {group} is {size:.3g}, and the usual one is "
                    f"{usual[group]:.3g}"
                )

    def _check_first(self, state: State, sizes: Sizes, accepted: list[Sizes]) -> None:
        """Refuse a change that is far larger than the weights themselves."""
        known_weights = _sizes_of_weights(state)
        model = _size_of(known_weights, ALL)
        for group, size in sizes.items():
            weights = _size_of(known_weights, group)
            if group.startswith(_STATISTIC):
                most = _LARGE_STATISTIC * max(weights, 1.0)
            else:
                most = self._factor * _AT_FIRST * max(weights, model)
            others = [each[group] for each in accepted if group in each]
            most = max(most, self._factor * min(others, default=0.0))
            if size > most:
                raise _refusal(
                    f"its change of {group} is {size:.3g}, and {most:.3g} is the most "
                    "until more devices have shown what is usual"
                )


def _refusal(what: str) -> ReplyError:
    return ReplyError(
        "outlier",
        f"{what} (root mean square): the device has diverged or lies; raise "
        "outlier-factor if changes may differ so much, or set it to 0",
    )


def _median(known: list[Sizes], group: str) -> float:
    """Return the upper median over those whose submodel has the group."""
    sizes = sorted(each[group] for each in known if group in each)
    return sizes[len(sizes) // 2] if sizes else 0.0


@torch.no_grad()
def _sizes_of_weights(state: State) -> Sizes:
    """Return the root mean squares of the model, by group and of all weights."""
    return _root_mean_squares(_totals_of(state, lambda _, tensor: _length(tensor)))


def _size_of(weights: Sizes, group: str) -> float:
    """Return that of a group; where it is zero that of all weights, or 1."""
    return weights.get(group, 0.0) or weights.get(ALL, 0.0) or 1.0


def _totals_of(tensors: State, length: Callable[[str, Tensor], float]) -> _Totals:
    """Return the totals of the `length` of each tensor, by group and of all weights."""
    totals: _Totals = {}
    for name, tensor in tensors.items():
        if is_inexact(tensor):
            found = length(name, tensor)
            _add(totals, group_of(name, tensor), found, tensor)
            if is_weight(name, tensor):
                _add(totals, ALL, found, tensor)
    return totals


def _add(totals: _Totals, group: str, length: float, tensor: Tensor) -> None:
    squared, count = totals.get(group, (0.0, 0))
    totals[group] = squared + length * length, count + tensor.numel()


def _root_mean_squares(totals: _Totals) -> Sizes:
    """Return them, but not those of parts that a submodel leaves out."""
    return {
        group: min(math.sqrt(squared / count), _LARGEST)
        for group, (squared, count) in totals.items()
        if count
    }


def _distance(tensor: Tensor, other: Tensor) -> float:
    own, others = (wide(as_real(each)) for each in (tensor, other.to(tensor.device)))
    return float(torch.dist(own, others))


def _length(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(wide(as_real(tensor))))
