"""The plain way to run a ClientApp: in the process that asks for the answer."""

import pickle

from flwr_asyncdrop.simulation.client_app import ClientAppSource, load_client_app
from flwr_asyncdrop.simulation.client_call import Answer, ClientCall
from flwr_asyncdrop.simulation.runner import Runner


class InlineRunner(Runner):
    """Runs each call in the calling process when its answer is asked for."""

    def __init__(self, client_app: ClientAppSource) -> None:
        self._app = load_client_app(client_app)
        self._pickled: bytes | None = None

    @property
    def has_room(self) -> bool:
        """One call at a time: the next one sees what the caller does until then."""
        return self._pickled is None

    def submit(self, call: ClientCall) -> None:
        """Keep the call, as it is now."""
        self._pickled = pickle.dumps(call)

    def collect(self, timeout: float | None) -> list[Answer]:
        """Run the call there is."""
        if self._pickled is None:
            return []
        # S301: pickled above. The client must not share memory with the server.
        call: ClientCall = pickle.loads(self._pickled)  # noqa: S301  # bytes of this grid
        self._pickled = None
        return [call.run(self._app)]

    def close(self) -> None:
        """Forget the call there is."""
        self._pickled = None
