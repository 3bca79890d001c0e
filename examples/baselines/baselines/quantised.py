"""QAFeL: FedBuff whose messages are quantised both ways."""

from dataclasses import dataclass, field, replace

import torch
from flwr_asyncdrop.aggregation import Aggregator, Change, is_weight
from flwr_asyncdrop.algorithms import BufferSized
from flwr_asyncdrop.parameters import more_than, one_of, parameter
from flwr_asyncdrop.seeding import derive_seed
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State
from flwr_asyncdrop.wire.codec import scheme
from torch import Tensor

from baselines.collecting import Collecting

SCHEMES = ("q8", "q4", "q2", "q1")


@dataclass
class _Server:
    model: State = field(default_factory=dict)  # W: what only the server has
    arrived: int = 0
    steps: int = 0


class HiddenState(Collecting):
    """Every K updates, ``W <- W + lr mean Q(Delta_i)`` and ``x <- x + Q(W - x)``.

    The global model of the run is ``x``, which devices and server share: a device needs
    only ``Q(W - x)`` of every version to have the next one. The server alone has ``W``,
    so that what one message loses is in a later one. Changes are rounded without bias,
    and ``W - x`` to the nearest value.

    Here the server rounds, both ways: a simulated device gets ``x`` as it is, and sends
    its change as it is.
    """

    def __init__(self, size: int, up: str, down: str, lr: float = 1.0) -> None:
        super().__init__(size)
        self.collects = size + 1
        self._up, self._down, self._lr = up, down, lr
        self._server = _Server()

    def arrived(self, change: Change) -> Change:
        """Return the change as it would have been received."""
        # The noise of a message depends on its number and the tensor alone.
        number = self._server.arrived
        self._server.arrived += 1
        delta = {
            name: rounded(
                tensor, self._up, derive_seed(number, f"up {name}"), unbiased=True
            )
            if is_weight(name, tensor)
            else tensor
            for name, tensor in change.delta.items()
        }
        return replace(change, delta=delta)

    def step(self, state: State, mean: State, staleness: list[int]) -> None:
        """Step with ``W``; ``x``, in `state`, follows by what would be sent."""
        server = self._server
        before = server.model or {name: state[name] for name in mean}
        server.model = {
            name: torch.add(before[name], change, alpha=self._lr)
            for name, change in mean.items()
        }
        for name, weights in server.model.items():
            seed = derive_seed(server.steps, f"down {name}")
            lacks = weights - state[name]
            state[name].add_(rounded(lacks, self._down, seed, unbiased=False))
        server.steps += 1

    def state_dict(self) -> StateDict:
        """Return the server's model, and what was collected."""
        return {**super().state_dict(), "server": to_plain(self._server)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore both."""
        super().load_state_dict(state)
        self._server = from_plain(_Server, state["server"])


def rounded(values: Tensor, spec: str, seed: int, *, unbiased: bool) -> Tensor:
    """Return what a receiver has of numbers that were sent with a scheme."""
    if values.is_complex():
        parts = torch.view_as_real(values)
        return torch.view_as_complex(rounded(parts, spec, seed, unbiased=unbiased))
    coder = scheme(spec)
    flat = values.float().reshape(-1).contiguous().numpy()
    data = coder.encode(flat, seed, unbiased=unbiased)
    decoded = torch.from_numpy(coder.decode(data, flat.size, seed))
    return decoded.reshape(values.shape).to(values.dtype)


@dataclass(frozen=True)
class Qafel(BufferSized):
    """QAFeL (arXiv 2410.00242): FedBuff with a hidden state that is quantised.

    Attributes
    ----------
    server_lr : float
        Learning rate of the server's step, positive.
    quantised_up, quantised_down : str
        Schemes of a device's change, and of the server's: ``"q8"`` to ``"q1"``.
    """

    server_lr: float = parameter(
        1.0, "learning rate of the server's step", more_than(0)
    )
    quantised_up: str = parameter(
        "q4", "scheme of a device's change: q8 | q4 | q2 | q1", one_of(*SCHEMES)
    )
    quantised_down: str = parameter(
        "q4", "scheme of the server's change: q8 | q4 | q2 | q1", one_of(*SCHEMES)
    )

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `HiddenState`."""
        size = self.size(in_flight)
        return HiddenState(size, self.quantised_up, self.quantised_down, self.server_lr)
