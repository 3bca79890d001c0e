"""Hostile replies end in a refusal or a merge, and nothing else."""

import json
import math
import os
import tracemalloc

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import (
    AdaptivePerGroup,
    Buffered,
    Clipped,
    LatestPerGroup,
    Mixing,
    Update,
    combiner,
)
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.submodel import extract
from flwr_asyncdrop.wire.npy import read_array
from tests.aggregation.two_layers import PLAN, random_state
from tests.fuzz import hostile
from tests.masks.choosing import choose

# More of them: ASYNCDROP_FUZZ=5000 python -m pytest tests/fuzz
EXAMPLES = int(os.environ.get("ASYNCDROP_FUZZ", "40"))
KINDS = {
    "client-error",
    "records",
    "names",
    "unreadable",
    "shape",
    "dtype",
    "non-finite",
    "variance",
    "num-examples",
    "metrics",
}
AGGREGATORS = {
    "mixing": Mixing,
    "mean": lambda: Buffered(2),
    "examples": lambda: Buffered(2, combine=combiner("mean", 2, normaliser="examples")),
    "median": lambda: Buffered(3, combine=combiner("median", 3)),
    "remembered": lambda: LatestPerGroup(2, momentum=0.5),
    "adaptive": lambda: AdaptivePerGroup(2, combine_fresh=combiner("mean", 2)),
    "clipped": lambda: Clipped(Mixing(), 1.0),
}
MASK = PLAN.indices(
    choose(RandomMask(0.5), PLAN.groups, None, 0, 1, torch.Generator().manual_seed(0))
)
EXTRA = {"bn.running_var": torch.ones(6), "bn.num_batches_tracked": torch.tensor(3)}
HIDDEN = {"bn.running_var": {0: MASK["in.bias"][0]}}
INDICES = {**MASK, **HIDDEN}
FULL = {**random_state(0), **EXTRA}
SENT = extract(FULL, INDICES)
GOOD = {name: tensor.numpy() for name, tensor in SENT.items()}
EXPECTED = wire.Expected(
    {name: tuple(tensor.shape) for name, tensor in SENT.items()},
    {name: tensor.dtype for name, tensor in SENT.items()},
)


def merge(aggregator, state, reply):
    update = Update(
        reply.arrays,
        INDICES,
        staleness=1,
        num_examples=reply.num_examples,
        base=SENT,
    )
    return aggregator.merge(state, update)


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}


def same(first, second):
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def assert_sound(state):
    for name, tensor in state.items():
        assert tensor.shape == FULL[name].shape
        assert tensor.dtype == FULL[name].dtype
        assert bool(torch.isfinite(tensor).all()), name
    assert bool((state["bn.running_var"] >= 0).all())


def assert_printable(metrics):
    """Names of metrics go to terminals, logs, checkpoints and Prometheus."""
    for name, record in metrics.items():
        assert all(text.isprintable() and len(text) < 300 for text in (name, *record))
    json.dumps(wire.flat_metrics(metrics)).encode()


def test_the_reply_that_the_others_are_made_from_is_merged():
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(each) for name, each in GOOD.items()}),
            "metrics": MetricRecord({"num-examples": 3}),
        }
    )
    reply = wire.read_reply(Message(content, reply_to=hostile.TASK), EXPECTED)
    state = copied(FULL)
    assert merge(Mixing(0.5), state, reply)
    for name, tensor in state.items():
        torch.testing.assert_close(tensor, FULL[name])


def read(message):
    """Read a reply; None if it is refused, which takes one line of a known kind."""
    refusal = None
    try:
        return wire.read_reply(message, EXPECTED)
    except ReplyError as error:
        refusal = error
    assert refusal.kind in KINDS
    assert str(refusal).isprintable()
    assert len(str(refusal)) < 1500
    return None


@pytest.mark.parametrize("name", AGGREGATORS)
@settings(max_examples=EXAMPLES)
@given(st.lists(hostile.replies(GOOD), min_size=1, max_size=4))
def test_a_hostile_reply_is_refused_or_merged(name, messages):
    state, aggregator = copied(FULL), AGGREGATORS[name]()
    for message in messages:
        before = copied(state)
        reply = read(message)
        if reply is not None:
            assert_printable(reply.metrics)
        changed = reply is not None and merge(aggregator, state, reply)
        assert changed or same(state, before)
        assert_sound(state)
    assert not hostile.unpickled


def limits(dtype, shape):
    """Arrays that pass, as far out as any can be."""
    largest = math.sqrt(float(np.finfo(dtype).max)) * (1 - 1e-6)
    ends = st.sampled_from([largest, -largest, 0.0, 1e-45])
    return hnp.arrays(dtype, shape, elements=ends, fill=st.nothing())


@pytest.mark.parametrize("name", AGGREGATORS)
@settings(max_examples=10)
@given(st.data())
def test_values_that_pass_never_add_up_to_infinity(name, data):
    state, aggregator = copied(FULL), AGGREGATORS[name]()
    for _ in range(6):
        arrays = {
            key: data.draw(limits(np.float32, values.shape))
            for key, values in GOOD.items()
            if key in PLAN.shapes
        }
        content = RecordDict(
            {
                "arrays": ArrayRecord(
                    {key: Array(arrays.get(key, GOOD[key])) for key in GOOD}
                ),
                "metrics": MetricRecord({"num-examples": wire.MAX_EXAMPLES}),
            }
        )
        message = Message(content, reply_to=hostile.TASK)
        merge(aggregator, state, wire.read_reply(message, EXPECTED))
        assert_sound(state)


# Hypothesis tells of what it could not generate.
@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@settings(max_examples=2 * EXAMPLES)
@given(hostile.array(GOOD["in.weight"]))
def test_what_is_read_is_what_numpy_reads(array):
    """The strict reader never makes anything else of bytes that it takes."""
    try:
        values = read_array(array)
    except ValueError:
        return
    reference = array.numpy()
    assert values.dtype == reference.dtype.newbyteorder("=")
    np.testing.assert_array_equal(values, reference)


@pytest.mark.parametrize("data", hostile.PICKLES)
@pytest.mark.parametrize("stype", ["numpy.ndarray", "pickle"])
def test_a_pickle_is_never_loaded(data, stype):
    array = Array("object", (1,), stype, data)
    with pytest.raises(ValueError, match=r"^its? "):
        read_array(array)
    with pytest.raises(ValueError, match=r"^its? "):
        wire.from_record(ArrayRecord({"w": array}))
    assert not hostile.unpickled


def test_the_bomb_would_go_off():
    """Or the tests above could not fail."""
    np.load(hostile.BytesIO(hostile.PICKLES[0]), allow_pickle=True)
    assert hostile.unpickled
    hostile.unpickled.clear()


def test_no_memory_is_spent_on_claims():
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d,), }"
    bytes_of = [
        hostile.npy(header % 10**12, b"\0" * 64),
        hostile.npy(header % 8 + b" " * 10**6, b"\0" * 64),
        np.lib.format.magic(3, 0) + b"\xff" * 64,
    ]
    tracemalloc.start()
    try:
        for data in bytes_of:
            with pytest.raises(ValueError, match=r"^it"):
                read_array(Array("float64", (1,), "numpy.ndarray", data))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
