"""The named strategies, one for every algorithm."""

from flwr_asyncdrop import algorithms
from flwr_asyncdrop.strategy.async_strategy import AsyncStrategy


class SyncFedAvg(AsyncStrategy):
    """FedAvg (McMahan et al., 2017) on the same fleet and clock: the control.

    As many devices as can be in flight train at once, and all wait for the slowest.
    """

    algorithm_type = algorithms.FedAvg


class AsyncFedAvg(AsyncStrategy):
    """Asynchronous FedAvg (Dun et al., 2023, Alg. 1): full models, mixed on arrival."""

    algorithm_type = algorithms.AsyncFedAvg


class AsyncWeighted(AsyncStrategy):
    """Asynchronous FedAvg whose mixing rate follows the device or the staleness.

    By default a device counts as its speed does over that of the fastest; with
    ``weighting="constant"``, ``"polynomial"`` or ``"hinge"`` it is FedAsync (Xie et
    al., 2019).
    """

    algorithm_type = algorithms.AsyncWeighted


class AsyncFedProx(AsyncStrategy):
    """Asynchronous FedAvg with FedProx's local objective (Li et al., 2020).

    Clients find ``mu`` as ``"proximal-mu"`` in the train config, where Flower's own
    ``FedProx`` puts it, and add ``mu / 2 ||w - w_dispatched||^2`` to their loss.
    """

    algorithm_type = algorithms.AsyncFedProx


class AsyncFjord(AsyncStrategy):
    """Ordered dropout with a fixed width for each speed rank, mixed on arrival.

    The faster a device, the more of the first units of every layer it trains. Fixed
    widths are HeteroFL's (Diao et al., 2021). FjORD (Horváth et al., 2021) draws a new
    width for every local step, up to the device's largest, and may distil the widest
    into the others; this does neither.
    """

    algorithm_type = algorithms.AsyncFjord


class FedBuff(AsyncStrategy):
    """FedBuff (Nguyen et al., 2022): a server step with the mean of K changes.

    Changes are taken against what each device was sent and weighted by
    ``1 / sqrt(1 + staleness)``; nobody waits.
    """

    algorithm_type = algorithms.FedBuff


class FedBuffWait(AsyncStrategy):
    """FedBuff as the AsyncDrop paper compares with it: devices wait for the buffer.

    A device that has delivered gets its next task when its update has been merged.
    """

    algorithm_type = algorithms.FedBuffWait


class AsyncDrop(AsyncStrategy):
    """AsyncDrop (Dun et al., 2023, Alg. 2): random submodels, mixed on arrival."""

    algorithm_type = algorithms.AsyncDrop


class HeteroAsyncDrop(AsyncStrategy):
    """Hetero AsyncDrop (Dun et al., 2023, Alg. 3): submodels by smart partition.

    The i-th fastest device leaves out the units that have moved i-th most from their
    initial weights, so that all units converge at one rate.
    """

    algorithm_type = algorithms.HeteroAsyncDrop


class LayerwiseAsyncDrop(AsyncStrategy):
    """Hetero AsyncDrop with whole residual blocks for units (the paper's ablation).

    A submodel has fewer blocks, each of its full width: the block's input passes on.
    """

    algorithm_type = algorithms.LayerwiseAsyncDrop


class AsyncDropPlus(AsyncStrategy):
    """AsyncDrop beyond the paper; see `algorithms.AsyncDropPlus`.

    Clients find ``tau`` of `LogitAdjustedLoss` as ``"logit-adjustment"`` in the train
    config.
    """

    algorithm_type = algorithms.AsyncDropPlus
