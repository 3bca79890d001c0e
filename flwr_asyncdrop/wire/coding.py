"""How the arrays of one task travel: what its config says of that."""

from dataclasses import dataclass
from typing import Any

from flwr.app import Message, RecordDict

from flwr_asyncdrop.wire.records import config_with, configs_without, received_with

_RECORD = "asyncdrop-codec-record"
_RUN = "asyncdrop-codec-run"
_FIELDS = {
    "down": "asyncdrop-codec-down",
    "up": "asyncdrop-codec-up",
    "down_seed": "asyncdrop-codec-down-seed",
    "up_seed": "asyncdrop-codec-up-seed",
    "feedback": "asyncdrop-codec-feedback",
}


@dataclass(frozen=True)
class Coding:
    """How the arrays of one task travel.

    Attributes
    ----------
    down, up : str
        Names of the schemes of the weights, and of the change that comes back; "" for
        arrays as they are.
    down_seed, up_seed : int
        Of whatever the schemes draw.
    feedback : bool
        Whether the device adds to its change what coding has cost earlier ones.
    """

    down: str = ""
    up: str = ""
    down_seed: int = 0
    up_seed: int = 0
    feedback: bool = False

    @property
    def name(self) -> str:
        """Both schemes in one word, "" if the arrays travel as they are."""
        if self.down == self.up:
            return self.up
        return f"{self.down or 'none'}/{self.up or 'none'}"

    def entries(self, record: str, run: str = "") -> dict[str, str | int | bool]:
        """Return what the config of a task says; `record` is the key of its arrays.

        A device must know the `run`: it sends nothing that it owes another one.
        """
        if not self.name:
            return {}
        entries = {key: getattr(self, name) for name, key in _FIELDS.items()}
        return {_RECORD: record, _RUN: run, **entries}


def read_coding(message: Message) -> tuple[str, Coding] | None:
    """Return, on the client, the key of the arrays and how they travel.

    None if they travel as they are.
    """
    config = config_with(message, _RECORD)
    if config is None:
        return None
    values: dict[str, Any] = {name: config[key] for name, key in _FIELDS.items()}
    return str(config[_RECORD]), Coding(**values)


def without_coding(message: Message) -> Message:
    """Return, on the client, another message for the app behind who has decoded it.

    It says nothing of how the arrays travel, so that nobody else codes its reply.
    """
    configs = configs_without(message.content, {_RECORD, _RUN, *_FIELDS.values()})
    return received_with(message, RecordDict({**message.content, **configs}))


def read_run(message: Message) -> str:
    """Return, on the client, the run that its feedback belongs to, "" if unknown."""
    config = config_with(message, _RUN)
    return "" if config is None else str(config[_RUN])
