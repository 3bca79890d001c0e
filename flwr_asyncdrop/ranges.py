"""Checks what people pass in."""

from flwr_asyncdrop.exceptions import ConfigError


def check_ranges(*rows: tuple[str, object, bool, str]) -> None:
    """Check a table of values.

    Parameters
    ----------
    *rows : tuple of (str, object, bool, str)
        The name of each value, the value, whether it is in its range, and that range
        in words that follow "must be".

    Raises
    ------
    ConfigError
        If one is not; of several, the first is named.
    """
    for name, value, valid, range_ in rows:
        if not valid:
            raise ConfigError(f"{name}={value!r} must be {range_}")
