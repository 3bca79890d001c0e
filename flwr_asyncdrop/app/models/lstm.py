"""The LSTM for sequences of tokens, after the paper's for IMDB."""

from typing import Final

import torch
from torch import Tensor, nn

from flwr_asyncdrop.app.models.width import scaled

_EMBEDDING: Final = 32
_HIDDEN: Final = 32
_PADDING: Final = 0
# torch's own, 1, lets the network learn reviews by heart from their rare words.
_EMBEDDING_STD: Final = 0.3


class LSTMClassifier(nn.Module):
    """An embedding, an LSTM, the mean and maximum of its states, and a linear layer.

    Both bring gradients to many time steps at once: with plain SGD the last state alone
    learns far slower. The embedding has 32 dimensions and the LSTM as many units, times
    `width`. Token 0 is padding and embedded as zeros.
    """

    def __init__(self, vocabulary: int, num_outputs: int, width: float = 1.0) -> None:
        super().__init__()
        features, hidden = scaled(_EMBEDDING, width), scaled(_HIDDEN, width)
        self.embedding = nn.Embedding(vocabulary, features, padding_idx=_PADDING)
        with torch.no_grad():
            self.embedding.weight.mul_(_EMBEDDING_STD)
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.output = nn.Linear(2 * hidden, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (N, T) to (N, num_outputs)."""
        states, _ = self.lstm(self.embedding(tokens))
        pooled = torch.cat([states.mean(dim=1), states.amax(dim=1)], dim=1)
        logits: Tensor = self.output(pooled)
        return logits
