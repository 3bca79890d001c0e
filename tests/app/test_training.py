from contextlib import contextmanager
from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flwr_asyncdrop.app.training import LocalTraining, PlainSGD, isolated_randomness
from flwr_asyncdrop.objectives import LocalSteps, LocalTask, StandardObjective


def sgd(steps=10, batch_size=4, lr=0.1, momentum=0.9):
    return LocalTraining(steps, batch_size, lr, momentum)


def plain(model):
    return LocalSteps(LocalTask(model, F.cross_entropy))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def data(count=12):
    x = torch.randn(count, 4, generator=generator(7))
    return x, (x.sum(1) > 0).long()


def network():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


def trained(seed=0, network=network, config=None, **settings):
    model, (x, y) = network(), data()
    task = LocalTask(model, F.cross_entropy, config or {})
    loss = sgd(**settings).train(
        model,
        StandardObjective().begin(task),
        lambda at: (x[at], y[at]),
        len(y),
        generator(seed),
    )
    return loss, {name: t.tolist() for name, t in model.state_dict().items()}


def batches(num_samples, steps, batch_size, seed=0):
    seen = []

    def batch(positions):
        seen.append(positions.tolist())
        return torch.zeros(len(positions), 4), torch.zeros(len(positions)).long()

    model = network()
    sgd(steps, batch_size).train(
        model, plain(model), batch, num_samples, generator(seed)
    )
    return seen


def test_two_steps_by_hand():
    """One weight w on the input 1, logits (w, 0), label 0, momentum 0.5, rate 1.

    The loss is log(1 + exp(-w)), its slope s(w) = -1 / (1 + exp(w)); from w = 0:
    v1 = s(0) = -0.5, w1 = 0.5; v2 = 0.5 v1 + s(0.5) = -0.627541, w2 = 1.127541.
    """
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    model.weight.register_hook(lambda grad: grad * torch.tensor([[1.0], [0.0]]))
    inputs, label = torch.ones(1, 1), torch.zeros(1).long()
    loss = sgd(2, 1, 1.0, 0.5).train(
        model, plain(model), lambda at: (inputs, label), 1, generator()
    )
    assert model.weight[0, 0].item() == pytest.approx(1.127541, abs=1e-5)
    assert loss == pytest.approx((0.693147 + 0.474077) / 2, abs=1e-5)


def test_the_loss_is_the_mean_over_the_samples_seen():
    x, y = data()
    loss, _ = trained(steps=3, lr=0.0)  # one pass over the 12 samples
    assert loss == pytest.approx(F.cross_entropy(network()(x), y).item(), abs=1e-6)


def test_training_learns():
    first, _ = trained(steps=3)
    after, _ = trained(steps=200)
    assert after < first


def test_the_generator_decides_everything():
    assert trained(seed=1) == trained(seed=1)
    assert trained(seed=1) != trained(seed=2)


def test_the_model_trains_in_training_mode():
    model, (x, y) = network().eval(), data()
    sgd(1).train(model, plain(model), lambda at: (x[at], y[at]), len(y), generator())
    assert model.training


@given(
    num_samples=st.integers(1, 40),
    steps=st.integers(1, 12),
    batch_size=st.integers(1, 20),
)
def test_batches_come_from_one_shuffle_after_the_other(num_samples, steps, batch_size):
    seen = batches(num_samples, steps, batch_size)
    size = min(batch_size, num_samples)
    assert [len(batch) for batch in seen] == [size] * steps
    assert all(0 <= position < num_samples for batch in seen for position in batch)
    per_shuffle = num_samples // size
    for start in range(0, steps, per_shuffle):
        positions = list(chain(*seen[start : start + per_shuffle]))
        assert len(positions) == len(set(positions)), "a sample came twice"


def test_every_shuffle_is_another():
    seen = batches(num_samples=32, steps=3, batch_size=32)
    assert sorted(seen[0]) == sorted(seen[1]) == sorted(seen[2])
    assert len({tuple(batch) for batch in seen}) == 3


def failing_task():
    torch.rand(100)
    raise ZeroDivisionError


class TestIsolatedRandomness:
    def test_the_global_generator_stays_as_it_was(self):
        before = torch.get_rng_state()
        with isolated_randomness(5):
            torch.rand(100)
        assert torch.equal(torch.get_rng_state(), before)

    def test_also_after_an_error(self):
        before = torch.get_rng_state()
        with pytest.raises(ZeroDivisionError), isolated_randomness(5):
            failing_task()
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_seed_decides_what_is_drawn_inside(self):
        draws = []
        for seed in (5, 5, 6, 2**63 - 1):
            with isolated_randomness(seed):
                draws.append(torch.rand(4).tolist())
        assert draws[0] == draws[1]
        assert len({tuple(draw) for draw in draws}) == 3

    def test_dropout_then_depends_on_the_task_alone(self):
        def with_dropout():
            return nn.Sequential(network(), nn.Dropout(0.5))

        results = []
        for _ in range(2):
            torch.rand(3)  # what another task left behind
            with isolated_randomness(9):
                results.append(trained(network=with_dropout))
        assert results[0] == results[1]


def test_mu_zero_is_no_proximal_term_bit_for_bit():
    assert trained(config={"proximal-mu": 0.0}) == trained()


def test_the_pull_keeps_the_model_near_where_it_started():
    def distance(**settings):
        weights = trained(**settings)[1]
        start = {name: t.tolist() for name, t in network().state_dict().items()}
        return sum(
            (torch.tensor(weights[n]) - torch.tensor(start[n])).norm() for n in start
        )

    assert distance(config={"proximal-mu": 3.0}) < 0.9 * distance()


def test_adam_takes_the_steps_of_pytorchs():
    model, (x, y) = network(), data()
    reference = network()
    optimiser = torch.optim.Adam(reference.parameters(), lr=0.1, betas=(0.5, 0.999))
    for positions in batches(len(y), 10, 4):
        optimiser.zero_grad()
        F.cross_entropy(reference(x[positions]), y[positions]).backward()
        optimiser.step()
    adam = LocalTraining(10, 4, 0.1, 0.5, optimizer="adam")
    adam.train(model, plain(model), lambda at: (x[at], y[at]), len(y), generator())
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    assert trained()[1] != {n: t.tolist() for n, t in model.state_dict().items()}


class Net(nn.Module):
    """One layer that always has a gradient, one now and then, one never."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes, self.never = (nn.Linear(4, 4) for _ in range(3))
        self.never.requires_grad_(False)

    def forward(self, x, both):
        hidden = self.never(self.always(x)).tanh()
        return self.sometimes(hidden) if both else hidden


def trained_by(optimiser, steps, **settings):
    torch.manual_seed(0)
    model = Net()
    optimiser = optimiser(model.parameters(), **settings)
    for step in range(steps):
        optimiser.zero_grad()
        model(torch.randn(8, 4), step % 3 == 1).square().sum().backward()
        optimiser.step()
    return model.state_dict()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 10])
def test_the_same_as_pytorchs_bit_for_bit(momentum, steps):
    settings = {"steps": steps, "lr": 0.05, "momentum": momentum}
    ours = trained_by(PlainSGD, **settings)
    theirs = trained_by(torch.optim.SGD, **settings)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not torch.equal(
        ours["always.weight"],
        trained_by(PlainSGD, 0, lr=0.05, momentum=0.0)["always.weight"],
    )


def test_of_several_gpus_the_one_that_is_used_is_seeded(monkeypatch):
    """All of them were, and PyTorch warned of that in every process."""
    forked, seeded = [], []

    @contextmanager
    def fork(devices=None):
        forked.append(devices)
        yield

    monkeypatch.setattr(torch.random, "fork_rng", fork)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    with isolated_randomness(5):
        pass
    assert (forked, seeded) == ([[3]], [5])
