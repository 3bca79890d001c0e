import pytest

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.needless_keys import warn_of_needless
from flwr_asyncdrop.app.server import build_strategy

TEXT = {"dataset": "tests.app.own:counting", "model": "transformer", "partition": "iid"}
RESNET = {"model": "resnet10", "width": 0.03}


def said(caplog, settings):
    config = RunConfig.parse({"algo": "asyncdrop", "model": "mlp", **settings})
    warn_of_needless(config, build_strategy(config).plan)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"scope": "internal"}, "scope='internal' makes no difference to model='mlp'"),
        ({**RESNET, "scope": "stream"}, "no residual stream under LayerNorm or RMSN"),
        ({"round-to": 129}, "round-to=129 makes no difference to model='mlp': its lay"),
        ({"deadline": 1.5}, "deadline=1.5 makes no difference: it is a multiple of"),
        ({"late": "drop", "dropout": 0.1}, "late='drop' makes no difference: without"),
    ],
)
def test_a_key_that_changes_nothing_is_named(settings, says, caplog):
    (line,) = said(caplog, settings)
    assert says in line


@pytest.mark.parametrize(
    "settings",
    [
        {"round-to": 128},
        {**RESNET, "scope": "internal"},
        {**TEXT, "scope": "stream"},
        {"algo": "fedavg"},
        {"deadline": 0.0},
        {"deadline": 1.5, "dropout": 0.1},
        {"deadline": 1.5, "late": "drop", "jitter": 0.1},
        {"deadline": 1.5, "late": "drop", "clock": "wall"},
    ],
)
def test_one_that_changes_something_is_no_news(settings, caplog):
    assert said(caplog, settings) == []
