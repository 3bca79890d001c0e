"""The ready-made ClientApp, where Flower looks for it; see `app.client`."""

from flwr.clientapp import ClientApp

from flwr_asyncdrop.app.client import capacity, codec, evaluate, frozen, train

app = ClientApp(mods=[capacity, codec, frozen])
app.train()(train)
app.evaluate()(evaluate)
