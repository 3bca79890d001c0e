"""AdaptivePerGroup: speed groups count as far as their changes differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flwr_asyncdrop.aggregation.aggregator import Update
from flwr_asyncdrop.aggregation.changes import Change, is_weight
from flwr_asyncdrop.aggregation.combining import Combiner
from flwr_asyncdrop.aggregation.functions import load_into, state_of
from flwr_asyncdrop.aggregation.latest_per_group import LatestPerGroup
from flwr_asyncdrop.aggregation.overlap import (
    Overlaps,
    inner_product,
    part_at,
    squared_length,
)
from flwr_asyncdrop.parameters import A_SWITCH
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State

FULLY_BALANCED: Final = 0.25
"""The intraclass correlation from which on all groups count alike."""
_LEAST_COMMON: Final = 0.2
_MOST_COMMON: Final = 0.25
"""The common share from which on groups are balanced less, and not any more."""
_AGREES: Final = 0.1
"""The common share of an update from which on it counts as new in full."""
_DECAY: Final = 2.0
"""The most that an update is discounted by, as a power of one plus its staleness."""
_MAX_WEIGHT: Final = 4.0
"""Of an update of a group that seldom sends one."""
_ARRIVALS: Final = 8.0
"""Updates of a group in the window in which arrivals are counted, on average."""
_UPDATES: Final = 2
"""Updates of a group in the window in which the correlation is measured."""


@dataclass
class _Fresh:
    """An update since the last step."""

    group: int
    change: Change
    lr_factor: float
    """As `Update.lr_factor`."""
    staleness: int
    common: float = 0.0
    """What it says of the common share; 0 if nothing."""

    def discount(self, alike: float) -> float:
        """Return how much it counts, of 1, by its staleness."""
        return float((1 + self.staleness) ** (-_DECAY * alike))


@dataclass
class _Measured:
    correlation: float = FULLY_BALANCED
    """Its exponential mean; no less than -1, and no more than 1."""
    common: float = 0.0
    """The mean of the common share: of all at first, an exponential one later."""
    number: int = 0
    """Updates that said something of the two."""
    arrivals: dict[int, float] = field(default_factory=dict)
    """Of each group, in a window that forgets exponentially."""
    fresh: list[_Fresh] = field(default_factory=list)
    mean: State = field(default_factory=dict)
    """What the memory asked for at the last step."""
    lr_factor: float = 1.0
    """Today's learning rate, at that step."""


class AdaptivePerGroup(LatestPerGroup):
    """Step every K updates; speed groups are balanced as far as their changes differ.

    Where data follow the speed of devices, the changes of speed groups differ, and all
    groups should count alike, although fast ones send more. Where data do not, that
    costs: rare changes that count more are noise, and remembered ones are old. So the
    server measures which it is. The intraclass correlation of changes, the share of
    their variance that is between groups, is the exponential mean over the latest 2 G
    updates of

    ``rho = G / (G - 1) <Delta, m_g (Delta_g - M)> / |Delta|^2``

    with the change ``Delta`` of an update, the one ``Delta_g`` that its group has sent
    before, its mask ``m_g``, and the mean ``M`` of the memory of G groups. What all
    groups have in common cancels out, and so does noise. With ``rho`` clamped to [0, 1]
    the server steps by ``W <- W + lr ((1 - rho) F + rho M)``: the remembered changes
    count as far as they foretell, as in the best linear prediction from them. ``F`` is
    the mean of the K fresh changes,

    ``F = sum_i b_i s_i m_i Delta_i / max(sum_i m_i, 1)``
    ``b_i = 1 + min(1, 4 rho) (1 / (G p_g) - 1)``

    with the share ``p_g`` of the updates that come from its group: with the inverse of
    it, F has the same expectation as if all groups sent as often (Horvitz and Thompson,
    1952). ``1 / (G p_g)`` is 4 at the most, and ``G`` the number of devices if they are
    fewer; ``s_i`` is that of `LatestPerGroup`. It starts with ``rho`` = 1/4.

    Where much of a change is what all groups have in common, it matters more that it is
    new than whose it is. If `staleness` is on, that share of the variance is measured,
    too: it is the mean, an exponential one from 2 G updates on, of

    ``kappa = <Delta, M_-g> / |Delta|^2``, ``M_-g = M - m_g (Delta_g - M) / (G - 1)``

    ``M_-g`` is the mean of the other groups' changes. It starts as one update that says
    0. With ``c = 20 kappa - 4``, clamped to [0, 1], ``(1 - c) rho`` takes the place of
    ``rho`` above, and an update that is ``tau_i`` versions stale counts in F

    ``K d_i / sum_j d_j``, ``d_i = a_i e_i + (1 - a_i) min_j e_j``,
    ``e_i = (1 + tau_i)^(-2 c)``

    times as much, with ``a_i = 10 kappa_i``, clamped to [0, 1], of what this update
    says of kappa, and 0 if it says nothing: one that has nothing in common with the
    others counts no more for being new. The fastest device is never stale, and may lie.

    Parameters
    ----------
    size : int
        ``K``, at least 1: updates from one step to the next.
    combine_fresh : callable
        Makes one change of K.
    staleness : bool
        Whether stale updates count less as far as changes have much in common.
    **options
        Of `LatestPerGroup`.
    """

    def __init__(
        self,
        size: int,
        *,
        combine_fresh: Combiner,
        staleness: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(size, **options)
        # The fresh changes may be no longer in the memory, and there is its mean.
        self.collects += self.size + 1
        self._combine_fresh = combine_fresh
        self._staleness: bool = A_SWITCH.check("adaptive_staleness", staleness)
        self._measured = _Measured()

    @property
    def correlation(self) -> float:
        """The intraclass correlation of changes, in [0, 1]."""
        return max(self._measured.correlation, 0.0)

    @property
    def common_share(self) -> float:
        """The share of the variance of changes that all groups have in common, 0 to 1.

        It is 0 where it is not measured.
        """
        return max(self._measured.common, 0.0)

    def metrics(self) -> Mapping[str, float]:
        """Return ``correlation``, and ``common-share`` if it is measured."""
        common = {"common-share": self.common_share} if self._staleness else {}
        return {"correlation": self.correlation, **common}

    def state_dict(self) -> StateDict:
        """Return what is remembered, here and by `combine_fresh`, and was measured."""
        return {
            "latest": super().state_dict(),
            "measured": to_plain(self._measured),
            **state_of(combine_fresh=self._combine_fresh),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Restore it."""
        super().load_state_dict(state["latest"])
        self._measured = from_plain(_Measured, state["measured"])
        load_into(state, combine_fresh=self._combine_fresh)

    def _remember(self, state: State, update: Update, change: Change) -> None:
        measured, group = self._measured, self.group_of(update)
        groups = self.groups_of(update)
        # Groups without a device never send, and are no measure of the others.
        share = min(update.num_devices, groups) / groups
        for each in range(groups):
            count = measured.arrivals.get(each, _ARRIVALS)
            count *= 1 - 1 / (_ARRIVALS * groups)
            measured.arrivals[each] = count + share * (each == group)
        found = self._shares(state, update, change)
        fresh = _Fresh(group, change, update.lr_factor, update.staleness)
        if found is not None:
            between, fresh.common = found
            new = 1 / (_UPDATES * groups)
            measured.correlation += new * (between - measured.correlation)
            measured.number += 1
            new = max(new, 1 / (measured.number + 1))
            measured.common += new * (fresh.common - measured.common)
        measured.fresh.append(fresh)
        super()._remember(state, update, change)

    def _shares(
        self, state: State, update: Update, change: Change
    ) -> tuple[float, float] | None:
        """Return what one update says of the shares; None if it says nothing.

        They are the share of the variance of changes that is between groups, and the
        one that all have in common, 0 if it is not asked for.
        """
        measured, latest = self._measured, self._latest.changes
        if self.group_of(update) not in latest or len(latest) == 1 or not measured.mean:
            return None
        last, lr_factor = latest[self.group_of(update)]
        if 0 in (lr_factor, measured.lr_factor):
            return None
        share = last.weight * (measured.lr_factor / lr_factor)
        own_part = everyone = squared = 0.0
        overlaps = Overlaps()
        for name, delta in change.delta.items():
            if not is_weight(name, state[name]):
                continue
            here, mean = delta.to(state[name].device), measured.mean[name]
            kept = change.indices.get(name, {})
            both = overlaps.of(kept, last.indices.get(name, {}))
            own = part_at(last.delta[name].to(here.device), both.second)
            differs = (own * share).sub_(part_at(mean, both.full))
            own_part += inner_product(part_at(here, both.first), differs)
            if self._staleness:
                everyone += inner_product(here, part_at(mean, kept))
            squared += squared_length(here)
        if squared == 0:
            return None
        groups = len(latest)
        # The change and the memory are of other learning rates.
        scale = update.lr_factor / measured.lr_factor
        between = scale * (groups / (groups - 1)) * own_part / squared
        common = scale * (everyone - own_part / (groups - 1)) / squared
        found = _clamped(common, -1.0) if self._staleness else 0.0
        return _clamped(between, -1.0), found

    def _take(self, state: State) -> State:
        measured = self._measured
        above = self.common_share - _LEAST_COMMON
        alike = _clamped(above / (_MOST_COMMON - _LEAST_COMMON), 0.0)
        correlation = (1 - alike) * self.correlation
        balance = min(correlation / FULLY_BALANCED, 1.0)
        discounts = _discounts(measured.fresh, alike)
        fresh = []
        for each, discount in zip(measured.fresh, discounts, strict=True):
            rarity = min(_ARRIVALS / measured.arrivals[each.group], _MAX_WEIGHT)
            shrunk = self._shrunk(each.change, each.lr_factor)
            weight = shrunk.weight * (1 + balance * (rarity - 1))
            weight *= len(discounts) * discount / sum(discounts)
            fresh.append(replace(shrunk, weight=weight))
        measured.fresh = []
        # The mean before goes first: two are not needed at once.
        measured.mean = {}
        measured.mean = super()._take(state)
        measured.lr_factor = self._latest.lr_factor
        combined = self._combine_fresh(state, fresh)
        for name, tensor in combined.items():
            if is_weight(name, tensor):
                tensor.lerp_(measured.mean[name], correlation)
        return combined


def _discounts(fresh: Sequence[_Fresh], alike: float) -> list[float]:
    """Return how much the updates of a step count for being new, of 1 each."""
    least = min(each.discount(alike) for each in fresh)
    discounts = []
    for each in fresh:
        agrees = _clamped(each.common / _AGREES, 0.0)
        discounts.append(agrees * each.discount(alike) + (1 - agrees) * least)
    return discounts


def _clamped(number: float, least: float) -> float:
    """Return a number clamped to [least, 1]."""
    return min(max(number, least), 1.0)
