"""What every room's tests share."""

from importlib.util import find_spec
from types import ModuleType

import hypothesis
import pytest
import torch

from benchmarks import vision

# How long an example takes says more about what else the machine does.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two threads on two busy cores wait for each other more than they compute."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def vision_models() -> ModuleType:
    """Return ``torchvision.models``."""
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    return vision.vision_models()


@pytest.fixture
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look twice for nodes without the pause in between."""
    monkeypatch.setattr("flwr_asyncdrop.server.nodes._POLL", 0.0)
