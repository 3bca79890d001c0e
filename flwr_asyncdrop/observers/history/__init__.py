r"""The record of a run: one JSON object per line, in the same order every time.

======================  ==========================================================
``event``               fields beside ``event`` and ``wall``
======================  ==========================================================
``run`` (first line)    ``schema``, ``seed``, ``devices``, ``full_bytes`` (the full
                        model on the wire) and what the caller adds
``update``              ``update`` (count, from 1), ``round``, ``time``, ``device``,
                        ``rank``, ``dispatched_at``, ``staleness``, ``version``,
                        ``bytes_down``, ``bytes_up``, ``compute``, ``in_flight``,
                        ``metrics``; ``late``, if it came after its deadline;
                        ``queued``, versions of the staleness that came while it
                        waited behind another task of its device, if any did
``failure``             ``time``, ``device``, ``rank``, ``dispatched_at``, ``kind``,
                        ``reason``
``evaluation``          ``source``, ``round``, ``update``, ``time``,
                        ``bytes_down``, ``bytes_up`` (of all tasks up to then, lost
                        ones too), ``metrics``
``units``               how often each rank trained each unit, see
                        `UnitCounts.record`; absent if no submodel was trained
``end`` (last line)     ``updates``, ``time``, ``bytes_down``, ``bytes_up``,
                        ``failures``; ``duplicates``, replies that came twice, if
                        there were any; ``ended``, why, if it ended early
======================  ==========================================================

Times are seconds on the run's clock. Whatever depends on the machine stands under
``wall``: the real ``seconds`` since the start, and metrics whose name begins with
``wall-``. Under the virtual clock everything else is a function of the configuration
and the seed, bit for bit.
"""

from flwr_asyncdrop.observers.history.reading import SCHEMA, read_history, without_wall
from flwr_asyncdrop.observers.history.writer import HistoryWriter

__all__ = ["SCHEMA", "HistoryWriter", "read_history", "without_wall"]
