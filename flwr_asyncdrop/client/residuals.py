"""Error feedback: what coding has cost a device's changes, and adds to later ones."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from torch import Tensor

from flwr_asyncdrop import wire
from flwr_asyncdrop.client.region import Region
from flwr_asyncdrop.client.state import device_of
from flwr_asyncdrop.submodel import State

_KEY, _RUN_KEY = f"{wire.RESIDUAL_KEY}.", f"{wire.RESIDUAL_KEY}-run."


class Residuals:
    """What a device still owes the server, at full size, by the full model's units.

    Each task has other units, so a residual waits until its unit is trained again. It
    lies in Flower's ``context.state``, for every simulated device that a node plays.
    What is owed to another run, in the same context, is forgotten.
    (Seide et al., 2014; Karimireddy et al., 2019.)
    """

    def __init__(self, context: Context, message: Message, run: str) -> None:
        self._context, self._run = context, run
        device = device_of(message)
        self._key, self._run_key = _KEY + device, _RUN_KEY + device
        self._kept = wire.read_kept(message)
        record = wire.records_of(context.state, ArrayRecord).get(self._key)
        if self._run != self._stored_run():
            record = None
        self._full: State = {} if record is None else wire.from_record(record)

    def __bool__(self) -> bool:
        return bool(self._full)

    def added_to(self, changes: State) -> State:
        """Return changes with what is owed of the same units.

        In masked mode the units that the task leaves out become zero: nobody reads
        them.
        """
        return {name: self._added(name, change) for name, change in changes.items()}

    def keep(self, wanted: State, sent: State) -> None:
        """Note what was wanted and not sent; what is owed of other units stays."""
        for name, change in wanted.items():
            region = self._region(name, change)
            if (full := self._known(name, region)) is None:
                full = torch.zeros(region.full, dtype=torch.float32)
                self._full[name] = full
            left = change - sent[name]
            full[region.index] = left[region.own_index]
        self._context.state[self._key] = wire.to_record(self._full)
        self._context.state[self._run_key] = ConfigRecord({"run": self._run})

    def _stored_run(self) -> str:
        configs = wire.records_of(self._context.state, ConfigRecord)
        return str(configs[self._run_key]["run"]) if self._run_key in configs else ""

    def _added(self, name: str, change: Tensor) -> Tensor:
        region = self._region(name, change)
        full, at = self._known(name, region), region.own_index
        total = torch.zeros_like(change)
        total[at] = change[at] if full is None else change[at] + full[region.index]
        return total

    def _region(self, name: str, change: Tensor) -> Region:
        return Region.of(name, tuple(change.shape), self._kept)

    def _known(self, name: str, region: Region) -> Tensor | None:
        """Return what is owed; nothing if another model has left it."""
        full = self._full.get(name)
        return full if full is not None and full.shape == region.full else None
