"""How much real time a run takes, measured once for a folder of runs."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count
from pathlib import Path

from flwr_asyncdrop.app.run_folder import RunFolder
from flwr_asyncdrop.cli.race import Lane, Terms
from flwr_asyncdrop.cli.runs import RunSpec, all_runs, is_complete
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.storage.whole import changing, write_whole

_FILE = "timing.json"
_DIVISION = 9
_TIMED = "fedbuff"  # which does as many updates as any, with full models


@dataclass(frozen=True)
class Timing:
    """Real seconds of a core: to start and end a run, and for a whole run's work."""

    start: float
    whole: float


def measured(
    lanes: Sequence[Lane],
    terms: Terms,
    out: Path,
    do: Callable[[Sequence[RunSpec]], object],
) -> Timing:
    """Time a ninth of a run, or return what was measured.

    The run is one of the race's, unless that is there already: a run that is done, or
    resumes, does not say how long a process takes to start. RunError if it fails.
    """
    path = out / terms.measure.folder(1, _DIVISION) / _FILE
    if (found := _read(path)) is not None:
        return found
    lane = next((each for each in lanes if each.label == _TIMED), lanes[0])
    variant = lane.variant(lane.candidates[0], _DIVISION)
    places = chain([path.parent], (out / f"timed-{number}" for number in count(1)))
    choices = (
        all_runs([variant], terms.seeds[:1], terms.devices, place)[0]
        for place in places
    )
    run = next(each for each in choices if not each.folder.exists())
    begun = time.monotonic()
    do([run])
    seconds = time.monotonic() - begun
    log = RunFolder(run.folder).log if is_complete(run) else None
    if log is None:
        raise RunError(f"{run.name} has failed, so nothing can be timed")
    trained = log.wall_seconds
    timing = Timing(max(seconds - trained, 0.0), trained * _DIVISION)
    with changing(path):
        write_whole(path, json.dumps(asdict(timing)).encode())
    return timing


def _read(path: Path) -> Timing | None:
    try:
        content = json.loads(path.read_bytes())
        return Timing(float(content["start"]), float(content["whole"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None
