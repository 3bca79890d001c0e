"""The model, the tokenizer, and how to train and test."""

import re
from zlib import crc32

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from text_transformer.reviews import load_reviews

VOCABULARY = 4096
LENGTH = 128


class TextClassifier(nn.Module):
    """Embedding and positions, an encoder of two layers, and the mean of its output."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.classifier = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of tokens, int64 of shape ``(batch, length)``."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.encoder(self.tokens(tokens) + self.positions(positions))
        return self.classifier(x.mean(dim=1))


def tokenize(text: str) -> list[int]:
    """Return a token per word, its hash, so that nodes need no common vocabulary."""
    words = re.findall(r"[a-z']+|[!?]", text.lower().replace("<br />", " "))
    return [1 + crc32(word.encode()) % (VOCABULARY - 1) for word in words[:LENGTH]]


def collate(reviews: list[tuple[str, int]]) -> tuple[Tensor, Tensor]:
    """Pad a batch with token 0."""
    tokens = [torch.tensor(tokenize(text) or [0]) for text, _ in reviews]
    labels = torch.tensor([label for _, label in reviews])
    return nn.utils.rnn.pad_sequence(tokens, batch_first=True), labels


def load_data(
    partition_id: int, num_partitions: int, batch_size: int, data_file: str
) -> DataLoader:
    """Return the training reviews of one node."""
    reviews = load_reviews(data_file, "train")[partition_id::num_partitions]
    return DataLoader(reviews, batch_size, shuffle=True, collate_fn=collate)


def load_test_data(data_file: str) -> DataLoader:
    """Return the server's reviews."""
    reviews = load_reviews(data_file, "test")[:2000]
    return DataLoader(reviews, batch_size=100, collate_fn=collate)


def train(
    net: nn.Module, loader: DataLoader, epochs: int, lr: float, device: torch.device
) -> float:
    """Train in place; return the mean loss."""
    net.to(device).train()
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    losses = []
    for _ in range(epochs):
        for tokens, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(tokens.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def test(
    net: nn.Module, loader: DataLoader, device: torch.device
) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    net.to(device).eval()
    loss, correct = 0.0, 0
    for tokens, labels in loader:
        logits = net(tokens.to(device)).cpu()
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(1) == labels).sum().item()
    size = len(loader.dataset)
    return loss / size, correct / size
