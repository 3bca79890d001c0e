"""What runs came to, from their histories: summaries, tables, figures, pages."""

from flwr_asyncdrop.report.summary import Summary, summarise
from flwr_asyncdrop.report.write import comparison_table, draw_run, write_report

__all__ = ["Summary", "comparison_table", "draw_run", "summarise", "write_report"]
