"""Algorithms whose server remembers what each device did last.

A memory has a model for each device, or for each speed rank where that is too much.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from flwr_asyncdrop.aggregation import Aggregator, Update, change_of, is_weight
from flwr_asyncdrop.algorithms import Algorithm, BufferSized
from flwr_asyncdrop.parameters import more_than, parameter
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State, check_fits

from baselines import at_least_single


@dataclass
class _Memory:
    changes: dict[int, State] = field(default_factory=dict)  # by device
    sums: State = field(default_factory=dict)
    mean: State = field(default_factory=dict)
    devices: int = 0  # that the mean is over
    counts: dict[int, int] = field(default_factory=dict)  # by device
    collected: int = 0


class Remembering(Aggregator):
    """What the algorithms below have in common: full models, and a memory."""

    needs_base: ClassVar[bool] = True

    def __init__(self, server_lr: float) -> None:
        self.server_lr = server_lr
        self.memory = _Memory()

    @torch.no_grad()
    def merge(self, state: State, update: Update) -> bool:
        """Take one update in.

        Running statistics and counters take its values with the step that it brings.
        """
        check_fits(state, update.arrays, update.indices)
        delta = change_of(update).delta
        weights = {
            name: at_least_single(change)
            for name, change in delta.items()
            if is_weight(name, state[name])
        }
        if not self.take(state, weights, update):
            return False  # devices are sent the version that there was: nothing moves
        for name in delta.keys() - weights.keys():
            state[name].copy_(delta[name])
        return True

    @abstractmethod
    def take(self, state: State, delta: State, update: Update) -> bool:
        """Take the change of the weights in; return whether they have changed."""

    def state_dict(self) -> StateDict:
        """Return the memory."""
        plain: StateDict = to_plain(self.memory)
        return plain

    def load_state_dict(self, state: StateDict) -> None:
        """Restore it."""
        self.memory = from_plain(_Memory, state)


def _plus(one: State, other: State, factor: float = 1.0) -> State:
    """Return a new sum; a state that is empty is zero."""
    if not one:
        return {name: factor * tensor for name, tensor in other.items()}
    return {n: torch.add(t, other[n], alpha=factor) for n, t in one.items()}


class AceMemory(Remembering):
    """On each arrival, ``U_i <- Delta_i`` and ``W <- W + (lr / n) sum_j U_j``."""

    def take(self, state: State, delta: State, update: Update) -> bool:
        """Step with the latest changes of all devices."""
        memory = self.memory
        known = memory.changes.get(update.device)
        newer = delta if known is None else _plus(delta, known, -1.0)
        memory.sums = _plus(memory.sums, newer)
        memory.changes[update.device] = delta
        for name, total in memory.sums.items():
            state[name].add_(total, alpha=self.server_lr / update.num_devices)
        return True


class CalibratedBuffer(Remembering):
    """Every K arrivals, ``W <- W + lr (mean_j h_j + b / K)``.

    An arrival adds ``Delta_i - h_i`` to ``b``, and then is ``h_i``. The mean is that of
    the last step.
    """

    def __init__(self, size: int, server_lr: float) -> None:
        super().__init__(server_lr)
        self.updates_per_version = size

    def take(self, state: State, delta: State, update: Update) -> bool:
        """Collect; with the last of K, step."""
        memory, size = self.memory, self.updates_per_version
        known = memory.changes.get(update.device)
        fresh = delta if known is None else _plus(delta, known, -1.0)
        memory.sums = _plus(memory.sums, fresh)
        memory.changes[update.device] = delta
        memory.collected += 1
        if memory.collected < size:
            return False
        if memory.devices != update.num_devices:  # some have joined
            share = memory.devices / update.num_devices
            memory.mean = {name: share * mean for name, mean in memory.mean.items()}
            memory.devices = update.num_devices
        for name, total in memory.sums.items():
            state[name].add_(total, alpha=self.server_lr / size)
            if name in memory.mean:
                state[name].add_(memory.mean[name], alpha=self.server_lr)
        # What the memory has grown by since the last step.
        memory.mean = _plus(memory.mean, memory.sums, 1 / update.num_devices)
        memory.sums, memory.collected = {}, 0
        return True


class RunningMeans(Remembering):
    """A step once every speed rank has sent something, with the mean of their means.

    ``W <- W + (lr / n) sum_g mean_j Delta_gj`` over the changes since the last step. A
    fleet of fewer devices than ranks has as many as devices.
    """

    def take(self, state: State, delta: State, update: Update) -> bool:
        """Collect; step if this was the last rank that lacked."""
        memory, rank = self.memory, update.rank
        memory.changes[rank] = _plus(memory.changes.get(rank, {}), delta)
        memory.counts[rank] = memory.counts.get(rank, 0) + 1
        if len(memory.counts) < min(update.num_ranks, update.num_devices):
            return False
        for rank, total in sorted(memory.changes.items()):
            share = self.server_lr / len(memory.counts) / memory.counts[rank]
            for name, tensor in total.items():
                state[name].add_(tensor, alpha=share)
        memory.changes, memory.counts = {}, {}
        return True


@dataclass(frozen=True)
class Stepped(Algorithm):
    """The learning rate of the server.

    Attributes
    ----------
    server_lr : float
        It, positive.
    """

    server_lr: float = parameter(
        1.0, "learning rate of the server's step", more_than(0)
    )


@dataclass(frozen=True)
class Ace(Stepped):
    """ACE (arXiv 2511.19066): all devices count in the step of each arrival."""

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `AceMemory`."""
        return AceMemory(self.server_lr)


@dataclass(frozen=True)
class Ca2fl(Stepped, BufferSized):
    """CA2FL (Wang et al., ICLR 2024): a buffer that is calibrated by all devices."""

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `CalibratedBuffer`."""
        return CalibratedBuffer(self.size(in_flight), self.server_lr)


@dataclass(frozen=True)
class Ringleader(Stepped):
    """Ringleader (arXiv 2509.22860), with speed ranks in the place of workers."""

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `RunningMeans`."""
        return RunningMeans(self.server_lr)
