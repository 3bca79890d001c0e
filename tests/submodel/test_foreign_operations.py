"""Operations that may write beyond their memory."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from flwr_asyncdrop.submodel import Example, plan_submodels
from flwr_asyncdrop.submodel.probing.passes import variations

EDGES = torch.tensor([[0, 1, 2, 3, 4, 4], [1, 2, 3, 4, 0, 2]])


asked: list[tuple[int, int]] = []


def largest(x, edges):
    """Take the largest of each node's neighbours; torch_scatter checks no index."""
    asked.append((len(x), int(edges.detach().numpy().max())))
    source, target = edges % len(x)
    target = target.unsqueeze(1).expand(-1, x.shape[1])
    return x.scatter_reduce(0, target, x[source], "amax")


library = torch.library.Library("asyncdrop_tests", "DEF")
library.define("largest(Tensor x, Tensor edges) -> Tensor")
library.impl("largest", largest, "CompositeImplicitAutograd")  # as theirs are


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 16), nn.Linear(16, 4), nn.Linear(4, 3)

    def forward(self, x, edges):
        x = self.b(self.a(x).relu())
        return self.c(torch.ops.asyncdrop_tests.largest(x, edges))


@pytest.mark.parametrize("shift", [0, 7], ids=["as many nodes", "fewer nodes"])
def test_they_get_no_indices_that_the_example_would_not_give_them(shift):
    """With torch_scatter 2.1.2 the process ended, three times of three."""
    del asked[:]
    plan = plan_submodels(Graph(), (torch.randn(5 + shift, 6), EDGES))
    assert "a" in {group.name for group in plan.groups}
    assert len({nodes for nodes, _ in asked}) > 1  # other sizes are tried
    assert all(index < nodes for nodes, index in asked)


def test_torchs_own_profiler_is_none_of_them():
    sizes = set()

    class Recorded(nn.Sequential):
        def forward(self, x):
            sizes.add(len(x))
            with torch.profiler.record_function("forward"):
                return super().forward(x)

    layers = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)
    plan_submodels(Recorded(*layers), torch.randn(4, 6))
    assert min(sizes) < 4 < max(sizes)


class OfPacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(6, 16), nn.Linear(16, 3)

    def forward(self, packed):
        padded, _ = pad_packed_sequence(self.rnn(packed)[0])
        return self.head(padded)


def test_packed_sequences_keep_their_sizes():
    """With others `pad_packed_sequence` wrote beyond its memory: the process ended."""
    steps = [torch.randn(n, 6) for n in (2, 5, 4)]
    packed = pack_sequence(steps, enforce_sorted=False)
    kinds = variations(Example((packed, torch.ones(3))), 0, thorough=True)
    varied = [each.args[0] for alternatives in kinds for each in alternatives]
    assert all(torch.equal(k.batch_sizes, packed.batch_sizes) for k in varied)
    assert all(len(k.data) == 11 for k in varied)
    assert not all(torch.equal(k.data, packed.data) for k in varied)

    plan = plan_submodels(OfPacked(), packed)
    assert [group.name for group in plan.groups] == ["rnn"]
