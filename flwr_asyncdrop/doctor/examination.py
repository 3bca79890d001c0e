"""All checks, in the order in which their findings are read."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from flwr_asyncdrop.doctor.finding import Finding, problem
from flwr_asyncdrop.readable import one_line


def examine(
    out: Path, data_dir: Path | None = None, ray: str | None = None
) -> Iterator[Finding]:
    """Check everything that a run needs, and change nothing.

    The files of runs are to go to `out`; `data_dir` has the data sets' folders; `ray`
    is the address of a cluster to look at. A check whose own packages are missing, or
    that this user may not do, says so.
    """
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("packages", _software),
        ("data", partial(_data, data_dir)),
        ("machine", partial(_machine, out)),
        ("flower", _flower),
    ]
    if ray:
        checks.append(("Ray cluster", partial(_cluster, ray, data_dir)))
    for name, check in checks:
        yield from _to_its_end(name, check)


def _to_its_end(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        yield problem(
            name,
            f"not checked, as the module {package!r} is missing",
            "pip install 'flwr-asyncdrop[all]'",
        )
    except (OSError, RuntimeError) as error:  # e.g. a folder of others, or no home
        yield problem(
            name,
            f"not checked to its end: {one_line(error)}",
            "see to it that this user may read what is named, and has a home folder",
        )


# What a check stands on is imported when it begins, as it may be what is missing.
def _software() -> Iterator[Finding]:
    from flwr_asyncdrop.doctor.software import (
        check_optional,
        check_python,
        check_required,
    )

    yield check_python()
    yield from check_required()
    yield from check_optional()


def _data(data_dir: Path | None) -> Iterator[Finding]:
    from flwr_asyncdrop.doctor.data import check_data

    yield from check_data(data_dir)


def _machine(out: Path) -> Iterator[Finding]:
    from flwr_asyncdrop.doctor import machine

    yield machine.check_gpu()
    yield from machine.check_output(out)
    yield machine.check_memory()
    yield machine.check_shared()


def _cluster(address: str, data_dir: Path | None) -> Iterator[Finding]:
    from flwr_asyncdrop.doctor.cluster import check_cluster

    yield from check_cluster(address, data_dir)


def _flower() -> Iterator[Finding]:
    from flwr_asyncdrop.doctor.superlink import (
        check_installation,
        check_ports,
        check_ray,
        check_ray_cluster,
        check_variables,
    )

    yield check_installation()
    yield check_ray(os.environ)
    yield check_ray_cluster(os.environ)
    yield from check_ports(os.environ)
    yield from check_variables(os.environ)
