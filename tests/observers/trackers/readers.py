"""What a tracker has written, as the tool itself reads it.

A reader gives the points of a run's folder by name, each (update, seconds, value), and
the settings. Seconds count from the first point of all.
"""

import json
import struct
import time
from collections import defaultdict

TOOLS = ("tensorboard", "mlflow", "wandb")
_BLOCK, _HEADER = 32768, 7


def tensorboard(out):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    read = EventAccumulator(str(out / "tensorboard"), size_guidance={"scalars": 0})
    read.Reload()
    points = {
        tag: [(e.step, e.wall_time, e.value) for e in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }
    content = read.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    found = metadata.parse_session_start_info_plugin_data(content).hparams
    kinds = ("bool_value", "number_value", "string_value")
    settings = {
        name: getattr(value, value.WhichOneof("kind"))
        for name, value in found.items()
        if value.WhichOneof("kind") in kinds
    }
    return from_the_first(points), settings


def mlflow(out):
    client, (run,) = mlflow_runs(out)
    points = {
        name: [
            (m.step, m.timestamp / 1000, m.value)
            for m in client.get_metric_history(run.info.run_id, name)
        ]
        for name in run.data.metrics
    }
    summary = {n for n in points if n.startswith("summary/")}
    points = {n: sorted(p) for n, p in points.items() if n not in summary}
    return from_the_first(points), run.data.params


def mlflow_runs(out):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{out}/mlruns/mlflow.db")
    experiments = [e.experiment_id for e in client.search_experiments()]
    return client, list(client.search_runs(experiments))


def wandb(out):
    points, settings = defaultdict(list), {}
    for path in sorted(out.glob("wandb/offline-run-*/*.wandb")):
        for record in finished(path):
            for item in record.run.config.update:
                settings[item.key] = json.loads(item.value_json)
            row = {
                item.nested_key[0]: json.loads(item.value_json)
                for item in record.history.item
            }
            for name in row.keys() - {"update", "seconds"}:
                if not name.startswith("_"):
                    points[name].append((row["update"], row["seconds"], row[name]))
    return from_the_first(points), settings


def finished(path):
    """Return the records of a file: `finish` may return before the last is there."""
    for _ in range(100):
        records = list(wandb_records(path))
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.1)
    raise AssertionError(f"{path} has no end")


def wandb_records(path):
    """Yield the records of a file, which is a log as LevelDB has it.

    The library has protocol buffers for them, and no reader since 0.31.
    """
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), _HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + _HEADER])
        at += _HEADER
        parts += data[at : at + length]
        at += length
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


def from_the_first(points):
    first = min(at for name in points for _, at, _ in points[name])
    return {
        name: [(step, round(at - first, 2), value) for step, at, value in points[name]]
        for name in sorted(points)
    }


READERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
