"""``flwr run`` for people to paste: what a shell and Flower read is what was meant."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from flwr_asyncdrop.app.config import LEFT_OUT, RunConfig
from flwr_asyncdrop.app.fleets import keys_in
from flwr_asyncdrop.checkpoint import newest
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError
from flwr_asyncdrop.shell import quoted

_DEFAULTS = RunConfig().settings
_SPECIAL = re.compile(r'[\\"$`]')  # to a shell, between double quotes


def resume_what_is_there(out: Path, config: RunConfig) -> str:
    """Return the ``flwr run`` that resumes the run in a folder, which knows itself."""
    try:
        checkpoint = newest(out)
        before = RunConfig.parse(keys_in(checkpoint.settings))
        return resume_by_flwr_run(before, out, checkpoint.devices)
    except (CheckpointError, ConfigError):
        return resume_by_flwr_run(config, out)


def devices_of(out: Path) -> int:
    """Return how many devices the run in a folder has; 0 if no checkpoint says so."""
    try:
        return newest(out).devices
    except CheckpointError:
        return 0


def resume_by_flwr_run(config: RunConfig, out: Path, nodes: int = 0) -> str:
    """Return the ``flwr run`` that resumes a run; simulated, it needs as many nodes.

    It names them if they are known, which is not 0. Only who types it knows by which
    connection a real fleet is reached.
    """
    settings = {
        **config.settings,
        "out-dir": "",
        "overwrite": False,
        "resume": str(out),
    }
    given = {
        key: value
        for key, value in settings.items()
        if value != _DEFAULTS.get(key, LEFT_OUT)
    }
    is_real = config.clock == "wall"
    simulated = nodes and not is_real
    federation = f' --federation-config "num-supernodes={nodes}"' if simulated else ""
    app = ". CONNECTION" if is_real else "."
    return f"flwr run {app} --run-config {run_config_of(given)}{federation}"


def run_config_of(settings: Mapping[str, object]) -> str:
    """Return settings in the quotes in which a shell hands them to ``--run-config``."""
    return _in_quotes(
        " ".join(f"{key}={_toml(each)}" for key, each in settings.items())
    )


def _in_quotes(text: str) -> str:
    """Return a run-config for a shell: with double quotes, as it has single ones.

    An exclamation mark between these would be a command of before, and blanks in a row
    become one in a message.
    """
    if "!" in text or "  " in text or not text.isprintable():
        return quoted(text)
    escaped = _SPECIAL.sub(r"\\\g<0>", text)
    return f'"{escaped}"'


def _toml(value: object) -> str:
    """Return a value as Flower reads it: no quotes within its quotes."""
    if not isinstance(value, str):
        return str(value).lower()
    if "'" not in value and value.isprintable():
        return f"'{value}'"
    parts = (json.dumps(part, ensure_ascii=False)[1:-1] for part in value.split('"'))
    return '"' + r"\u0022".join(parts) + '"'
