"""A run as MLflow sees it."""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from flwr_asyncdrop.extras import require
from flwr_asyncdrop.observers.outcomes import Outcome
from flwr_asyncdrop.observers.trackers.tracker import Setting, Tracker
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.storage.lock import FolderLock

_STATUS: Mapping[Outcome, str] = {
    "finished": "FINISHED",
    "ended early": "FAILED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}
_SQLITE = "sqlite:///"
_UNUSABLE = re.compile(r"[^\w .:/-]")
_NO_PART = re.compile(r"(?<![^/])\.{0,2}(?![^/])")  # of a path: "", "." and ".."
_PATIENCE = 100.0  # seconds, in which MLflow has made its tables
_LONGEST_NAME, _LONGEST_VALUE, _MOST_AT_ONCE = 250, 500, 100


class MlflowTracker(Tracker):
    """Writes a run to MLflow: to a server, or to a database on this machine.

    `Tracker` lists the metrics. The settings are MLflow's parameters. A run that
    resumes continues the same MLflow run. MLflow deletes no points: those after the
    checkpoint stay, and are not written again.

    Parameters
    ----------
    experiment : str
        Name of the experiment, which is made if it is not there.
    uri : str
        MLflow's tracking URI; by default that of MLflow: ``MLFLOW_TRACKING_URI``, or a
        database in the current folder.
    settings : mapping of str to bool, int, float or str
        The parameters that are shown.
    run_name : str
        The run's name; by default MLflow makes one up.

    Raises
    ------
    MissingExtraError
        If mlflow is not installed.
    """

    tool: ClassVar[str] = "MLflow"

    def __init__(
        self,
        experiment: str = "flwr-asyncdrop",
        uri: str = "",
        settings: Mapping[str, Setting] | None = None,
        *,
        run_name: str = "",
    ) -> None:
        require("mlflow", "mlflow")
        super().__init__(settings)
        self._experiment = experiment
        self._uri = uri
        self._run_name = run_name
        self._client: Any = None
        self._run = ""
        self._last: dict[str, int] = {}  # step by metric: of what was there before
        self._names = Names()

    def begin(self, settings: Mapping[str, Setting], began: float) -> StateDict:
        """Make a run, and write the settings."""
        with self._alone():
            self._connect()
            experiment = self._find_experiment()
        run = self._client.create_run(
            experiment,
            start_time=_milliseconds(began),
            run_name=self._run_name or None,
        )
        self._run, self._last, self._names = run.info.run_id, {}, Names()
        self._log_parameters(settings)
        return {"run": self._run}

    def resume(self, place: StateDict, update: int, began: float) -> StateDict:
        """Continue the run, and note which points it has."""
        self._connect()
        self._run, self._names = place["run"], Names(place.get("names", {}))
        self._client.update_run(self._run, status="RUNNING")
        for name in self._client.get_run(self._run).data.metrics:
            history = self._client.get_metric_history(self._run, name)
            self._last[name] = max((point.step for point in history), default=-1)
        return place

    def where(self, place: StateDict) -> StateDict:
        """Return the run, and what MLflow calls its metrics."""
        return {**place, "names": self._names.taken()}

    def write(self, values: Mapping[str, float], update: int, at: float) -> None:
        """Write metrics that the run does not have yet."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, _milliseconds(at), update)
            for name, value in self._names.of(values).items()
            if update > self._last.get(name, -1)
        ]
        for some in _portions(metrics):
            self._client.log_batch(self._run, metrics=some)

    def finish(
        self, summary: Mapping[str, float], update: int, at: float, outcome: Outcome
    ) -> None:
        """Write the summary, and how the run ended."""
        if outcome != "interrupted":
            values = {f"summary/{name}": value for name, value in summary.items()}
            self.write(values, update, at)
        self._client.set_tag(self._run, "outcome", outcome)
        end = _milliseconds(at)
        self._client.set_terminated(self._run, _STATUS[outcome], end_time=end)

    def _connect(self) -> None:
        from mlflow import MlflowClient

        database = _database(self._uri)
        if database is not None:
            database.parent.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(self._uri or None)

    def _alone(self) -> AbstractContextManager[object]:
        """Return what keeps others off a database while MLflow makes its tables."""
        database = _database(self._uri)
        if database is None:
            return nullcontext()
        return FolderLock(database.parent, f".{database.name}.lock", _PATIENCE)

    def _find_experiment(self) -> str:
        """Return the id of the experiment, which is made if it is not there."""
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            try:
                made: str = self._client.create_experiment(
                    self._experiment, artifact_location=self._artifacts()
                )
                return made
            except MlflowException:
                # Another run may just have made it.
                found = self._client.get_experiment_by_name(self._experiment)
                if found is None:
                    raise
        existing: str = found.experiment_id
        return existing

    def _artifacts(self) -> str | None:
        """Return where artifacts go: beside a database, else where MLflow wants."""
        database = _database(self._uri)
        return None if database is None else (database.parent / "artifacts").as_uri()

    def _log_parameters(self, settings: Mapping[str, Setting]) -> None:
        from mlflow.entities import Param

        parameters = [
            Param(name, str(value)[:_LONGEST_VALUE])
            for name, value in Names().of(settings).items()
        ]
        for some in _portions(parameters):
            self._client.log_batch(self._run, params=some)


def local_uri(folder: Path) -> str:
    """Return the tracking URI of a database in a folder.

    That is ``MLFLOW_TRACKING_URI`` where the user has set it.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    return given or f"{_SQLITE}{quote(str(folder.absolute() / 'mlflow.db'))}"


def _database(uri: str) -> Path | None:
    """Return the file of a database on this machine; None for anything else."""
    path = unquote(uri.removeprefix(_SQLITE))
    return Path(path).absolute() if uri.startswith(_SQLITE) and path else None


class Names:
    """Names that MLflow takes, which may be paths of files, no two the same.

    `taken` are those that were given before, by the name that they stand for.
    """

    def __init__(self, taken: Mapping[str, str] | None = None) -> None:
        self._by_name = dict(taken or {})

    def of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values under such names."""
        return {self._of_one(name): value for name, value in values.items()}

    def taken(self) -> dict[str, str]:
        """Return the names so far that MLflow has in another form."""
        return {name: own for name, own in self._by_name.items() if name != own}

    def _of_one(self, name: str) -> str:
        if name not in self._by_name:
            usable = _NO_PART.sub("_", _UNUSABLE.sub("_", name))
            own, number = usable[:_LONGEST_NAME].rstrip("/"), 1
            while own in self._by_name.values():
                number += 1
                own = f"{usable[: _LONGEST_NAME - 4].rstrip('/')}_{number}"
            self._by_name[name] = own
        return self._by_name[name]


def _portions(items: list[Any]) -> Iterable[list[Any]]:
    for start in range(0, len(items), _MOST_AT_ONCE):
        yield items[start : start + _MOST_AT_ONCE]


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
