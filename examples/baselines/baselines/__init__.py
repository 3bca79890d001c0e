"""Asynchronous algorithms of others, as packages outside of flwr-asyncdrop."""
