"""What every room's tests share."""

import signal
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
import torch

from benchmarks import vision
from flwr_asyncdrop.simulation.private_flower import assume_identity
from tests.reviews import write_json_lines

# How long an example takes says more about what else the machine does.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")


# They start programs of Flower's, and look for them: one after the other, then.
_FLOWERS = "real Flower processes"
_FLOWERS_FOLDERS = {"device", "docker", "e2e"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests go to the same process of several (``pytest -n``)."""
    for item in items:
        is_flowers = item.path.parent.name in _FLOWERS_FOLDERS or any(
            item.iter_markers("e2e")
        )
        # A file's tests share what is expensive to make.
        group = _FLOWERS if is_flowers else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let Ctrl-C be tested where a shell started the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two threads on two busy cores wait for each other more than they compute."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def identity() -> None:
    """Let tests create messages, whichever of them runs first."""
    assume_identity(run_id=1)


@pytest.fixture(scope="session")
def vision_models() -> ModuleType:
    """Return ``torchvision.models``."""
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    return vision.vision_models()


@pytest.fixture
def reviews_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a few reviews in it, read past the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_json_lines(tmp_path)
    return tmp_path


@pytest.fixture
def no_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look twice for nodes without the pause in between."""
    monkeypatch.setattr("flwr_asyncdrop.server.nodes._POLL", 0.0)
