"""What an entry of the zoo is: how a model is built, and what it is given."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tests.zoo.passes import Arguments

__all__ = ["Draw", "Entry"]


@dataclass(frozen=True)
class Draw:
    """Draws random examples, the same ones each time.

    Attributes
    ----------
    batch : int
        How many examples.
    longer : int
        How much longer than usual what has a length is.
    """

    batch: int
    longer: int
    generator: torch.Generator

    def reals(self, *shape: int) -> Tensor:
        """Return normally distributed numbers of shape ``(batch, *shape)``."""
        return torch.randn(self.batch, *shape, generator=self.generator)

    def whole(self, low: int, high: int, *shape: int) -> Tensor:
        """Return whole numbers in ``[low, high)`` of shape ``(batch, *shape)``."""
        size = (self.batch, *shape)
        return torch.randint(low, high, size, generator=self.generator)

    def tokens(self, vocabulary: int, length: int) -> Tensor:
        """Return token numbers from 4 on: those below have a meaning of their own."""
        return self.whole(4, vocabulary, length + self.longer)


Drawer = Callable[[Draw], Arguments | Tensor]


@dataclass(frozen=True)
class Entry:
    """A model of the zoo.

    Attributes
    ----------
    build : callable
        Makes the model; its weights come from the global random state.
    draw : callable
        Draws the arguments of a forward pass.
    large : bool
        Whether only the nightly command has time for it: a large one, or one much
        like another.
    """

    build: Callable[[], nn.Module]
    draw: Drawer
    large: bool = False

    def model(self) -> nn.Module:
        """Return the model with weights from a fixed seed.

        Weights that start at zero or next to it, as in some heads and layer scales,
        are made larger: else one step would not reach what lies behind them.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.build()
            for parameter in model.parameters():
                if parameter.dim() > 1 and float(parameter.detach().abs().max()) < 1e-4:
                    nn.init.normal_(parameter, std=0.1)
        return model

    def example(self, batch: int, *, longer: int = 0, seed: int = 1) -> Arguments:
        """Return random arguments of a forward pass, the same ones each time."""
        generator = torch.Generator().manual_seed(seed)
        drawn = self.draw(Draw(batch, longer, generator))
        return Arguments((drawn,)) if isinstance(drawn, Tensor) else drawn
