"""The model, the data, and how to train and test."""

from functools import cache

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """The CNN of PyTorch's 60-minute blitz, cut to images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images of shape ``(batch, 1, 8, 8)``."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        return self.fc2(F.relu(self.fc1(x)))


@cache
def load_images() -> tuple[TensorDataset, TensorDataset]:
    """Return scikit-learn's handwritten digits: 1,437 to train on, 360 to test on."""
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor((pixels - 4.9) / 6, dtype=torch.float32).reshape(-1, 1, 8, 8)
    labels = torch.tensor(digits)
    train, test = train_test_split(
        range(len(labels)), test_size=0.2, stratify=labels, random_state=42
    )
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[test], labels[test]),
    )


def load_data(
    partition_id: int, num_partitions: int, batch_size: int
) -> tuple[DataLoader, DataLoader]:
    """Return the training and the test images of one node."""
    trainset, testset = (
        TensorDataset(*images[partition_id::num_partitions]) for images in load_images()
    )
    return (
        DataLoader(trainset, batch_size=batch_size, shuffle=True),
        DataLoader(testset, batch_size=batch_size),
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
        logits = net(images.to(device)).cpu()
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(1) == labels).sum().item()
    size = len(loader.dataset)
    return loss / size, correct / size
