"""Extract and merge against a reference that visits one coordinate after the other."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.submodel import (
    add_,
    content_hash,
    extract,
    merge_,
    silenced,
    slots,
)

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SEEDS = st.integers(0, 2**32)
WEIGHTS = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0.0, 1.0))


def kept_coordinates(shape, dims):
    """Yield (place in the full tensor, place in the submodel's) pairs."""
    kept = [dims[d].tolist() if d in dims else range(n) for d, n in enumerate(shape)]
    small = itertools.product(*(range(len(positions)) for positions in kept))
    return zip(itertools.product(*kept), small, strict=True)


def naive_extract(tensor, dims):
    shape = [len(dims[d]) if d in dims else n for d, n in enumerate(tensor.shape)]
    sub = torch.empty(shape, dtype=tensor.dtype)
    for place, small in kept_coordinates(tensor.shape, dims):
        sub[small] = tensor[place]
    return sub


def naive_merge(full, sub, dims, weight):
    merged = full.clone()
    for place, small in kept_coordinates(full.shape, dims):
        if not full.is_floating_point():
            merged[place] = max(full[place], sub[small])
        elif weight == 1:
            merged[place] = sub[small]
        else:
            merged[place] = torch.lerp(full[place], sub[small], weight)
    return merged


def assert_added(found, full, part, dims, scale):
    """Check against float64: a term of at most 16 is rounded twice."""
    total, part = full.double(), part.double()
    for place, small in kept_coordinates(full.shape, dims):
        total[place] += scale * part[small]
    atol = 32 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), total, rtol=0, atol=atol)


def bits(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def assert_same_bits(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert torch.equal(bits(found), bits(expected))


def random_tensor(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(0, 9, shape, dtype=dtype, generator=generator)
    return torch.randn(shape, generator=generator).to(dtype)


@st.composite
def tensors_with_dims(draw, dtypes=(*FLOATS, torch.int64)):
    """Draw a tensor, perhaps not contiguous, and the kept positions of some dims."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    tensor = random_tensor(shape, draw(st.sampled_from(dtypes)), draw(SEEDS))
    if tensor.dim() > 1 and draw(st.booleans()):
        order = draw(st.permutations(range(tensor.dim())))
        back = sorted(range(tensor.dim()), key=lambda dim: order[dim])
        tensor = tensor.permute(order).contiguous().permute(back)
    dims = {}
    for dim, size in enumerate(shape):
        if draw(st.booleans()):
            kept = draw(st.sets(st.integers(0, size - 1)))
            dims[dim] = torch.tensor(sorted(kept), dtype=torch.int64)
    return tensor, dims


class TestByHand:
    def test_extract(self):
        state = {"w": torch.arange(12.0).view(3, 4), "steps": torch.tensor(7)}
        sub = extract(state, {"w": {0: torch.tensor([0, 2]), 1: torch.tensor([1, 2])}})
        assert sub["w"].tolist() == [[1.0, 2.0], [9.0, 10.0]]
        assert sub["steps"].item() == 7

    def test_merge(self):
        full = {"w": torch.arange(12.0).view(3, 4), "steps": torch.tensor(7)}
        sub = {"w": torch.full((2, 2), -1.0), "steps": torch.tensor(9)}
        kept = {"w": {0: torch.tensor([0, 2]), 1: torch.tensor([1, 2])}}
        merge_(full, sub, kept, 0.25)
        assert full["w"].tolist() == [
            [0.0, 0.5, 1.25, 3.0],
            [4.0, 5.0, 6.0, 7.0],
            [8.0, 6.5, 7.25, 11.0],
        ]
        assert full["steps"].item() == 9

    def test_a_counter_never_goes_back(self):
        full = {"steps": torch.tensor(7)}
        merge_(full, {"steps": torch.tensor(3)}, {}, 1.0)
        assert full["steps"].item() == 7


class TestExtract:
    @given(tensors_with_dims())
    @settings(deadline=None)
    def test_equals_reference(self, case):
        tensor, dims = case
        sub = extract({"w": tensor}, {"w": dims})["w"]
        assert_same_bits(sub, naive_extract(tensor, dims))
        assert sub.is_contiguous()

    @given(tensors_with_dims())
    @settings(deadline=None)
    def test_never_aliases(self, case):
        tensor, dims = case
        before = tensor.clone()
        extract({"w": tensor}, {"w": dims})["w"].fill_(99)
        assert_same_bits(tensor, before)

    def test_of_a_parameter_needs_no_gradient(self):
        weight = torch.nn.Parameter(torch.ones(3, 4))
        sub = extract({"w": weight}, {"w": {0: torch.tensor([1])}})
        assert not sub["w"].requires_grad


class TestMerge:
    @given(tensors_with_dims(), WEIGHTS, SEEDS)
    @settings(deadline=None)
    def test_equals_reference(self, case, weight, seed):
        tensor, dims = case
        sub = random_tensor(naive_extract(tensor, dims).shape, tensor.dtype, seed)
        expected = naive_merge(tensor, sub, dims, weight)
        merge_({"w": tensor}, {"w": sub}, {"w": dims}, weight)
        torch.testing.assert_close(tensor, expected)

    @given(tensors_with_dims(FLOATS), SEEDS)
    @settings(deadline=None)
    def test_weight_one_copies_every_bit(self, case, seed):
        tensor, dims = case
        sub = random_tensor(naive_extract(tensor, dims).shape, tensor.dtype, seed)
        sub.view(-1)[:1] = -0.0
        tensor.fill_(math.inf)
        merge_({"w": tensor}, {"w": sub}, {"w": dims}, 1.0)
        assert_same_bits(naive_extract(tensor, dims), sub)

    @given(tensors_with_dims(FLOATS), WEIGHTS)
    @settings(deadline=None)
    def test_dropped_coordinates_keep_every_bit(self, case, weight):
        tensor, dims = case
        odd = torch.tensor([-0.0, math.inf, -math.inf, math.nan], dtype=tensor.dtype)
        places = torch.arange(tensor.numel()).view(tensor.shape)
        tensor.copy_(odd[places % len(odd)])
        expected = tensor.clone()
        sub = torch.full_like(naive_extract(tensor, dims), math.nan)
        merge_({"w": tensor}, {"w": sub}, {"w": dims}, weight)
        for place, _ in kept_coordinates(tensor.shape, dims):
            expected[place] = tensor[place]
        assert_same_bits(tensor, expected)

    @given(tensors_with_dims(FLOATS), WEIGHTS)
    @settings(deadline=None)
    def test_the_update_is_only_read(self, case, weight):
        tensor, dims = case
        sub = naive_extract(tensor, dims)
        before = sub.clone()
        merge_({"w": tensor.zero_()}, {"w": sub}, {"w": dims}, weight)
        assert_same_bits(sub, before)

    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("dims", [(0,), (1,), (0, 1), (0, 1, 2)])
    def test_many_blocks(self, monkeypatch, dtype, dims):
        monkeypatch.setattr(slots, "_BLOCK_BYTES", 256)
        full = random_tensor((13, 7, 5, 4), dtype, seed=1)
        kept = {dim: torch.arange(full.shape[dim])[dim::2] for dim in dims}
        sub = random_tensor(naive_extract(full, kept).shape, dtype, seed=2)
        expected = naive_merge(full, sub, kept, 0.3)
        merge_({"w": full}, {"w": sub}, {"w": kept}, 0.3)
        torch.testing.assert_close(full, expected)

    def test_into_parameters(self):
        layer = torch.nn.Linear(4, 3)
        full = dict(layer.named_parameters())
        before = {name: tensor.detach().clone() for name, tensor in full.items()}
        indices = {name: {0: torch.tensor([1])} for name in full}
        merge_(full, extract(full, indices), indices, 0.5)
        assert all(torch.equal(full[name], before[name]) for name in full)

    def test_extract_then_merge_changes_nothing(self):
        state = {"w": random_tensor((6, 5, 3, 3), torch.float32, seed=3)}
        before = state["w"].clone()
        indices = {"w": {0: torch.tensor([1, 4]), 1: torch.tensor([0, 2, 3])}}
        merge_(state, extract(state, indices), indices, 0.5)
        assert_same_bits(state["w"], before)


class TestAdd:
    @given(tensors_with_dims(FLOATS), st.floats(-2, 2), SEEDS)
    @settings(deadline=None)
    def test_equals_reference(self, case, scale, seed):
        tensor, dims = case
        part = random_tensor(naive_extract(tensor, dims).shape, tensor.dtype, seed)
        full, before = tensor.clone(), part.clone()
        add_(tensor, part, dims, scale)
        assert_added(tensor, full, part, dims, scale)
        assert_same_bits(part, before)

    @given(tensors_with_dims(FLOATS), st.floats(-2, 2))
    @settings(deadline=None)
    def test_dropped_coordinates_keep_every_bit(self, case, scale):
        tensor, dims = case
        odd = torch.tensor([-0.0, math.inf, -math.inf, math.nan], dtype=tensor.dtype)
        places = torch.arange(tensor.numel()).view(tensor.shape)
        tensor.copy_(odd[places % len(odd)])
        expected = tensor.clone()
        add_(tensor, torch.ones_like(naive_extract(tensor, dims)), dims, scale)
        for place, _ in kept_coordinates(tensor.shape, dims):
            expected[place] = tensor[place]
        assert_same_bits(tensor, expected)

    @pytest.mark.parametrize("dtype", FLOATS)
    @pytest.mark.parametrize("dims", [(0,), (1,), (0, 1), (0, 1, 2), (1, 3)])
    def test_many_blocks(self, monkeypatch, dtype, dims):
        monkeypatch.setattr(slots, "_BLOCK_BYTES", 256)
        full = random_tensor((13, 7, 5, 4), dtype, seed=1)
        kept = {dim: torch.arange(full.shape[dim])[dim::2] for dim in dims}
        part = random_tensor(naive_extract(full, kept).shape, dtype, seed=2)
        before = full.clone()
        add_(full, part, kept, 0.3)
        assert_added(full, before, part, kept, 0.3)

    def test_by_hand(self):
        full = torch.arange(12.0).view(3, 4)
        kept = {0: torch.tensor([0, 2]), 1: torch.tensor([1, 2])}
        add_(full, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), kept, 2.0)
        assert full.tolist() == [[0, 3, 6, 3], [4, 5, 6, 7], [8, 15, 18, 11]]


class TestRefusals:
    @pytest.fixture
    def full(self):
        return {"w": torch.zeros(3, 4), "b": torch.zeros(3)}

    @pytest.mark.parametrize(
        ("indices", "cause"),
        [
            ({"v": {0: torch.tensor([0])}}, "does not have"),
            ({"w": {2: torch.tensor([0])}}, r"dim 2 of w.*\(3, 4\)"),
            ({"w": {-1: torch.tensor([0])}}, "dim -1 of w"),
            ({"w": {0: torch.tensor([0, 3])}}, r"0\.\.3 of w, dim 0.*0\.\.2"),
            ({"w": {0: torch.tensor([-1, 2])}}, r"-1\.\.2 of w"),
            ({"w": {0: torch.tensor([2, 0])}}, "ascending"),
            ({"w": {0: torch.tensor([1, 1])}}, "ascending"),
            ({"w": {0: torch.tensor([1.0])}}, "float32"),
            ({"w": {0: torch.tensor([[1]])}}, r"\(1, 1\)"),
        ],
    )
    def test_indices_that_do_not_fit(self, full, indices, cause):
        with pytest.raises(ShapeError, match=cause):
            extract(full, indices)
        with pytest.raises(ShapeError, match=cause):
            merge_(full, full, indices, 0.5)

    @pytest.mark.parametrize(
        ("change", "cause"),
        [
            ({"b": None}, r"lacks \['b'\]"),
            ({"x": torch.zeros(1)}, r"adds \['x'\]"),
            ({"b": torch.ones(2)}, r"b has .*\(2,\) where .*\(3,\)"),
            ({"b": torch.ones(3, 1)}, r"\(3, 1\)"),
            ({"w": torch.ones(3, 4)}, r"w has .*\(3, 4\) where .*\(2, 4\)"),
            ({"b": torch.ones(3, dtype=torch.float64)}, "float64 .*float32"),
        ],
    )
    def test_an_update_that_does_not_fit_touches_nothing(self, full, change, cause):
        sub = {"w": torch.ones(2, 4), "b": torch.ones(3)} | change
        sub = {name: tensor for name, tensor in sub.items() if tensor is not None}
        with pytest.raises(ShapeError, match=cause) as caught:
            merge_(full, sub, {"w": {0: torch.tensor([0, 2])}}, 0.5)
        assert "\n" not in str(caught.value)
        assert all(not tensor.any() for tensor in full.values())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.float32, torch.bool])
def test_what_is_not_dropped_keeps_every_bit_at_full_size(dtype):
    whole = torch.tensor([-2, -1, 0, 1]).to(dtype)
    cut = torch.tensor([[-1, -2, -3], [4, -5, 6]]).to(dtype)
    state = {"whole": whole, "cut": cut}

    found = silenced(state, {"cut": {1: torch.tensor([0, 2])}})

    assert torch.equal(found["whole"], whole)
    assert found["whole"].data_ptr() != whole.data_ptr()
    assert torch.equal(found["cut"], torch.tensor([[-1, 0, -3], [4, 0, 6]]).to(dtype))
    assert torch.equal(cut, torch.tensor([[-1, -2, -3], [4, -5, 6]]).to(dtype))


def test_a_single_number_with_a_stride():
    full = {"gain": torch.tensor([[1.0, 2.0]], dtype=torch.float64)[:, 0]}
    whole = {"gain": {0: torch.tensor([0])}}
    sub = extract(full, whole)
    assert torch.equal(sub["gain"], torch.tensor([1.0], dtype=torch.float64))
    merge_(full, {"gain": sub["gain"] + 2}, whole, 0.5)
    assert full["gain"].item() == 2.0


def conjugate(tensor):
    """Return a view whose numbers are those of `tensor`, and whose memory's are not."""
    return tensor.conj().clone().conj()


def negative(tensor):
    return torch._neg_view(-tensor)


@pytest.mark.parametrize(
    ("view", "dtype"), [(conjugate, torch.complex64), (negative, torch.float32)]
)
@pytest.mark.parametrize(
    "dims", [{}, {0: [0, 2]}, {1: [1]}, {0: [0, 2], 1: [1, 2]}], ids=str
)
@pytest.mark.parametrize("weight", [1, 0.3, 0.8])
def test_views_of_other_numbers(view, dtype, dims, weight):
    torch.manual_seed(0)
    plain, dims = (
        torch.randn(3, 4, dtype=dtype),
        {d: torch.tensor(dims[d]) for d in dims},
    )
    full = view(plain)
    assert full.is_conj() or full.is_neg()
    assert content_hash({"w": full}) == content_hash({"w": plain})

    part = extract({"w": full}, {"w": dims})["w"]
    assert not part.is_conj()
    assert not part.is_neg()
    assert torch.equal(part, extract({"w": plain}, {"w": dims})["w"])

    fresh = torch.randn_like(part)
    merge_({"w": full}, {"w": view(fresh)}, {"w": dims}, weight)
    merge_({"w": plain}, {"w": fresh}, {"w": dims}, weight)
    torch.testing.assert_close(full, plain)

    add_(full, view(fresh), dims, weight)
    add_(plain, fresh, dims, weight)
    torch.testing.assert_close(full, plain)
