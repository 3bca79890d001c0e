"""Tiny histories, made by hand."""

import json

from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.series import Series

SECONDS = 10.0


def history(
    label,
    seed,
    values,
    *,
    metric="accuracy",
    megabytes_per_second=1.0,
    watts=None,
    ended=True,
    **config,
):
    """Return the records of a run that was evaluated every 10 s, first at 10 s.

    Its energy is counted if `watts` says what all devices together take.
    """

    def energy(seconds):
        return {} if watts is None else {"joules": watts * seconds}

    wall = {"wall": {"seconds": 1.0}}
    records = [
        {
            "event": "run",
            "schema": 2,
            "seed": seed,
            "devices": 8,
            "full_bytes": 1_000_000,
            "algorithm": label.partition(",")[0],
            "config": {"dataset": "digits", "clock": "virtual", **config},
        }
    ]
    for number, value in enumerate(values, start=1):
        sent = int(SECONDS * number * megabytes_per_second * 1e6)
        records.append(
            {
                "event": "evaluation",
                "source": "server",
                "round": number,
                "update": 8 * number,
                "time": SECONDS * number,
                "bytes_down": sent // 2,
                "bytes_up": sent // 2,
                **energy(SECONDS * number),
                "metrics": {metric: value, "other_loss": 1.0},
            }
        )
    if ended:
        seconds = SECONDS * len(values)
        totals = {"bytes_down": 0, "bytes_up": 0, "failures": {}, **energy(seconds)}
        records.append({"event": "end", "updates": 0, "time": seconds, **totals})
    return [{**record, **wall} for record in records]


def series(label, values_by_seed, *, cut_off=(), **kwargs):
    """Return a series of runs, by seed; those that are cut off have no end."""
    logs = {
        seed: RunLog.from_records(
            history(label, seed, values, ended=seed not in cut_off, **kwargs)
        )
        for seed, values in values_by_seed.items()
    }
    return Series(
        label=label,
        algorithm=label.partition(",")[0],
        runs={seed: log for seed, log in logs.items() if log.end},
        incomplete={seed: log for seed, log in logs.items() if not log.end},
    )


def write(folder, records):
    """Write records as the history of a folder."""
    folder.mkdir(parents=True)
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    path = folder / "history.jsonl"
    path.write_text(lines)
    return path
