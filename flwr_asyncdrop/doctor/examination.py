"""All checks, in the order in which their findings are read."""

import os
from collections.abc import Iterator
from pathlib import Path

from flwr_asyncdrop.doctor.data import check_data
from flwr_asyncdrop.doctor.finding import Finding
from flwr_asyncdrop.doctor.machine import (
    check_gpu,
    check_memory,
    check_output,
    check_shared,
)
from flwr_asyncdrop.doctor.software import check_optional, check_python, check_required
from flwr_asyncdrop.doctor.superlink import check_ports, check_variables


def examine(out: Path, data_dir: Path | None = None) -> Iterator[Finding]:
    """Check everything that a run needs, and change nothing.

    The files of runs are to go to `out`; `data_dir` has the data sets' folders.
    """
    yield check_python()
    yield from check_required()
    yield from check_optional()
    yield check_gpu()
    yield from check_data(data_dir)
    yield from check_output(out)
    yield check_memory()
    yield check_shared()
    yield from check_ports(os.environ)
    yield from check_variables(os.environ)
