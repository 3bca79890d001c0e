"""Which tensors of a model train: what the module says, or what is named."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from difflib import get_close_matches
from typing import TypeAlias

from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel.types import NORM_BUFFERS, tensors_of

Trainable: TypeAlias = str | Sequence[str] | Callable[[str], bool] | None
"""Names of modules or parameters, a function of a tensor's name, or what the module
says."""


def check_trainable(trainable: Trainable) -> None:
    """Raise ConfigError unless these are names, or a function."""
    if trainable is None or callable(trainable):
        return
    names = [trainable] if isinstance(trainable, str) else trainable
    if not (isinstance(names, Collection) and names) or not all(
        isinstance(name, str) and name for name in names
    ):
        raise ConfigError(
            f"trainable={trainable!r} must be a name of a module or parameter, a list "
            "of them, or a function of a tensor's name"
        )


def frozen_names(
    names: Sequence[str], model: nn.Module | None, trainable: Trainable
) -> frozenset[str]:
    """Return which of a model's tensors do not train.

    Parameters
    ----------
    names : sequence of str
        All tensors of the model's state.
    model : nn.Module, optional
        The model. Without it buffers are known by PyTorch's names for running
        statistics.
    trainable : str, sequence of str, callable, or None
        Names of modules or parameters: those and what lies in them train, and buffers
        count as trained, too. A function is asked about every tensor, buffers as well.
        None for the module's ``requires_grad``; without a module all train then.
        A parameter with several names trains if one of them does.

    Raises
    ------
    ConfigError
        If nothing has a name that is given, or if no parameter trains.
    """
    check_trainable(trainable)
    known = {} if model is None else tensors_of(model)
    own = {name: known[name] for name in names if name in known}
    parameters = {name for name in names if _is_parameter(name, own)}
    if callable(trainable):
        frozen = {name for name in names if not trainable(name)}
    elif trainable is not None:
        wanted = [trainable] if isinstance(trainable, str) else trainable
        frozen = parameters - set(_found(names, wanted))
    else:
        frozen = {name for name in parameters & own.keys() if _is_fixed(own[name])}
    frozen -= _tied_to_trained(frozen, own)
    if frozen and not parameters - frozen:
        raise ConfigError(
            f"none of {len(parameters):,} parameters trains: set requires_grad_(True) "
            "on those that do, or name them, e.g. trainable='head'"
        )
    return frozenset(frozen)


def _is_parameter(name: str, own: dict[str, Tensor]) -> bool:
    if name in own:
        return isinstance(own[name], nn.Parameter)
    # All that is known without a module.
    return name.rpartition(".")[2] not in NORM_BUFFERS


def _is_fixed(parameter: Tensor) -> bool:
    return not parameter.requires_grad


def _found(names: Sequence[str], wanted: Collection[str]) -> Iterator[str]:
    """Yield the tensors with these names, or in modules with them."""
    for each in wanted:
        found = [n for n in names if n == each or n.startswith(f"{each}.")]
        if not found:
            modules = {n[:end] for n in names for end in _dots(n)}
            close = get_close_matches(each, sorted(modules | set(names)), n=1)
            has = repr(names[0]) if names else "no tensors"
            hint = f"did you mean {close[0]!r}?" if close else f"it has {has}"
            raise ConfigError(
                f"trainable={each!r} is no module or parameter of the model: {hint}"
            )
        yield from found


def _dots(name: str) -> list[int]:
    return [at for at, letter in enumerate(name) if letter == "."]


def _tied_to_trained(frozen: Set[str], own: dict[str, Tensor]) -> set[str]:
    """Return the names of parameters that train under another name."""
    names: dict[int, set[str]] = defaultdict(set)
    for name, tensor in own.items():
        names[id(tensor)].add(name)
    tied = (same for same in names.values() if not same <= frozen)
    return {name for same in tied for name in same}
