"""The only reader and writer of Flower's message records.

A task travels as one ``ArrayRecord`` (the submodel), those that an aggregator sends
beside it, and one ``ConfigRecord``: the user's own train config, and what `TaskConfig`,
`kept_entries`, `Coding` and `frozen_entries` say. The client learns the widths from the
shapes that it receives; which units they are matters only to one that keeps something
from task to task: layers of its own, frozen ones, or what a codec owes.
"""

from flwr_asyncdrop.wire.advice import INCOMPLETE, WANTS_ONE_RECORD
from flwr_asyncdrop.wire.arrays import check_values
from flwr_asyncdrop.wire.client_state import FROZEN_KEY, RESIDUAL_KEY, kept_by_client
from flwr_asyncdrop.wire.coded import (
    check_codable,
    coded_bytes,
    decode_change,
    decode_weights,
    encode_changes,
    encode_weights,
    is_coded,
    read_change,
)
from flwr_asyncdrop.wire.coding import Coding, read_coding, read_run, without_coding
from flwr_asyncdrop.wire.devices import (
    LARGEST_REPORTED,
    DeviceReport,
    add_report,
    is_probe,
    make_probe,
    read_report,
)
from flwr_asyncdrop.wire.frozen import (
    FROZEN_RECORD,
    FrozenPart,
    ask_for_frozen,
    asks_for_frozen,
    bring,
    completed,
    frozen_entries,
    lacks_frozen,
    left_out,
    read_frozen,
    without_brought,
    without_frozen,
)
from flwr_asyncdrop.wire.kept import Kept, kept_entries, read_kept
from flwr_asyncdrop.wire.metrics import (
    MAX_EXAMPLES,
    flat_metrics,
    metric_record,
    too_large,
)
from flwr_asyncdrop.wire.npy import (
    array_bytes,
    copy_of_record,
    from_record,
    to_record,
    views_of,
)
from flwr_asyncdrop.wire.packing import (
    is_packed,
    packed,
    packed_message,
    unpack,
    unpacked,
)
from flwr_asyncdrop.wire.records import kind_of, records_of
from flwr_asyncdrop.wire.replies import (
    Expected,
    Reply,
    in_flowers_arrays,
    read_evaluation,
    read_reply,
    unpacked_evaluation,
)
from flwr_asyncdrop.wire.tasks import (
    NUM_PARTITIONS,
    PARTITION_ID,
    WORK,
    RecordKeys,
    TaskConfig,
    make_task,
    read_config,
    read_task,
)
from flwr_asyncdrop.wire.trace_context import trace_ids, traceparent

__all__ = [
    "FROZEN_KEY",
    "FROZEN_RECORD",
    "INCOMPLETE",
    "LARGEST_REPORTED",
    "MAX_EXAMPLES",
    "NUM_PARTITIONS",
    "PARTITION_ID",
    "RESIDUAL_KEY",
    "WANTS_ONE_RECORD",
    "WORK",
    "Coding",
    "DeviceReport",
    "Expected",
    "FrozenPart",
    "Kept",
    "RecordKeys",
    "Reply",
    "TaskConfig",
    "add_report",
    "array_bytes",
    "ask_for_frozen",
    "asks_for_frozen",
    "bring",
    "check_codable",
    "check_values",
    "coded_bytes",
    "completed",
    "copy_of_record",
    "decode_change",
    "decode_weights",
    "encode_changes",
    "encode_weights",
    "flat_metrics",
    "from_record",
    "frozen_entries",
    "in_flowers_arrays",
    "is_coded",
    "is_packed",
    "is_probe",
    "kept_by_client",
    "kept_entries",
    "kind_of",
    "lacks_frozen",
    "left_out",
    "make_probe",
    "make_task",
    "metric_record",
    "packed",
    "packed_message",
    "read_change",
    "read_coding",
    "read_config",
    "read_evaluation",
    "read_frozen",
    "read_kept",
    "read_reply",
    "read_report",
    "read_run",
    "read_task",
    "records_of",
    "to_record",
    "too_large",
    "trace_ids",
    "traceparent",
    "unpack",
    "unpacked",
    "unpacked_evaluation",
    "views_of",
    "without_brought",
    "without_coding",
    "without_frozen",
]
