"""The LightningModule, its data, and a Trainer that leaves nothing behind."""

import logging
from functools import cache

import lightning
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)


class RowReader(lightning.LightningModule):
    """Reads an image row by row with a GRU, and names the digit."""

    def __init__(self, lr: float = 0.01) -> None:
        super().__init__()
        self.lr = lr
        self.gru = nn.GRU(input_size=8, hidden_size=64, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images of shape ``(batch, 8, 8)``."""
        outputs, _ = self.gru(images)
        return self.classifier(outputs[:, -1])

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch, and log it."""
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Log the loss and the accuracy."""
        images, labels = batch
        logits = self(images)
        self.log("loss", F.cross_entropy(logits, labels))
        self.log("accuracy", (logits.argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def quiet_trainer(max_epochs: int = 1) -> lightning.Trainer:
    """Return a Trainer without logs, checkpoints and progress bar."""
    return lightning.Trainer(
        max_epochs=max_epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


@cache
def load_images() -> tuple[TensorDataset, TensorDataset]:
    """Return scikit-learn's handwritten digits: 1,437 to train on, 360 to test on."""
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor((pixels - 4.9) / 6, dtype=torch.float32).reshape(-1, 8, 8)
    labels = torch.tensor(digits)
    train, test = train_test_split(
        range(len(labels)), test_size=0.2, stratify=labels, random_state=42
    )
    return (
        TensorDataset(images[train], labels[train]),
        TensorDataset(images[test], labels[test]),
    )


def load_data(partition_id: int, num_partitions: int, batch_size: int) -> DataLoader:
    """Return the training images of one node."""
    trainset, _ = load_images()
    mine = TensorDataset(*trainset[partition_id::num_partitions])
    return DataLoader(mine, batch_size, shuffle=True)


def load_test_data() -> DataLoader:
    """Return the server's images."""
    _, testset = load_images()
    return DataLoader(testset, batch_size=len(testset))
