"""Where the devices of a run train: in this process, in others, or on a Ray cluster."""

import argparse
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from flwr_asyncdrop.app.fingerprint import fingerprint
from flwr_asyncdrop.cli.flags import MOST_WORKERS, between
from flwr_asyncdrop.cli.runs import RunSpec
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.shell import quoted
from flwr_asyncdrop.simulation import LocalGrid, RayRunner
from flwr_asyncdrop.simulation.gpus import MOST_GPUS, VISIBLE, visible_gpus
from flwr_asyncdrop.simulation.ray.cluster import AUTO, problem_of_address, room_of
from flwr_asyncdrop.simulation.ray.runner import MOST_ACTORS

_CLIENT_APP = "flwr_asyncdrop.client_app:app"
_LOCAL, _RAY = "local", "ray"


@dataclass(frozen=True)
class Backend:
    """What serves a run's grid.

    Attributes
    ----------
    workers : int
        Worker processes on this machine; with 0 the devices train in this process.
    address : str
        Of the Ray cluster whose actors take the place of workers; "" for none.
    actors : int
        Actors for a run; 0 for as many as fit.
    gpus_per_actor : float
        The share of a GPU that each gets.
    share : int
        Runs side by side, which share what fits.
    gpus : tuple[str, ...]
        GPUs of this machine, of which each worker sees one, in turn. In a comparison a
        run's own process sees the first.
    """

    workers: int = 0
    address: str = ""
    actors: int = 0
    gpus_per_actor: float = 0.0
    share: int = 1
    gpus: tuple[str, ...] = ()

    @property
    def opening(self) -> str:
        """What takes time while the grid of a run is opened."""
        if self.address:
            return f"waiting for actors of {self.address}"
        if self.workers:
            noun = "process" if self.workers == 1 else "processes"
            return f"starting {self.workers} worker {noun}"
        return "loading the client"

    def open(self, run: RunSpec) -> LocalGrid:
        """Return the grid of a run, to be closed."""
        config = run.config
        if not self.address:
            return LocalGrid(
                _CLIENT_APP,
                num_nodes=run.devices,
                workers=self.workers,
                run_config=run.settings,
                threads_per_worker=config.threads,
                gpus=self.gpus if self.workers else (),
            )
        # The actors have working folders of their own.
        where = {"data-dir": str(config.data_path)} if config.data_path else {}
        settings = {**run.settings, **where}
        runner = RayRunner(
            _CLIENT_APP,
            address=self.address,
            actors=self.actors,
            gpus_per_actor=self.gpus_per_actor,
            threads=config.threads,
            fingerprint=partial(fingerprint, settings),
            share=self.share,
        )
        return LocalGrid(num_nodes=run.devices, run_config=settings, runner=runner)

    def shared(self, size: int, workers: int) -> list[Self]:
        """Return what each of the runs side by side gets, of `size` at the most.

        `workers` are each run's, on this machine. ConfigError if the cluster has no
        room for any.
        """
        if not self.address:
            each = max(workers, 1)
            return [
                replace(self, workers=workers, gpus=_from(self.gpus, place * each))
                for place in range(size)
            ]
        if not size:
            return []
        fitting = room_of(self.address, 1.0, self.gpus_per_actor)
        if not fitting:
            raise ConfigError(
                f"the Ray cluster at {self.address} has no room for an actor with 1 "
                f"CPU and {self.gpus_per_actor:g} GPU: add a node, or give a smaller "
                "--gpus-per-actor"
            )
        count = min(size, fitting)
        return [replace(self, share=count)] * count

    def flags(self) -> str:
        """Return the flags that ask for it, each after a space."""
        if not self.address:
            workers = f" --workers {self.workers}" if self.workers else ""
            return workers + (f" --gpus {len(self.gpus)}" if self.gpus else "")
        given = {
            "address": self.address if self.address != AUTO else "",
            "actors": self.actors,
            "gpus-per-actor": self.gpus_per_actor,
        }
        flags = (f" --{k} {quoted(str(v))}" for k, v in given.items() if v)
        return f" --backend {_RAY}{''.join(flags)}"


def add_backend(parser: argparse.ArgumentParser) -> None:
    """Add ``--backend`` and the flags of a Ray cluster."""
    parser.add_argument(
        "--backend",
        choices=(_LOCAL, _RAY),
        default=_LOCAL,
        metavar="NAME",
        help="where devices train: local, or ray, on a cluster; the results are the "
        "same (default: local)",
    )
    parser.add_argument(
        "--address",
        type=_address,
        default=None,
        metavar="HOST:PORT",
        help="with ray: the cluster's head, or auto for the cluster that this machine "
        "is a node of (default: auto)",
    )
    parser.add_argument(
        "--actors",
        type=between(1, MOST_ACTORS),
        default=None,
        metavar="INT",
        help="with ray: actors for a run, with a CPU each (default: as many as fit)",
    )
    parser.add_argument(
        "--gpus-per-actor",
        type=_gpus,
        default=None,
        metavar="FLOAT",
        help="with ray: GPUs for each actor, e.g. 0.25 (default: 0)",
    )
    parser.add_argument(
        "--gpus",
        type=_num_gpus,
        default=None,
        metavar="INT",
        help="spread the processes over so many GPUs of this machine, or all; each "
        "sees one (default: all see all, and use the first)",
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add ``--workers``."""
    parser.add_argument(
        "--workers",
        type=between(0, MOST_WORKERS),
        default=None,
        metavar="INT",
        help="number of worker processes; affects speed only (default: 0, train in "
        "this process)",
    )


def backend_of(arguments: argparse.Namespace) -> Backend:
    """Return what the flags ask for; ConfigError if they contradict each other."""
    workers = getattr(arguments, "workers", None)
    if arguments.backend == _RAY:
        if workers is not None:
            raise ConfigError(
                "--workers are processes of this machine: with --backend ray give "
                "--actors instead"
            )
        if arguments.gpus is not None:
            raise ConfigError(
                "--gpus are those of this machine: with --backend ray give "
                "--gpus-per-actor instead"
            )
        return Backend(
            address=arguments.address or AUTO,
            actors=arguments.actors or 0,
            gpus_per_actor=arguments.gpus_per_actor or 0.0,
        )
    for name in ("address", "actors", "gpus_per_actor"):
        if getattr(arguments, name) is not None:
            flag = name.replace("_", "-")
            raise ConfigError(f"--{flag} is about a Ray cluster: add --backend ray")
    gpus: tuple[str, ...] = ()
    if arguments.gpus is not None:
        if hasattr(arguments, "workers") and not workers:
            raise ConfigError(
                "--gpus spreads worker processes over GPUs: add --workers"
            )
        gpus = visible_gpus(arguments.gpus)
    return Backend(workers=workers or 0, gpus=gpus)


def _from(gpus: tuple[str, ...], first: int) -> tuple[str, ...]:
    """Return GPUs in turn, from one on."""
    place = first % len(gpus) if gpus else 0
    return gpus[place:] + gpus[:place]


def _num_gpus(text: str) -> int:
    """Read a number of GPUs; 0 for all."""
    if text == "all":
        return 0
    try:
        return between(1, MOST_GPUS)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a number of GPUs, or all; {VISIBLE} says which ones"
        ) from None


def _address(text: str) -> str:
    if problem := problem_of_address(text):
        raise argparse.ArgumentTypeError(problem)
    return text


def _gpus(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number <= MOST_GPUS:
        raise argparse.ArgumentTypeError(f"{text!r} must be in [0, {MOST_GPUS}]")
    return number
