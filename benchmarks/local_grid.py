"""Updates per second through LocalGrid, beside calling the ClientApp in-process.

The ClientApp does nothing, so what is measured is the way there and back: a message
of float32 weights pushed, run, and its reply (as large) pulled, eight in flight.

    python -m benchmarks.local_grid
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.figures import Figure, show
from flwr_asyncdrop.simulation import LocalGrid

NODES = 104
IN_FLIGHT = 8
ARRAYS = 8


def make_app() -> ClientApp:
    """Make a ClientApp that sends back what it gets."""
    app = ClientApp()

    @app.train()
    def echo(message: Message, context: Context) -> Message:
        return Message(message.content, reply_to=message)

    return app


def content_of(num_bytes: int, value: float = 1.0) -> RecordDict:
    """Make weights of so many bytes, in eight arrays."""
    weights = np.full(num_bytes // 4 // ARRAYS, value, dtype=np.float32)
    return RecordDict(
        {"arrays": ArrayRecord({f"w{n}": Array(weights) for n in range(ARRAYS)})}
    )


def grid_rate(grid: LocalGrid, contents: Sequence[RecordDict], updates: int) -> float:
    """Push and pull so many updates, with each content in turn; return the rate."""
    nodes = grid.get_node_ids()
    waiting: set[str] = set()
    pushed = pulled = 0
    start = time.perf_counter()
    while pulled < updates:
        while pushed < updates and len(waiting) < IN_FLIGHT:
            content = contents[pushed % len(contents)]
            message = Message(content, nodes[pushed % NODES], "train")
            waiting.update(grid.push_messages([message]))
            pushed += 1
        grid.wait_any(waiting)
        for reply in grid.pull_messages(waiting):
            if reply.has_error():
                raise SystemExit(f"The no-op ClientApp failed: {reply.error.reason}")
            waiting.remove(reply.metadata.reply_to_message_id)
            pulled += 1
    return updates / (time.perf_counter() - start)


def best_rate(workers: int, num_bytes: int, updates: int) -> float:
    """Return the best of three, after a start that maps the memory."""
    contents = [content_of(num_bytes)]
    with LocalGrid(make_app, num_nodes=NODES, workers=workers) as grid:
        grid_rate(grid, contents, 4 * IN_FLIGHT)
        return max(grid_rate(grid, contents, updates) for _ in range(3))


def local_grid_figures() -> Iterator[Figure]:
    """Measure updates per second."""
    yield Figure("localgrid_inline_1mb_per_s", best_rate(0, 1_000_000, 300))
    yield Figure("localgrid_1_worker_1mb_per_s", best_rate(1, 1_000_000, 1000))
    yield Figure("localgrid_2_workers_1mb_per_s", best_rate(2, 1_000_000, 1000))
    yield Figure("localgrid_1_worker_10kb_per_s", best_rate(1, 10_000, 3000))
    yield Figure("localgrid_1_worker_85mb_per_s", best_rate(1, 85_000_000, 20))


if __name__ == "__main__":
    show({"local grid": local_grid_figures})
