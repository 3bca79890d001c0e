"""What is compared: every algorithm, with every combination of what varies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from flwr_asyncdrop.algorithms.hyperparameters import HYPERPARAMETERS
from flwr_asyncdrop.algorithms.registry import algorithm
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.cli.flags import Value
from flwr_asyncdrop.cli.presets import Task, num_rounds
from flwr_asyncdrop.exceptions import ConfigError


@dataclass(frozen=True)
class Variant:
    """One algorithm with one configuration, run with several seeds.

    Attributes
    ----------
    label : str
        The algorithm's name, and what tells it from its other variants:
        ``"asyncdrop,drop-rate=0.5"``.
    settings : dict of str to value
        Its run-config.
    """

    label: str
    settings: dict[str, Value]


def build_variants(
    algorithms: Iterable[str],
    task: Task,
    explicit: Mapping[str, Value],
    vary: Mapping[str, Sequence[Value]],
) -> list[Variant]:
    """Combine algorithms with the values of the keys that vary.

    An algorithm does not get, nor vary by, a key that means nothing to it.

    Parameters
    ----------
    algorithms : iterable of str
        Their names.
    task : Task
        The preset.
    explicit : mapping of str to value
        RunSpec-config keys that override the preset's.
    vary : mapping of str to sequence of value
        RunSpec-config keys and the values that each takes.

    Returns
    -------
    list of Variant
        In the order of the algorithms, then of the values.

    Raises
    ------
    ConfigError
        If a key means nothing to any of the algorithms.
    """
    names = list(algorithms)
    for key in (*explicit, *vary):
        if all(key in _meaningless(name) for name in names):
            raise ConfigError(
                f"{key} means nothing to {', '.join(names)}: leave it out, or add an "
                "algorithm to which it does"
            )
    variants = []
    for name in names:
        ignored = _meaningless(name)
        own = {key: value for key, value in explicit.items() if key not in ignored}
        axes = [
            [(key, value) for value in values]
            for key, values in vary.items()
            if key not in ignored
        ]
        for values in product(*axes):
            label = ",".join([name, *(f"{key}={_named(v)}" for key, v in values)])
            settings = task_settings(task, {**own, **dict(values), "algo": name})
            variants.append(Variant(label, settings))
    return variants


def task_settings(task: Task, explicit: Mapping[str, Value]) -> dict[str, Value]:
    """Return the run-config of a task.

    Parameters
    ----------
    task : Task
        The preset; what means nothing to the algorithm is left out of it.
    explicit : mapping of str to value
        RunSpec-config keys that override the preset's.

    Raises
    ------
    ConfigError
        If they contradict each other.
    """
    ignored = _meaningless(str(explicit.get("algo", RunConfig.algo)))
    preset = {key: v for key, v in task.settings.items() if key not in ignored}
    settings = {**preset, **explicit}
    config = RunConfig.parse(settings)
    if task.epochs and task.samples and "num-rounds" not in settings:
        settings["num-rounds"] = num_rounds(config, task.epochs, task.samples)
    return settings


def _meaningless(name: str) -> frozenset[str]:
    """Return the run-config keys that an algorithm has no use for."""
    rules = algorithm(name)
    ignored = {key.replace("_", "-") for key in set(HYPERPARAMETERS) - rules.uses}
    if rules.mask is None or rules.units == "blocks":
        ignored.add("scope")
    return frozenset(ignored)


def _named(value: Value) -> str:
    """Return a value as it is in a label, which is the name of a folder too."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.replace("/", "_")
