"""Small models of graphs, sets, tables and operators, and models that branch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.models import CLASSES, VOCABULARY


class GraphConv(nn.Module):
    """Neighbours' features are summed up by `index_add`."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = F.relu(self.gather(self.first(x), edges))
        return self.head(F.relu(self.gather(self.second(x), edges)))

    @staticmethod
    def gather(x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        counts = torch.ones(len(x)).to(x.dtype)
        counts = counts.index_add(0, target, torch.ones(len(target)).to(x.dtype))
        summed = torch.zeros_like(x).index_add(0, target, x[source])
        return (x + summed) / counts[:, None]


class SparseGraphConv(nn.Module):
    """Neighbours' features are summed up by a sparse matrix."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        ones = torch.ones(edges.shape[1]).to(x.dtype)
        matrix = torch.sparse_coo_tensor(
            edges, ones, (len(x), len(x)), check_invariants=True
        )
        x = F.relu(torch.sparse.mm(matrix, self.first(x)))
        return self.head(F.relu(torch.sparse.mm(matrix, self.second(x))))


class GraphAttention(nn.Module):
    """Attention over edges, normalised with `scatter_add`; several heads."""

    def __init__(self, heads: int = 4, width: int = 8) -> None:
        super().__init__()
        self.width = width
        self.project = nn.Linear(8, heads * width)
        self.source = nn.Parameter(torch.randn(heads, width) * 0.3)
        self.target = nn.Parameter(torch.randn(heads, width) * 0.3)
        self.head = nn.Linear(heads * width, CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        x = self.project(x).unflatten(-1, (-1, self.width))
        scores = (x * self.source).sum(-1)[source] + (x * self.target).sum(-1)[target]
        weights = F.leaky_relu(scores, 0.2).exp()
        index = target[:, None].expand_as(weights)
        sums = torch.zeros(len(x), weights.shape[1]).to(x.dtype)
        sums = sums.scatter_add(0, index, weights)
        weights = weights / (sums[target] + 1e-9)
        mixed = torch.zeros_like(x).index_add(0, target, x[source] * weights[..., None])
        return self.head(F.elu(mixed.flatten(1)))


class SpectralConv(nn.Module):
    """The lowest frequencies, each mixed by a complex matrix of its own."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(
            torch.randn(width, width, modes, dtype=torch.cfloat) / width
        )

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)[..., : self.modes]
        mixed = torch.einsum("bim,iom->bom", spectrum, self.weight)
        return torch.fft.irfft(mixed, n=x.shape[-1])


class FourierOperator(nn.Module):
    """A Fourier neural operator in one dimension."""

    def __init__(self, width: int = 16, modes: int = 6) -> None:
        super().__init__()
        self.lift = nn.Linear(2, width)
        self.spectral = nn.ModuleList(SpectralConv(width, modes) for _ in range(2))
        self.local = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(2))
        self.first, self.second = nn.Linear(width, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x).transpose(1, 2)
        for spectral, local in zip(self.spectral, self.local, strict=True):
            x = F.gelu(spectral(x) + local(x))
        return self.second(F.gelu(self.first(x.transpose(1, 2))))


class Mixture(nn.Module):
    """Experts that all run; a gate weighs them."""

    def __init__(self, experts: int = 4, hidden: int = 32) -> None:
        super().__init__()
        self.gate = nn.Linear(20, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(20, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        made = torch.stack([expert(x) for expert in self.experts], -1)
        return (made * self.gate(x).softmax(-1)[:, None]).sum(-1)


class ChosenExpert(nn.Module):
    """Each example goes to the expert that the gate likes best, read as a list."""

    def __init__(self, experts: int = 3, hidden: int = 32) -> None:
        super().__init__()
        self.stem = nn.Linear(20, 24)
        self.gate = nn.Linear(24, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(24, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        weights = self.gate(x).softmax(-1)
        chosen = weights.argmax(-1).tolist()
        rows = [
            weights[row, expert] * self.experts[expert](x[row])
            for row, expert in enumerate(chosen)
        ]
        return torch.stack(rows)


class HyperNetwork(nn.Module):
    """A network that makes the weights of another one."""

    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.hidden = hidden
        self.hyper = nn.Sequential(
            nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 10 * hidden)
        )
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor, task: Tensor) -> Tensor:
        weight = self.hyper(task).view(-1, self.hidden, 10)
        return self.head(torch.relu(torch.bmm(weight, x[:, :, None]).squeeze(-1)))


class Siamese(nn.Module):
    """One network for two inputs; how alike are they?"""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 16)
        )

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return F.cosine_similarity(self.network(one), self.network(other))


class Bilinear(nn.Module):
    """Two inputs meet in a bilinear form."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(10, 16), nn.Linear(12, 20)
        self.meet = nn.Bilinear(16, 20, 24)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = F.relu(self.left(left)), F.relu(self.right(right))
        return self.head(F.relu(self.meet(left, right)))


class DeepSets(nn.Module):
    """A set is the masked mean of its members."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 24))
        self.outer = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, members: Tensor, mask: Tensor) -> Tensor:
        there = mask[..., None].to(members.dtype)
        summed = (self.inner(members) * there).sum(1)
        return self.outer(summed / there.sum(1).clamp(min=1))


class PointNet(nn.Module):
    """The maximum over points, after a learnt 3 x 3 transform of them."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Sequential(nn.Conv1d(3, 16, 1), nn.ReLU())
        self.matrix = nn.Linear(16, 9)
        self.points = nn.Sequential(
            nn.Conv1d(3, 24, 1), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 48, 1)
        )
        self.head = nn.Sequential(nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, CLASSES))

    def forward(self, points: Tensor) -> Tensor:
        matrix = self.matrix(self.turn(points).amax(2)).view(-1, 3, 3)
        points = torch.bmm(points.transpose(1, 2), matrix).transpose(1, 2)
        return self.head(self.points(points).amax(2))


class Recommender(nn.Module):
    """Wide and deep: factors of user and item, their product and a network."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(50, 16), nn.Embedding(80, 16)
        self.deep_user, self.deep_item = nn.Embedding(50, 12), nn.Embedding(80, 12)
        self.deep = nn.Sequential(
            nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()
        )
        self.head = nn.Linear(32, 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        wide = self.user(user) * self.item(item)
        pair = torch.cat([self.deep_user(user), self.deep_item(item)], -1)
        return self.head(torch.cat([wide, self.deep(pair)], -1)).squeeze(-1)


class Tabular(nn.Module):
    """Numbers and categories of a table, blocks with layer normalisation, two tasks."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.categories = nn.ModuleList(nn.Embedding(10, 4) for _ in range(3))
        self.numbers = nn.BatchNorm1d(5)
        self.stem = nn.Linear(17, width)
        self.norm = nn.LayerNorm(width)
        self.block = nn.Sequential(
            nn.Linear(width, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, width)
        )
        self.price, self.kind = nn.Linear(width, 1), nn.Linear(width, CLASSES)

    def forward(self, numbers: Tensor, categories: Tensor) -> tuple[Tensor, Tensor]:
        embedded = [
            layer(categories[:, column]) for column, layer in enumerate(self.categories)
        ]
        x = self.stem(torch.cat([self.numbers(numbers), *embedded], -1))
        x = x + self.block(self.norm(x))
        return self.price(x), self.kind(x)


class ShapeBranch(nn.Module):
    """Several examples are compared with each other, a single one is not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(20, 32)
        self.compare = nn.Linear(32, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        if x.size(0) > 1:
            mixed = (x @ x.transpose(0, 1) / 32).softmax(-1) @ x
            x = x + self.compare(mixed.softmax(-1))
        return self.head(x)


class ModeBranch(nn.Module):
    """An auxiliary head runs in training only, as in GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(20, 32), nn.Linear(32, 24)
        self.auxiliary = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, CLASSES))
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = F.relu(self.first(x))
        logits = self.head(F.relu(self.second(x)))
        return (logits, self.auxiliary(x)) if self.training else (logits,)


class ValueBranch(nn.Module):
    """Examples that look unusual take another path: read through `nonzero`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(20, 32)
        self.usual, self.unusual = nn.Linear(32, 24), nn.Linear(32, 24)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        loud = (x.abs().mean(-1) > 0.9).nonzero().flatten()
        x = F.relu(self.stem(x))
        if loud.numel() > 0:
            return self.head(self.unusual(x).softmax(-1))
        return self.head(F.relu(self.usual(x)))


class Memory(nn.Module):
    """Slots of a learnt memory that a query mixes, and its nearest words."""

    def __init__(self, slots: int = 12, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(VOCABULARY, width, mode="sum")
        self.keys = nn.Parameter(torch.randn(slots, width) * 0.3)
        self.values = nn.Parameter(torch.randn(slots, width) * 0.3)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        query = self.embedding(tokens)
        read = (query @ self.keys.t()).softmax(-1) @ self.values
        return self.head(torch.cat([query, read], -1))


class Interactions(nn.Module):
    """Dot products of a click's features, looked up in tables with sparse gradients."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(20, width, mode="sum", sparse=True) for _ in range(3)
        )
        self.dense = nn.Sequential(nn.Linear(5, 24), nn.ReLU(), nn.Linear(24, width))
        self.top = nn.Sequential(nn.Linear(width + 6, 32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("pairs", torch.tril_indices(4, 4, -1), persistent=False)

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        dense = self.dense(numbers)
        looked_up = [
            table(bag) for table, bag in zip(self.tables, words.unbind(1), strict=True)
        ]
        features = torch.stack([dense, *looked_up], 1)
        products = (features @ features.mT)[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], 1)).sigmoid()
