"""Models of one's own: their submodels are found as for any other."""

from flwr_asyncdrop.app import Dataset
from torch import Tensor, nn


def regressor(data: Dataset, width: float) -> nn.Module:
    """Return a small network from the measurements to one number."""
    hidden = round(64 * width)
    return nn.Sequential(
        nn.Linear(data.input_shape[0], hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 1),
    )


class Writer(nn.Module):
    """A recurrent language model: logits of the next letter, at every place."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 32)
        self.recurrent = nn.LSTM(32, hidden, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, shape ``(n, length, vocabulary)``."""
        states, _ = self.recurrent(self.embedding(tokens))
        logits: Tensor = self.head(states)
        return logits


def writer(data: Dataset, width: float) -> nn.Module:
    """Return a language model over the data set's letters."""
    if data.vocabulary is None:
        raise ValueError("a writer needs a data set of tokens")
    return Writer(data.vocabulary, round(96 * width))
