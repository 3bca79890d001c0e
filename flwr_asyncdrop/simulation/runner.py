"""Who runs the ClientApp for a grid: the interface."""

from abc import ABC, abstractmethod

from flwr_asyncdrop.simulation.client_call import Answer, ClientCall


class Runner(ABC):
    """Runs a ClientApp for a `LocalGrid`, wherever it likes.

    The grid calls it from one thread. Each call that was submitted gets one answer, in
    any order: that of `ClientCall.run`, or of `ClientCall.fail` if the call was lost. A
    call that was lost may be run again. The ClientApp may change a call's message and
    context, which the server keeps: what runs must be a copy, such as what pickling
    makes. `load_client_app` loads the ClientApp where it runs.
    """

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another call can be submitted now.

        What has no room must have calls that are not answered yet. One call that waits
        for each that runs keeps the processes busy while the server merges.
        """

    @abstractmethod
    def submit(self, call: ClientCall) -> None:
        """Take over a call; only while there is room. It must not wait for the answer.

        Parameters
        ----------
        call : ClientCall
            Never of a node that has another call under way.
        """

    @abstractmethod
    def collect(self, timeout: float | None) -> list[Answer]:
        """Return answers that have not been returned yet.

        Parameters
        ----------
        timeout : float | None
            Seconds to wait while there is none; ``None`` waits as long as it takes.
            Fewer may pass: an empty list does not mean that the time is over.

        Raises
        ------
        RunError
            There will be no more answers.
        """

    @abstractmethod
    def close(self) -> None:
        """Stop, and forget what has not been answered; may be called again."""
