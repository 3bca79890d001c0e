"""Starting a program of this room without importing the rest of the package.

``python -P -m flwr_asyncdrop.device.node`` finds a package that is installed, and this
one may lie in the folder of a clone. Nor does it matter here what its ``__init__.py``
imports: PyTorch is 200 MB and some seconds that a SuperNode can do without. The trainer
forgets the package before a task: an app may bring its own copy of it.
"""

import sys
from pathlib import Path

PACKAGE = __name__.partition(".")[0]

_FOLDER = Path(__file__).parents[1]
_START = f"""\
import importlib, sys, types
package = types.ModuleType({PACKAGE!r})
package.__path__ = [sys.argv[1]]
sys.modules[{PACKAGE!r}] = package
module = importlib.import_module(sys.argv[2])
sys.exit(module.main(sys.argv[3:]))
"""


def thin_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs ``main(arguments)`` of this room's ``module``."""
    name = f"{PACKAGE}.device.{module}"
    # -P: the current folder is no place to import from.
    return [sys.executable, "-P", "-c", _START, str(_FOLDER), name, *arguments]


def forget_package() -> None:
    """Let the next import of the package find whichever copy comes first by then."""
    for name in list(sys.modules):
        if name.partition(".")[0] == PACKAGE:
            del sys.modules[name]
