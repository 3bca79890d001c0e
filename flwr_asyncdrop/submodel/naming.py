"""What the names of attributes and layers mean, by convention."""

import inspect
from functools import cache

from torch import nn

from flwr_asyncdrop.submodel.reach import names_in

_QUERIES = {"q", "query", "queries"}
_KEYS = {"k", "v", "kv", "key", "value", "keys", "values"}
_FUSED = {"qkv", "attn", "attention", "wqkv"}
_HEADS = {"h", "head", "heads", "nhead", "nheads"}
_REPEATS = {"groups", "rep", "repeats"}
_INNER = {"inner", "intermediate", "ffn", "ff", "mlp", "all", "attn", "split"}
_SIZES = {"dim", "dims", "size", "width", "embd", "embed", "channels", "features"}
_SIZES |= {"model", "hidden", "nf", "units"} | _INNER
_OTHER_SIZES = {"kernel", "window", "patch", "vocab", "chunk", "block", "image"}


def words(name: str) -> set[str]:
    """Return the words of a name such as ``num_heads``."""
    return set(name.lower().strip("_").split("_"))


def is_head_count(name: str) -> bool:
    """Whether it says how many heads there are: ``num_heads``, ``n_head``, ``h``."""
    last = name.lower().split("_")[-1]
    return last in _HEADS and not words(name) & {"per", "dim", "d", "size", "mask"}


def is_head_dim(name: str) -> bool:
    """Whether it says how wide a head is: ``head_dim``, ``d_kv``, ``head_size``."""
    found = words(name)
    if found <= {"d", "k", "kv"} and "d" in found and len(found) > 1:
        return True
    if "proj" in found and found & _KEYS:
        return True
    return "head" in found and bool(found & {"dim", "size", "d"}) and "all" not in found


def is_of_queries(name: str) -> bool:
    """Whether a layer makes queries, alone or with keys and values."""
    return bool(words(name) & (_QUERIES | _FUSED)) or name.lower() == "wq"


def is_of_keys(name: str) -> bool:
    """Whether it is about keys and values: ``num_key_value_heads``, ``k_proj``."""
    return bool(words(name) & _KEYS) or name.lower() in ("wk", "wv")


def is_fused(name: str) -> bool:
    """Whether a layer may make all of queries, keys and values: ``qkv_proj``."""
    found = words(name)
    return bool(found & _FUSED) or bool(found & _QUERIES and found & _KEYS)


def is_repeat_count(name: str) -> bool:
    """Whether it says how many queries share a key: ``num_key_value_groups``."""
    found = words(name)
    return bool(found & _REPEATS) and bool(found & (_KEYS | {"n"}))


def is_width(name: str) -> bool:
    """Whether it says how wide something is: ``inner_dim``, ``all_head_size``."""
    found = words(name)
    return bool(found & _SIZES) and not found & _OTHER_SIZES


def is_inner_width(name: str) -> bool:
    """Whether it is the width of a projection, not of what goes into the module."""
    return bool(words(name) & _INNER)


@cache
def names_read(kind: type[nn.Module]) -> frozenset[str]:
    """Return the names of all attributes that the class's own methods read."""
    names: set[str] = set()
    mro = kind.mro()
    for base in mro[: mro.index(nn.Module)]:
        for name, member in vars(base).items():
            function = inspect.unwrap(member) if callable(member) else None
            if inspect.isfunction(function) and name != "__init__":
                names.update(names_in(function.__code__))
    return frozenset(names)
