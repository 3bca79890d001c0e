"""What runs in a Ray actor."""

import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_asyncdrop.exceptions import AsyncDropError
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.simulation.client_app import ClientAppSource, load_client_app
from flwr_asyncdrop.simulation.ray.node_facts import Fingerprint, NodeFacts, as_imported
from flwr_asyncdrop.simulation.runner import ClientCall
from flwr_asyncdrop.simulation.transport import decode, encode

Parts = list[NDArray[np.uint8]]
"""A pickle stream and its buffers, which Ray moves without pickling them again."""


class Place(NamedTuple):
    """A node of the cluster: its id in Ray, and the name of its machine."""

    node_id: str
    host: str


class CallActor:
    """Runs one call after the other; what it has loaded stays."""

    def __init__(self) -> None:
        self._app: ClientApp | None = None

    def prepare(
        self,
        client_app: ClientAppSource,
        threads: int,
        fingerprint: Fingerprint | None,
        code: Mapping[str, str],
    ) -> tuple[Place, NodeFacts | str]:
        """Load the ClientApp; say where this is, and what is there or what is wrong."""
        context = require("ray", "simulation").get_runtime_context()
        place = Place(context.get_node_id(), socket.gethostname())
        try:
            torch.set_num_threads(threads)
            self._app = load_client_app(client_app)
            return place, NodeFacts.here(fingerprint).with_code(as_imported(code))
        except AsyncDropError as error:
            return place, str(error)
        except Exception as error:  # whatever a user's function raises
            return place, one_line(error)

    def run(self, message: Parts, arrays: Parts, context: Parts, seed: int) -> Parts:
        """Run a call that comes in parts; return the answer in parts."""
        if self._app is None:
            raise RuntimeError("prepare comes first")
        whole = from_parts([*message, *arrays])
        call = ClientCall(whole, from_parts(context), seed)
        answer = call.run(self._app)
        try:
            return to_parts(answer)
        except Exception as error:
            reason = f"The ClientApp's reply cannot be sent: {one_line(error)}"
            return to_parts(call.fail(reason))


def to_parts(value: object) -> Parts:
    """Pickle an object; the bytes of its arrays are not copied."""
    return [np.frombuffer(part, dtype=np.uint8) for part in encode(value)]


def from_parts(parts: Sequence[NDArray[np.uint8]]) -> Any:
    """Rebuild what `to_parts` took apart; the result owns all of its memory."""
    return decode([part.data for part in parts])
