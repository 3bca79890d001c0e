"""An advice for people, in 80 columns, and as commands that can be pasted."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from flwr_asyncdrop.app.config import Value
from flwr_asyncdrop.app.flwr_run import run_config_of
from flwr_asyncdrop.cli.advice import KINDS, Advice, Standing
from flwr_asyncdrop.cli.flags import words_of
from flwr_asyncdrop.cli.variants import value_text
from flwr_asyncdrop.readable import three_digits
from flwr_asyncdrop.report.comparison import Row
from flwr_asyncdrop.report.intervals import FEWEST, Interval
from flwr_asyncdrop.shell import command_of

_MB = 1e6


def lines(advice: Advice) -> list[str]:
    """Return the table, what it says, and what is recommended."""
    target, metric = advice.target, advice.target.metric
    reached = metric.text(target.value)
    heads = ["", f"s to {reached}", f"MB to {reached}", f"final {metric.title}"]
    finals = [each.row.final for each in advice.standings if each.row.final]
    write = metric.writer(final.mean for final in finals)
    figures = (
        [each.candidate.algorithm, *_figures(each.row, write)]
        for each in advice.standings
    )
    table = [heads, *figures]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    shown = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
    found = [shown[0]]
    for text, each in zip(shown[1:], advice.standings, strict=True):
        found += [text, f"  {settings_text(each.candidate.values)}"]
        found.append(f"  {_beside(each, advice)}")
    found.append(
        f"Target: {reached} ({target.rule}), in {advice.seconds:,g} virtual s."
    )
    found += _recommended(advice)
    return found


def settings_text(values: Mapping[str, Value]) -> str:
    """Return settings in a line."""
    listed = ", ".join(f"{key}={value_text(value)}" for key, value in values.items())
    return listed or "the settings of the task"


def _figures(row: Row, write: Callable[[float], str]) -> list[str]:
    seeds, final = len(row.outcomes), row.final
    share = f" ({len(row.arrivals)}/{seeds})" if len(row.arrivals) < seeds else ""
    seconds = f"{row.seconds.mean:,.1f}{share}" if row.seconds else "not reached"
    bytes_ = row.num_bytes
    sent = f"{three_digits(bytes_.mean / _MB)}{share}" if bytes_ else "N/A"
    ends = "N/A" if final is None else f"{write(final.mean)} ± {write(final.std)}"
    return [seconds, sent, ends]


def _beside(each: Standing, advice: Advice) -> str:
    best = advice.best.candidate.algorithm
    if each.loss is None:
        return "the best mean of all"
    text = _loss_text(each.loss, advice)
    if each.is_clearly_worse:
        return f"clearly worse than {best}: {text}"
    if advice.has_intervals:
        return f"as good as {best} within these seeds: {text}"
    return f"beside {best}: {text}"


def _loss_text(loss: Interval, advice: Advice) -> str:
    metric = advice.target.metric
    write: Callable[[float], str]
    if advice.reached:
        scale, write, unit = 1.0, "{:+,.1f}".format, " s"
    else:
        scale, unit = (1.0 if metric.falls else -1.0), " points" * metric.is_share
        write = partial(metric.writer([loss.value]), sign="+")
    text = f"{write(scale * loss.value)}{unit}"
    if loss.low is None or loss.high is None:
        return text
    low, high = sorted((scale * loss.low, scale * loss.high))
    return f"{text} [{write(low)}, {write(high)}]"


def _recommended(advice: Advice) -> Iterator[str]:
    chosen, best = advice.recommended.candidate, advice.best.candidate
    kind = KINDS[chosen.simplicity]
    yield f"Recommended: {chosen.algorithm} ({kind})"
    yield f"  {settings_text(chosen.values)}"
    others = [each for each in advice.standings if each is not advice.recommended]
    equal = [e.candidate for e in others if not e.is_clearly_worse]
    if not advice.has_intervals:
        if simpler := [e for e in equal if e.simplicity < chosen.simplicity]:
            names = ", ".join(each.algorithm for each in simpler)
            seeds = f"{advice.num_seeds} seeds cannot show that they are worse"
            yield f"  Simpler, and {seeds}: {names}"
    elif chosen is not best:
        yield f"  {best.algorithm} has the better mean, which is no clear difference,"
        yield f"  and {chosen.algorithm} is as simple or simpler."
    elif equal:
        names = ", ".join(each.algorithm for each in equal)
        yield f"  As good within these seeds, and no simpler: {names}"
    elif others:
        yield "  It is clearly better than all others."


def limits(advice: Advice) -> list[str]:
    """Return what the seeds and the time could not tell."""
    found = []
    if not advice.has_intervals:
        found.append(
            f"{advice.num_seeds} seeds are no evidence for a difference: give "
            f"--seeds with {FEWEST} or more"
        )
    if not advice.reached:
        found.append(
            "no candidate reached the target, so final values were compared: give "
            "more time with --within, or a lower --target"
        )
    elif missed := [
        each.candidate.algorithm
        for each in advice.standings
        if 0 < len(each.row.arrivals) < len(each.row.outcomes)
    ]:
        found.append(
            f"not every seed of {', '.join(missed)} reached the target: those count "
            "with their whole time, which is less than they need"
        )
    return found


def commands(
    task: str,
    devices: int,
    changes: Mapping[str, Value],
    settings: Mapping[str, Value],
) -> dict[str, str]:
    """Return the commands that run an algorithm with its settings.

    `changes` are beside the task's, `settings` are all.
    """
    words = words_of({"task": task, "devices": devices, **changes})
    return {
        "asyncdrop": command_of(["asyncdrop", "simulate", *words]),
        "flwr": f"flwr run . --stream --run-config {run_config_of(settings)} "
        f"--federation-config 'num-supernodes={devices}'",
    }
