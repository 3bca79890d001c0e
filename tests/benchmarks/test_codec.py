"""What the benchmark of the coders counts."""

import pytest
import torch

from benchmarks.codec import Speed, Task, coded, num_bytes, print_crossover, wire_ratio
from flwr_asyncdrop.wire.codec import Codec, codec, scheme


def state(count=1024):
    return {
        "weight": torch.linspace(-1, 1, count).reshape(-1, 16),
        "bias": torch.ones(255),
        "running_var": torch.ones(512),
        "steps": torch.zeros(512, dtype=torch.int64),
    }


def test_the_crossover_by_hand():
    # 80 Mbit less to send, two seconds of work: 40 Mbit/s.
    assert Speed(1.5, 0.5, raw=11_000_000, coded=1_000_000).crossover == 40


def test_small_tensors_and_statistics_travel_raw():
    assert list(coded(state())) == ["weight"]
    raw = 1024 * 4 + 255 * 4 + 512 * 4 + 512 * 8
    assert num_bytes(state(), None, unbiased=True) == raw
    weight = len(scheme("q4").encode(coded(state())["weight"], 0, unbiased=False))
    assert num_bytes(state(), scheme("q4"), unbiased=False) == raw - 4096 + weight


def test_the_ratio_is_both_ways_over_twice_the_full_model():
    task = Task(full=state(4096), down=state(), up=state())
    full, raw = (num_bytes(s, None, unbiased=True) for s in (task.full, task.up))
    assert wire_ratio(task, codec("none")) == raw / full
    down = num_bytes(task.down, scheme("q8"), unbiased=False)
    assert wire_ratio(task, Codec(scheme("q8"), None)) == pytest.approx(
        (down + raw) / (2 * full)
    )


def test_each_scheme_is_a_line(capsys):
    print_crossover({"q4": Speed(0.5, 0.25, 100_000_000, 12_500_000)})
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split() == ["q4", "200", "400", "4.00", "933"]
