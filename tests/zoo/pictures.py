"""Small models of images: generators, autoencoders, diffusion, attention modules."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.spectral_norm import spectral_norm as old_spectral_norm

from tests.zoo.models import CLASSES


class VariationalAutoencoder(nn.Module):
    """A code that is drawn, not computed; the output has what the loss needs."""

    def __init__(self, code: int = 12) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.mean = nn.Linear(16 * 49, code)
        self.log_variance = nn.Linear(16 * 49, code)
        self.decode = nn.Linear(code, 16 * 49)
        self.decoder = nn.Sequential(
            nn.Unflatten(1, (16, 7, 7)),
            nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(F.relu(self.decode(code))), mean, log_variance


class Generator(nn.Sequential):
    """Images from noise, as a DCGAN's generator makes them."""

    def __init__(self, width: int = 16) -> None:
        super().__init__(
            nn.ConvTranspose2d(8, 2 * width, 4, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Tanh(),
        )


class Discriminator(nn.Sequential):
    """Convolutions with spectral normalisation: real or not?"""

    def __init__(self, norm=parametrizations.spectral_norm) -> None:
        super().__init__(
            norm(nn.Conv2d(3, 16, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            norm(nn.Conv2d(16, 32, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            norm(nn.Linear(32 * 16, 1)),
        )


class OldDiscriminator(Discriminator):
    """The same with the hooks that came before parametrizations."""

    def __init__(self) -> None:
        super().__init__(old_spectral_norm)


class SuperResolution(nn.Sequential):
    """Twice as many pixels, by a pixel shuffle."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 24, 5, padding=2),
            nn.Tanh(),
            nn.Conv2d(24, 16, 3, padding=1),
            nn.Tanh(),
            nn.Conv2d(16, 12, 3, padding=1),
            nn.PixelShuffle(2),
        )


class TimedBlock(nn.Module):
    """A residual block of a diffusion model: the time scales and shifts it."""

    def __init__(self, width: int, time: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(4, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time, 2 * width)
        self.norm2 = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        out = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, 1)
        out = self.norm2(out) * (1 + scale) + shift
        return x + self.conv2(F.silu(out))


class Diffusion(nn.Module):
    """A denoiser that knows the time; attention over positions in the middle."""

    def __init__(self, width: int = 16, time: int = 32) -> None:
        super().__init__()
        self.frequencies = 8
        self.time = nn.Sequential(nn.Linear(16, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = TimedBlock(width, time)
        self.middle = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.qkv = nn.Conv2d(2 * width, 6 * width, 1)
        self.out = nn.Conv2d(2 * width, 2 * width, 1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.join = nn.Conv2d(2 * width, width, 1)
        self.last = TimedBlock(width, time)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        rates = torch.exp(-math.log(1e4) * torch.arange(self.frequencies) / 8)
        angles = step[:, None] * rates.to(x.dtype)
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        early = self.down(self.stem(x), time)
        x = self.middle(early)
        q, k, v = self.qkv(x).flatten(2).chunk(3, 1)
        weights = (q.transpose(1, 2) @ k / math.sqrt(32)).softmax(-1)
        x = x + self.out((v @ weights.transpose(1, 2)).view_as(x))
        x = self.join(torch.cat([early, self.up(x)], 1))
        return self.head(self.last(x, time))


class AttentionModule(nn.Module):
    """CBAM: which channels and then which places matter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.channels = nn.Sequential(
            nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width)
        )
        self.places = nn.Conv2d(2, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        usual, most = self.channels(x.mean((2, 3))), self.channels(x.amax((2, 3)))
        x = x * torch.sigmoid(usual + most)[:, :, None, None]
        seen = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return x * torch.sigmoid(self.places(seen))


class Cbam(nn.Sequential):
    """Convolutions, each followed by attention modules."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            AttentionModule(16),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            AttentionModule(32),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        )


class PatchTransformer(nn.Module):
    """A diffusion Transformer's block: the condition makes scales, shifts and gates."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.condition = nn.Embedding(10, width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.modulation = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        parts = self.modulation(F.silu(self.condition(label)))[:, None].chunk(3, -1)
        seen = self.norm(x) * (1 + parts[0]) + parts[1]
        x = x + parts[2] * self.down(F.gelu(self.up(seen)))
        return self.head(x.mean(1))


class Radiance(nn.Module):
    """A NeRF: positions enter again in the middle; density and colour come out."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.second = nn.Sequential(nn.Linear(width + 12, width), nn.ReLU())
        self.density = nn.Linear(width, 1)
        self.colour = nn.Sequential(
            nn.Linear(width + 3, width // 2),
            nn.ReLU(),
            nn.Linear(width // 2, 3),
            nn.Sigmoid(),
        )

    def forward(self, places: Tensor, directions: Tensor) -> dict[str, Tensor]:
        turns = torch.cat(
            [f(places * k) for k in (1, 2) for f in (torch.sin, torch.cos)], -1
        )
        hidden = self.second(torch.cat([self.first(turns), turns], -1))
        colour = self.colour(torch.cat([hidden, directions], -1))
        return {"density": F.softplus(self.density(hidden)), "colour": colour}


class ActNorm(nn.Module):
    """Scale and shift by parameters that the first batch sets."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.register_buffer("is_set", torch.tensor(False))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.training and not self.is_set.item():
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.log_scale.copy_(-(x.std(0, unbiased=False) + 1e-6).log())
                self.is_set.fill_(True)
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum()


class Coupling(nn.Module):
    """Change one half as a network says that sees the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width // 2, 24), nn.ReLU(), nn.Linear(24, width)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = x.chunk(2, 1)
        scale, shift = self.net(left).chunk(2, 1)
        scale = scale.tanh()
        return torch.cat([right * scale.exp() + shift, left], 1), scale.sum(1)


class Flow(nn.Module):
    """A normalising flow: what it maps to, and the logarithm of the determinant."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.steps = nn.ModuleList(
            step(width) for step in (ActNorm, Coupling, ActNorm, Coupling)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        determinant = x.new_zeros(len(x))
        for step in self.steps:
            x, part = step(x)
            determinant = determinant + part
        return x, determinant
