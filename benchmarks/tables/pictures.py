"""The pictures of the pages of results, from the histories in ``results``.

``python -m benchmarks.tables.pictures`` draws ``docs/results-fair-*.png`` anew:
accuracy against virtual time, with the lower target of the ground's table.
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.tables.archives import ROOT, read
from benchmarks.tables.verdicts import goal
from flwr_asyncdrop.cli.message import say
from flwr_asyncdrop.exceptions import AsyncDropError
from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.pictures import draw_comparison
from flwr_asyncdrop.report.series import Series

PICTURES: Final[Mapping[str, str]] = {
    "mlp": "mlp-small",
    "cnn": "cnn-small",
    "lstm": "lstm-small",
    "transformer": "transformer-small",
    "lm": "lm-small",
    "tabular": "tabular-small",
    "links": "mlp-links",
    "dirichlet": "mlp-dirichlet",
    "dirichlet-half": "mlp-dirichlet-half",
    "iid": "mlp-iid",
    "crowd": "mlp-crowd",
    "adam": "mlp-adam",
    "five": "mlp-five",
    "full": "mlp-full",
    "cnn-full": "cnn-full",
    "lstm-full": "lstm-full",
    "transformer-full": "transformer-full",
    "lm-full": "lm-full",
    "tabular-full": "tabular-full",
}
"""The ground of each picture, by what its name ends with."""
_FIRST_SIX: Final = (
    "fedavg",
    "fedbuff",
    "fedbuff-wait",
    "hetero-asyncdrop",
    "asyncdrop-plus",
    "Ringleader",
)
_CLOSEST: Final = ("fedbuff", "fedbuff-wait", "asyncdrop-plus", "DelayAdaptive")
_SHOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "lstm-full": (*_CLOSEST, "hetero-asyncdrop", "FedGmr", "FedRolex"),
    "transformer-full": (*_CLOSEST, "FedRolex", "Qafel"),
}
"""Who is in a picture, where it is not the first six."""


def main() -> int:
    """Draw all of them."""
    try:
        for name, ground in PICTURES.items():
            picture_of(name).write_bytes(drawn(ground))
    except (AsyncDropError, OSError) as error:
        say(str(error))
        return 2
    return 0


def picture_of(name: str) -> Path:
    """Return where a picture is."""
    return ROOT / "docs" / f"results-fair-{name}.png"


def drawn(ground: str) -> bytes:
    """Return the picture of a ground, as PNG."""
    target = goal(read(ground)[0], 0.95)
    series = shown(ground)
    with tempfile.TemporaryDirectory() as folder:
        made = draw_comparison(series, compare(series, target), Path(folder))
        return made[0].path.read_bytes()


def shown(ground: str) -> list[Series]:
    """Return the runs in the picture of a ground."""
    labels = _SHOWN.get(ground, _FIRST_SIX)
    return [one for one in read(ground)[0] if one.label in labels]


if __name__ == "__main__":
    sys.exit(main())
