"""The train config of every round."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ConfigRecord

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.state_dict import StateDict

ConfigFn = Callable[[int], ConfigRecord]
"""A config as a function of the round, from 1."""

Config = ConfigRecord | Mapping[str, Any] | ConfigFn | None
"""The same for all rounds, or by round."""


def config_of(config: Config, name: str, server_round: int) -> ConfigRecord:
    """Return the config of a round; `name` is that of the argument."""
    if config is None:
        return ConfigRecord()
    if isinstance(config, ConfigRecord):
        return config
    if isinstance(config, Mapping):
        return ConfigRecord(dict(config))
    if not callable(config):
        raise ConfigError(
            f"{name}={config!r} must be a ConfigRecord, or a function of the round "
            "that returns one"
        )
    made = config(server_round)
    if not isinstance(made, ConfigRecord):
        raise ConfigError(
            f"{name}({server_round}) returned {made!r}: return a ConfigRecord"
        )
    return made


class TrainConfigs:
    """What every task of a round is told: the user's config and the objective's.

    The user's record may change from round to round, as with Flower's own loop.
    """

    def __init__(self, config: Config, extra: Mapping[str, Any]) -> None:
        self._config = (
            config if callable(config) else config_of(config, "train_config", 1)
        )
        self._extra = dict(extra)
        self._by_round: dict[int, dict[str, Any]] = {}

    def __call__(self, server_round: int) -> Mapping[str, object]:
        """Return the config of a round that has begun."""
        return self._by_round[max(n for n in self._by_round if n <= server_round)]

    @property
    def begun(self) -> bool:
        """Whether a round has begun."""
        return bool(self._by_round)

    def current(self, server_round: int) -> ConfigRecord:
        """Return the user's config as it is when a round begins."""
        return config_of(self._config, "train_config", server_round)

    def begin(self, server_round: int, config: ConfigRecord) -> None:
        """Set the config of a round."""
        entries = {**config, **self._extra}
        if not self._by_round or self(server_round) != entries:
            self._by_round[server_round] = entries

    def state_dict(self) -> StateDict:
        """Return the configs of all rounds: tasks of earlier ones may be sent again."""
        return {
            "by_round": {
                str(number): {key: _plain(value) for key, value in config.items()}
                for number, config in self._by_round.items()
            }
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take them over; the user's record continues with the latest one."""
        self._by_round = {
            int(number): {key: _value(plain) for key, plain in config.items()}
            for number, config in state["by_round"].items()
        }
        if isinstance(self._config, ConfigRecord) and self._by_round:
            latest = self._by_round[max(self._by_round)]
            self._config.clear()
            self._config.update(
                {key: v for key, v in latest.items() if key not in self._extra}
            )


def _plain(value: Any) -> Any:
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _value(plain: Any) -> Any:
    return bytes.fromhex(plain["hex"]) if isinstance(plain, dict) else plain
