"""Asynchronous federated learning for Flower, with really smaller submodels."""

__all__: list[str] = []
