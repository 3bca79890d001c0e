"""Commands for people to paste: what a shell reads is what was meant."""

import os
import shlex
from collections.abc import Sequence


def command_of(words: Sequence[str]) -> str:
    """Return a command of these words, in one line of characters that are shown."""
    return " ".join(map(quoted, words))


def quoted(word: str) -> str:
    """Return a word for a shell.

    The quotes that show what cannot be printed by its number are known to Bash, Zsh and
    BusyBox, and to POSIX since 2024. Two blanks in a row stand in quotes of their own,
    as a message has but one.
    """
    if word.isprintable():
        return shlex.quote(word).replace("  ", " '' ").replace("  ", " '' ")
    return f"$'{''.join(map(_escaped, word))}'"


def as_operand(path: str) -> str:
    """Return a relative path that no command takes for a flag."""
    return f"./{path}" if path.startswith("-") else path


def _escaped(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable() and character != " ":
        return character
    # Half a character stands for a byte of a name that is not UTF-8.
    return "".join(f"\\{byte:03o}" for byte in os.fsencode(character))
