"""The ready-made ClientApp, where Flower looks for it; see `app.client`."""

from flwr.clientapp import ClientApp

from flwr_asyncdrop.app.client import capacity, evaluate, frozen, train

app = ClientApp(mods=[capacity, frozen])
app.train()(train)
app.evaluate()(evaluate)
