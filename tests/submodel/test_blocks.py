"""Whole residual blocks as units: which are found, and what is left without them."""

import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.exceptions import ShapeError, UnsupportedModelError
from flwr_asyncdrop.masks import SmartPartition, unit_scores
from flwr_asyncdrop.submodel import (
    extract,
    load_submodel,
    merge_,
    narrow,
    plan_blocks,
    silenced,
    step_flops,
)
from tests.masks.choosing import choose
from tests.nightly import nightly

IMAGES = torch.zeros(2, 3, 6, 6)
BN = ("weight", "bias", "running_mean", "running_var")


class Block(nn.Module):
    """Two convolutions; a projection beside them where the shape changes, or asked."""

    def __init__(self, channels, width=None, stride=1, project=False):
        super().__init__()
        width = width or channels
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        project = project or (channels, stride) != (width, 1)
        self.beside = nn.Conv2d(channels, width, 1, stride) if project else None

    def forward(self, x):
        out = self.conv2(F.relu(self.bn1(self.conv1(x))))
        return F.relu(out + (self.beside(x) if self.beside else x))


class Residual(nn.Module):
    def __init__(self, *branch):
        super().__init__()
        self.branch = nn.Sequential(*branch)

    def forward(self, x):
        return x + self.branch(x)


def linear_branch(width=6):
    return Residual(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())


def tiny(*blocks):
    """Return a net of a stem, four blocks and a head; two of the blocks can go."""
    blocks = blocks or (Block(4), Block(4, 6, 2), Block(6), Block(6, project=True))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()),
            *blocks,
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(5)),
        )


def net(build, inputs):
    """Build from a seed, make the lazy sizes known, move the norms off their start."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().double()
        model(inputs.double())
        for tensor in model.state_dict().values():
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.uniform_(0.5, 1.5)
        return model.eval()


def tiny_net():
    return net(tiny, IMAGES)


class Layered(nn.Module):
    """Residual layers that nothing but a loop holds together, then a head."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Stage(nn.Module):
    """Does more than its blocks: without them it still halves the resolution."""

    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x):
        return self.blocks(F.max_pool2d(x, 2))


class Shift(nn.Module):
    """Adds a vector, like an encoding of the position: no residual block."""

    def __init__(self):
        super().__init__()
        self.vector = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return x + self.vector


class Scaled(nn.Module):
    """A residual branch with a gate that has no dims."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(0.5))
        self.branch = nn.Linear(6, 6)

    def forward(self, x):
        return x + self.gate * self.branch(x)


class Halving(nn.Module):
    """Halves in training what it adds to, which without it nobody would."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Linear(6, 6)

    def forward(self, x):
        return (0.5 * x if self.training else x) + self.branch(x)


class Peeking(nn.Module):
    """Reads a tensor of a block instead of calling the block only."""

    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x * self.blocks[1].branch[1].weight[0, 0]


def keep_without(plan, *dropped):
    return (torch.tensor([u for u, b in enumerate(plan.blocks) if b not in dropped]),)


def without(plan, model, *dropped):
    """Return the arrays of the submodel without these blocks, and their indices."""
    indices = plan.indices(keep_without(plan, *dropped))
    return extract(model.state_dict(), indices), indices


def shapes_of(state):
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def encoder(norm_first=True):
    layer = nn.TransformerEncoderLayer(
        6, 2, 12, batch_first=True, norm_first=norm_first
    )
    return nn.Sequential(
        nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), nn.Linear(6, 2)
    )


SHARED = linear_branch()


class TestDiscovery:
    def test_by_hand(self):
        # 2 halves the resolution, 4 has a projection: neither passes its input on.
        plan = plan_blocks(tiny_net(), IMAGES)
        assert plan.blocks == ("1", "3")
        assert [(g.size, g.kind) for g in plan.groups] == [(2, "residual")]
        assert plan.left_out == {}
        names = [
            "conv1.weight",
            *(f"bn1.{n}" for n in BN),
            "conv2.weight",
            "conv2.bias",
        ]
        assert list(plan.axes) == [
            f"{block}.{name}" for block in "13" for name in names
        ]
        for name, dims in plan.axes.items():
            size = 4 if name.startswith("1") else 6
            assert list(dims) == [0]
            assert dims[0].tolist() == [0 if name.startswith("1") else 1] * size
        assert "bn1.running_mean" not in plan.parameters
        assert "1.conv1.weight" in plan.parameters

    def test_the_smallest_of_nested_blocks(self):
        nested = Residual(linear_branch(), nn.Linear(6, 6))
        model = net(lambda: Layered(nested, linear_branch()), torch.ones(2, 6))
        plan = plan_blocks(model, torch.ones(2, 6))
        assert plan.blocks == ("layers.0.branch.0", "layers.1")

    def test_what_does_not_depend_on_its_input_is_no_block(self):
        layers = Shift(), linear_branch(), linear_branch()
        model = net(lambda: Layered(*layers), torch.ones(2, 6))
        plan = plan_blocks(model, torch.ones(2, 6))
        assert plan.blocks == ("layers.1", "layers.2")

    def test_what_bounds_its_input_is_no_block(self):
        class Bounded(Residual):
            def forward(self, x):
                return super().forward(x).clamp(-6, 6)

        layers = Bounded(nn.Linear(6, 6)), linear_branch(), linear_branch()
        model = net(lambda: Layered(*layers), torch.ones(2, 6))
        plan = plan_blocks(model, torch.ones(2, 6))
        assert plan.blocks == ("layers.1", "layers.2")

    def test_a_block_that_runs_twice_is_left_out_twice(self):
        class Twice(Layered):
            def forward(self, x):
                return super().forward(self.layers[0](x))

        model = net(lambda: Twice(linear_branch(), linear_branch()), torch.ones(2, 6))
        plan = plan_blocks(model, torch.ones(2, 6))
        assert plan.blocks == ("layers.0", "layers.1")
        small = load_submodel(model, without(plan, model, "layers.0")[0])
        x = torch.randn(2, 6).double()
        assert torch.equal(small(x), model.head(model.layers[1](x)))

    @pytest.mark.parametrize(
        ("odd", "why"),
        [
            (Scaled, "a scalar, which cannot be sent empty"),
            (lambda: SHARED, "shares tensors with the rest of the model"),
        ],
    )
    def test_what_stays_whole_is_named(self, odd, why):
        layers = odd(), linear_branch(), linear_branch(), odd()
        model = net(lambda: Layered(*layers), torch.ones(2, 6))
        plan = plan_blocks(model, torch.ones(2, 6))
        assert plan.blocks == ("layers.1", "layers.2")
        assert all(why in reason for reason in plan.left_out.values())
        assert "layers.0" in plan.left_out
        assert f"whole: layers.0 ({plan.left_out['layers.0']})" in str(plan)

    def test_a_block_that_is_another_one_in_training_stays(self):
        layers = linear_branch(), Halving(), linear_branch(), linear_branch()
        plan = plan_blocks(
            net(lambda: Layered(*layers), torch.ones(2, 6)), torch.ones(2, 6)
        )
        assert plan.blocks == ("layers.0", "layers.2", "layers.3")
        why = "the model without it does not give what it should"
        assert plan.left_out == {"layers.1": why}

    def test_a_block_whose_tensors_others_read_stays(self):
        layers = linear_branch(), linear_branch(), linear_branch(), linear_branch()
        model = net(lambda: Peeking(*layers), torch.ones(2, 6))
        plan = plan_blocks(model, torch.ones(2, 6))
        assert plan.blocks == ("blocks.0", "blocks.2", "blocks.3")
        assert list(plan.left_out) == ["blocks.1"]

    @pytest.mark.parametrize(
        ("model", "inputs", "count"),
        [
            (nn.Sequential(nn.Linear(6, 6), nn.ReLU()), torch.zeros(1, 6), 0),
            (encoder(norm_first=False), torch.zeros(1, 3, 6), 0),
            (Layered(linear_branch()), torch.zeros(1, 6), 1),
        ],
    )
    def test_fewer_than_two_are_refused(self, model, inputs, count):
        with pytest.raises(UnsupportedModelError) as caught:
            plan_blocks(model, inputs)
        assert f"has {count} residual blocks" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_the_model_stays_as_it_is(self):
        model = tiny_net().train()
        before = {name: t.clone() for name, t in model.state_dict().items()}
        plan_blocks(model, IMAGES)
        assert model.training
        assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())

    def test_the_report_lists_the_blocks_and_their_share(self):
        # Of 3 blocks of 12 + 42 elements and a head of 14, each has 54 / 176.
        model = Layered(linear_branch(), linear_branch(), linear_branch())
        report = str(plan_blocks(model, torch.zeros(1, 6)))
        assert report.splitlines() == [
            "block     elements",
            *(f"layers.{number}     30.7%" for number in range(3)),
        ]


class TestAmbiguity:
    """Arrays cannot tell a module that has nothing but blocks from the blocks."""

    @pytest.mark.parametrize("sizes", [(2, 2), (1, 2), (2, 1, 1)])
    def test_a_stage_that_does_more_than_its_blocks_keeps_one(self, sizes):
        stages = [Stage(*(Block(4) for _ in range(size))) for size in sizes]
        model = net(
            lambda: tiny(*stages, Block(4), Block(4)), torch.zeros(2, 3, 16, 16)
        )
        plan = plan_blocks(model, torch.zeros(2, 3, 16, 16))
        lasts = [f"{n}.blocks.{size - 1}" for n, size in enumerate(sizes, start=1)]
        assert list(plan.left_out) == lasts[::-1]
        assert all("does more than its blocks" in w for w in plan.left_out.values())
        x = torch.randn(1, 3, 16, 16).double()
        for dropped in (plan.blocks[:-1], plan.blocks[1:]):
            sub, indices = without(plan, model, *dropped)
            full = load_submodel(model, silenced(model.state_dict(), indices))
            assert torch.equal(load_submodel(model, sub)(x), full(x))

    def test_a_stage_that_does_not_can_go(self):
        stages = nn.Sequential(Block(4), Block(4)), nn.Sequential(Block(4), Block(4))
        model = net(lambda: tiny(*stages), IMAGES)
        plan = plan_blocks(model, IMAGES)
        assert plan.blocks == ("1.0", "1.1", "2.0", "2.1")
        x = torch.randn(1, 3, 6, 6).double()
        small = load_submodel(model, without(plan, model, "1.0", "1.1")[0])
        assert torch.equal(small(x), model[3](model[2](model[0](x))))


class TestSubmodels:
    def test_a_submodel_is_the_model_with_an_identity(self):
        model = tiny_net()
        sub, _ = without(plan_blocks(model, IMAGES), model, "3")
        assert sub["3.conv1.weight"].shape == (0, 6, 3, 3)
        assert sub["3.bn1.num_batches_tracked"].shape == ()
        small = load_submodel(model, sub)
        x = torch.randn(2, 3, 6, 6).double()
        by_hand = nn.Sequential(*model[:3], nn.Identity(), *model[4:])
        assert torch.equal(small(x), by_hand(x))
        assert not torch.equal(small(x), model(x))

    def test_it_trains_and_gives_back_what_was_sent(self):
        model = tiny_net()
        sub, indices = without(plan_blocks(model, IMAGES), model, "1")
        small = pickle.loads(pickle.dumps(load_submodel(model, sub))).train()  # noqa: S301  # our own
        optimiser = torch.optim.SGD(small.parameters(), 0.1, weight_decay=0.1)
        small(torch.randn(2, 3, 6, 6).double()).square().sum().backward()
        optimiser.step()
        trained = small.state_dict()
        assert shapes_of(trained) == shapes_of(sub)
        full = {name: t.clone() for name, t in model.state_dict().items()}
        merge_(full, trained, indices, 0.5)
        before = model.state_dict()
        moved = {name for name in full if not torch.equal(full[name], before[name])}
        assert moved == {n for n in full if not n.startswith("1.")}

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(
        ("build", "inputs"),
        [
            (tiny, IMAGES),
            (encoder, torch.zeros(2, 3, 6)),
            (lambda: build_model("resnet18", (3, 8, 8), 10, 0), IMAGES),
        ],
    )
    def test_without_any_blocks_it_is_the_silenced_model(self, build, inputs, seed):
        model = net(build, inputs)
        plan = plan_blocks(model, inputs)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(plan.blocks), generator=generator)
        keep = (order[: seed % len(order) or 1].sort().values,)
        indices = plan.indices(keep)
        sub = extract(model.state_dict(), indices)
        full = load_submodel(model, silenced(model.state_dict(), indices)).eval()
        x = torch.randn(inputs.shape, generator=generator).double()
        small = load_submodel(model, sub).eval()
        torch.testing.assert_close(small(x), full(x))
        assert small.state_dict().keys() == full.state_dict().keys()

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"3.conv1.weight": None}, "also needs the tensor 3.conv1.weight"),
            ({"3.bn1.weight": (6,)}, r"3.bn1.bias has shape \(0"),
            ({"2.conv1.weight": (0, 4, 3, 3), "2.conv2.bias": (0,)}, r"has shape \(0"),
            ({"3.conv1.weight": (0, 5, 3, 3)}, r"3.conv1.weight has shape \(0, 5"),
            ({"3.conv1.weight": (0,)}, r"3.conv1.weight has shape \(0,\)"),
        ],
    )
    def test_what_is_no_whole_block_is_refused(self, change, says):
        model = tiny_net()
        sub, _ = without(plan_blocks(model, IMAGES), model, "3")
        shapes = {n: s for n, s in (shapes_of(sub) | change).items() if s is not None}
        with pytest.raises(ShapeError, match=says) as caught:
            narrow(model, shapes)
        assert "\n" not in str(caught.value)


class TestScores:
    def test_a_block_has_moved_as_far_as_its_parameters(self):
        model = Layered(linear_branch(), linear_branch(), linear_branch())
        plan = plan_blocks(model, torch.zeros(1, 6))
        initial = model.state_dict()
        state = {name: tensor.clone() for name, tensor in initial.items()}
        state["layers.1.branch.1.weight"][2, 3] -= 2.0
        state["layers.1.branch.0.bias"] += 1.0
        state["layers.2.branch.1.bias"][0] += 0.5
        state["head.weight"] += 7.0
        (scores,) = unit_scores(plan, state, initial)
        assert scores.tolist() == pytest.approx([0.0, 2.0 + 6.0, 0.5])

    def test_a_rank_drops_its_window_of_blocks(self):
        # int(5 * 0.4) = 2 of 5 blocks; 5 // 3 = 1 step from rank to rank.
        model = Layered(*(linear_branch() for _ in range(5)))
        plan = plan_blocks(model, torch.zeros(1, 6))
        scores = (torch.tensor([3.0, 9.0, 1.0, 7.0, 5.0]),)  # order 1 3 4 0 2
        kept = [
            choose(SmartPartition(0.4), plan.groups, scores, r, 3, torch.Generator())
            for r in range(3)
        ]
        assert [k[0].tolist() for k in kept] == [[0, 2, 4], [0, 1, 2], [1, 2, 3]]


class TestRealModels:
    def test_resnet34_has_13_blocks_that_can_go(self):
        model = build_model("resnet34", (3, 32, 32), 10, seed=0)
        plan = plan_blocks(model, torch.zeros(1, 3, 16, 16))
        stages = {1: range(3), 2: range(1, 4), 3: range(1, 6), 4: range(1, 3)}
        expected = [f"layer{s}.{number}" for s in stages for number in stages[s]]
        assert list(plan.blocks) == expected
        assert len(expected) == 13
        sub, _ = without(plan, model, "layer4.1", "layer2.3")
        # Two convolutions of 3 x 3 and two norms of four tensors a block.
        gone = sum(2 * 9 * width**2 + 2 * 4 * width for width in (512, 128))
        elements = sum(math.prod(shape) for shape in plan.shapes.values())
        assert sum(tensor.numel() for tensor in sub.values()) == elements - gone
        x = torch.zeros(1, 3, 32, 32)
        # 4 x 4 and 16 x 16 pixels in the fourth and the second stage.
        saved = 2 * sum(2 * 9 * w**2 * side**2 for w, side in ((512, 4), (128, 16)))
        small = load_submodel(model, sub)
        assert step_flops(small, x) == step_flops(model, x) - saved

    @pytest.mark.parametrize(
        ("name", "blocks"),
        [
            # Residual blocks less those that change the shape.
            ("resnet18", 8 - 3),
            ("resnet50", 16 - 4),
            ("mobilenet_v2", 10),
            nightly("convnext_tiny", 3 + 3 + 9 + 3),
            nightly("swin_t", 2 + 2 + 6 + 2),
        ],
    )
    def test_torchvision(self, vision_models, name, blocks):
        model = getattr(vision_models, name)(num_classes=10).eval()
        inputs = torch.zeros(1, 3, 64, 64)
        plan = plan_blocks(model, inputs)
        assert len(plan.blocks) == blocks
        sub, _ = without(plan, model, *plan.blocks[::2])
        small = load_submodel(model, sub)
        assert step_flops(small, inputs) < 0.8 * step_flops(model, inputs)

    def test_layers_of_a_transformer(self):
        model = encoder()
        plan = plan_blocks(model, torch.zeros(1, 3, 6))
        assert plan.blocks == ("0.layers.0", "0.layers.1", "0.layers.2")
        small = load_submodel(model, without(plan, model, "0.layers.0")[0])
        padded = torch.tensor([[False, False, True]])
        out = small[0](torch.randn(1, 3, 6), src_key_padding_mask=padded)
        assert out.shape == (1, 3, 6)
