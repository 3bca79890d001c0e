"""Random modules from a seed, and what a plan of them is worth on other inputs.

``python -m tests.submodel.fuzzing.modules --seed 17`` shows one module and its plan;
``--count 2000`` tries as many and fails if a plan is wrong.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import Plan, droppable_share, plan_submodels
from tests.submodel.fuzzing.pieces import ANYWHERE, BRANCHING, SEQUENCE
from tests.zoo.oracle import NotTakenError, WrongPlanError, check, random_kept
from tests.zoo.passes import Arguments

__all__ = ["Figures", "RandomModule", "judge", "judge_all"]

VOCABULARY = 20
TRIES = 4
NEARLY = 0.85

Outcome = Literal["narrowed", "refused", "wrong"]


class RandomModule(nn.Module):
    """A chain of random pieces with a first layer and a head.

    Attributes
    ----------
    takes : {"vectors", "sequences", "tokens"}
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.takes = rng.choice(["vectors", "sequences", "tokens"])
        width = rng.choice([6, 8, 12])
        self.stem = (
            nn.Embedding(VOCABULARY, width)
            if self.takes == "tokens"
            else nn.Linear(5, width)
        )
        kinds = rng.choices(
            ANYWHERE + (SEQUENCE * 3 if self.takes != "vectors" else []),
            k=rng.randrange(1, 5),
        )
        if rng.random() < 0.5:
            kinds.insert(rng.randrange(len(kinds) + 1), rng.choice(BRANCHING))
        self.pieces = nn.ModuleList()
        for kind in kinds:
            piece = kind(rng, width)
            self.pieces.append(piece)
            width = piece.width
        self.hidden = nn.Linear(width, 8)
        self.pooling = rng.choice(["mean", "last", "max"])
        self.head = nn.Linear(8, 3)
        self.tuple = rng.random() < 0.3

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return what the head makes of it, and its mean."""
        x = self.stem(x)
        for piece in self.pieces:
            x = piece(x)
        x = F.relu(self.hidden(x))
        if x.dim() == 3:
            pooled = {"mean": x.mean(1), "last": x[:, -1], "max": x.amax(1)}
            x = pooled[self.pooling]
        x = self.head(x)
        return (x, x.mean(-1)) if self.tuple else x

    @property
    def plain(self) -> bool:
        """Whether units pass each piece as they are."""
        return all(piece.plain for piece in self.pieces)

    def inputs(self, rng: random.Random) -> Tensor:
        """Return random inputs: of any batch, length, scale and sign."""
        generator = torch.Generator().manual_seed(rng.randrange(2**31))
        batch, length = rng.choice([1, 1, 2, 3, 5]), rng.choice([4, 6, 7, 9])
        if self.takes == "tokens":
            highest = rng.choice([3, VOCABULARY])
            size = (batch, length)
            return torch.randint(0, highest, size, generator=generator)
        size = (batch, 5) if self.takes == "vectors" else (batch, length, 5)
        scale, shift = rng.choice([0.0, 0.1, 1.0, 4.0]), rng.choice([-2.0, 0.0, 2.0])
        return torch.randn(size, generator=generator) * scale + shift


@dataclass(frozen=True)
class Verdict:
    """What became of one module.

    Attributes
    ----------
    plain : bool
        Whether units pass all of its pieces as they are.
    share : float
        The share of its elements that lie at a droppable unit.
    why : str
        Why it was refused, or how its plan is wrong.
    """

    seed: int
    outcome: Outcome
    plain: bool
    share: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Figures:
    """What became of many modules."""

    verdicts: tuple[Verdict, ...]

    @property
    def wrong(self) -> list[Verdict]:
        """Those whose plan is wrong."""
        return [verdict for verdict in self.verdicts if verdict.outcome == "wrong"]

    @property
    def narrowed_share(self) -> float:
        """The share of plain modules that are narrowed nearly everywhere."""
        plain = [verdict for verdict in self.verdicts if verdict.plain]
        return sum(verdict.share > NEARLY for verdict in plain) / max(len(plain), 1)

    @property
    def refused_share(self) -> float:
        """The share of modules of which nothing can be dropped."""
        refused = sum(verdict.outcome == "refused" for verdict in self.verdicts)
        return refused / max(len(self.verdicts), 1)

    def __str__(self) -> str:
        counts = Counter(verdict.outcome for verdict in self.verdicts)
        return (
            f"{len(self.verdicts)} modules: {counts['narrowed']} narrowed, "
            f"{counts['refused']} refused, {counts['wrong']} wrong; of the "
            f"{sum(verdict.plain for verdict in self.verdicts)} plain ones "
            f"{self.narrowed_share:.0%} are narrowed nearly everywhere"
        )


def module_of(seed: int) -> RandomModule:
    """Return the module of a seed, its weights from the seed as well."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = RandomModule(seed)
        with torch.no_grad():
            for name, tensor in module.named_parameters():
                if tensor.dim() == 1 and "norm" in name:
                    tensor.add_(0.2 * torch.randn(tensor.shape))
    return module


def judge(seed: int) -> Verdict:
    """Plan the module of a seed on some inputs, and try the plan on others."""
    module, rng = module_of(seed).eval(), random.Random(seed)
    inputs = module.inputs(rng)
    if module.takes != "tokens" and not bool(inputs.std() > 0):
        inputs = torch.randn(inputs.shape, generator=torch.Generator().manual_seed(0))
    if rng.random() < 0.3:  # models have often run before: what they cache is there
        with suppress(ValueError):  # a single example may have nothing to normalise
            module(inputs)
    try:
        plan = plan_submodels(module, inputs)
    except UnsupportedModelError as error:
        return Verdict(seed, "refused", module.plain, why=str(error))
    except Exception as error:
        return Verdict(seed, "wrong", module.plain, why=f"planning raises {error!r}")
    share = droppable_share(plan)
    try:
        _try(module, plan, rng)
    except WrongPlanError as error:
        return Verdict(seed, "wrong", module.plain, share, str(error))
    return Verdict(seed, "narrowed", module.plain, share)


def judge_all(seeds: Iterable[int]) -> Figures:
    """Judge many."""
    return Figures(tuple(judge(seed) for seed in seeds))


def _try(module: RandomModule, plan: Plan, rng: random.Random) -> None:
    for number in range(TRIES):
        given, kept = Arguments((module.inputs(rng),)), random_kept(plan, number)
        try:
            check(module, plan, kept, given, train=number % 2 == 1)
        except NotTakenError:
            continue  # batch normalisation does not train on a single example
        except WrongPlanError as error:
            mode = "train" if number % 2 else "eval"
            shape = tuple(given.args[0].shape)
            raise WrongPlanError(f"inputs {shape} in {mode} mode: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Judge one module aloud, or many."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="show the module of this seed")
    parser.add_argument("--count", type=int, default=2000, help="how many are tried")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    if given.seed is not None:
        module = module_of(given.seed)
        print(module, *(vars_of(piece) for piece in module.pieces), sep="\n")
        verdict = judge(given.seed)
        print(verdict)
        return int(verdict.outcome == "wrong")
    started, verdicts = time.perf_counter(), []
    for seed in range(given.first, given.first + given.count):
        verdicts.append(judge(seed))
        if verdicts[-1].outcome == "wrong":
            print(f"--seed {seed}: {verdicts[-1].why}", flush=True)
    figures = Figures(tuple(verdicts))
    print(f"{figures}; {time.perf_counter() - started:.0f} s")
    return int(bool(figures.wrong))


def vars_of(piece: nn.Module) -> str:
    """Return the plain attributes of a piece."""
    plain = {
        name: value
        for name, value in vars(piece).items()
        if isinstance(value, (int, float, str)) and name != "training"
    }
    return f"{type(piece).__name__}: {plain}"


if __name__ == "__main__":
    sys.exit(main())
