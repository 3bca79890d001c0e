"""Waiting for the parts of a message that are still on their way.

Flower shows a message as soon as it is announced. Its parts come later. Whoever looks
at once finds parts missing, and Flower waits for a second, then for two, and so on,
before it looks again. Here the first wait is 30 ms, and the waits double as before.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

PULL_OBJECTS = "pull_objects"
"""Flower's function that waits for parts, as the modules that use it call it."""

_FIRST_WAIT = "initial_backoff"
_SECONDS = 0.03


def waiting_less(names: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return a module's ``pull_objects`` with a shorter first wait.

    None if the module does not have it, or not as it is known to be. Seen in flwr 1.34
    to 1.42.
    """
    pull = names.get(PULL_OBJECTS)
    if pull is None or _FIRST_WAIT not in inspect.signature(pull).parameters:
        return None
    return partial(pull, **{_FIRST_WAIT: _SECONDS})
