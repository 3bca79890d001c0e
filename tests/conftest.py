"""What every room's tests share."""

from importlib.util import find_spec
from types import ModuleType

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two threads on two busy cores wait for each other more than they compute."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def vision_models() -> ModuleType:
    """Return ``torchvision.models``.

    Beside a CPU build of torch the import of torchvision's wheel stops at operators
    that only its CUDA build registers: their schemas are declared here.
    """
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    try:
        import torchvision.models
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        boxes = "Tensor dets, Tensor scores, float iou_threshold"
        library.define(f"nms({boxes}) -> Tensor")
        library.define(f"qnms({boxes}) -> Tensor")
        import torchvision.models
    return torchvision.models


@pytest.fixture
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look twice for nodes without the pause in between."""
    monkeypatch.setattr("flwr_asyncdrop.server.nodes._POLL", 0.0)
