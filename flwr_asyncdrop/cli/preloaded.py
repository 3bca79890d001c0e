"""Imported by the fork server of a comparison: what each run would do for itself.

What a run imports only when it trains, merges or draws, and the compiled merge, which
is loaded at its first use: up to two seconds of CPU of every run.
"""

from contextlib import suppress
from importlib import import_module

import torch

from flwr_asyncdrop.report.drawing import require_matplotlib
from flwr_asyncdrop.submodel import merge_

_MODULES = (
    "flwr_asyncdrop.cli.worker",
    "flwr_asyncdrop.report.pictures",
    "torch._dynamo",  # with the first optimiser
)

# Of an extra, or broken: then a run says so that needs it
with suppress(Exception):
    require_matplotlib()
for _name in _MODULES:
    with suppress(Exception):
        import_module(_name)
with suppress(Exception):
    merge_(
        {"w": torch.zeros(2)},
        {"w": torch.ones(1)},
        {"w": {0: torch.ones(1).long()}},
        0.5,
    )
