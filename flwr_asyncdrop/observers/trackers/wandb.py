"""A run as Weights & Biases sees it."""

import json
import logging
import os
import time
from collections.abc import Mapping
from datetime import datetime
from inspect import signature
from typing import Any, ClassVar, Literal
from uuid import uuid4

from flwr_asyncdrop.extras import require
from flwr_asyncdrop.observers.outcomes import Outcome
from flwr_asyncdrop.observers.trackers.tracker import Setting, Tracker
from flwr_asyncdrop.paths import AnyPath, as_path
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.storage.whole import write_whole

logger = logging.getLogger("flwr.asyncdrop")

Mode = Literal["", "online", "offline", "disabled"]


class WandbTracker(Tracker):
    """Writes a run to Weights & Biases.

    `Tracker` lists the metrics. Each row has ``update`` and ``seconds`` (the run's
    clock), either of which can be the x axis. The settings are the run's config.

    A run that resumes keeps its id. What it has written already is not written again:
    a file in `folder` says how far it was. Offline it goes on in a second folder of
    the same id, and ``wandb sync --append`` puts both together.

    Parameters
    ----------
    project : str
        The project of the run.
    mode : str
        ``"online"``, ``"offline"`` or ``"disabled"``; by default ``WANDB_MODE``, or,
        if nobody is logged in, ``"offline"``, which the log says.
    folder : str or Path
        In its subfolder ``wandb`` the library keeps its files.
    settings : mapping of str to bool, int, float or str
        The config that is shown.
    run_name : str
        The run's name; by default Weights & Biases makes one up.

    Raises
    ------
    MissingExtraError
        If wandb is not installed.
    """

    tool: ClassVar[str] = "Weights & Biases"

    def __init__(
        self,
        project: str = "flwr-asyncdrop",
        mode: Mode = "",
        folder: AnyPath = os.curdir,
        settings: Mapping[str, Setting] | None = None,
        *,
        run_name: str = "",
    ) -> None:
        require("wandb", "wandb")
        super().__init__(settings)
        self._project = project
        self._mode = mode
        self._run_name = run_name
        self._folder = as_path("folder", folder).absolute()
        self._run: Any = None
        self._began_at = 0.0
        self._last: dict[str, int] = {}  # step by metric

    def begin(self, settings: Mapping[str, Setting], began: float) -> StateDict:
        """Begin a run with an id of its own."""
        place, self._last = {"id": uuid4().hex[:12]}, {}
        self._open(place["id"], began, dict(settings))
        return place

    def resume(self, place: StateDict, update: int, began: float) -> StateDict:
        """Continue the run with its id, from the points that it has."""
        # The library names a folder by the second, and would write into it again.
        while any(self._folder.glob(f"wandb/*-{_this_second()}-{place['id']}")):
            time.sleep(0.1)
        self._open(place["id"], began, None)
        if self._written.exists():
            self._last = json.loads(self._written.read_text(encoding="utf-8"))
        return place

    def write(self, values: Mapping[str, float], update: int, at: float) -> None:
        """Write a row of what the run does not have yet."""
        new = {n: v for n, v in values.items() if update > self._last.get(n, -1)}
        if new:
            seconds = at - self._began_at
            self._run.log({**new, "update": update, "seconds": seconds})
            self._last.update(dict.fromkeys(new, update))
            write_whole(self._written, json.dumps(self._last).encode())

    def finish(
        self, summary: Mapping[str, float], update: int, at: float, outcome: Outcome
    ) -> None:
        """Write the summary, and close the run."""
        self._run.summary.update({f"summary/{n}": v for n, v in summary.items()})
        self._run.summary["outcome"] = outcome
        self._run.finish(exit_code=int(outcome != "finished"))

    def release(self) -> None:
        """Close the run: with its id it resumes once nobody has it open."""
        if self._run is not None:
            self._run.finish(exit_code=1)

    def _open(self, run: str, began: float, config: dict[str, Any] | None) -> None:
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        self._began_at = began
        self._run = wandb.init(
            project=self._project,
            id=run,
            name=self._run_name or None,
            dir=str(self._folder),
            mode=self._chosen_mode(),
            resume=None if config is not None else "allow",
            config=config,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False
            ),
        )
        self._run.define_metric("update")
        self._run.define_metric("seconds")
        self._run.define_metric("*", step_metric="update")
        self._written = self._folder / "wandb" / f"written-{run}.json"
        self._written.parent.mkdir(exist_ok=True)

    def _chosen_mode(self) -> Any:
        if mode := self._mode or os.environ.get("WANDB_MODE", ""):
            return mode
        if _is_logged_in():
            return "online"
        logger.warning(
            "nobody is logged in to Weights & Biases: the run is written offline to "
            "%s; `wandb login`, then `wandb sync`, uploads it",
            self._folder / "wandb",
        )
        return "offline"


def _is_logged_in() -> bool:
    """Return whether there are credentials, which nobody is asked for."""
    import wandb

    if "prompt" not in signature(wandb.login).parameters:  # before 0.31
        return bool(wandb.api.api_key)
    found: bool = wandb.login(prompt=False, verify=False)
    return found


def _this_second() -> str:
    return datetime.now().astimezone().strftime("%Y%m%d_%H%M%S")
