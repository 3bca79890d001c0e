"""The algorithms that mix every update in on arrival.

Alg. 1 to 3 are those of the AsyncDrop paper (Dun et al., 2023).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from flwr_asyncdrop.aggregation import WEIGHTINGS, Aggregator, Mixing, weighting
from flwr_asyncdrop.algorithms.algorithm import Algorithm
from flwr_asyncdrop.masks import MaskPolicy, OrderedMask, RandomMask, SmartPartition
from flwr_asyncdrop.objectives import LocalObjective, StandardObjective
from flwr_asyncdrop.parameters import (
    at_least,
    in_interval,
    one_of,
    parameter,
    whole_from,
)


@dataclass(frozen=True)
class AsyncFedAvg(Algorithm):
    """Alg. 1: ``W <- (1 - alpha) W + alpha W_i``.

    Attributes
    ----------
    alpha : float
        Mixing rate, in (0, 1].
    """

    name: ClassVar[str] = "async-fedavg"

    alpha: float = parameter(
        0.5,
        "mixing rate: W <- (1 - alpha) W + alpha W_i, in (0, 1]",
        in_interval("(0, 1]"),
    )

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `Mixing`."""
        return Mixing(self.alpha)


@dataclass(frozen=True)
class Weighted(Algorithm):
    """The hyperparameters of a weighting; see `flwr_asyncdrop.aggregation.weighting`.

    Attributes
    ----------
    weighting : str
        Name of the function that weighs updates, one of ``WEIGHTINGS``.
    weighting_a, weighting_b : float or None
        FedAsync's parameters of that function, at least 0; None for the values of its
        paper: ``a`` 0.5 (polynomial) or 10 (hinge), ``b`` 4.
    """

    weighting: str = parameter(
        "polynomial",
        "how an update is weighed: capability | constant | polynomial | hinge",
        one_of(*WEIGHTINGS),
    )
    weighting_a: float | None = parameter(
        None,
        "FedAsync's a: polynomial (1 + s)^-a, hinge 1 / (a (s - b) + 1); left out: "
        "0.5, of a hinge 10",
        at_least(0),
    )
    weighting_b: float | None = parameter(
        None,
        "FedAsync's b: staleness up to which a hinge has no effect; left out: 4",
        at_least(0),
    )


@dataclass(frozen=True)
class AsyncWeighted(AsyncFedAvg, Weighted):
    """FedAsync (Xie et al., 2019): Alg. 1 with `alpha` times the update's weight.

    By default the weight is the device's capability: its speed over the fastest's.
    """

    name: ClassVar[str] = "async-weighted"

    weighting: str = parameter("capability")

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `Mixing` with the weighting."""
        weigh = weighting(self.weighting, self.weighting_a, self.weighting_b)
        return Mixing(self.alpha, weigh)


@dataclass(frozen=True)
class AsyncFedProx(AsyncFedAvg):
    """Alg. 1 with FedProx's local objective (Li et al., 2020).

    Attributes
    ----------
    proximal_mu : float
        ``mu``, at least 0: ``mu / 2 ||w - w_dispatched||^2`` joins the local loss.
    """

    name: ClassVar[str] = "async-fedprox"

    proximal_mu: float = parameter(
        0.01, "adds mu/2 ||w - w_dispatched||^2 to the local loss", at_least(0)
    )

    def objective(self) -> LocalObjective:
        """Return the objective with the proximal term."""
        return StandardObjective(self.logit_adjustment, self.proximal_mu)


@dataclass(frozen=True)
class Dropped(Algorithm):
    """The hyperparameter of submodels.

    Attributes
    ----------
    drop_rate : float
        Share of the units of every group that a submodel leaves out, in [0, 1).
    """

    drop_rate: float = parameter(
        0.25,
        "share of the units that a submodel leaves out, in [0, 1)",
        in_interval("[0, 1)"),
    )


@dataclass(frozen=True)
class Narrowed(Dropped):
    """The hyperparameters of submodels that are narrower in every layer.

    Attributes
    ----------
    round_to : int
        Make widths multiples of it, e.g. of 16, which suits most hardware.
    """

    round_to: int = parameter(
        1, "make the widths multiples of it, e.g. of 16", whole_from(1)
    )


@dataclass(frozen=True)
class AsyncFjord(AsyncFedAvg, Narrowed):
    """Alg. 2 with ordered dropout: the faster the device, the wider its submodel.

    A rank has one fixed width, as in HeteroFL (Diao et al., 2021). FjORD (Horváth et
    al., 2021) draws a width for every local step, up to the device's largest, and may
    distil the widest into the others; this does neither.
    """

    name: ClassVar[str] = "async-fjord"

    def masks(self) -> MaskPolicy:
        """Return `OrderedMask`."""
        return OrderedMask(self.drop_rate, self.round_to)


@dataclass(frozen=True)
class AsyncDrop(AsyncFedAvg, Narrowed):
    """Alg. 2: Alg. 1 on the coordinates of a random mask."""

    name: ClassVar[str] = "asyncdrop"

    def masks(self) -> MaskPolicy:
        """Return `RandomMask`."""
        return RandomMask(self.drop_rate, self.round_to)


@dataclass(frozen=True)
class HeteroAsyncDrop(AsyncFedAvg, Narrowed):
    """Alg. 3: Alg. 1 on the coordinates of the smart partition.

    The i-th fastest device leaves out the units that have moved i-th most.

    Attributes
    ----------
    score_vectors : bool
        Whether biases and norm weights count in how far a unit has moved. In the
        authors' script they do not.
    """

    name: ClassVar[str] = "hetero-asyncdrop"

    score_vectors: bool = parameter(
        True,
        "count biases and norm weights in a unit's score; false as the authors' script",
    )

    def masks(self) -> MaskPolicy:
        """Return `SmartPartition`."""
        return SmartPartition(
            self.drop_rate, self.round_to, score_vectors=self.score_vectors
        )


@dataclass(frozen=True)
class LayerwiseAsyncDrop(AsyncFedAvg, Dropped):
    """The paper's ablation: Alg. 3 with whole residual blocks for units."""

    name: ClassVar[str] = "layerwise-asyncdrop"
    units: ClassVar[Literal["channels", "blocks"]] = "blocks"

    def masks(self) -> MaskPolicy:
        """Return `SmartPartition`."""
        return SmartPartition(self.drop_rate)
