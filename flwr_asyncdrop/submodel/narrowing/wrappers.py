"""Modules around a model, which give its tensors other names."""

from collections.abc import Collection, Container

# torch.compile's, DataParallel's, and Opacus'.
PREFIXES = ("_orig_mod.", "module.", "_module.")

NAMELESS = (
    "an ArrayRecord of a list has numbers for names: make it of a dict, "
    "ArrayRecord({name: Array(numbers), ...}), with the names of the state_dict"
)
"""How arrays keep their names."""


def wrapped_as(name: str, names: Container[str]) -> str:
    """Return where a wrapper has the model of which `name` is a tensor, e.g. "module".

    "" if `names` are not those of a wrapper.
    """
    return next((each[:-1] for each in PREFIXES if f"{each}{name}" in names), "")


def are_adapters_alone(names: Collection[str], full: Container[str]) -> bool:
    """Tell whether these are what PEFT calls the adapters, and `full` the model."""
    return any(".lora_" in name for name in names) and not any(n in full for n in names)
