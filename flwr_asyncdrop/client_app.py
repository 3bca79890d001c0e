"""The ready-made ClientApp, where Flower loads it from; see `app.client`."""

from flwr_asyncdrop.app import client

app = client.app
