"""What docs/models.md shows runs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel import (
    PATCHES,
    RULES,
    add_rule,
    declare_plan,
    extract,
    load_submodel,
    plan_submodels,
    verify_plan,
)
from flwr_asyncdrop.submodel.discovery.rules import channels, elementwise, match

TEXT = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")


def run_block(heading: str, names: dict[str, object]) -> dict[str, object]:
    """Run the Python block under a heading of docs/models.md."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    [block] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    exec(compile(block, "models.md", "exec"), names)  # noqa: S102  # our own
    return names


@pytest.fixture
def registered() -> Iterator[None]:
    """Take back what a block adds for all."""
    before = PATCHES.copy(), RULES.copy()
    yield
    for table, old in zip((PATCHES, RULES), before, strict=True):
        table.clear()
        table.update(old)


def around(layer: nn.Module, width: int = 8) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, width), layer, nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, 3)
    )


class ManyArguments(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 3)

    def forward(
        self,
        input_ids: Tensor,
        lengths: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        return self.head(self.embed(input_ids).mean(1))


def test_example_inputs() -> None:
    plans = []

    def planned(*args: object, **options: object) -> None:
        plans.append(plan_submodels(*args, **options))

    names = {"plan_submodels": planned, "model": ManyArguments()}
    tokens = {"tokens": torch.ones(2, 7, dtype=torch.int64)}
    tokens |= {"longer": torch.ones(2, 9, dtype=torch.int64)}
    run_block(
        "Example inputs",
        names | tokens | {"mask": torch.ones(2, 7), "lengths": torch.tensor([7, 3])},
    )

    assert len(plans) == 5
    assert {plan.num_units for plan in plans} == {8}


@pytest.mark.usefixtures("registered")
def test_a_patch():
    names = run_block("A patch", {"nn": nn, "torch": torch, "PATCHES": PATCHES})
    mixed, inputs = names["Mixed"], torch.randn(2, 5)
    groups = plan_submodels(around(mixed(8)), inputs).groups
    assert [(group.name, group.size) for group in groups] == [("0", 8), ("2", 6)]

    del PATCHES[mixed]
    plan = plan_submodels(around(mixed(8)), inputs)
    assert [group.name for group in plan.groups] == ["2"]
    assert "docs/models.md#a-patch" in str(plan)


@torch.library.custom_op("mine::gated", mutates_args=())
def gated(x: Tensor, gate: Tensor) -> Tensor:
    return x * gate.sigmoid()[:, None]


@torch.library.custom_op("mine::swish", mutates_args=())
def swish(x: Tensor) -> Tensor:
    return x * x.sigmoid()


def set_up(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def gated_backward(ctx, grad):
    x, gate = ctx.saved_tensors
    slope = gate.sigmoid() * (1 - gate.sigmoid())
    return grad * gate.sigmoid()[:, None], (grad * x).sum((0, 2)) * slope


def swish_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.sigmoid() * (1 + x * (1 - x.sigmoid()))


gated.register_autograd(gated_backward, setup_context=set_up)
swish.register_autograd(swish_backward, setup_context=set_up)


class Gated(nn.Module):
    """Uses both operations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(3, 8, 1), nn.Conv1d(8, 6, 1)
        self.gate, self.head = nn.Parameter(torch.randn(8)), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = swish(self.second(gated(self.first(x), self.gate)))
        return self.head(x.mean(2))


@pytest.mark.usefixtures("registered")
def test_a_rule():
    inputs = torch.randn(2, 3, 4)
    bare = str(plan_submodels(around(nn.ReLU()), torch.randn(2, 5)))
    assert "docs/models.md" not in bare

    helpers = {"channels": channels, "elementwise": elementwise, "match": match}
    run_block("A rule", {"add_rule": add_rule, **helpers})
    model = Gated()
    plan = plan_submodels(model, inputs)
    assert [(g.name, g.size) for g in plan.groups] == [("first", 8), ("second", 6)]
    kept = (torch.tensor([0, 3, 4]), torch.tensor([1, 2]))
    small = load_submodel(model, extract(model.state_dict(), plan.indices(kept)))
    assert small.gate.tolist() == model.gate[kept[0]].tolist()
    small(inputs).sum().backward()


def test_an_operation_of_ones_own_without_a_rule():
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = around(nn.Identity())

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[2:](swish(self.layers[0](x)))

    plan = plan_submodels(Chain(), torch.randn(2, 5))
    reason = "used by mine.swish, for which there is no rule"
    assert plan.left_out["layers.0"] == reason
    report = str(plan).splitlines()
    line = report.index(f"whole ({reason}): layers.0")
    assert report[line + 1] == "  add one: docs/models.md#a-rule"


class Words(nn.Module):
    """Reads sequences of several lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.rnn = nn.LSTM(6, 128, batch_first=True)
        self.head = nn.Linear(128, 3)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.rnn(packed)[1][0][-1])


def test_a_plan_by_hand():
    names = run_block(
        "Where tracing does not reach",
        {
            "torch": torch,
            "declare_plan": declare_plan,
            "verify_plan": verify_plan,
            "model": Words(),
            "tokens": torch.randint(20, (2, 7)),
            "lengths": torch.tensor([7, 3]),
        },
    )
    assert [group.size for group in names["plan"].groups] == [128]
