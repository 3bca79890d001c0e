"""All that touches what Flower does not export, and all that is patched.

Flower exports what stands in ``__all__`` of ``flwr.app``, ``flwr.serverapp``,
``flwr.serverapp.strategy`` and ``flwr.clientapp``. Nothing here imports PyTorch.
"""
