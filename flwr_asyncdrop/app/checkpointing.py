"""The checkpointer that a run-config describes."""

from pathlib import Path

from flwr_asyncdrop.app.config import IRRELEVANT, LEFT_OUT, RunConfig
from flwr_asyncdrop.checkpoint import Checkpointer

_DEFAULTS = RunConfig().settings


def checkpointer_of(config: RunConfig, out: Path, command: str) -> Checkpointer | None:
    """Return the checkpointer of a run in folder `out`; None if it saves nothing.

    `command` resumes the run, "" for the ``flwr run`` that does.
    """
    if config.checkpoint_every == 0:
        return None
    return Checkpointer(
        out,
        resume=Path(config.resume).expanduser() if config.resume else None,
        every=config.checkpoint_every,
        keep=config.keep_checkpoints,
        settings=config.settings,
        incidental=IRRELEVANT,
        defaults=_DEFAULTS,
        command=command or _flwr_run(config, out),
    )


def _flwr_run(config: RunConfig, out: Path) -> str:
    """Return the ``flwr run`` that resumes a run; it needs as many nodes."""
    settings = {**config.settings, "out-dir": "", "resume": str(out)}
    given = (
        f"{key}={_toml(value)}"
        for key, value in settings.items()
        if value != _DEFAULTS.get(key, LEFT_OUT)
    )
    return f'flwr run . --run-config "{" ".join(given)}"'


def _toml(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value).lower()
