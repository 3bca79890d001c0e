"""The parser of all commands: what is wrong with the words is an error of one line."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import did_you_mean


class Parser(argparse.ArgumentParser):
    """Raises a ConfigError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where the help is."""
        raise ConfigError(f"{message} (see {self.prog} --help)")

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Refuse words that mean nothing, with the flag that is closest to the first.

        The flags are those that the parser has been given.
        """
        flag = words[0].partition("=")[0]
        hint = did_you_mean(flag, self._option_string_actions)
        shown = " ".join(map(repr, words))
        self.error(f"unknown: {shown}{hint and f': {hint}'}")
