"""LatestPerGroup: every speed group counts in every step."""

from dataclasses import dataclass, field, replace
from functools import partial

from flwr_asyncdrop.aggregation.aggregator import Update
from flwr_asyncdrop.aggregation.changes import Change, change_of, mean_change
from flwr_asyncdrop.aggregation.combining import Combiner
from flwr_asyncdrop.aggregation.functions import load_into, state_of
from flwr_asyncdrop.aggregation.server_step import ServerStep
from flwr_asyncdrop.aggregation.stepped import Stepped
from flwr_asyncdrop.parameters import whole_from
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State

NUM_GROUPS = 32
"""Groups of speed ranks by default: one for each rank, as far as that goes."""


@dataclass
class _Latest:
    changes: dict[int, tuple[Change, float]] = field(default_factory=dict)
    """The latest change of each speed group, and its `Update.lr_factor`."""
    lr_factor: float = 1.0
    """Today's: that of the update whose task was sent last."""
    sent_at: int | None = None
    """The version that it was sent, in steps."""
    steps: int = 0
    collected: int = 0
    """Updates since the last step."""
    velocity: State = field(default_factory=dict)


class LatestPerGroup(Stepped):
    """Step every K updates with the mean of the latest changes of all speed groups.

    Fast devices send many updates for each one of a slow device, so a mean over the
    latest updates pulls the model towards the data of the fast. Here the server keeps
    the latest change of every group of devices that are about as fast, and each step
    takes the mean of these: ``W <- W + lr sum_g s_g m_g Delta_g / max(sum_g m_g, 1)``
    with the masks ``m_g``, so that a coordinate is averaged over those that trained it.
    MIFA (Gu et al., 2021) keeps the latest change of every device, for those that are
    away.

    A change is about as large as the learning rate that made it. So that one from
    before the rate decayed does not outweigh those after, ``s_g`` is today's rate over
    that of the change, and 1 at the most: that of the task which was sent last.

    Parameters
    ----------
    size : int
        ``K``, at least 1: updates from one step to the next.
    num_groups : int
        Groups of speed ranks, at least 1; ranks are spread evenly over them.
    combine : callable
        Makes one change of theirs: the mean by default, or see `combiner`.
    server_lr, momentum : float
        Of the `ServerStep`.
    waits : bool
        Whether devices wait for the step that their updates are part of.
    """

    def __init__(
        self,
        size: int,
        *,
        num_groups: int = NUM_GROUPS,
        combine: Combiner = partial(mean_change, normaliser="counts"),  # noqa: B008  # pure
        server_lr: float = 1.0,
        momentum: float = 0.0,
        waits: bool = False,
    ) -> None:
        super().__init__(size, waits=waits)
        self._num_groups: int = whole_from(1).check("num_groups", num_groups)
        self.collects = self._num_groups
        self._combine = combine
        self._server_step = ServerStep(server_lr, momentum)
        self._latest = _Latest()

    def state_dict(self) -> StateDict:
        """Return the latest change of every group, the velocity, and `combine`'s."""
        plain: StateDict = to_plain(self._latest)
        return {**plain, **state_of(combine=self._combine)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore them."""
        load_into(state, combine=self._combine)
        known = {key: saved for key, saved in state.items() if key != "combine"}
        # Versions before this one knew the smallest rate alone.
        self._latest = from_plain(_Latest, {"sent_at": 0, "steps": 0, **known})

    def group_of(self, update: Update) -> int:
        """Return the speed group of the device that sent it, 0 the fastest."""
        return update.rank * self.groups_of(update) // update.num_ranks

    def groups_of(self, update: Update) -> int:
        """Return how many speed groups there were when it was dispatched."""
        return min(self._num_groups, update.num_ranks)

    def _num_collected(self) -> int:
        return self._latest.collected

    def _collect(self, state: State, update: Update) -> None:
        self._remember(state, update, change_of(update, update.discount))
        self._note_rate(update)
        self._latest.collected += 1

    def _step(self, state: State) -> None:
        latest = self._latest
        self._server_step.take_(state, self._take(state), latest.velocity)
        latest.collected = 0
        latest.steps += 1

    def _remember(self, state: State, update: Update, change: Change) -> None:
        """Take in the change of an update; `state` is only read."""
        self._latest.changes[self.group_of(update)] = change, update.lr_factor

    def _note_rate(self, update: Update) -> None:
        """Take over the learning rate of an update if its task was sent last.

        Of tasks with one version the smallest rate counts, as most rates decay.
        """
        latest, sent_at = self._latest, self._latest.steps - update.staleness
        if latest.sent_at is None or sent_at > latest.sent_at:
            latest.lr_factor, latest.sent_at = update.lr_factor, sent_at
        elif sent_at == latest.sent_at:
            latest.lr_factor = min(latest.lr_factor, update.lr_factor)

    def _take(self, state: State) -> State:
        """Return the change of the step that is due."""
        latest = sorted(self._latest.changes.items())
        return self._combine(state, [self._shrunk(*found) for _, found in latest])

    def _shrunk(self, change: Change, lr_factor: float) -> Change:
        """Return a change no larger than the learning rate of today would make it."""
        today = self._latest.lr_factor
        shrink = today / lr_factor if today < lr_factor else 1.0
        return replace(change, weight=change.weight * shrink)
