"""A runner as a user would write one: threads, over copies of the calls."""

import pickle
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from flwr_asyncdrop.simulation import Answer, ClientCall, Runner, load_client_app


class ThreadRunner(Runner):
    """Runs two calls at a time in threads of this process, and two more wait."""

    threads = 2

    def __init__(self, client_app: str) -> None:
        self._app = load_client_app(client_app)
        self._pool = ThreadPoolExecutor(self.threads)
        self._futures: set[Future[bytes]] = set()
        self.ran_in: set[int] = set()
        self.is_closed = False

    @property
    def has_room(self) -> bool:
        return len(self._futures) < 2 * self.threads

    def submit(self, call: ClientCall) -> None:
        assert self.has_room
        self._futures.add(self._pool.submit(self._run, pickle.dumps(call)))

    def collect(self, timeout: float | None) -> list[Answer]:
        done, self._futures = wait(self._futures, timeout, FIRST_COMPLETED)
        return [pickle.loads(each.result()) for each in done]  # noqa: S301  # ours

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self.is_closed = True

    def _run(self, call: bytes) -> bytes:
        self.ran_in.add(threading.get_ident())
        copy: ClientCall = pickle.loads(call)  # noqa: S301  # ours
        return pickle.dumps(copy.run(self._app))
