"""Unit labels on tensors, and what can be said and done about them.

A *layer* gives every position of a tensor the id of the unit that it belongs to, 0
where it belongs to none. It has the tensor's shape, but is expanded (stride 0) along
every dim on which it does not vary, so that it costs next to nothing and the model's
own view operations apply to it. A weight has one layer per dim; an activation has
one for its channels, and rarely more.
"""

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from flwr_asyncdrop.submodel.discovery.unionfind import Ids, UnionFind
from flwr_asyncdrop.submodel.discovery.uses import Uses

TOGETHER = "its units stand or fall together: none of them can go alone"
UNEQUAL = "cut into unequal parts by {op}"
_IN_GROUPS = "chosen in groups, whose number the model's code keeps"

Layer: TypeAlias = Tensor
Condition: TypeAlias = tuple[Layer, str]
"""What freezes if a result is used, and why."""


@dataclass(frozen=True)
class Cut:
    """An axis of units and the pieces, (start, end), that slices take of it."""

    layer: Layer
    dim: int
    operation: str
    pieces: set[tuple[int, int]] = field(default_factory=set)


def compact(layer: Layer) -> Tensor:
    """Return `layer` with size 1 along the dims on which it is expanded."""
    narrowed = (slice(0, 1) if step == 0 else slice(None) for step in layer.stride())
    return layer[tuple(narrowed)]


def along(vector: Tensor, shape: Sequence[int], dim: int) -> Layer:
    """Return the layer of `shape` that varies along `dim` only, as `vector` does."""
    sizes = [1] * len(shape)
    sizes[dim] = -1
    return vector.view(sizes).expand(tuple(shape))


class LabelSpace:
    """The units of one model and the classes that tracing joins them into.

    With `streams` units that are normalised together may be dropped.
    """

    def __init__(self, *, streams: bool = False) -> None:
        self.units = UnionFind()
        self.streams = streams
        self.operation = "the model"  # what is being traced, for the reasons
        # Of the operation's result, as far as it reaches the model's output.
        self.conditions: list[Condition] = []
        self.uses = Uses()
        # Tensors whose values number units, with the unit of each number.
        self.numbers: MutableMapping[Tensor, Layer] = WeakTensorKeyDictionary()
        self._vanishing: MutableMapping[Tensor, tuple[int, list[Layer]]]
        self._vanishing = WeakTensorKeyDictionary()
        # Scores out of which so many choices have been taken.
        self.taken: MutableMapping[Tensor, int] = WeakTensorKeyDictionary()
        # Parts of weights that were picked by number: no branch of their own.
        self.picked: MutableMapping[Tensor, bool] = WeakTensorKeyDictionary()
        self._competitions: list[Condition] = []
        self._splits: list[Layer] = []
        self._cuts: list[Cut] = []
        self._assemblies: list[Tensor] = []
        self._cuts_of: MutableMapping[Tensor, dict[int, Cut]]
        self._cuts_of = WeakTensorKeyDictionary()
        self._first_copy: int | None = None

    def note_uses(self, layers: Iterable[Layer]) -> None:
        """Note that the operation takes these units."""
        for layer in layers:
            self.uses.note(compact(layer).numpy(), self.operation)

    def fresh(self, count: int) -> Tensor:
        """Return a vector of `count` new unit ids."""
        return torch.from_numpy(self.units.new(count))

    def copies(self, count: int) -> Tensor:
        """Return a vector of new unit ids for what has no weights of its own."""
        ids = self.fresh(count)
        if self._first_copy is None:
            self._first_copy = int(ids[0])
        return ids

    def has_weights(self, layer: Layer) -> bool:
        """Whether units of tensors of the model are among those of `layer`."""
        ids = self.droppable(layer)
        end = self._first_copy or len(self.units)
        return bool(((ids > 0) & (ids < end)).any())

    def droppable(self, layer: Layer) -> Tensor:
        """Return the compact layer with class representatives, 0 where frozen."""
        return torch.from_numpy(self.units.droppable(compact(layer).numpy()))

    def varying(self, layer: Layer) -> frozenset[int]:
        """Return the dims along which `layer` tells units apart."""
        return frozenset(_varying(self.droppable(layer)))

    def canonical(self, layer: Layer) -> Layer:
        """Return `layer` with class representatives, expanded wherever possible."""
        ids = self.droppable(layer)
        varying = _varying(ids)
        for dim in range(ids.dim()):
            if dim not in varying:
                ids = ids.narrow(dim, 0, min(1, ids.shape[dim]))
        return ids.expand(layer.shape)

    def tidy(self, layers: Iterable[Layer]) -> list[Layer]:
        """Return the canonical layers that still tell units apart; freeze the rest."""
        tidied = [self.canonical(layer) for layer in layers]
        for layer in tidied:
            if not _varying(compact(layer)):
                self.freeze(layer, TOGETHER)
        return [layer for layer in tidied if _varying(compact(layer))]

    def freeze(self, layer: Layer, reason: str) -> None:
        """Make the units of `layer` undroppable; ``{op}`` names the operation."""
        self.units.freeze(compact(layer).numpy(), self._filled(reason))

    def freeze_if_used(self, layer: Layer, reason: str) -> None:
        """Freeze `layer` once the operation's result reaches the model's output."""
        self.conditions.append((layer, self._filled(reason)))

    def normalise(self, layer: Layer) -> None:
        """Mark the units of `layer` as normalised together."""
        self.units.mark(self.droppable(layer).numpy(), "normalised")

    def _filled(self, reason: str) -> str:
        return reason.replace("{op}", self.operation)

    def join(self, left: Layer, right: Layer) -> None:
        """Join the classes of two layers of one shape, position by position."""
        reason = f"combined with positions that are always kept in {self.operation}"
        self.units.union(compact(left).numpy(), compact(right).numpy(), reason)

    def pair(self, left: Sequence[Layer], right: Sequence[Layer]) -> None:
        """Join the layers of two tensors that meet: those that tell alike, first.

        A position of a merged axis, such as one of a head, belongs to the head and to
        its place within it. Where the other side only knows one of the two, the other
        freezes, and so does what is left over without a partner.
        """
        if len(left) == len(right) == 1:
            self.join(left[0], right[0])
            return
        waiting, alone = list(right), []
        for layer in left:
            number = next(
                (n for n, other in enumerate(waiting) if self._alike(layer, other)),
                None,
            )
            if number is None:
                alone.append(layer)
            else:
                self.join(layer, waiting.pop(number))
        if alone and waiting:
            self.join(*(self._pop_coarsest(layers) for layers in (alone, waiting)))
        for layer in alone + waiting:
            self.freeze(layer, "meets positions with other units in {op}")

    def _alike(self, left: Layer, right: Layer) -> bool:
        """Whether two layers tell the same positions apart."""
        one, other = np.broadcast_arrays(self._ids(left), self._ids(right))
        pairs = np.stack([one.ravel(), other.ravel()])
        counts = {np.unique(row).size for row in pairs}
        return counts == {np.unique(pairs, axis=1).shape[1]}

    def _ids(self, layer: Layer) -> Ids:
        ids: Ids = compact(self.canonical(layer)).numpy()
        return ids

    def _pop_coarsest(self, layers: list[Layer]) -> Layer:
        """Take out the layer whose units have the longest runs of neighbours."""
        ids = np.broadcast_arrays(*map(self._ids, layers))
        changes = [np.count_nonzero(np.diff(layer.ravel())) for layer in ids]
        return layers.pop(int(np.argmin(changes)))

    def collapse(self, layer: Layer, dims: Iterable[int]) -> Tensor:
        """Join the units of `layer` along `dims`; return it with size 1 there."""
        ids = self.droppable(layer)
        for dim in dims:
            if ids.shape[dim] > 1:
                first = ids.narrow(dim, 0, 1)
                self.join(ids, first)
                ids = first
        return self.droppable(ids)

    def vector(self, layer: Layer, dim: int) -> Tensor:
        """Return the unit of each position along `dim`; join those along other dims."""
        others = [k for k in range(layer.dim()) if k != dim]
        return self.collapse(layer, others).reshape(-1)

    def compete(self, units: Layer, least: int, reason: str) -> None:
        """Let `units` compete for a choice of `least` of them.

        They freeze for `reason` unless they turn out to be experts, see
        `settle_competitions`.
        """
        self.units.mark_competing(compact(units).numpy(), least)
        self._competitions.append((units, self._filled(reason)))

    def choose(self, units: Layer, numbered: Layer) -> None:
        """Join units along an axis with those whose numbers pick positions of it."""
        self.join(units, numbered)
        self.units.mark(compact(numbered).numpy(), "chosen")

    def note_vanishing(self, tensor: Tensor, version: int, units: list[Layer]) -> None:
        """Note that `tensor`, in its `version`, is zero where `units` are not there."""
        self._vanishing[tensor] = (version, units)

    def vanishing_in(self, tensor: Tensor) -> list[Layer]:
        """Return what was noted of `tensor`, unless it has been written on since."""
        version, units = self._vanishing.get(tensor, (-1, []))
        return units if version == tensor._version else []

    def settle_competitions(self, stacked: Sequence[Ids]) -> None:
        """Freeze what competes but is not made of experts.

        Experts are chosen by number, or they lie along an axis in `stacked`: the first
        of a tensor that stacks one matrix an expert. Those in groups freeze too.
        """
        for split in self._splits:
            ids = compact(split).numpy()
            self.units.freeze(ids[self.units.least(ids) > 0], _IN_GROUPS)
        for ids in stacked:
            self.units.mark(ids[self.units.least(ids) > 0], "chosen")
        for layer, reason in self._competitions:
            ids = compact(layer).numpy()
            self.units.freeze(ids[~self.units.marked(ids, "chosen")], reason)

    def note_split(self, layer: Layer) -> None:
        """Note a view that splits an axis of units: what is kept must stay a grid."""
        if len(self.varying(layer)) > 1:
            self._splits.append(layer)

    def note_cut(
        self,
        source: Tensor,
        layer: Layer,
        dim: int,
        pieces: Iterable[tuple[int, int]],
    ) -> None:
        """Note slices of `source` along an axis of units that `layer` tells apart."""
        cuts = self._cuts_of.setdefault(source, {})
        if dim in cuts:
            self.join(cuts[dim].layer, layer)
        else:
            cuts[dim] = Cut(layer, dim, self.operation)
            self._cuts.append(cuts[dim])
        cuts[dim].pieces.update(pieces)

    def settle_cuts(self) -> None:
        """Tie equal pieces, leave those that are the whole axis, freeze the rest.

        Called at the end, when all the slices of an axis are known. Unequal pieces that
        are put together again freeze too: wrong bounds would not show in any shape.
        """
        for cut in self._cuts:
            length = cut.layer.shape[cut.dim]
            starts, ends = zip(*sorted(cut.pieces), strict=True)
            sizes = {end - start for start, end in cut.pieces}
            size = max(sizes)
            if sizes == {size} and not any(k % size for k in (length, *starts)):
                first, *others = torch.split(cut.layer, size, cut.dim)
                for piece in others:
                    self.join(first, piece)
            elif (0, *ends) != (*starts, length) or self._is_reassembled(cut):
                self.operation = cut.operation
                self.freeze(cut.layer, UNEQUAL)

    def note_assembly(self, vector: Tensor) -> None:
        """Note an axis that was put together from parts: the unit of each place."""
        if self._cuts:
            self._assemblies.append(vector)

    def _is_reassembled(self, cut: Cut) -> bool:
        """Whether units of several of the cut's pieces are on one assembled axis."""
        pieces = [
            self.droppable(cut.layer.narrow(cut.dim, start, end - start))
            for start, end in cut.pieces
        ]
        for vector in self._assemblies:
            there = self.droppable(vector)
            there = there[there > 0]
            if sum(bool(torch.isin(piece, there).any()) for piece in pieces) > 1:
                return True
        return False

    def settle_splits(self) -> None:
        """Let units vary along the longest axis only of every noted view.

        Called at the end, since later operations may settle it.
        """
        for layer in self._splits:
            varying = self.varying(layer)
            if len(varying) > 1:
                longest = max(varying, key=lambda dim: (layer.shape[dim], -dim))
                self.collapse(layer, varying - {longest})


def _varying(ids: Tensor) -> set[int]:
    return {
        dim
        for dim, size in enumerate(ids.shape)
        if size > 1 and bool((ids != ids.narrow(dim, 0, 1)).any())
    }
