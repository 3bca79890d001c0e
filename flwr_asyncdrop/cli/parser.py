"""The parser of all commands: what is wrong with the words is an error of one line."""

import argparse
import re
from collections.abc import Sequence
from typing import NoReturn

from flwr_asyncdrop.cli.message import tell
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import did_you_mean

_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)")
_VALUE_OF_SWITCH = re.compile(r"argument (\S+): ignored explicit argument .*")


class Parser(argparse.ArgumentParser):
    """Raises a ConfigError where argparse would print its usage and exit."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, what was meant maybe, and where the help is."""
        hint = ""
        if found := _VALUE_OF_SWITCH.search(message):
            message = f"{found[1]} takes no value: give {found[1].replace('/', ' or ')}"
        elif found := _CHOICE.search(message):
            hint = did_you_mean(found[1], found[2].replace("'", "").split(", "))
        raise ConfigError(f"{message}{hint and f': {hint}'} (see {self.prog} --help)")

    def _print_message(self, message: str, _: object = None) -> None:
        # argparse ignores what cannot be written. Errors are not printed here.
        tell(message.removesuffix("\n"))

    def refuse(self, words: Sequence[str]) -> NoReturn:
        """Refuse words that mean nothing, with the flag that is closest to the first.

        The flags are those that the parser has been given.
        """
        flag = words[0].partition("=")[0]
        hint = did_you_mean(flag, self._option_string_actions)
        shown = " ".join(map(repr, words))
        self.error(f"unknown: {shown}{hint and f': {hint}'}")
