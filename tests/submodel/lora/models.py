"""Small models with adapters: PEFT's, and one that has its own."""

import torch
from torch import Tensor, nn


class Text(nn.Module):
    """An embedding, a linear layer, a convolution and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(20, 6)
        self.fc = nn.Linear(6, 7)
        self.conv = nn.Conv1d(7, 8, 3, padding=1)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.fc(self.emb(tokens)))
        return self.head(torch.tanh(self.conv(hidden.transpose(1, 2))).mean(2))


class Layers(nn.Module):
    """Residual layers with two linear layers each."""

    def __init__(self, count: int = 3, width: int = 8) -> None:
        super().__init__()
        inner = width * 3 // 2
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {"up": nn.Linear(width, inner), "down": nn.Linear(inner, width)}
            )
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer["down"](torch.tanh(layer["up"](x)))
        return x


class Own(nn.Module):
    """A linear layer and an adapter by hand; ``alpha / r`` is an attribute, or not."""

    def __init__(self, *, transposed: bool = False, follows: bool = False) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5)
        self.base.requires_grad_(False)
        self.transposed, self.follows, self.scaling = transposed, follows, 16 / 4
        down, up = torch.randn(4, 6), torch.randn(5, 4)
        self.down = nn.Parameter(down.T.contiguous() if transposed else down)
        self.up = nn.Parameter(up.T.contiguous() if transposed else up)

    def forward(self, x: Tensor) -> Tensor:
        down, up = self.down, self.up
        if self.transposed:
            down, up = down.T, up.T
        scaling = 16 / len(down) if self.follows else self.scaling
        return self.base(x) + scaling * (x @ down.T @ up.T)


class Merging(nn.Linear):
    """A linear layer whose adapter is in the weight in eval mode, as loralib's is."""

    def __init__(self) -> None:
        super().__init__(6, 5)
        self.requires_grad_(False)
        self.scaling, self.merged = 16 / 4, False
        self.lora_A = nn.Parameter(torch.randn(4, 6))
        self.lora_B = nn.Parameter(torch.randn(5, 4))

    def train(self, mode: bool = True) -> "Merging":
        super().train(mode)
        if self.merged is mode:
            sign = -1 if mode else 1
            self.weight.data += sign * self.scaling * self.lora_B @ self.lora_A
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if not self.merged:
            out = out + self.scaling * (x @ self.lora_A.T @ self.lora_B.T)
        return out


OWN_PAIRS = [("down", "up")]
TRANSPOSED_PAIRS = [("down", "up", 1, 0)]


def tokens() -> Tensor:
    return torch.randint(0, 20, (3, 5), generator=torch.Generator().manual_seed(1))


def vectors(width: int = 8) -> Tensor:
    return torch.randn(4, width, generator=torch.Generator().manual_seed(1))


def with_noise(model: nn.Module, scale: float = 0.5) -> nn.Module:
    """Give all adapters, whose ``B`` begins as zero, random values."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(scale * noise)
    return model
