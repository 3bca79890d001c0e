"""The base class of aggregators, which take one update at a time."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.overrides import check_names, check_overrides
from flwr_asyncdrop.parameters import A_SWITCH, Range, at_least, whole_from
from flwr_asyncdrop.state_dict import Stateless
from flwr_asyncdrop.submodel import Indices, State

_A_LIMIT = Range(lambda value: value > 0, "more than 0; infinity is no limit")
_ATTRIBUTES = {
    "needs_base": A_SWITCH,
    "waits_for": whole_from(1),
    "wait_limit": _A_LIMIT,
    "updates_per_version": whole_from(1),
    "steps_at": _A_LIMIT,
    "collects": at_least(0),
}


@dataclass(frozen=True)
class Update:
    """What a device sent back.

    Attributes
    ----------
    arrays : dict of str to Tensor
        Its trained tensors, of the submodel's shapes.
    indices : dict of str to dict of int to Tensor
        Where they belong in the full model; empty for a full update.
    staleness : int
        How many times the global model changed since the device was sent its task.
    num_examples : int
        How many examples the device trained on.
    base : dict of str to Tensor, optional
        The tensors that it was sent; there for an aggregator that `needs_base`.
    capability : float
        The device's speed over that of the fastest device, in (0, 1].
    rank, num_ranks : int
        Its place among the speed ranks, 0 the fastest.
    lr_factor : float
        The learning rate that it trained with over that of the first task: the
        schedule's factor, and what a train config by round makes of the rate.
    discount : float
        Factor on its weight, in (0, 1]: less than 1 if it came after its deadline.
    extra : mapping of str to dict of str to Tensor
        The records that came back beside the model, as `Aggregator.extra` sent them.
    device, num_devices : int
        Which device it is, from 0 on, and how many the fleet has.
    metrics : mapping of str to float
        The numbers of the reply's metric records, e.g. how many local steps it took.
        They are what the device says, and may be NaN.
    time, seconds : float
        When it arrived, in seconds since the start on the run's clock, and how long its
        device took: on the virtual clock simulated seconds. 0 in rounds that are driven
        from outside, which have no clock.
    work : float
        Share of the usual local steps that the device has trained, as it says; 1 unless
        a `WorkPolicy` asks for others.
    seed : int
        For all that is drawn at random because of it, e.g. noise: it is another one for
        each update and each seed of the run, and the same when a run resumes.
    """

    arrays: State
    indices: Indices
    staleness: int
    num_examples: int
    base: State | None = None
    capability: float = 1.0
    rank: int = 0
    num_ranks: int = 1
    lr_factor: float = 1.0
    discount: float = 1.0
    extra: Mapping[str, State] = field(default_factory=dict)
    device: int = 0
    num_devices: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    time: float = 0.0
    seconds: float = 0.0
    seed: int = 0
    work: float = 1.0

    @property
    def sent(self) -> State:
        """The base; an update without one raises a ConfigError."""
        if self.base is None:
            raise ConfigError("a change needs its base: keep what each device was sent")
        return self.base


class Aggregator(Stateless, ABC):
    """Takes updates into the global model, in the order of their arrival.

    One that keeps something between updates returns it from ``state_dict``: a tensor
    in there may be replaced later, but never changed in place. Where something is left
    out, the run gets no checkpoints.

    Attributes
    ----------
    needs_base : bool
        Whether an update must come with what its device was sent.
    waits_for : int
        Updates after which the global model changes, if devices that have delivered
        wait for that before they get a new task; 1 if nobody waits.
    wait_limit : float
        A device does not wait if the median device takes more than so many times as
        long for a task as it does.
    updates_per_version : int
        Updates after which the global model changes, whoever waits.
    steps_at : float
        When it takes a step by the time, in seconds on the run's clock; infinity for
        never. The loop calls `flush` then, after all that arrives at that very moment,
        and `flush` sets the next time. With `waits_for` of more than 1 devices that
        have delivered wait for it.
    collects : int
        Times the memory of the model that it keeps from one step to the next.
    """

    needs_base: ClassVar[bool] = False
    waits_for: int = 1
    wait_limit: float = math.inf
    updates_per_version: int = 1
    steps_at: float = math.inf
    collects: int = 0

    def extra(self, state: State) -> Mapping[str, State]:
        """Return what every task carries beside the model; nothing by default.

        Records by name, such as SCAFFOLD's control variates, whose tensors have names,
        shapes and dtypes of the global model's. They are sliced for each device as the
        model is; replies bring records of the same names and shapes back, as
        `Update.extra`. A tensor that `state_dict` returns itself, and no copy of it, is
        replaced to change it: checkpoints may still have it.
        """
        return {}

    @abstractmethod
    def merge(self, state: State, update: Update) -> bool:
        """Take one update in.

        Parameters
        ----------
        state : dict of str to Tensor
            The global model; changed in place.
        update : Update
            What has just arrived; only read.

        Returns
        -------
        bool
            Whether `state` has changed: an aggregator may collect several updates
            before it does. If not, no tensor in it may differ, running statistics
            and counters among them: devices are sent what they were sent before.

        Raises
        ------
        ShapeError
            If the update does not fit; `state` is as before then.
        """

    def releases(self, rank: int, num_ranks: int) -> bool:
        """Return whether the step that `merge` has taken was for devices of a rank.

        Those of them that wait get a new task; all do by default. An aggregator in
        which devices wait for others of their own speed, as FedAT's, answers by the
        tier that has stepped. `rank` is a device's place among `num_ranks` when it got
        its task, 0 the fastest. After `flush` all get one. So does a device without a
        step, if those that it waits for are in quarantine or gone.
        """
        return True

    def flush(self, state: State) -> bool:
        """Change the global model with fewer updates than it waits for.

        For aggregators whose devices wait for each other: called when the others of
        their step cannot come, as they are in quarantine. And for those that step by
        the time: called at `steps_at`. Returns whether `state`, which is changed in
        place, has changed; by default it does not.
        """
        return False

    def metrics(self) -> Mapping[str, float]:
        """Return numbers of its own about the step that it has just taken, by name.

        Called after each step, of `merge` or of `flush`, when devices go on. The
        history has them in a ``step`` line, trackers by round, and Prometheus as they
        are. What is not finite is null there. An attribute that they are computed from
        is state, as any that changes: ``state_dict`` returns it.
        """
        return {}


def check_aggregator(found: object, whose: str) -> Aggregator:
    """Return an aggregator that a run can go by; ConfigError if it is none."""
    if not isinstance(found, Aggregator):
        raise ConfigError(
            f"aggregator() of {whose} returned {found!r}: return an Aggregator"
        )
    check_overrides(found)
    check_names(type(found))
    check_attributes(found)
    return found


def check_attributes(aggregator: Aggregator) -> None:
    """Raise ConfigError for an attribute that a run cannot go by; they may change."""
    kind = type(aggregator).__name__
    for name, values in _ATTRIBUTES.items():
        values.check(f"{name} of {kind}", getattr(aggregator, name))
