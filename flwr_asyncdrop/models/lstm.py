"""The LSTM for sequences of tokens, after the paper's for IMDB."""

from typing import Final

from torch import Tensor, nn

from flwr_asyncdrop.models.width import scaled

_EMBEDDING: Final = 32
_HIDDEN: Final = 32
_PADDING: Final = 0


class LSTMClassifier(nn.Module):
    """Embedding, one LSTM layer, the mean of its states over time, and a linear layer.

    The mean brings gradients to every step at once: with plain SGD the last state alone
    learns far slower.

    Parameters
    ----------
    vocabulary : int
        How many token ids there are; 0 is padding and embedded as zeros.
    num_classes : int
        The number of logits.
    width : float
        Factor of the 32 dimensions of the embedding and of the 32 hidden units.
    """

    def __init__(self, vocabulary: int, num_classes: int, width: float = 1.0) -> None:
        super().__init__()
        features, hidden = scaled(_EMBEDDING, width), scaled(_HIDDEN, width)
        self.embedding = nn.Embedding(vocabulary, features, padding_idx=_PADDING)
        self.lstm = nn.LSTM(features, hidden, batch_first=True)
        self.output = nn.Linear(hidden, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (N, T) to logits (N, num_classes)."""
        states, _ = self.lstm(self.embedding(tokens))
        logits: Tensor = self.output(states.mean(dim=1))
        return logits
