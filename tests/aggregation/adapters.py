"""States and updates with one adapter, and products of them."""

import torch
from torch import Tensor

from flwr_asyncdrop.aggregation import Update
from flwr_asyncdrop.submodel import State

A, B, HEAD = "q.lora_A.weight", "q.lora_B.weight", "head.weight"


def state_of(a: Tensor, b: Tensor, head: float = 0.0) -> State:
    return {A: a.clone(), HEAD: torch.full((2,), head).to(a.dtype), B: b.clone()}


def random_state(seed: int, rank: int = 3, dtype=torch.float64) -> State:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rank, 6, generator=generator, dtype=torch.float64)
    b = torch.randn(5, rank, generator=generator, dtype=torch.float64)
    return state_of(a.to(dtype), b.to(dtype), float(seed))


def product(state: State) -> Tensor:
    return state[B] @ state[A]


def components(kept: list[int]) -> dict:
    """Return the indices of these components."""
    return {A: {0: torch.tensor(kept)}, B: {1: torch.tensor(kept)}}


def part(state: State, kept: list[int]) -> State:
    return {A: state[A][kept], HEAD: state[HEAD].clone(), B: state[B][:, kept]}


def update(arrays: State, base: State | None = None, **fields) -> Update:
    options = {"indices": {}, "staleness": 0, "num_examples": 1, **fields}
    return Update(arrays, base=base, **options)
