"""What one can do about units that stay whole, by the reason."""

_DOCS = "docs/models.md"
_WIDTH = (
    "its code has a width as a number: write e.g. x.flatten(1) for x.view(-1, 400); "
    f"for an attribute add a patch, {_DOCS}#a-patch"
)

# Part of a reason -> advice. Where nothing is to be done there is none.
_ADVICE = {
    "for which there is no rule": f"add one: {_DOCS}#a-rule",
    "in a way that its rule cannot follow": f"add a rule of your own: {_DOCS}#a-rule",
    "a narrower model does not run": _WIDTH,
    "a submodel does not train": _WIDTH,
    "differs from the full one with units silenced": (
        "the model's code knows its full width, or treats units unequally: an "
        f"attribute that goes stale needs a patch, {_DOCS}#a-patch"
    ),
    "has other gradients than": (
        "an autograd function, a hook or a detach of the model's code goes by the width"
    ),
    "writes other values on its buffers": (
        "a statistic that the model's code keeps goes by the number of units"
    ),
    "normalised together by": (
        f"scope='stream' drops them, for a narrower model: {_DOCS}#streams"
    ),
    "a name outside of the model": (
        "read it from self, or from a default or a closure of the function"
    ),
    "Python value was read from the data": (
        "say with declare_plan which units are the same on every path"
    ),
    "cut into unequal parts by": (
        "if the cuts follow the tensors' widths, say with declare_plan what belongs "
        "together"
    ),
    "not used in any traced forward pass": (
        "add example inputs that use it, plan a subclass whose forward uses it, or say "
        "with declare_plan what it has"
    ),
}


def advice_for(reason: str) -> str | None:
    """Return what to do about units that stay whole for `reason`, if anything."""
    return next((what for part, what in _ADVICE.items() if part in reason), None)
