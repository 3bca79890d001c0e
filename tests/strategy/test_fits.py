"""A run whose versions in flight may not fit into memory says so before it starts."""

import logging
from typing import ClassVar

import pytest
import torch
from flwr.app import ArrayRecord
from torch import nn

from benchmarks.scale import InstantGrid
from flwr_asyncdrop import (
    AsyncDrop,
    AsyncFedAvg,
    AsyncStrategy,
    FedBuff,
    speed_levels,
)
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.machine_memory import Memory
from flwr_asyncdrop.masks import MaskPolicy
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.steady_grid import SteadyGrid
from flwr_asyncdrop.strategy.fits import Demand, most_versions

MODEL = ArrayRecord({"weights": torch.zeros(250_000)})  # 1 MB
NODES = 64

pytestmark = pytest.mark.usefixtures("no_settling")


class Watched(InstantGrid):
    pushed = 0

    def push_messages(self, messages):
        self.pushed += 1
        return super().push_messages(messages)


@pytest.fixture
def said(monkeypatch, caplog):
    """Return a function that starts a run, and returns what was said of memory."""
    caplog.set_level(logging.WARNING, "flwr.asyncdrop")

    def start(memory, strategy=AsyncFedAvg, arrays=MODEL, grid=None, **options):
        monkeypatch.setattr(Memory, "here", lambda: memory)
        caplog.clear()
        grid = grid or Watched(NODES)
        options = {
            "in_flight": 32,
            "fleet": speed_levels,
            "fraction_evaluate": 0.0,
            **options,
        }
        strategy(**options).start(grid, arrays, num_rounds=1)
        return [m for m in caplog.messages if m.startswith("memory may run out")]

    return start


def test_it_says_what_would_fit(said):
    assert said(Memory(free=20_000_000, total=64 * 10**9)) == [
        "memory may run out: 32 devices in flight keep about 32 versions of a model "
        "of 1.00 MB, about 34.0 MB with what is being merged, and 20.0 MB are free: at "
        "most 18 devices in flight fit"
    ]


def test_what_would_fit_says_nothing(said):
    assert said(Memory(free=20_000_000), in_flight=18) == []
    assert len(said(Memory(free=20_000_000), in_flight=19)) == 1


def test_buffered_updates_share_versions(said):
    # Two groups of 16 and what is left of one: 3 versions. A sum, and 2 at work.
    assert said(Memory(free=6_000_000), FedBuff, buffer_size=16) == []
    (line,) = said(Memory(free=5_900_000), FedBuff, buffer_size=16)
    assert "about 3 versions" in line


def test_changes_that_are_kept_one_by_one_count(said):
    options = {"buffer_size": 16, "combine": "median"}
    assert said(Memory(free=21_000_000), FedBuff, **options) == []
    assert len(said(Memory(free=20_900_000), FedBuff, **options)) == 1


def test_nothing_is_said_where_nobody_knows_what_is_free(said):
    assert said(Memory()) == []


def test_no_model_at_all_fits(said):
    (line,) = said(Memory(free=1_000_000))
    assert line.endswith("not one device in flight fits: use a smaller model")


def test_a_guess_never_refuses_a_run(said):
    """All slow devices but one: two versions are in flight, not 32."""
    assert len(said(Memory(free=1, total=2_000_001))) == 1


def test_messages_that_leave_the_process_do_not_count(said):
    class Remote(InstantGrid):
        answers_at_once = False

    grid = Remote(NODES)
    assert said(Memory(free=1, total=1), grid=grid, fleet=None, in_flight=4) == []


def test_a_steady_grid_says_where_its_messages_are():
    class Remote(InstantGrid):
        answers_at_once = False

    assert SteadyGrid(InstantGrid(1)).answers_at_once
    assert not SteadyGrid(Remote(1)).answers_at_once


class TestSubmodels:
    """Each order has arrays of its own, and all of them are out at once."""

    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 4_000), nn.ReLU(), nn.Linear(4_000, 4))

    def options(self, **options):
        model = self.model()
        shared = {"model": model, "example_inputs": torch.zeros(1, 8)}
        arrays = ArrayRecord(model.state_dict())
        return {"strategy": AsyncDrop, "arrays": arrays, **shared, **options}

    def test_what_surely_cannot_be_is_refused_before_anything_is_sent(self, said):
        # 52 numbers a unit or so: 104 kB of 208 at drop rate 0.5, and 32 of them.
        grid = Watched(NODES)
        options = self.options(drop_rate=0.5, grid=grid)
        with pytest.raises(ConfigError) as refusal:
            said(Memory(total=1_000_000), **options)
        assert grid.pushed == 0
        text = str(refusal.value)
        assert text.startswith(
            "32 devices in flight keep a submodel of 104 kB each: that takes 1.66 MB at"
        )
        assert text.endswith("at most 7 devices in flight fit")
        assert "\n" not in text

    def test_what_may_be_is_only_warned_of(self, said):
        memory = Memory(free=1_000_000, total=2_000_000)
        (line,) = said(memory, **self.options(drop_rate=0.5))
        assert "32 devices in flight keep a submodel of 104 kB each, about" in line

    def test_a_policy_that_changes_with_every_task_is_not_asked_for_it(self, said):
        class InTurn(MaskPolicy):
            def __init__(self):
                self.count = 0

            def choose(self, context):
                self.count += 1
                first = self.count
                return tuple(torch.arange(first, g.size) for g in context.groups)

        class Kept(Callback):
            sizes: ClassVar[list[int]] = []

            def on_dispatch(self, state, order):
                self.sizes += [len(kept) for kept in order.part.kept.values()]

        options = self.options(
            strategy=AsyncStrategy, aggregator=Mixing(), masks=InTurn()
        )
        assert said(Memory(free=1), callbacks=[Kept()], **options)
        assert Kept.sizes[:3] == [3999, 3998, 3997]

    def test_devices_that_drop_out_may_leave_room(self, said):
        def losing(count):
            return speed_levels(count, dropout=0.01)

        options = self.options(drop_rate=0.5, fleet=losing)
        assert len(said(Memory(free=1, total=1_000_000), **options)) == 1


@pytest.mark.parametrize(
    ("in_flight", "updates_each", "num_updates", "versions"),
    [
        (8, 1, 100, 8),
        (128, 64, 1000, 3),
        (100, 64, 1000, 3),
        (1, 4, 50, 1),
        (8, 1, 3, 4),
    ],
)
def test_versions_by_hand(in_flight, updates_each, num_updates, versions):
    assert most_versions(in_flight, updates_each, num_updates) == versions


def test_the_least_of_a_full_model_is_two_versions():
    assert Demand(32, 32, 10).least == 20
    assert Demand(1, 1, 10).least == 10
    assert Demand(32, 32, 10).expected == 340


def test_the_least_of_submodels_that_grow_is_half_of_their_smallest():
    grown = Demand(32, 32, 10, submodels=True, steady=True, smallest=4)
    assert grown.least == 32 / 2 * 4
    assert grown.expected == 340
    assert Demand(32, 32, 10, submodels=True, steady=True).least == 32 / 2 * 10


def test_this_machine_knows_what_it_has():
    memory = Memory.here()
    assert memory.free is None or 0 < memory.free <= memory.total


class TestMemory:
    def here(self, tmp_path, container=None):
        meminfo = tmp_path / "meminfo"
        meminfo.write_text(
            "MemTotal:  1000 kB\nMemAvailable: 600 kB\nSwapTotal: 50 kB\n"
            "SwapFree: 20 kB\nHugePages_Total: 0\n"
        )
        cgroup = tmp_path / "cgroup"
        if container:
            cgroup.mkdir()
            (cgroup / "memory.max").write_text(container)
            (cgroup / "memory.current").write_text(str(100 * 1024))
            (cgroup / "memory.stat").write_text(f"inactive_file {30 * 1024}\n")
        return Memory.here(meminfo, cgroup)

    def test_of_a_machine(self, tmp_path):
        assert self.here(tmp_path) == Memory(620 * 1024, 1050 * 1024)

    def test_of_a_container(self, tmp_path):
        limit = str(400 * 1024)
        assert self.here(tmp_path, limit) == Memory(350 * 1024, 450 * 1024)

    def test_of_a_container_without_a_limit(self, tmp_path):
        assert self.here(tmp_path, "max") == Memory(620 * 1024, 1050 * 1024)

    @pytest.mark.parametrize(
        ("line", "names"),
        [
            ("0::/job/step", ("memory.max", "memory.current", "inactive_file")),
            (
                "4:hugetlb,memory:/job/step",
                (
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "total_inactive_file",
                ),
            ),
        ],
    )
    @pytest.mark.parametrize("least", ["job", "job/step", ""])
    def test_of_a_group_below_the_root(self, tmp_path, line, names, least):
        """A batch system limits such a one: of the root's limit alone it was unseen."""
        self.here(tmp_path)
        membership = tmp_path / "membership"
        membership.write_text(f"7:pids:/elsewhere\n{line}\n")
        root = tmp_path / "cgroup" / ("memory" if "memory:" in line else "")
        limit, used, cached = names
        for group in ("", "job", "job/step"):
            folder = root / group
            folder.mkdir(parents=True, exist_ok=True)
            most = 400 if group == least else 500
            (folder / limit).write_text(str(most * 1024))
            (folder / used).write_text(str(100 * 1024))
            (folder / "memory.stat").write_text(f"{cached} {30 * 1024}\n")
        found = Memory.here(tmp_path / "meminfo", tmp_path / "cgroup", membership)
        assert found == Memory(350 * 1024, 450 * 1024)

    @pytest.mark.parametrize(
        ("most", "used", "free", "total"),
        [("0", "0", 330, 400), ("10240", "4096", 336, 410), ("max", "0", 350, 450)],
    )
    @pytest.mark.parametrize("group", ["", "job/step"])
    def test_of_a_container_with_little_swap(
        self, group, most, used, free, total, tmp_path
    ):
        """Slurm may give its jobs none: that of the machine was counted."""
        self.here(tmp_path, str(400 * 1024))
        membership = tmp_path / "membership"
        membership.write_text("0::/job/step\n")
        folder = tmp_path / "cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.swap.max").write_text(f"{most}\n")
        (folder / "memory.swap.current").write_text(f"{used}\n")
        found = Memory.here(tmp_path / "meminfo", tmp_path / "cgroup", membership)
        assert found == Memory(free * 1024, total * 1024)

    def test_of_a_container_that_does_not_say_what_it_uses(self, tmp_path):
        self.here(tmp_path, str(400 * 1024))
        (tmp_path / "cgroup" / "memory.current").unlink()
        found = Memory.here(tmp_path / "meminfo", tmp_path / "cgroup")
        assert found == Memory(620 * 1024, 450 * 1024)

    def test_of_a_system_that_says_nothing(self, tmp_path):
        assert Memory.here(tmp_path / "no", tmp_path / "no") == Memory()
