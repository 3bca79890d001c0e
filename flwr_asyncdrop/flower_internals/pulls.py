"""Pulling a message whose parts are still on their way.

Flower shows a message as soon as it is announced, and its parts come after. Whoever
looks at once, as an impatient device or server does, finds parts missing, and Flower
then waits for a second, then two, and so on, before it looks again.
"""

import inspect
from functools import partial
from types import ModuleType

_PULL = "pull_objects"
_WAIT = "initial_backoff"
_FIRST_WAIT = 0.03


def pull_sooner(module: ModuleType) -> bool:
    """Let a module of Flower look again sooner; the waits double as before.

    Parameters
    ----------
    module : module
        One that has imported Flower's ``pull_objects``.

    Returns
    -------
    bool
        Whether it has, and the function is as it is known to be; if not the module is
        left alone.
    """
    pull = getattr(module, _PULL, None)
    if isinstance(pull, partial):
        return True
    if pull is None or _WAIT not in inspect.signature(pull).parameters:
        return False
    module.__dict__[_PULL] = partial(pull, **{_WAIT: _FIRST_WAIT})
    return True
