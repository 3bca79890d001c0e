"""The loops of Flower's programs on a device, patched in the process that runs one.

A loop that is not as it is known to be keeps Flower's pace, and a warning says so.
"""

import importlib
import logging
import time
from functools import wraps
from types import ModuleType
from typing import Any

from flwr_asyncdrop.flower_internals.pace import NodePace, WokenPace
from flwr_asyncdrop.flower_internals.pulls import PULL_OBJECTS, waiting_less

NODE = "flwr.supernode.start_client_internal"
SUPEREXEC = "flwr.supercore.superexec.run_superexec"

_LOOK = "_pull_and_store_message"


def pace_node(pace: NodePace, loop: str = NODE) -> bool:
    """Let the SuperNode of this process go at a pace; return whether it does.

    `pace` replaces the loop's ``time``, and is told what each look for a task has
    found. The parts of a task that are on their way are looked for sooner as well.
    Seen in flwr 1.34 to 1.42.
    """
    module = importlib.import_module(loop)
    names: dict[str, Any] = module.__dict__
    look, pull = names.get(_LOOK), waiting_less(names)
    if not _pauses_by_time(module) or look is None or pull is None:
        return _keeps_its_pace(loop)

    @wraps(look)
    def look_and_tell(*arguments: object, **named: object) -> object:
        run_id = look(*arguments, **named)
        pace.looked(run_id is not None)
        return run_id

    names.update({"time": pace, _LOOK: look_and_tell, PULL_OBJECTS: pull})
    return True


def pace_superexec(pace: WokenPace, loop: str = SUPEREXEC) -> bool:
    """Let the SuperExec of this process pause like this; return whether it does.

    `pace` replaces the loop's ``time``. Seen in flwr 1.34 to 1.42.
    """
    module = importlib.import_module(loop)
    if not _pauses_by_time(module):
        return _keeps_its_pace(loop)
    module.__dict__["time"] = pace
    return True


def _pauses_by_time(module: ModuleType) -> bool:
    return getattr(module, "time", None) is time


def _keeps_its_pace(loop: str) -> bool:
    logging.getLogger("flwr").warning(
        "%s of this Flower is not as expected, so it keeps its own pace", loop
    )
    return False
