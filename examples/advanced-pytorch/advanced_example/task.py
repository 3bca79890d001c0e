"""The model, the data, and how to train and test."""

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset

ALPHA = 1.0
"""Concentration of the Dirichlet distribution: the smaller, the more nodes differ."""


class Net(nn.Module):
    """A CNN for images of 8 x 8 pixels; each node keeps its `head` to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(32 * 2 * 2, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images of shape ``(batch, 1, 8, 8)``."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        return self.head(F.relu(self.fc(x.flatten(1))))


@cache
def load_images() -> tuple[TensorDataset, TensorDataset]:
    """Return scikit-learn's handwritten digits: 1,437 for the nodes, 360 to test on."""
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor((pixels - 4.9) / 6, dtype=torch.float32).reshape(-1, 1, 8, 8)
    labels = torch.tensor(digits)
    nodes, test = train_test_split(
        range(len(labels)), test_size=0.2, stratify=labels, random_state=42
    )
    return (
        TensorDataset(images[nodes], labels[nodes]),
        TensorDataset(images[test], labels[test]),
    )


@cache
def partitions(count: int) -> list[list[int]]:
    """Share the nodes' images out: the digits of each node have shares of their own."""
    labels = load_images()[0].tensors[1].numpy()
    generator = np.random.default_rng(42)
    parts: list[list[int]] = [[] for _ in range(count)]
    for digit in range(10):
        images = generator.permutation(np.flatnonzero(labels == digit))
        shares = generator.dirichlet(np.full(count, ALPHA)).cumsum()[:-1]
        for part, mine in zip(
            parts, np.split(images, (shares * len(images)).astype(int)), strict=True
        ):
            part.extend(mine.tolist())
    return parts


def load_data(
    partition_id: int, num_partitions: int, batch_size: int
) -> tuple[DataLoader, DataLoader]:
    """Return the training and the validation images of one node."""
    images, _ = load_images()
    mine = np.random.default_rng(42).permutation(
        partitions(num_partitions)[partition_id]
    )
    validation, training = np.split(mine, [len(mine) // 5])
    return (
        DataLoader(Subset(images, training), batch_size=batch_size, shuffle=True),
        DataLoader(Subset(images, validation), batch_size=batch_size),
    )


def train(
    net: nn.Module, loader: DataLoader, epochs: int, lr: float, device: torch.device
) -> float:
    """Train in place; return the mean loss."""
    net.to(device).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images.to(device)), labels.to(device))
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
    for images, labels in loader:
        logits = net(images.to(device))
        loss += F.cross_entropy(logits, labels.to(device), reduction="sum").item()
        correct += (logits.argmax(1).cpu() == labels).sum().item()
    size = len(loader.dataset)
    return loss / size, correct / size
