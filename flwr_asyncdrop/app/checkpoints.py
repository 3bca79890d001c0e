"""The checkpoints of the ready app, as its run-config has them."""

from pathlib import Path

from flwr_asyncdrop.app.config import IRRELEVANT, RunConfig
from flwr_asyncdrop.checkpoint import Checkpoints

_DEFAULTS = RunConfig().settings


def checkpoints_of(config: RunConfig, out: Path, command: str) -> Checkpoints | None:
    """Return when and where a run saves itself; None if it does not.

    Parameters
    ----------
    config : RunConfig
        The configuration of the run.
    out : Path
        Its folder.
    command : str
        What makes it go on; "" for the ``flwr run`` that does.
    """
    if config.checkpoint_every == 0:
        return None
    return Checkpoints(
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
    """Return the ``flwr run`` that goes on with a run; it needs as many nodes."""
    settings = {**config.settings, "out-dir": "", "resume": str(out)}
    given = (
        f"{key}={_toml(value)}"
        for key, value in settings.items()
        if value != _DEFAULTS[key]
    )
    return f'flwr run . --run-config "{" ".join(given)}"'


def _toml(value: object) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value).lower()
