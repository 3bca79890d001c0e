"""The train config of every round."""

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ConfigRecord

from flwr_asyncdrop.exceptions import CheckpointError, ConfigError
from flwr_asyncdrop.parameters import plain
from flwr_asyncdrop.readable import printable, shown
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
        return _checked(config, name)
    if isinstance(config, Mapping):
        return _record(config, name)
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
    return _checked(made, name)


def record_or_function(config: Config, name: str) -> ConfigRecord | ConfigFn:
    """Return a function as it is, and else one record for all rounds.

    Hooks may change it from round to round, as with Flower's own loop.
    """
    return config if callable(config) else config_of(config, name, 1)


def _checked(config: ConfigRecord, name: str) -> ConfigRecord:
    """Return a config that can be sent: Flower's integers have 64 bits."""
    for key, value in config.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int) and not -(2**63) <= each < 2**63:
                raise ConfigError(
                    f"{name}[{key!r}]={shown(value)} cannot be sent: integers have 64 "
                    "bits, so pass a float, or a text"
                )
    return config


def _record(config: Mapping[str, Any], name: str) -> ConfigRecord:
    """Return the record of a mapping; numbers of NumPy and PyTorch become Python's."""
    record = ConfigRecord()
    for key, value in config.items():
        try:
            record[key] = _python(value)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{name}[{key!r}]={printable(shown(value))} cannot be sent: a config "
                "has names, and values that are numbers, texts, bytes, or lists of one "
                "of these"
            ) from error
    return _checked(record, name)


def with_objectives(
    config: Mapping[str, Any], added: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a user's config with what the local objective has `added`.

    ConfigError if the user has another value for one of these keys.
    """
    for key in sorted(config.keys() & added.keys()):
        if config[key] != added[key]:
            raise ConfigError(
                f"train_config[{key!r}]={shown(config[key])} would be lost, as the "
                f"objective of the strategy has {shown(added[key])}: set it there, "
                "e.g. by a hyperparameter of the strategy"
            )
    return {**config, **added}


class TrainConfigs:
    """What every task of a round is told: the user's config and the objective's.

    The user's record may change from round to round, as with Flower's own loop.
    """

    def __init__(self, config: Config, extra: Mapping[str, Any]) -> None:
        self._config = record_or_function(config, "train_config")
        # As the run began; None for a function.
        self._given = None if callable(self._config) else dict(self._config)
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
        entries = with_objectives(config, self._extra)
        if not self._by_round or self(server_round) != entries:
            self._by_round[server_round] = entries

    def state_dict(self) -> StateDict:
        """Return the configs of all rounds: tasks of earlier ones may be sent again."""
        return {
            "given": None if self._given is None else _plain_config(self._given),
            "by_round": {
                str(number): _plain_config(config)
                for number, config in self._by_round.items()
            },
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take them over; the user's record continues with the latest one.

        CheckpointError if that record is none that the run has had.
        """
        self._by_round = {
            int(number): _config_of_plain(saved)
            for number, saved in state["by_round"].items()
        }
        if isinstance(self._config, ConfigRecord) and self._by_round:
            if "given" in state:  # versions before this one did not save it
                given = state["given"]
                self._given = None if given is None else _config_of_plain(given)
                self._check_known(self._config)
            self._config.clear()
            self._config.update(self._own(self._by_round[max(self._by_round)]))

    def _own(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of a config is the user's."""
        return {key: v for key, v in config.items() if key not in self._extra}

    def _check_known(self, now: Mapping[str, Any]) -> None:
        """Raise CheckpointError unless a record is one that the run has had.

        One that hooks have changed may be passed once more, as in a notebook.
        """
        given = [] if self._given is None else [self._given]
        known = [_texts(self._own(one)) for one in (*given, *self._by_round.values())]
        are, were = _texts(self._own(now)), known[0]
        if are in known:
            return
        differences = [
            f"{key} {were.get(key, 'absent')}, now {are.get(key, 'absent')}"
            for key in {**were, **are}
            if were.get(key) != are.get(key)
        ]
        raise CheckpointError(
            f"the run that is to be resumed had another train_config "
            f"({'; '.join(differences)}): resume with the same, or start it again"
        )


def _texts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a config that can be compared: NaN is equal to itself."""
    return {key: repr(_python(value)) for key, value in config.items()}


def _python(value: Any) -> Any:
    """Return a value, or a list of values, as Python has it, and others as they are."""
    value = plain(value)
    return [plain(item) for item in value] if isinstance(value, list) else value


def _plain_config(config: Mapping[str, Any]) -> StateDict:
    return {key: _plain(value) for key, value in config.items()}


def _config_of_plain(saved: StateDict) -> dict[str, Any]:
    return {key: _value(value) for key, value in saved.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def _value(saved: Any) -> Any:
    if isinstance(saved, dict):
        return bytes.fromhex(saved["hex"])
    return [_value(item) for item in saved] if isinstance(saved, list) else saved
