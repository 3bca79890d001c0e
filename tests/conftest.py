"""What every room's tests share."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
import torch

from benchmarks import vision
from flwr_asyncdrop.flower_internals.identity import assume_identity
from tests.imports import forgotten
from tests.nightly import examples
from tests.reviews import write_json_lines

REPOSITORY = Path(__file__).parents[1]
OF_A_TERMINAL = (
    *("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES"),
    *("TTY_COMPATIBLE", "TTY_INTERACTIVE"),
)
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")

# How long an example takes says more about what else the machine does.
hypothesis.settings.register_profile(
    "asyncdrop", deadline=None, max_examples=examples(100)
)
hypothesis.settings.load_profile("asyncdrop")

# For what test modules build as they are imported
torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Let Ctrl-C be tested where a shell started the tests in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Give the modules of a test the same weights each time.

    By chance, a small random layer has units that no input wakes, and does nothing.
    """
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def own_imports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what a test imports from its folder, and the path, from the next test."""
    with forgotten(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two threads on two busy cores wait for each other more than they compute."""
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start


@pytest.fixture(scope="session", autouse=True)
def plain_environment() -> Iterator[None]:
    """Take back what a CI or a shell asks of all programs.

    Colours, bars and a width of what they print, and a proxy, which does not reach
    this machine's own ports.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in (*OF_A_TERMINAL, *PROXIES, *map(str.upper, PROXIES)):
            patch.delenv(name, raising=False)
        yield


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


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Find real data sets: $ASYNCDROP_TEST_DATA, or a folder beside the checkout."""
    named = os.environ.get("ASYNCDROP_TEST_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; name its folder in ASYNCDROP_TEST_DATA")
    return folder


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


@pytest.fixture
def fresh_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for nodes at every chance, however long the last look took."""
    monkeypatch.setattr("flwr_asyncdrop.server.nodes._PAUSE", 0)
