"""An LSTM with projections as wide as its hidden state."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F


class PaddedLSTM(nn.LSTM):
    """`torch.nn.LSTM` with ``proj_size == hidden_size``.

    torch takes an LSTM for one without projections if its hidden and its cell state
    are equally wide. So it runs with one more hidden unit, which is always zero.
    """

    def forward(
        self,
        input: Any,  # noqa: A002  # as the stock module calls it
        hx: tuple[Tensor, Tensor] | None = None,
    ) -> Any:
        """Return what the stock module does."""
        names, weights = self._flat_weights_names, self._flat_weights
        width = self.hidden_size
        if hx is not None:
            hx = (hx[0], F.pad(hx[1], (0, 1)))
        self._flat_weights = [
            _padded(name, weight, width)
            for name, weight in zip(names, weights, strict=True)
        ]
        self.hidden_size += 1
        try:
            output, (hidden, cell) = super().forward(input, hx)
        finally:
            self.hidden_size, self._flat_weights = width, weights
        return output, (hidden, cell[..., :width])


def _padded(name: str, weight: Any, width: int) -> Tensor:
    """Return the weight with zeros for one more hidden unit."""
    if name.startswith("weight_hr"):
        return F.pad(weight, (0, 1))
    gates = weight.view(4, width, *weight.shape[1:])
    margins = (0, 0, 0, 1) if name.startswith("weight") else (0, 1)
    return F.pad(gates, margins).flatten(0, 1)
