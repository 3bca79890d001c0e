"""Arguments that a run reads when it begins: a hook that sets one is refused."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.overrides import stored_by_package
from flwr_asyncdrop.strategy.arguments import Arguments

_BY_EVALUATIONS = frozenset(
    {"fraction_evaluate", "min_evaluate_nodes", "evaluate_metrics_aggr_fn"}
)
# Rounds that are driven from outside aggregate their metrics by the function of then.
_BY_DRIVEN_ROUNDS = _BY_EVALUATIONS | {"train_metrics_aggr_fn"}
_PLAIN = (int, float, str)


@contextmanager
def read_before(strategy: object, hook: str) -> Iterator[None]:
    """Call a hook of a run; ConfigError if it sets what the run has read before.

    What evaluations read is for their hooks to set: that of a round begins when
    `configure_train` of the next one has been called.
    """
    later = _BY_EVALUATIONS if hook.endswith("_evaluate") else ()
    before = _read(strategy, later)
    yield
    name = _changed(before, _read(strategy, later))
    if name is not None:
        kind = type(strategy).__name__
        fix = f"pass it, {kind}({name}=...)"
        if name in _BY_EVALUATIONS:
            fix = "set it in configure_evaluate"
        raise ConfigError(
            f"{hook} of {kind} has set {name}, which has no effect there: {fix} "
            "(docs/migrating.md#hooks-of-a-subclass)"
        )


class ReadByDriven:
    """What rounds that are driven from outside have read of a strategy."""

    def __init__(self, strategy: object) -> None:
        self._strategy = strategy
        self._before = _read(strategy, _BY_DRIVEN_ROUNDS)

    def check(self) -> None:
        """Raise ConfigError if something of it was set after the first round."""
        name = _changed(self._before, _read(self._strategy, _BY_DRIVEN_ROUNDS))
        if name is not None:
            raise ConfigError(
                f"{name} of {type(self._strategy).__name__} was set after its first "
                "round, which has no effect: set it before, or begin with another "
                "round 1"
            )


def _read(strategy: object, but: Collection[str]) -> Mapping[str, object]:
    """Return the arguments as they are, and the hyperparameters that were set."""
    names = {name for name in stored_by_package(Arguments) if not name.startswith("_")}
    algorithm = getattr(strategy, "algorithm", None)
    hyperparameters = {each.name for each in fields(algorithm)} if algorithm else set()
    names = names.difference(but) | (hyperparameters & vars(strategy).keys())
    return {name: getattr(strategy, name) for name in sorted(names)}


def _changed(before: Mapping[str, object], now: Mapping[str, object]) -> str | None:
    """Return the name of a value that is another one now, if there is any."""
    return next((name for name in now if not _is_same(name, before, now)), None)


def _is_same(
    name: str, before: Mapping[str, object], now: Mapping[str, object]
) -> bool:
    """Compare numbers and texts by value: the ``==`` of others may be a user's own."""
    if name not in before:
        return False
    was, value = before[name], now[name]
    plain = isinstance(was, _PLAIN) and isinstance(value, _PLAIN)
    return value is was or (plain and value == was)
