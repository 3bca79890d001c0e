"""The order of devices by speed, and their ranks, against sorting them all."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.fleet import speed_order
from flwr_asyncdrop.fleet.speed_order import SpeedOrder, Speeds
from tests.nightly import examples

SLOWNESS = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 7.25, np.inf])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(speed_order, "_BLOCK", 3)


@settings(max_examples=examples(60))
@given(st.data())
def test_the_order_is_that_of_sorting(data):
    known = dict(enumerate(data.draw(st.lists(SLOWNESS, max_size=12))))
    order = SpeedOrder([(slow, device) for device, slow in known.items()])
    for _ in range(data.draw(st.integers(0, 25))):
        if known and data.draw(st.booleans()):
            device = data.draw(st.sampled_from(sorted(known)))
            place = order.remove(device, known[device])
            assert place == sorted(zip(known.values(), known, strict=True)).index(
                (known[device], device)
            )
            del known[device]
        else:
            device = max(known, default=-1) + 1
            known[device] = data.draw(SLOWNESS)
            order.add(device, known[device])
        naive = sorted(zip(known.values(), known, strict=True))
        assert len(order) == len(naive)
        assert [order[at] for at in range(len(naive))] == [d for _, d in naive]
        for at, (slow, device) in enumerate(naive):
            assert order.place(device, slow) == at
        finite = [slow for slow, _ in naive if slow < np.inf]
        if finite:
            assert order.fastest == min(finite)
            assert order.median == np.median(finite)


def naive_ranks(slowness, present, num_ranks):
    order = sorted(present, key=lambda device: (slowness[device], device))
    return {d: place * num_ranks // len(order) for place, d in enumerate(order)}


@settings(max_examples=examples(60))
@given(st.data())
def test_a_change_names_every_device_whose_rank_changes(data):
    num_ranks = data.draw(st.integers(1, 5))
    slowness = data.draw(st.lists(SLOWNESS, min_size=1, max_size=30))
    everyone = range(len(slowness))
    present = set(data.draw(st.sets(st.sampled_from(everyone))))
    speeds = Speeds(num_ranks, slowness, present)
    for _ in range(15):
        before = naive_ranks(slowness, present, num_ranks)
        device = data.draw(st.sampled_from(everyone))
        if data.draw(st.booleans()):
            slowness[device] = data.draw(SLOWNESS)
            changed = speeds.set(device, slowness[device])
        elif device in present:
            present.remove(device)
            changed = speeds.leave(device)
        else:
            present.add(device)
            changed = speeds.join(device)
        after = naive_ranks(slowness, present, num_ranks)
        if changed is not None:
            moved = {d for d in everyone if before.get(d) != after.get(d)}
            assert moved <= {device, *changed}
        for each in everyone:
            assert speeds.rank(each) == after.get(each, num_ranks - 1)
        if finite := [slow for slow in slowness if slow < np.inf]:
            assert speeds.median == np.median(finite)
