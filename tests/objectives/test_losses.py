"""Local objectives by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.objectives import (
    LocalTask,
    LogitAdjustedLoss,
    Proximal,
    StandardObjective,
)


def network():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


def data(count=12):
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(7))
    return x, (x.sum(1) > 0).long()


def test_the_proximal_term_by_hand():
    """As above with mu = 2: its gradient is 0 at the start, then 2 (w1 - w0) = 1.

    v1 = -0.5, w1 = 0.5; v2 = 0.5 v1 + s(0.5) + 2 * 0.5 = 0.372459, w2 = 0.127541.
    """
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    pull = Proximal(model, mu=2.0)
    weight, velocity = model.weight, 0.0
    for expected in (0.5, 0.127541):
        weight.grad = torch.tensor([[-1 / (1 + weight[0].exp().item())], [0.0]])
        pull.add_gradients()
        velocity = 0.5 * velocity + weight.grad
        with torch.no_grad():
            weight -= velocity
        assert weight[0].item() == pytest.approx(expected, abs=1e-6)
        assert weight[1].item() == 0.0


def test_the_proximal_gradient_is_that_of_the_term_in_the_loss():
    (x, y), model, other = data(), network(), network()
    start = [p.detach().clone() for p in model.parameters()]
    pull, mu = Proximal(model, mu=0.3), 0.3
    with torch.no_grad():
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            p.add_(0.5)
            q.copy_(p)
    F.cross_entropy(model(x), y).backward()
    pull.add_gradients()
    distance = sum(
        ((q - s) ** 2).sum() for q, s in zip(other.parameters(), start, strict=True)
    )
    (F.cross_entropy(other(x), y) + mu / 2 * distance).backward()
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


class TestLogitAdjustment:
    def test_by_hand(self):
        """Shares 3/4, 1/4, 0 smoothed by 0.12: 0.7, 0.26, 0.04."""
        loss = LogitAdjustedLoss(torch.tensor([0, 0, 0, 1]), 3, tau=0.5, smoothing=0.12)
        shares = (0.7, 0.26, 0.04)
        expected = [0.5 * math.log(share) for share in shares]
        assert loss.offsets.tolist() == pytest.approx(expected)
        # Of equal logits: -log(sqrt p_y / sum sqrt p)
        roots = [math.sqrt(share) for share in shares]
        found = loss(torch.zeros(1, 3), torch.tensor([1])).item()
        assert found == pytest.approx(-math.log(roots[1] / sum(roots)))

    def test_a_loss_is_known_beside_a_default_dtype_of_few_bits(self):
        """In float16 shifted logits are rounded, and the losses of many differ."""
        labels = torch.arange(200)
        torch.set_default_dtype(torch.float16)
        try:
            LogitAdjustedLoss(labels, 200, tau=1.0, loss_fn=nn.CrossEntropyLoss())
        finally:
            torch.set_default_dtype(torch.float32)

    def test_none_is_plain_cross_entropy(self):
        x, y = data()
        plain = F.cross_entropy(network()(x), y)
        assert LogitAdjustedLoss(y, 2, tau=0.0)(network()(x), y).item() == plain.item()

    def test_labels_may_lie_elsewhere_than_the_model(self):
        """Those of a data set on the CPU, say, and logits on a GPU."""
        loss = LogitAdjustedLoss(torch.tensor([0, 0, 1]), 3, tau=1.0)
        there = torch.device("meta")
        labels = torch.zeros(2, dtype=torch.int64, device=there)
        assert loss(torch.zeros(2, 3, device=there), labels).device == there

    def test_a_class_that_the_device_never_sees_is_hardly_pushed_down(self):
        labels = torch.tensor([0, 1] * 4)
        push = {}
        for tau in (0.0, 1.0):
            logits = torch.zeros(8, 3, requires_grad=True)
            LogitAdjustedLoss(labels, 3, tau)(logits, labels).backward()
            push[tau] = logits.grad[:, 2].sum().item()
        assert push[0.0] == pytest.approx(1 / 3)
        assert 0 < push[1.0] < 0.01

    def test_a_device_of_one_class_has_finite_small_gradients(self):
        labels = torch.zeros(8, dtype=torch.int64)
        logits = torch.zeros(8, 2, requires_grad=True)
        LogitAdjustedLoss(labels, 2, tau=1.0)(logits, labels).backward()
        assert torch.isfinite(logits.grad).all()
        assert 0 < logits.grad.abs().sum() < 0.05  # plain cross entropy: 1

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"tau": -0.1}, "logit_adjustment=-0.1"),
            ({"tau": float("nan")}, "logit_adjustment=nan"),
            ({"tau": 1.0, "smoothing": 0.0}, "smoothing=0.0"),
        ],
    )
    def test_refusals(self, arguments, message):
        with pytest.raises(ConfigError, match=message):
            LogitAdjustedLoss(torch.tensor([0]), 2, **arguments)

    @pytest.mark.parametrize("labels", [[0, 1], np.array([0, 1])])
    def test_labels_of_a_data_set_that_are_no_tensor(self, labels):
        """torchvision's CIFAR10 has a list of them."""
        with pytest.raises(
            ConfigError, match=r"^labels .*: pass torch\.tensor\(labels"
        ):
            LogitAdjustedLoss(labels, 2, tau=1.0)

    @pytest.mark.parametrize(
        "labels",
        [
            torch.tensor([], dtype=torch.int64),
            torch.tensor([0, 2]),
            torch.tensor([0, -100]),
            torch.tensor([[0, 1]]),
            torch.tensor([0.0, 1.0]),
        ],
    )
    @pytest.mark.parametrize("own", [F.cross_entropy, nn.CrossEntropyLoss()])
    def test_labels_that_are_none_of_the_classes(self, labels, own):
        """Of no labels there are no shares: the loss was NaN."""
        with pytest.raises(ConfigError, match=r"labels .*2 classes"):
            LogitAdjustedLoss(labels, 2, tau=1.0, loss_fn=own)

    @pytest.mark.parametrize("own", [F.cross_entropy, nn.CrossEntropyLoss()])
    def test_no_classes(self, own):
        with pytest.raises(ConfigError, match="0 classes"):
            LogitAdjustedLoss(torch.tensor([0]), 0, tau=1.0, loss_fn=own)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_strengths_that_are_none_are_refused(value):
    with pytest.raises(ConfigError, match=f"proximal_mu={value}"):
        Proximal(network(), value)
    with pytest.raises(ConfigError, match=f"proximal_mu={value}"):
        StandardObjective(proximal_mu=value)
    with pytest.raises(ConfigError, match=f"logit_adjustment={value}"):
        StandardObjective(logit_adjustment=value)


def focal(logits, labels):
    losses = F.cross_entropy(logits, labels, reduction="none")
    return ((1 - (-losses).exp()) ** 2 * losses).mean()


def squared(outputs, labels):
    return F.mse_loss(outputs, F.one_hot(labels, outputs.shape[1]).float())


def likelihood(outputs, labels):
    return F.nll_loss(outputs, labels)


def begun(loss_fn):
    labels = torch.tensor([0, 0, 0, 1])
    config = {"logit-adjustment": 1.0}
    task = LocalTask(network(), loss_fn, config, labels=labels, num_classes=2)
    return StandardObjective().begin(task)


@pytest.mark.parametrize(
    "own", [focal, nn.CrossEntropyLoss(torch.tensor([1.0, 3.0]), label_smoothing=0.1)]
)
def test_a_tasks_own_loss_is_adjusted_and_not_replaced(own):
    logits, labels = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    found = begun(own).loss(logits, labels)
    offsets = LogitAdjustedLoss(torch.tensor([0, 0, 0, 1]), 2, tau=1.0).offsets
    assert found.item() == own(logits + offsets, labels).item()


@pytest.mark.parametrize("own", [squared, likelihood])
def test_a_loss_that_is_not_of_logits_is_not_adjusted(own):
    with pytest.raises(ConfigError, match="the task's loss takes something else"):
        begun(own)


RARE = torch.tensor([0.0] * 8 + [1.0, 5.0])


def weighted(logits, labels):
    return F.cross_entropy(logits, labels, RARE)


def squared_of_the_rare(outputs, labels):
    """No loss of logits, although it is 0 for most classes whatever the outputs."""
    errors = (outputs - F.one_hot(labels, 10)) ** 2
    return (errors.mean(1) * RARE[labels]).mean()


@pytest.mark.parametrize("labels", [torch.arange(10), torch.zeros(9).long()])
def test_classes_that_do_not_count_say_nothing_of_a_loss(labels):
    loss = LogitAdjustedLoss(labels, 10, tau=1.0, loss_fn=weighted)
    logits, some = torch.randn(4, 10), torch.tensor([0, 8, 9, 9])
    assert loss(logits, some).item() == weighted(logits + loss.offsets, some).item()
    with pytest.raises(ConfigError, match="takes something else"):
        LogitAdjustedLoss(labels, 10, tau=1.0, loss_fn=squared_of_the_rare)


def test_a_loss_of_many_classes_is_tried_within_little_memory():
    labels = torch.tensor([0, 49_999])
    sizes = []

    def own(logits, labels):
        sizes.append(logits.numel())
        return F.cross_entropy(logits, labels)

    LogitAdjustedLoss(labels, 50_000, tau=1.0, loss_fn=own)
    assert max(sizes) <= 2**22
