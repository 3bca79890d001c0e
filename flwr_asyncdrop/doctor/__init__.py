"""What this machine has that a run needs, and what is amiss."""

from flwr_asyncdrop.doctor.examination import examine
from flwr_asyncdrop.doctor.finding import Finding, Level, ok, problem, warning

__all__ = ["Finding", "Level", "examine", "ok", "problem", "warning"]
