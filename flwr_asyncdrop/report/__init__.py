"""What a run came to: a summary in text and a figure, both from its history."""

from flwr_asyncdrop.report.figure import draw_run
from flwr_asyncdrop.report.summary import Summary, summarise

__all__ = ["Summary", "draw_run", "summarise"]
