"""What breaks runs does so, and the audit sees it."""

import json
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from benchmarks.chaos import __main__ as chaos
from benchmarks.chaos import local
from benchmarks.chaos.audit import Audit, figures, summed, table
from benchmarks.chaos.books import Books
from benchmarks.chaos.faults import SPOILERS, TALLY, Fault, Plan
from benchmarks.chaos.grid import ChaoticGrid
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.local import LocalRun, run_local
from benchmarks.chaos.server import Settings
from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.server.state import RunState
from tests.grids import HandlerGrid
from tests.nightly import nightly


@given(
    counts=st.dictionaries(st.sampled_from(list(Fault)), st.integers(0, 4), max_size=5),
    fine=st.integers(10, 30),
    seed=st.integers(0, 9),
)
def test_a_plan_has_every_fault_and_never_three_in_a_row(counts, fine, seed):
    plan = Plan.draw(counts, fine, seed)
    assert Counter(plan.faults) - Counter({None: fine}) == Counter(counts)
    assert len(plan.faults) == sum(counts.values()) + fine
    in_a_row = "".join(".x"[fault is not None] for fault in plan.faults)
    assert "xxx" not in in_a_row
    assert plan[len(plan.faults)] is None
    assert Plan.loads(plan.dumps()) == plan


def test_another_seed_is_another_order():
    counts = {Fault.RAISES: 5, Fault.NAN: 5}
    assert Plan.draw(counts, 20, 0) == Plan.draw(counts, 20, 0)
    assert Plan.draw(counts, 20, 0) != Plan.draw(counts, 20, 1)


@pytest.mark.parametrize("fault", SPOILERS)
def test_every_spoiled_answer_is_refused(message, fault):
    sound = RecordDict(
        {
            "arrays": ArrayRecord({TALLY: Array(np.zeros(8, np.float32))}),
            "metrics": MetricRecord({"num-examples": 1, "task": 0}),
        }
    )
    expected = wire.Expected({TALLY: (8,)}, {TALLY: torch.float32}, wire.RecordKeys())
    wire.read_reply(Message(sound, reply_to=message), expected)
    SPOILERS[fault](sound)
    with pytest.raises(ReplyError):
        wire.read_reply(Message(sound, reply_to=message), expected)


@pytest.fixture
def message():
    grid = HandlerGrid(lambda message: None)
    task = train_message(0)
    grid.push_messages([task])
    return task


def train_message(seed, node=1):
    arrays = wire.to_record({TALLY: torch.zeros(8)})
    task = wire.TaskConfig(1, seed)
    return wire.make_task(arrays, {}, task, node_id=node, keys=wire.RecordKeys())


def chaotic(tmp_path, *faults):
    """A grid that answers at once, behind one that goes wrong."""
    grid = HandlerGrid(lambda message: Message(message.content, reply_to=message))
    ledger = Ledger.open_new(tmp_path / "run", Plan())
    return ChaoticGrid(grid, Plan(faults), ledger), ledger


def pull(grid, *ids):
    return [reply.metadata.reply_to_message_id for reply in grid.pull_messages(ids)]


def test_a_grid_without_faults_is_the_grid(tmp_path):
    grid, ledger = chaotic(tmp_path)
    assert grid.push_messages([train_message(7), train_message(8)]) == ["m0", "m1"]
    assert pull(grid, "m0") == ["m0"]
    assert pull(grid, "m0", "m1") == ["m1"]
    assert [entry["seed"] for entry in ledger.entries("delivered")] == [7, 8]
    assert [entry["fault"] for entry in ledger.entries("push")] == [None, None]


def test_replies_come_twice_again_or_never(tmp_path):
    faults = Fault.DUPLICATE, Fault.AGAIN, Fault.SWALLOWED
    grid, ledger = chaotic(tmp_path, *faults)
    ids = grid.push_messages([train_message(seed) for seed in range(3)])
    assert pull(grid, *ids) == ["m0", "m0", "m1"]
    assert pull(grid, *ids) == ["m1"]
    assert pull(grid, *ids) == []
    assert [entry["seed"] for entry in ledger.entries("delivered")] == [0, 1]
    assert [entry["fault"] for entry in ledger.entries("push")] == list(faults)


def test_a_task_is_not_accepted_and_a_node_is_away_for_a_while(tmp_path):
    grid, _ = chaotic(tmp_path, Fault.NOT_SENT, Fault.NODE_LEAVES)
    assert grid.push_messages([train_message(0, node=1)]) == []
    assert grid.push_messages([train_message(1, node=1)]) == ["m0"]
    assert grid.get_node_ids() == [2, 3]
    assert grid.push_messages([train_message(2, node=1)]) == []
    for seed in range(3, 14):
        grid.push_messages([train_message(seed, node=2)])
    assert grid.get_node_ids() == [1, 2, 3]
    assert pull(grid, "m0") == ["m0"]


def books(**changes):
    return {
        "failures": {"client-error": 1},
        "never_ended": 0,
        "forgotten": 0,
        "non_finite": 0,
        **changes,
    }


def ended_run(folder, *, tally, updates, faults=(), delivered=None, **changes):
    """Write the files of a run whose task `k` has fault `k` and seed `100 + k`."""
    ledger = Ledger.open_new(folder, Plan(tuple(faults)))
    for number in range(len(tally)):
        ledger.begin_task(seed=100 + number, partition=0)
    for number in range(len(tally)) if delivered is None else delivered:
        ledger.note("delivered", seed=100 + number)
    save_file({TALLY: torch.tensor([*tally, 0.0])}, folder / "model.safetensors")
    lines = [
        {"event": "update", "metrics": {"task": task}, "late": late}
        for task, late in updates
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "history.jsonl").write_text(text)
    (folder / "books.json").write_text(json.dumps(books(**changes)))
    return Audit.of("run", folder, expected=3, seconds=1.0)


def order(number, *, deadline=60.0, gives_up=90.0):
    timing = SimpleNamespace(deadline=deadline, gives_up=gives_up)
    return SimpleNamespace(number=number, timing=timing)


def books_at(path, time, *, arrays=None, **orders):
    """Return the books of a run with tasks 0 and 1 out, at a moment of its clock."""
    state = RunState.start_from(arrays or {"w": torch.zeros(2)}, seed=0)
    state.time, keeper = time, Books(path)
    for number in (0, 1):
        keeper.on_dispatch(state, order(number))
    keeper.on_update(state, SimpleNamespace(order=order(0)))
    for name, out in orders.items():
        setattr(state, name, {str(each.number): each for each in out})
    keeper.on_end(state)
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("orders", "time", "never_ended", "forgotten"),
    [
        ({"in_flight": [order(1)]}, 50.0, 0, 0),
        ({"late": [order(1)]}, 80.0, 0, 0),
        ({}, 50.0, 1, 0),
        ({"in_flight": [order(1)]}, 80.0, 0, 1),
        ({"late": [order(1)]}, 110.0, 0, 1),
    ],
)
def test_the_books_find_orders_that_vanish_or_are_forgotten(
    tmp_path, orders, time, never_ended, forgotten
):
    found = books_at(tmp_path / "books.json", time, **orders)
    assert (found["never_ended"], found["forgotten"]) == (never_ended, forgotten)


def test_the_books_count_what_is_not_finite_after_every_merge(tmp_path):
    arrays = {"w": torch.tensor([1.0, float("inf")]), "v": torch.tensor(float("nan"))}
    found = books_at(tmp_path / "books.json", 1.0, arrays=arrays)
    assert found["non_finite"] == 2


SOUND = {"tally": [1.0, 0.0, 1.0, 1.0], "updates": [(0, 0), (2, 0), (3, 0)]}


def test_a_sound_run(tmp_path):
    faults = [None, Fault.RAISES, Fault.LATE, None]
    audit = ended_run(tmp_path / "run", **SOUND, faults=faults)
    assert audit.survived
    assert audit.merged == 3
    assert (audit.lost, audit.twice, audit.stuck, audit.non_finite) == (0, 0, 0, 0)
    assert audit.faults == {Fault.RAISES: 1, Fault.LATE: 1}
    assert audit.healed == {Fault.LATE: 1}
    values = {figure.name: figure.value for figure in figures([audit, audit], 4)}
    assert values["faults_injected"] == 4
    assert values["runs_survived"] == 2
    assert "answer is late" in table([audit])
    assert "client-error 1" in table([audit])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"tally": [2.0, 0.0, 1.0, 1.0]}, "twice"),
        ({"updates": [(0, 0), (0, 0), (2, 0), (3, 0)]}, "twice"),
        ({"tally": [1.0, 0.0, 1.0, 1.0], "updates": [(0, 1), (2, 0), (3, 0)]}, "twice"),
        ({"never_ended": 1}, "stuck"),
        ({"forgotten": 1}, "stuck"),
        ({"non_finite": 1}, "non_finite"),
        ({"tally": [1.0, float("nan"), 1.0, 1.0]}, "non_finite"),
        ({"faults": []}, "lost"),
        ({"faults": [Fault.NAN, Fault.RAISES]}, "spoiled"),
    ],
)
def test_what_is_wrong_is_seen(tmp_path, changes, what):
    faults = [None, Fault.RAISES, None, None]
    run = {"faults": faults, **SOUND, **changes}
    assert getattr(ended_run(tmp_path / "run", **run), what) == 1


def test_a_task_that_is_sent_again_has_the_number_and_the_fault_it_had(tmp_path):
    ledger = Ledger.open_new(tmp_path / "run", Plan((None, Fault.NAN, Fault.RAISES)))
    assert ledger.begin_task(seed=5, partition=0) == (0, None)
    assert ledger.begin_task(seed=6, partition=0) == (1, Fault.NAN)
    assert ledger.begin_task(seed=5, partition=3) == (0, None)
    assert ledger.begin_task(seed=7, partition=0) == (2, Fault.RAISES)


def test_a_message_that_is_sent_again_after_a_restart_meets_its_fault_again(tmp_path):
    plan = Fault.DUPLICATE, None, Fault.NOT_SENT
    grid, ledger = chaotic(tmp_path, *plan)
    grid.push_messages([train_message(0), train_message(1)])
    inner = HandlerGrid(lambda message: Message(message.content, reply_to=message))
    grid = ChaoticGrid(inner, Plan(plan), ledger)
    again = grid.push_messages([train_message(seed) for seed in (1, 0, 2)])
    assert pull(grid, *again) == ["m0", "m1", "m1"]


@pytest.mark.parametrize("tally", [[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
def test_too_few_or_too_many_merges_are_no_survival(tmp_path, tally):
    assert not ended_run(tmp_path / "run", **{**SOUND, "tally": tally}).survived


def test_half_of_a_late_update_is_one_merge(tmp_path):
    updates = [(0, 1), (2, 0), (3, 0)]
    tally = [0.5, 0.0, 1.0, 1.0]
    audit = ended_run(tmp_path / "run", tally=tally, updates=updates)
    assert audit.twice == 0
    assert audit.survived


def test_an_answer_that_never_reached_the_server_is_not_its_loss(tmp_path):
    run = {**SOUND, "delivered": [0, 2, 3]}
    assert ended_run(tmp_path / "run", **run).lost == 0


@pytest.mark.parametrize(("delivered", "lost"), [([0, 1, 2, 3], 0), ([0, 3, 1, 2], 1)])
def test_an_answer_behind_the_last_merge_is_no_loss(tmp_path, delivered, lost):
    updates = [(0, 0), (1, 0), (2, 0)]
    run = {"tally": [1.0, 1.0, 1.0, 0.0], "updates": updates, "delivered": delivered}
    assert ended_run(tmp_path / "run", **run).lost == lost


def test_a_run_that_failed_says_why_and_has_the_figures_that_there_are(tmp_path):
    folder = tmp_path / "run"
    ended_run(folder, **SOUND, faults=[None, Fault.RAISES])
    (folder / "model.safetensors").unlink()
    (folder / "books.json").unlink()
    failed = Audit.of("run", folder, 3, 1.0, "its ServerApp has ended: Error: gone")
    assert not failed.survived
    assert (failed.merged, failed.twice, failed.lost) == (3, 0, 0)
    assert failed.faults == {Fault.RAISES: 1}
    audits = [failed, ended_run(tmp_path / "other", **SOUND, faults=[None, Fault.NAN])]
    values = {figure.name: figure.value for figure in figures(audits, 2)}
    assert values["runs_survived"] == 1
    assert values["faults_injected"] == 2
    (both,) = summed(audits)
    assert (both.expected, both.merged, both.seconds) == (6, 6, 1.0)
    assert "run FAILED: its ServerApp has ended: Error: gone" in table([both])


@pytest.mark.parametrize("lacking", [0, 1])
@pytest.mark.parametrize("times", [1, 10])
@pytest.mark.parametrize("part", ["all", "local", "fleet"])
def test_the_goal_of_a_part_is_the_faults_that_it_plans(
    tmp_path, monkeypatch, part, times, lacking
):
    """It was 200: more than one part has, and less than half of ten fleets' faults."""
    rest = [lacking]

    def run(run, folder):
        faults = Counter(run.clients) + Counter(run.messages)
        faults[Fault.RAISES] -= rest.pop() if rest else 0
        merges = run.settings.merges
        return Audit(run.name, merges, merges, faults, Counter(), 0, 0, 0, 0, 0, {}, 1)

    monkeypatch.setattr(chaos, "end_with_signals", lambda: None)
    monkeypatch.setattr(chaos, "run_local", run)
    monkeypatch.setattr(chaos, "run_fleet", run)
    words = ["chaos", "--part", part, "--times", str(times), "--keep", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    assert chaos.main() == lacking


def test_no_run_at_all_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(chaos, "end_with_signals", lambda: None)
    monkeypatch.setattr(sys, "argv", ["chaos", "--part=local", "--times=0"])
    with pytest.raises(SystemExit, match="2"):
        chaos.main()
    assert "--times 0: nothing would be broken" in capsys.readouterr().err


def test_a_run_that_left_nothing_is_no_survival(tmp_path):
    Ledger.open_new(tmp_path / "run", Plan())
    audit = Audit.of("run", tmp_path / "run", 3, 1.0, "it did not end in 900 s")
    assert not audit.survived
    assert (audit.merged, audit.lost, audit.twice) == (0, 0, 0)


@pytest.mark.parametrize("text", ["import no_such_module", "raise SystemExit(3)"])
def test_a_server_that_ends_is_not_waited_for(tmp_path, monkeypatch, text):
    def start(run, folder):
        with (folder / "server.log").open("w") as log:
            return subprocess.Popen([sys.executable, "-c", text], stderr=log)

    monkeypatch.setattr(local, "_start", start)
    settings = Settings(rounds=1, in_flight=2)
    audit = run_local(LocalRun("dead", settings, {}, {}), tmp_path / "run")
    assert audit.failure.startswith("its server ended with ")
    assert ("no_such_module" in audit.failure) == ("no_such_module" in text)
    assert audit.seconds < 60


@pytest.mark.parametrize("clock", [nightly("wall"), "virtual"])
def test_a_small_broken_run_survives(tmp_path, clock):
    run = LocalRun(
        "small",
        Settings(clock, rounds=4, in_flight=4, timeout=20.0),
        {Fault.RAISES: 2, Fault.NAN: 2, Fault.KILLED: 1},
        {Fault.DUPLICATE: 2, Fault.AGAIN: 2, Fault.NOT_SENT: 1},
        nodes=8,
        workers=2,
    )
    audit = run_local(run, tmp_path / "run")
    assert audit.survived
    assert audit.faults == {**run.clients, **run.messages}
    assert (audit.lost, audit.twice, audit.stuck, audit.non_finite) == (0, 0, 0, 0)
