"""Small mixtures of experts, each with its formula written out token by token."""

import torch
from torch import nn
from torch.nn import functional as F

EXPERTS, WIDTH, INNER, TOP = 6, 5, 7, 2


class Mixture(nn.Module):
    """Experts in stacked weights; a subclass says how they are mixed."""

    def __init__(self):
        super().__init__()
        self.num_experts, self.top_k = EXPERTS, TOP
        self.gate = nn.Linear(WIDTH, EXPERTS)
        self.w1 = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER))
        self.b1 = nn.Parameter(torch.randn(EXPERTS, INNER))
        self.w2 = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH))
        self.out = nn.Linear(WIDTH, 3)

    def every(self, x):
        """Run all experts on all tokens."""
        hidden = torch.relu(x @ self.w1 + self.b1[:, None])
        return (hidden @ self.w2).transpose(0, 1)

    def some(self, x, chosen):
        """Run the experts `chosen` (tokens, k)."""
        hidden = torch.relu(
            torch.einsum("bd,bkdh->bkh", x, self.w1[chosen]) + self.b1[chosen]
        )
        return torch.einsum("bkh,bkhd->bkd", hidden, self.w2[chosen])

    def forward(self, x):
        return self.out(self.mix(x))

    def naive(self, x, experts, inner):
        """Compute the output from `experts` alone, with their units `inner`."""
        rows = []
        for token in x:
            logits = {
                e: token @ self.gate.weight[e] + self.gate.bias[e] for e in experts
            }
            total = torch.zeros(WIDTH, dtype=x.dtype)
            for e, share in self.shares(logits).items():
                hidden = (token @ self.w1[e][:, inner] + self.b1[e][inner]).clamp(min=0)
                total = total + share * (hidden @ self.w2[e][inner])
            rows.append(self.out(total))
        return torch.stack(rows)


def softmax(logits):
    total = sum(value.exp() for value in logits.values())
    return {e: value.exp() / total for e, value in logits.items()}


def largest(values, count):
    """Return the `count` largest of a dict's entries."""
    order = sorted(values, key=lambda e: values[e].item(), reverse=True)
    return {e: values[e] for e in order[:count]}


def normalised(values):
    total = sum(values.values())
    return {e: value / total for e, value in values.items()}


class Soft(Mixture):
    """Every expert has its share."""

    def mix(self, x):
        return torch.einsum("be,bed->bd", self.gate(x).softmax(-1), self.every(x))

    def shares(self, logits):
        return softmax(logits)


class SoftSum(Soft):
    def mix(self, x):
        return (self.gate(x).softmax(-1).unsqueeze(-1) * self.every(x)).sum(1)


class SoftTransposed(Soft):
    """The router is the left factor of its product."""

    def mix(self, x):
        logits = (self.gate.weight @ x.t()).t() + self.gate.bias
        return torch.einsum("be,bed->bd", logits.softmax(-1), self.every(x))


class Top(Mixture):
    """The experts with the largest logits, their softmax as shares."""

    def mix(self, x):
        logits, chosen = self.gate(x).topk(self.top_k, -1)
        shares = logits.softmax(-1).unsqueeze(-1)
        return (self.some(x, chosen) * shares).sum(1)

    def shares(self, logits):
        return softmax(largest(logits, TOP))


class TopScattered(Top):
    def mix(self, x):
        logits, chosen = self.gate(x).topk(self.top_k, -1)
        shares = x.new_zeros(len(x), self.num_experts)
        shares.scatter_(1, chosen, logits.softmax(-1))
        return (shares.unsqueeze(-1) * self.every(x)).sum(1)


class TopMasked(Top):
    def mix(self, x):
        logits = self.gate(x)
        last = logits.topk(self.top_k, -1).values[:, -1:]
        shares = logits.masked_fill(logits < last, float("-inf")).softmax(-1)
        return (shares.unsqueeze(-1) * self.every(x)).sum(1)


class TopRenormalised(Top):
    """The same shares by another way."""

    def mix(self, x):
        shares = self.gate(x).softmax(-1)
        chosen = shares.topk(self.top_k, -1).indices
        mask = torch.zeros_like(shares).scatter(-1, chosen, 1.0)
        shares = shares * mask / (shares * mask).sum(-1, keepdim=True)
        return (shares.unsqueeze(-1) * self.every(x)).sum(1)


class TopCompared(Top):
    def mix(self, x):
        logits, chosen = self.gate(x).topk(self.top_k, -1)
        numbers = torch.arange(self.num_experts)
        mask = (chosen.unsqueeze(-1) == numbers).to(x.dtype)
        shares = (mask * logits.softmax(-1).unsqueeze(-1)).sum(1)
        return torch.einsum("be,bed->bd", shares, self.every(x))


class Switch(Mixture):
    """One expert a token, scaled by its probability."""

    def mix(self, x):
        share, chosen = self.gate(x).softmax(-1).max(-1)
        return self.some(x, chosen.unsqueeze(-1))[:, 0] * share.unsqueeze(-1)

    def shares(self, logits):
        return largest(softmax(logits), 1)


class SwitchOneHot(Switch):
    def mix(self, x):
        share, chosen = self.gate(x).softmax(-1).max(-1)
        mask = F.one_hot(chosen, self.num_experts).to(x.dtype)
        return torch.einsum("be,bed->bd", mask, self.every(x)) * share.unsqueeze(-1)


class Corrected(Mixture):
    """Chosen with a bias that the shares do not have."""

    def __init__(self):
        super().__init__()
        self.correction = nn.Parameter(torch.randn(EXPERTS))

    def mix(self, x):
        scores = self.gate(x).sigmoid()
        chosen = (scores + self.correction).topk(self.top_k, -1).indices
        shares = scores.gather(1, chosen)
        shares = shares / shares.sum(-1, keepdim=True)
        return (self.some(x, chosen) * shares.unsqueeze(-1)).sum(1)

    def shares(self, logits):
        scores = {e: value.sigmoid() for e, value in logits.items()}
        corrected = {e: score + self.correction[e] for e, score in scores.items()}
        return normalised({e: scores[e] for e in largest(corrected, TOP)})


LEAST = {
    **dict.fromkeys((Soft, SoftSum, SoftTransposed, Switch, SwitchOneHot), 1),
    **dict.fromkeys(
        (Top, TopScattered, TopMasked, TopRenormalised, TopCompared, Corrected), TOP
    ),
}
"""Every mixture above, and how many experts it needs."""
