"""The run-config of ``flwr run``, parsed once at the edge."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from flwr_asyncdrop.algorithms import Algorithm, algorithm
from flwr_asyncdrop.app.config.contradictions import contradictions
from flwr_asyncdrop.app.config.key_table import key_table
from flwr_asyncdrop.app.config.keys import LEFT_OUT
from flwr_asyncdrop.app.config.ranges import read_milestones
from flwr_asyncdrop.app.config.settings import Settings
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import details, did_you_mean
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.references import is_reference


@dataclass(frozen=True)
class RunConfig(Settings):
    """The settings of a run, checked, and what follows from them."""

    @classmethod
    def parse(cls, run_config: Mapping[str, object]) -> Self:
        """Read Flower's run-config; keys that are absent keep their defaults.

        Raises
        ------
        ConfigError
            If a key is unknown, has a value of the wrong type or out of range, or
            contradicts another. One line, by name, with the fix.
        """
        config = cls.read(run_config)
        for message in contradictions(config):
            raise ConfigError(message)
        return config

    @classmethod
    def read(cls, run_config: Mapping[str, object]) -> Self:
        """Read Flower's run-config as `parse` does; keys may contradict each other."""
        algo = run_config.get("algo", cls.algo)
        known = key_table(algo if isinstance(algo, str) else cls.algo)
        values: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for name, value in run_config.items():
            if name not in known:
                if value == LEFT_OUT:  # a key of another algorithm from outside
                    continue
                raise ConfigError(_unknown(name, list(known)))
            key = known[name]
            if key.own is None:
                values[key.field] = key.typed(value)
            elif value != LEFT_OUT:
                given[key.field] = key.typed(value)
        config = cls(**values, hyperparameters=given)
        config._check()
        return config

    def _check(self) -> None:
        """Raise ConfigError if a value is out of range."""
        kind = algorithm(self.algo)
        for key in key_table(self.algo).values():
            if key.own is None:
                key.details.range.check(key.name, getattr(self, key.field))
            elif key.field in self.hyperparameters:
                value = self.hyperparameters[key.field]
                if key.field not in details(kind):
                    raise ConfigError(
                        f"{key.name}={value!r} makes no difference to "
                        f"algo={self.algo!r}: leave it out, or choose one of "
                        f"{', '.join(key.own)}"
                    )
                key.details.range.check(key.name, value)
        _ = self.algorithm  # one from outside may check more

    @cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm with its hyperparameters."""
        try:
            return algorithm(self.algo)(**self.hyperparameters)
        except ConfigError:
            raise
        except Exception as error:  # no default, or whatever its code raises
            raise ConfigError(
                f"algo={self.algo!r} cannot be built: {one_line(error)}"
            ) from error

    def is_given(self, name: str) -> bool:
        """Return whether a key has another value than its default."""
        key = name.replace("-", "_")
        if hasattr(type(self), key):
            return bool(getattr(self, key) != getattr(type(self), key))
        return key in self.hyperparameters

    @property
    def settings(self) -> dict[str, Any]:
        """All values by key, as `parse` takes them; "" for what is left out."""
        return {
            name: getattr(self, key.field)
            if key.own is None
            else self.hyperparameters.get(key.field, LEFT_OUT)
            for name, key in key_table(self.algo).items()
        }

    @property
    def defaults(self) -> dict[str, Any]:
        """The values of an algorithm of one's own that were left out, by key.

        Those of this package's algorithms are known by its version: there are none.
        Nor are there those that no key can give, such as a function, and those that no
        history can have: what is not finite.
        """
        if not is_reference(self.algo):
            return {}
        fields = details(type(self.algorithm))
        found = {
            name: getattr(self.algorithm, key.field)
            for name, key in key_table(self.algo).items()
            if key.field in fields and key.field not in self.hyperparameters
        }
        kinds = bool | int | float | str | None
        return {
            name: own
            for name, own in found.items()
            if isinstance(own, kinds)
            and not (isinstance(own, float) and not math.isfinite(own))
        }

    @cached_property
    def milestones(self) -> tuple[float, ...]:
        """`lr_milestones` as numbers: fractions, or seconds."""
        return read_milestones(self.lr_milestones)[0]

    @property
    def milestones_in_seconds(self) -> bool:
        """Whether `lr_milestones` are seconds on the run's clock.

        Else they are fractions of the fastest device's updates.
        """
        return read_milestones(self.lr_milestones)[1]

    @property
    def data_path(self) -> Path | None:
        """`data_dir` as an absolute path; None if it is not set."""
        return Path(self.data_dir).expanduser().absolute() if self.data_dir else None


def _unknown(name: str, known: list[str]) -> str:
    hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
    return f"run-config key {name!r} is unknown: {hint}"
