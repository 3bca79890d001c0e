"""Flower's legacy APIs are refused by name, with the way out."""

import pytest
from flwr.client import NumPyClient
from flwr.client import mod as legacy_mods
from flwr.clientapp import ClientApp
from flwr.server import Server, SimpleClientManager
from flwr.server import strategy as legacy

from flwr_asyncdrop import AsyncFedAvg, FedBuff, LocalGrid
from flwr_asyncdrop.exceptions import ConfigError, RunError
from tests.runs import answer, mlp, record

pytestmark = [
    pytest.mark.usefixtures("no_settling"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Numbers(NumPyClient):
    def get_parameters(self, config):
        return []

    def fit(self, parameters, config):
        return parameters, 1, {}


def legacy_client():
    return ClientApp(client_fn=lambda context: Numbers().to_client())


def client(*mods):
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        return answer(message, message.content["arrays"].to_torch_state_dict())

    return app


def why(make):
    """Return why a run ends in which every client fails."""
    with (
        LocalGrid(make, num_nodes=2, workers=0) as grid,
        pytest.raises(RunError) as caught,
    ):
        AsyncFedAvg(in_flight=2).start(grid, record(mlp().state_dict()), num_rounds=1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_numpy_client():
    assert "NumPyClient" in why(legacy_client)
    assert "@app.train() of flwr.clientapp.ClientApp" in why(legacy_client)


@pytest.mark.parametrize(
    "mod",
    [
        legacy_mods.fixedclipping_mod,
        legacy_mods.adaptiveclipping_mod,
        legacy_mods.LocalDpMod(1.0, 1.0, 1.0, 0.1),
    ],
)
def test_legacy_mods(mod):
    assert "take mods from flwr.clientapp.mod" in why(lambda: client(mod))


@pytest.mark.parametrize("mod", [legacy_mods.secagg_mod, legacy_mods.secaggplus_mod])
def test_secure_aggregation(mod):
    assert "secure aggregation adds up the updates of a whole round" in why(
        lambda: client(mod)
    )


def wrapped(strategy):
    return legacy.DifferentialPrivacyClientSideFixedClipping(strategy, 1.0, 1.0, 2)


@pytest.mark.parametrize("wrap", [lambda strategy: strategy, wrapped])
def test_a_legacy_server(wrap):
    server = Server(client_manager=SimpleClientManager(), strategy=wrap(FedBuff()))
    with pytest.raises(ConfigError, match="FedBuff does not run on Flower's legacy se"):
        server.fit(num_rounds=1, timeout=None)


@pytest.mark.parametrize("hook", ["configure_fit", "aggregate_fit", "evaluate"])
def test_its_other_hooks(hook):
    with pytest.raises(ConfigError, match=r"ServerApp with @app.main\(\) that calls"):
        getattr(FedBuff(), hook)(1, None, None)
