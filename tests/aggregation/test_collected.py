"""Updates that are summed up as they come give the bits of their mean."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.aggregation import Buffered, Update, combiner
from flwr_asyncdrop.aggregation.changes import Mean, change_of, held, mean_change
from flwr_asyncdrop.aggregation.collected import Changes, Summed, collected
from flwr_asyncdrop.state_dict import to_plain
from flwr_asyncdrop.submodel import add_, extract
from tests.nightly import examples
from tests.states import saved_and_read

UNITS = 6


def model(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "layer.weight": torch.randn(UNITS, 4, generator=generator),
        "layer.bias": torch.randn(UNITS, generator=generator),
        "half": torch.randn(UNITS, generator=generator).half(),
        "bn.running_var": torch.rand(UNITS, generator=generator),
        "half.running_var": torch.rand(UNITS, generator=generator).half(),
        "complex.running_mean": torch.randn(
            UNITS, dtype=torch.complex64, generator=generator
        ),
        "bn.num_batches_tracked": torch.randint(9, (), generator=generator),
    }


def update(seed, narrow):
    """Return an update of all units, or of some."""
    generator = torch.Generator().manual_seed(seed)
    indices = {}
    if narrow:
        kept = torch.randperm(UNITS, generator=generator)[:3].sort().values
        names = model(0).keys() - {"bn.num_batches_tracked"}
        indices = {name: {0: kept} for name in sorted(names)}
    arrays, base = (extract(model(seed + n), indices) for n in (1_000, 2_000))
    return Update(arrays, indices, 0, 1 + seed % 5, base)


def mean_of(state, updates, weights, normaliser):
    """Return the mean as it is written down: over all changes at once."""
    changes = [change_of(*each) for each in zip(updates, weights, strict=True)]
    return mean_change(state, changes, normaliser)


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("normaliser", ["size", "counts"])
@settings(max_examples=examples(40), deadline=None)
@given(
    narrow=st.lists(st.booleans(), min_size=1, max_size=5), seed=st.integers(0, 10**6)
)
def test_the_sum_has_the_bits_of_the_mean(normaliser, narrow, seed):
    state = model(seed)
    updates = [update(seed + 7 * n, each) for n, each in enumerate(narrow)]
    weights = [1 / (1 + n) for n in range(len(updates))]
    summed = Summed(len(updates), normaliser)
    for _ in range(2):  # it begins anew
        for each, weight in zip(updates, weights, strict=True):
            summed.add(state, each, weight)
        assert len(summed) == len(updates)
        expected = mean_of(state, updates, weights, normaliser)
        assert_same(summed.take(state), expected)
        assert len(summed) == 0


@pytest.mark.parametrize("name", ["mean", "trimmed-mean", "median"])
@pytest.mark.parametrize("waits", [False, True])  # changes are summed up, or kept
@pytest.mark.parametrize("normaliser", ["size", "counts"])
def test_statistics_whose_sum_half_precision_cannot_hold(name, waits, normaliser):
    state = {"bn.running_var": torch.full((3,), 5.0, dtype=torch.float16)}
    combine = combiner(name, 4, trim=0.0, normaliser=normaliser)
    buffer = Buffered(4, combine=combine, waits=waits)
    for kept in ([0, 1], [0, 1], [0, 1], [0]):
        indices = {"bn.running_var": {0: torch.tensor(kept)}}
        arrays = {"bn.running_var": torch.full((len(kept),), 4e4, dtype=torch.float16)}
        buffer.merge(state, Update(arrays, indices, 0, 1, arrays))
    assert state["bn.running_var"].dtype == torch.float16
    assert state["bn.running_var"].tolist() == [4e4, 4e4, 5.0]


@pytest.mark.parametrize("waits", [False, True])  # changes are summed up, or kept
@pytest.mark.parametrize("normaliser", ["size", "counts", "examples"])
def test_more_updates_than_half_precision_can_count(normaliser, waits):
    """It knows no 257 in bfloat16, and no 2,049 in float16."""
    count, dtype = 600, torch.bfloat16
    state = {
        "w": torch.zeros(2, dtype=dtype),
        "bn.running_var": torch.zeros(2, dtype=dtype),
    }
    combine = combiner("mean", count, normaliser=normaliser)
    buffer = Buffered(count, combine=combine, waits=waits)
    indices = {name: {0: torch.tensor([0])} for name in state}
    arrays = {name: torch.ones(1, dtype=dtype) for name in state}
    base = {name: torch.zeros(1, dtype=dtype) for name in state}
    for _ in range(count):
        buffer.merge(state, Update(arrays, indices, 0, 1, base))
    for tensor in state.values():
        assert tensor.dtype == dtype
        assert tensor.tolist() == [1.0, 0.0]


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_a_part_holds_what_it_would_be_added_to(data):
    shape = data.draw(st.lists(st.integers(1, 4), max_size=4))
    dims = {}
    for dim, size in enumerate(shape):
        if data.draw(st.booleans()):
            kept = sorted(data.draw(st.sets(st.integers(0, size - 1))))
            dims[dim] = torch.tensor(kept, dtype=torch.int64)
    small = [len(dims[dim]) if dim in dims else n for dim, n in enumerate(shape)]
    expected = torch.zeros(shape)
    add_(expected, torch.ones(small), dims)

    found = held(expected, dims)

    assert torch.equal(found.expand(shape), expected)
    assert all(size == 1 for dim, size in enumerate(found.shape) if dim not in dims)


def test_only_what_is_known_at_once_is_summed():
    assert isinstance(collected(4, Mean("size"), waits=False), Summed)
    assert isinstance(collected(4, Mean("counts"), waits=True), Summed)
    # A step may come before the fourth, and each counts for more then.
    assert isinstance(collected(4, Mean("size"), waits=True), Changes)
    # How many examples there are is known at the end.
    assert isinstance(collected(4, Mean("examples"), waits=False), Changes)
    assert isinstance(collected(4, combiner("median", 4), waits=False), Changes)


class Halved(Mean):
    """A mean of somebody's own."""

    def __call__(self, state, changes):
        mean = super().__call__(state, changes)
        return {name: tensor / 2 for name, tensor in mean.items()}


def test_a_subclass_of_a_mean_combines_as_it_says():
    state = {"w": torch.zeros(1)}
    buffer = Buffered(1, combine=Halved())
    buffer.merge(state, Update({"w": torch.ones(1)}, {}, 0, 1, {"w": torch.zeros(1)}))
    assert state["w"].tolist() == [0.5]


def test_memory_in_models():
    assert Buffered(64).collects == 1
    assert Buffered(64, combine=combiner("mean", 64, normaliser="counts")).collects == 2
    assert Buffered(64, combine=combiner("median", 64)).collects == 64
    assert Buffered(64, waits=True).collects == 64


def test_sums_take_no_more_with_every_update():
    summed, state = Summed(64, "size"), model(0)
    for n in range(10):
        summed.add(state, update(n, narrow=False), 1.0)
    numbers = sum(tensor.numel() for tensor in saved_tensors(summed.state_dict()))
    assert numbers == sum(tensor.numel() for tensor in state.values())


def saved_tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for each in value.values() for t in saved_tensors(each)]
    return []


@pytest.mark.parametrize("normaliser", ["size", "counts"])
def test_what_is_saved_stays_as_it_is_and_continues(normaliser):
    state, updates = model(0), [update(n, narrow=n % 2 == 0) for n in range(4)]
    summed = Summed(4, normaliser)
    for each in updates[:2]:
        summed.add(state, each, 0.5)
    saved = summed.state_dict()
    for each in updates[2:]:
        summed.add(state, each, 0.5)  # changes what was saved of nothing
    again = Summed(4, normaliser)
    again.load_state_dict(saved_and_read(saved))
    assert len(again) == 2
    for each in updates[2:]:
        again.add(state, each, 0.5)
    assert_same(again.take(state), summed.take(state))


@pytest.mark.parametrize("normaliser", ["size", "counts"])
def test_what_is_loaded_is_its_owners(normaliser):
    """Two that begin with one state do not add to each other's sums."""
    state, updates = model(0), [update(n, narrow=n % 2 == 0) for n in range(4)]
    first, *others = (Summed(4, normaliser) for _ in range(3))
    for each in updates[:2]:
        first.add(state, each, 0.5)
    saved = first.state_dict()
    for summed in others:
        summed.load_state_dict(saved)
    for summed in (first, *others):
        for each in updates[2:]:
            summed.add(state, each, 0.5)
    means = [summed.take(state) for summed in (first, *others)]
    assert_same(means[1], means[0])
    assert_same(means[2], means[0])


@pytest.mark.parametrize("normaliser", ["size", "counts"])
def test_checkpoints_of_before_have_changes(normaliser):
    state, updates = model(0), [update(n, narrow=n % 2 == 0) for n in range(4)]
    buffer = Buffered(4, combine=Mean(normaliser))
    old = {
        "changes": to_plain([change_of(each, 1.0) for each in updates[:2]]),
        "velocity": {},
    }
    buffer.load_state_dict(saved_and_read(old))
    straight = Buffered(4, combine=Mean(normaliser))
    for each in updates[:2]:
        straight.merge(state, each)
    # Saved once more before anything came: nothing is lost.
    buffer.load_state_dict(saved_and_read(buffer.state_dict()))
    resumed = {name: tensor.clone() for name, tensor in state.items()}
    for each, steps in zip(updates[2:], (False, True), strict=True):
        assert buffer.merge(resumed, each) == straight.merge(state, each) == steps
    assert_same(resumed, state)
