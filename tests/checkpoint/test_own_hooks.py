"""What a user's own strategy, functions and callbacks keep is saved, or told of."""

from functools import partial
from threading import Lock

import numpy as np
import pytest
from flwr.app import ConfigRecord, MetricRecord

from flwr_asyncdrop import AsyncFedAvg, AsyncStrategy, Checkpointer, speed_levels
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.checkpoint.files import all_checkpoints
from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.server.callbacks import Callback
from tests.checkpoint.small_runs import client, copy_of, mlp
from tests.grids import HandlerGrid
from tests.runs import record

pytestmark = pytest.mark.usefixtures("no_settling")


class Half:
    """As an aggregator of somebody's own has a state."""

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Halving(AsyncFedAvg):
    """Halves the learning rate while the loss does not fall."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.best = float("inf")
        self.bad = 0

    def configure_train(self, server_round, arrays, config, grid):
        given = ConfigRecord({"lr": 0.25 * 0.5**self.bad})
        return super().configure_train(server_round, arrays, given, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.bad += metrics["loss"] >= self.best
        self.best = min(self.best, metrics["loss"])
        return arrays, metrics


class Saved(Halving):
    def state_dict(self):
        return {"best": self.best, "bad": self.bad}

    def load_state_dict(self, state):
        self.best, self.bad = state["best"], state["bad"]


class Forgetful(Saved):
    """Saves one of two."""

    def load_state_dict(self, state):
        self.best = state["best"]


def run(
    folder,
    kind=AsyncFedAvg,
    *,
    resume=None,
    every=1,
    rounds=4,
    start=(),
    **more,
):
    """Run; return what the run comes to."""
    strategy = kind(
        in_flight=2,
        fleet=partial(speed_levels, num_levels=2, jitter=0.3),
        checkpointer=Checkpointer(folder, resume=resume, every=every, keep=99),
        **{"fraction_evaluate": 0.0, **more},
    )
    grid = HandlerGrid(client, node_ids=range(1, 5))
    settings = {"train_config": {"lr": 0.25}, **dict(start)}
    result = strategy.start(
        grid, record(mlp().state_dict()), num_rounds=rounds, **settings
    )
    arrays = result.arrays.to_torch_state_dict()
    return (
        {name: tensor.tolist() for name, tensor in arrays.items()},
        {n: dict(m) for n, m in result.train_metrics_clientapp.items()},
        {n: dict(m) for n, m in result.evaluate_metrics_clientapp.items()},
        {n: dict(m) for n, m in result.evaluate_metrics_serverapp.items()},
    )


def resumed(folder, *arguments, at=1, **more):
    """Resume a copy of a run from one of its checkpoints."""
    again = copy_of(folder, f"again-{at}")
    resume = all_checkpoints(again / "checkpoints")[::-1][at]
    return run(again, *arguments, resume=resume, **more)


def told(caplog):
    return [m for m in caplog.messages if "no checkpoint has" in m]


def lost(caplog):
    return [m for m in caplog.messages if "resumes without what it had" in m]


def test_a_strategy_with_a_state_is_the_one_that_was_never_interrupted(
    tmp_path, caplog
):
    whole = run(tmp_path / "whole", Saved)
    for at in range(4):
        assert resumed(tmp_path / "whole", Saved, at=at) == whole
    assert not told(caplog)
    assert not lost(caplog)


def test_without_one_it_is_told_once_and_the_run_keeps_its_checkpoints(
    tmp_path, caplog
):
    whole = run(tmp_path / "whole", Halving)
    first, *more = told(caplog)
    assert first == (
        "no checkpoint has Halving.best, so a run that resumes begins without: save it "
        "by state_dict and load_state_dict (see docs/checkpoints.md)"
    )
    assert ["Halving.bad, so" in each for each in more] == [True]
    assert len(all_checkpoints(tmp_path / "whole" / "checkpoints")) == 4
    caplog.clear()
    assert resumed(tmp_path / "whole", Halving, at=2) != whole
    (warning,) = lost(caplog)
    assert "it had in Halving.best when it was saved (see docs/" in warning


def test_what_its_load_state_dict_leaves_out_is_told_when_it_resumes(tmp_path, caplog):
    run(tmp_path / "whole", Forgetful)
    assert not told(caplog)
    resumed(tmp_path / "whole", Forgetful, at=3)
    (warning,) = lost(caplog)
    assert "it had in Forgetful.bad when it was saved" in warning


class Counts:
    """A function of metrics that counts, and is saved."""

    def __init__(self):
        self.count = 0

    def __call__(self, *_):
        self.count += 1
        return MetricRecord({"count": self.count})

    def measure(self, *_):
        return self()

    state_dict = Half.state_dict
    load_state_dict = Half.load_state_dict


class Uncounted(Counts):
    state_dict = None


def counting():
    count = 0

    def count_all(*_):
        nonlocal count
        count += 1
        return MetricRecord({"count": count})

    return count_all


def appending(seen, *_):
    seen.append(1)
    return MetricRecord({"count": len(seen)})


def defaulting(*_, seen=[0]):  # noqa: B006  # that is the case
    seen[0] += 1
    return MetricRecord({"count": seen[0]})


FUNCTIONS = [
    (Counts, ""),
    (lambda: Counts().measure, ""),
    (Uncounted, "Uncounted.count"),
    (lambda: Uncounted().measure, "Uncounted.count"),
    (counting, "the variable count of the function count_all"),
    (lambda: partial(appending, []), "an argument of the function appending"),
    (lambda: defaulting, "defaults of the function defaulting"),
]


@pytest.mark.parametrize("where", ["train_metrics_aggr_fn", "evaluate_fn"])
@pytest.mark.parametrize(("make", "says"), FUNCTIONS)
def test_functions(make, says, where, tmp_path, caplog):
    def settings():
        made = make()
        return {"start": {where: made}} if where == "evaluate_fn" else {where: made}

    whole = run(tmp_path / "whole", **settings())
    found = told(caplog)
    assert [f"no checkpoint has {says}, so" in each for each in found] == (
        [True] if says else []
    )
    again = resumed(tmp_path / "whole", at=2, **settings())
    assert bool(lost(caplog)) == bool(says)
    if not says:
        assert again == whole


class KeepsBest(AsyncFedAvg):
    """Keeps what its class begins with, as in docs/migrating.md."""

    best, pending = 0.0, {}  # that is the case

    def configure_evaluate(self, server_round, arrays, config, grid):
        self.pending[server_round] = arrays
        return super().configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        metrics = super().aggregate_evaluate(server_round, replies)
        self.pending.pop(server_round)
        self.best = max(self.best, metrics["size"])
        metrics["best"] = self.best
        return metrics


class Deeper(KeepsBest):
    def state_dict(self):
        return {"best": self.best}

    def load_state_dict(self, state):
        self.best = state["best"]


@pytest.mark.parametrize(("kind", "says"), [(KeepsBest, True), (Deeper, False)])
def test_what_a_class_begins_with(kind, says, tmp_path, caplog):
    whole = run(tmp_path / "whole", kind, fraction_evaluate=1.0)
    assert ["no checkpoint has KeepsBest.best, so" in m for m in told(caplog)] == (
        [True] if says else []
    )
    again = resumed(tmp_path / "whole", kind, fraction_evaluate=1.0)
    assert bool(lost(caplog)) == says
    if not says:
        assert again == whole


class Config:
    """A config that is half of the one before."""

    lr = 0.5

    def __call__(self, server_round):
        self.lr *= 0.5
        return ConfigRecord({"lr": self.lr})


class SavedConfig(Config):
    def state_dict(self):
        return {"lr": self.lr}

    def load_state_dict(self, state):
        self.lr = state["lr"]


@pytest.mark.parametrize(("kind", "says"), [(Config, True), (SavedConfig, False)])
def test_a_function_of_the_round(kind, says, tmp_path, caplog):
    whole = run(tmp_path / "whole", start={"train_config": kind()})
    again = resumed(tmp_path / "whole", start={"train_config": kind()})
    assert ("no checkpoint has Config.lr, so" in caplog.text) == says
    assert (again != whole) == says


def test_two_runs_of_one_strategy_begin_as_the_first(tmp_path, caplog):
    class Mine(AsyncFedAvg):
        seen = ()

        def summary(self):
            self.again = True
            return super().summary()

        def aggregate_train(self, server_round, replies):
            self.seen = (1,)
            return super().aggregate_train(server_round, replies)

    strategies = [Mine(in_flight=2, fleet=speed_levels, fraction_evaluate=0.0)]

    def the_same(checkpointer, **_):
        strategies[0].checkpointer = checkpointer
        return strategies[0]

    run(tmp_path / "first", the_same)
    run(tmp_path / "second", the_same)
    assert ["Mine.seen, so" in message for message in told(caplog)] == [True] * 2


def test_a_state_that_cannot_be_loaded_is_told_with_its_class(tmp_path):
    class Broken(Saved):
        def load_state_dict(self, state):
            self.best = state["beast"]

    run(tmp_path / "whole", Broken)
    says = r"Broken cannot load what its state_dict returned \(KeyError: 'beast'\)"
    with pytest.raises(CheckpointError, match=says):
        resumed(tmp_path / "whole", Broken)


class Averaging(AsyncFedAvg):
    """Keeps a moving average of the versions in a model of its own."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.ema = mlp()

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        new = arrays.to_torch_state_dict()
        for name, mine in self.ema.state_dict().items():
            mine.lerp_(new[name], 0.5)
        metrics["size"] = sum(float(p.detach().sum()) for p in self.ema.parameters())
        return arrays, metrics


class SavedAverage(Averaging):
    def state_dict(self):
        return {"ema": {n: t.clone() for n, t in self.ema.state_dict().items()}}

    def load_state_dict(self, state):
        self.ema.load_state_dict(state["ema"])


def test_an_average_of_the_versions_is_saved_or_told(tmp_path, caplog):
    run(tmp_path / "told", Averaging)
    assert ["has Averaging.ema, so" in each for each in told(caplog)] == [True]
    resumed(tmp_path / "told", Averaging, at=2)
    assert ["had in Averaging.ema when" in each for each in lost(caplog)] == [True]
    caplog.clear()
    whole = run(tmp_path / "saved", SavedAverage)
    for at in (0, 3):
        assert resumed(tmp_path / "saved", SavedAverage, at=at) == whole
    assert not told(caplog)
    assert not lost(caplog)


class HalfAveraging(Averaging):
    """Keeps it in half precision."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.ema.half()

    def aggregate_train(self, server_round, replies):
        arrays, metrics = AsyncFedAvg.aggregate_train(self, server_round, replies)
        new = arrays.to_torch_state_dict()
        for name, mine in self.ema.state_dict().items():
            mine.lerp_(new[name].half(), 0.5)
        return arrays, metrics


def test_an_average_in_half_precision_is_told(tmp_path, caplog):
    run(tmp_path, HalfAveraging)
    assert ["has HalfAveraging.ema, so" in each for each in told(caplog)] == [True]


class Loading(AsyncFedAvg):
    """Has a model for the versions that its hooks, or `evaluate_fn`, get."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.trained, self.tested = mlp(), mlp()

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.trained.load_state_dict(arrays.to_torch_state_dict())
        return arrays, metrics

    def configure_evaluate(self, server_round, arrays, config, grid):
        self.tested.load_state_dict(arrays.to_torch_state_dict())
        return super().configure_evaluate(server_round, arrays, config, grid)


class Following(Callback):
    """Has each version, and that of each round."""

    def __init__(self):
        self.newest, self.rounds = mlp(), mlp()

    def on_update(self, state, merged):
        self.newest.load_state_dict(state.arrays)

    def on_round(self, state, number):
        self.rounds.load_state_dict(state.served)


class Evaluating:
    """Has the version that is evaluated, in half precision too."""

    def __init__(self):
        self.model, self.half, self.later = mlp(), mlp().half(), mlp()

    def __call__(self, number, arrays):
        for model in (self.model, self.half, self.later):
            model.load_state_dict(arrays.to_torch_state_dict())
        self.later.bfloat16()


@pytest.mark.parametrize("every", [1, 2])
def test_a_model_into_which_versions_are_loaded_is_not_told(every, tmp_path, caplog):
    def settings():
        start = {"evaluate_fn": Evaluating()}
        return {"start": start, "callbacks": [Following()], "fraction_evaluate": 1.0}

    run(tmp_path / "whole", Loading, every=every, **settings())
    resumed(tmp_path / "whole", Loading, every=every, **settings())
    assert not told(caplog)
    assert not lost(caplog)


class Mean(Mixing):
    """An aggregator of somebody's own."""


class Notes(Callback):
    """A callback of somebody's own."""


def in_itself():
    inner: dict[str, object] = {}
    inner["me"] = inner
    return {"best": [inner]}


def nested(depth):
    return {"best": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (in_itself(), r"['best'][0]['me'] is the dict that it is in"),
        (nested(500), r"['best']"),
        ({"best": np.zeros((9, 9))}, r"['best']: array([["),
        ({"best": [{1}]}, r"['best'][0]: {1} cannot"),
        ({"best": Lock()}, r"['best']: <unlocked _thread.lock object"),
        ({"best": {1: 0.5}}, r"['best'] has the key 1, which is not a string"),
        ({1: 0.5}, " has the key 1, which is not a string"),
    ],
)
@pytest.mark.parametrize("kind", [Saved, Counts, Mean, Notes])
def test_a_state_that_cannot_be_saved_is_told_with_its_class(kind, odd, says, tmp_path):
    class Odd(kind):
        def state_dict(self):
            return odd

        def load_state_dict(self, state):
            pass

    settings = {
        Saved: lambda: {"kind": Odd},
        Counts: lambda: {"start": {"evaluate_fn": Odd()}},
        Mean: lambda: {"kind": AsyncStrategy, "aggregator": Odd()},
        Notes: lambda: {"callbacks": [Odd()]},
    }[kind]()
    with pytest.raises(CheckpointError) as caught:
        run(tmp_path, **settings)
    assert str(caught.value).startswith(f"Odd.state_dict(){says}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("callbacks", [list, lambda: [Notes()]])
def test_what_is_not_there_any_more_is_told_by_its_name(callbacks, tmp_path, caplog):
    run(tmp_path / "whole", Saved, start={"evaluate_fn": lambda *_: None})
    resumed(tmp_path / "whole", callbacks=callbacks())
    (warning,) = [each for each in caplog.messages if "not there now" in each]
    assert "has the state of 'strategy', which is not there now: it is" in warning
    assert "own-state" not in caplog.text


def test_checkpoints_of_versions_before_this_one(tmp_path, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(AsyncFedAvg, "_own_state", lambda *_: None)
        run(tmp_path / "whole", Saved)
    resumed(tmp_path / "whole", Saved)
    assert "own-state" not in caplog.text
    assert not lost(caplog)
