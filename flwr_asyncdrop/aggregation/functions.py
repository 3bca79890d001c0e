"""What the functions that an aggregator is given remember."""

from flwr_asyncdrop.state_dict import StateDict, Stateful, load_saved, state_to_save


def state_of(**functions: object) -> StateDict:
    """Return, by name, the states of those that are objects with one."""
    return {
        name: state_to_save(function)
        for name, function in functions.items()
        if isinstance(function, Stateful)
    }


def load_into(state: StateDict, **functions: object) -> None:
    """Restore them from their aggregator's state.

    Versions before this one did not save all of them.
    """
    for name, function in functions.items():
        if isinstance(function, Stateful) and name in state:
            load_saved(function, state[name])
