from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="module")
def grid_apps() -> Iterator[None]:
    """Make the tests' ClientApps importable here and in worker processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent / "apps"))
        yield
