"""Paths that people give: which ones can be used, and folders that can be written."""

import os
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flwr_asyncdrop.exceptions import ConfigError

AnyPath = str | os.PathLike[str]
"""A path as users write it."""

_MOST_BYTES = 4095
# Control characters, half characters (of names that are not UTF-8), line and
# paragraph separators: they break the line that shows a path.
_UNSHOWN = frozenset({"Cc", "Cs", "Zl", "Zp"})

_NO_HOME = "names a home folder that does not exist: write the path in full"


def problem_of_path(text: str) -> str:
    """Say what is wrong with a path before anything looks for it; "" if nothing is."""
    if any(unicodedata.category(character) in _UNSHOWN for character in text):
        return "has characters that cannot be shown: use letters, digits and dashes"
    if len(os.fsencode(text)) > _MOST_BYTES:
        return f"is longer than {_MOST_BYTES} bytes: choose a shorter one"
    try:
        Path(text).expanduser()
    except RuntimeError:
        return _NO_HOME
    return ""


def as_folder_name(text: str) -> str:
    """Return a text without the characters that would make other folders of it."""
    return text.replace("/", "_").replace(":", ".")


def as_path(name: str, value: object) -> Path:
    """Return a path that is given as text or as an object; ``~`` is the home folder.

    ConfigError, which has the argument's `name`, if it is none.
    """
    if not isinstance(value, str | os.PathLike):
        raise ConfigError(f"{name}={value!r} must be a path: a string, or a Path")
    text = os.fsdecode(value)
    if not text or "\0" in text or not _is_encodable(text):
        raise ConfigError(f"{name}={value!r} names no file")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{name}={text!r} {_NO_HOME}") from error


def _is_encodable(text: str) -> bool:
    """Return whether the system has bytes for a text: it has none for most halves."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def tidied(path: Path) -> Iterator[None]:
    """Take a folder away, and those above it, that an error in the block left empty.

    Those that were there before stay.
    """
    missing = [each for each in (path, *path.parents) if not os.path.lexists(each)]
    try:
        yield
    except BaseException:
        for each in missing:
            with suppress(OSError, ValueError):  # it has files, or is none
                each.rmdir()
        raise


def make_output_folder(path: Path, key: str = "out-dir") -> Path:
    """Make a folder with its parents, and make sure that it takes files.

    ConfigError, which names the `key` that the path is of, says why it cannot be.
    """
    if problem := problem_of_path(str(path)):
        raise ConfigError(f"{key}={str(path)!r} {problem}")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        there = isinstance(error, FileExistsError)
        reason = "it is not a folder" if there else error.strerror
        raise ConfigError(
            f"{key}={str(path)!r} cannot be a folder for files ({reason}): choose "
            "another one, where you may write"
        ) from error
