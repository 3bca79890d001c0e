"""What is not looked into where a user's hooks and callbacks keep something."""

import sys
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader, Dataset

from flwr_asyncdrop.completeness.loaded_models import LoadedModels

_PACKAGE, _FLOWER = __name__.partition(".")[0], "flwr"
_INSTALLED = ("site-packages", "dist-packages")

_OPAQUE = (DataLoader, Dataset, Executor)

Shapes = list[tuple[int, ...]]


class Opaque:
    """Tells what is of the run, of another package, or made anew when it is needed.

    That is: objects of this package and of Flower but for its records; objects of
    packages that are installed beside the user's own; data sets and pools of threads;
    and models with the global model's shapes that have what was loaded into them.

    Parameters
    ----------
    own : iterable of object
        The user's objects that are looked at, each by itself.
    others : iterable of object
        Other objects of the run.
    shapes : list of tuple of int
        The `sorted_shapes` of the global model's tensors.
    loaded : LoadedModels
        Tells the models into which a version of the global model was loaded.
    """

    def __init__(
        self,
        own: Collection[object],
        others: Iterable[object],
        shapes: Shapes,
        loaded: LoadedModels,
    ) -> None:
        self._apart = {id(each): each for each in (*own, *others) if each is not None}
        self._roots = {_root(each) for each in own}
        self._shapes = shapes
        self._loaded = loaded

    def __call__(self, value: object) -> bool:
        """Return whether an object is not looked into."""
        if id(value) in self._apart or isinstance(value, _OPAQUE):
            return True
        if isinstance(value, nn.Module):
            is_like = sorted_shapes(value.state_dict()) == self._shapes
            return is_like and self._loaded.has(value)
        root = _root(value)
        if root == _PACKAGE:
            return True
        if root == _FLOWER:
            return not isinstance(value, Mapping)
        return root not in self._roots and _is_installed(type(value).__module__)


def sorted_shapes(tensors: Mapping[str, Any]) -> Shapes:
    """Return the shapes of tensors, or arrays, without their names."""
    return sorted(tuple(each.shape) for each in tensors.values())


def _root(value: object) -> str:
    """Return the package of a function, or of the class of an object."""
    return str(getattr(value, "__module__", "")).partition(".")[0]


def _is_installed(module: str) -> bool:
    """Return whether a module is installed, and is none of Python, NumPy, PyTorch."""
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names or root in ("numpy", "torch"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and any(each in Path(file).parts for each in _INSTALLED)
