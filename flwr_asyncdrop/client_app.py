"""The ready-made ClientApp, where Flower looks for it; see `app.client`."""

from flwr.clientapp import ClientApp

from flwr_asyncdrop.app.client import capacity, evaluate, train
from flwr_asyncdrop.client.codec_mod import CodecMod

app = ClientApp(mods=[capacity, CodecMod()])
app.train()(train)
app.evaluate()(evaluate)
