"""The numbers that algorithms are tuned by."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Hyperparameters:
    """What an algorithm can be told; each one uses some of it.

    Attributes
    ----------
    alpha : float
        Mixing rate ``alpha`` in [0, 1]: ``W <- (1 - alpha) W + alpha W_i``.
    drop_rate : float
        Share of the units of every group that a submodel leaves out, in [0, 1).
    round_to : int
        Make widths multiples of it, e.g. of 16, which suits most hardware.
    weighting : str
        Name of the function that weighs updates, one of
        `flwr_asyncdrop.aggregation.WEIGHTINGS`; "" for the algorithm's own.
    weighting_a, weighting_b : float
        FedAsync's parameters of that function.
    buffer_size : int
        Updates that are collected before the server steps; 0 for half of the
        devices in flight.
    server_lr : float
        Learning rate of the server's step; 0 for the algorithm's own.
    server_momentum : float
        Momentum of the server's step, in [0, 1).
    combine : str
        How the server makes one change of those that it has collected: ``"mean"``, or,
        coordinate by coordinate over the devices that trained it, ``"trimmed-mean"``
        or ``"median"``.
    trim : float
        Share of the values that a trimmed mean cuts off at each end, in [0, 1/2).
    clip_norm : float
        L2 norm down to which the change of an update's weights is scaled before it is
        merged; 0 for no clipping.
    averaging : float
        Decay of the average of the model's versions that is evaluated and returned, in
        [0, 1); 0 for the algorithm's own.
    proximal_mu : float
        ``mu`` of FedProx's local objective, at least 0.
    logit_adjustment : float
        ``tau`` of the logit-adjusted loss, at least 0, which follows the schedule of
        the learning rate; 0 for the algorithm's own.
    """

    alpha: float = 0.5
    drop_rate: float = 0.25
    round_to: int = 1
    weighting: str = ""
    weighting_a: float = 0.5
    weighting_b: float = 4.0
    buffer_size: int = 0
    server_lr: float = 0.0
    server_momentum: float = 0.0
    combine: str = "mean"
    trim: float = 0.2
    clip_norm: float = 0.0
    averaging: float = 0.0
    proximal_mu: float = 0.01
    logit_adjustment: float = 0.0


HYPERPARAMETERS: tuple[str, ...] = tuple(
    field.name for field in fields(Hyperparameters)
)
"""Their names."""
