"""Modules around a model, which put a prefix before the names of its tensors."""

from collections.abc import Container

# torch.compile's, DataParallel's, and Opacus'.
PREFIXES = ("_orig_mod.", "module.", "_module.")


def wrapped_as(name: str, names: Container[str]) -> str:
    """Return where a wrapper has the model of which `name` is a tensor, e.g. "module".

    "" if `names` are not those of a wrapper.
    """
    return next((each[:-1] for each in PREFIXES if f"{each}{name}" in names), "")
