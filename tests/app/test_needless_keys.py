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
    ],
)
def test_a_key_that_leaves_submodels_as_they_are_is_named(settings, says, caplog):
    (line,) = said(caplog, settings)
    assert says in line


@pytest.mark.parametrize(
    "settings",
    [
        {"round-to": 128},
        {**RESNET, "scope": "internal"},
        {**TEXT, "scope": "stream"},
        {"algo": "fedavg"},
    ],
)
def test_one_that_does_not_is_no_news(settings, caplog):
    assert said(caplog, settings) == []
