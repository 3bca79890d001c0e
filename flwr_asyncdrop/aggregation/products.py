"""Products of two factors: their sums, exactly, and the best ones of a lower rank.

An adapter adds ``P = B A`` to a frozen weight. The mean of products is not the product
of means. But a sum ``sum_i c_i B_i A_i`` is the product of the factors side by side,
``[c_1 B_1, c_2 B_2, ...] [A_1; A_2; ...]`` (FLoRA, Wang et al., 2024), and its singular
value decomposition gives the nearest product of any rank (FlexLoRA, Bai et al., 2024).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flwr_asyncdrop.submodel import Adapter, State, one_thread

# Singular values below this share of the largest are rounding, not directions.
_NOTHING = 1e-12


@dataclass(frozen=True)
class Factors:
    """The two factors of a product, float64: `b` is (outputs, r), `a` (r, inputs)."""

    b: Tensor
    a: Tensor

    @classmethod
    def of(cls, state: State, adapter: Adapter) -> "Factors":
        """Take an adapter out of a state; convolutions' kernels are laid out flat.

        A vector is a factor with one input or output.
        """
        rows = state[adapter.a].detach().movedim(adapter.a_dim, 0)
        columns = state[adapter.b].detach().movedim(adapter.b_dim, -1)
        a = rows.reshape(len(rows), math.prod(rows.shape[1:]))
        b = columns.reshape(math.prod(columns.shape[:-1]), columns.shape[-1])
        return cls(b.double(), a.double())

    def write_(self, state: State, adapter: Adapter) -> None:
        """Put them in the place of an adapter's factors in a state."""
        a, b = state[adapter.a], state[adapter.b]
        rows = a.movedim(adapter.a_dim, 0)
        rows.copy_(self.a.reshape(rows.shape))
        columns = b.movedim(adapter.b_dim, -1)
        columns.copy_(self.b.reshape(columns.shape))

    def scaled(self, factor: float | Tensor) -> "Factors":
        """Return those of the product times a number, or one number a component."""
        return Factors(self.b * factor, self.a)

    def select(self, components: Tensor) -> "Factors":
        """Return some of the components."""
        kept = components.to(self.b.device)
        return Factors(self.b[:, kept], self.a[kept])

    def replaced(self, components: Tensor, part: "Factors") -> "Factors":
        """Return the factors with some of the components replaced by others."""
        kept = components.to(self.b.device)
        b, a = self.b.clone(), self.a.clone()
        b[:, kept], a[kept] = part.b, part.a
        return Factors(b, a)

    def product(self) -> Tensor:
        """Return ``B A``, of shape (outputs, inputs)."""
        return self.b @ self.a


def stacked(parts: Sequence[Factors]) -> Factors:
    """Return factors whose product is the sum of the products of `parts`."""
    device = parts[0].a.device
    return Factors(
        torch.cat([part.b.to(device) for part in parts], 1),
        torch.cat([part.a.to(device) for part in parts]),
    )


def truncated(total: Factors, like: Factors) -> Factors:
    """Return the best factors of the rank of `like`: the nearest product to `total`.

    With the singular value decomposition ``P = U S V'`` cut off after ``r`` values,
    they are ``A = s Q V'`` and ``B = U S Q' / s``: rows of ``A`` at right angles and of
    one length ``s``, that of the rows of `like` in the mean square, turned by ``Q`` so
    that they are as near to the rows of `like` as can be. So component ``j`` goes on
    from where component ``j`` was; and a component whose product is nothing, as all are
    when training begins, keeps a row of ``A`` with which it can learn.
    """
    rank = len(like.a)
    with one_thread():  # the same bits whatever their number
        # The decomposition of a small core, since both factors are thin.
        left = torch.linalg.qr(total.b, mode="r").R
        inputs, right = torch.linalg.qr(total.a.T)
        _, values, rows = torch.linalg.svd(left @ right.T, full_matrices=False)
        some = int((values > _NOTHING * values[:1].sum()).sum())
        basis = inputs @ rows[: min(some, rank)].T
        basis = _completed(basis, like.a, rank)
        length = float(like.a.square().sum() / rank) ** 0.5 or 1.0
        turned = _nearest_rotation(like.a @ basis)
        a = length * turned @ basis.T
        b = total.b @ (total.a @ a.T) / length**2
    return Factors(b, a)


def _completed(basis: Tensor, rows: Tensor, rank: int) -> Tensor:
    """Add directions of `rows` until there are `rank`, or as many as `rows` span."""
    missing = rank - basis.shape[1]
    if missing <= 0:
        return basis
    rest = rows - (rows @ basis) @ basis.T
    _, _, directions = torch.linalg.svd(rest, full_matrices=False)
    more = torch.cat([basis, directions[:missing].T], 1)
    orthogonal: Tensor = torch.linalg.qr(more).Q
    return orthogonal


def _nearest_rotation(matrix: Tensor) -> Tensor:
    """Return the matrix with orthogonal columns that is nearest (Procrustes)."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    nearest: Tensor = left @ right
    return nearest
