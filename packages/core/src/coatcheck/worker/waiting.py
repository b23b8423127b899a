"""A thread that waits for new work while the main loop waits for calls to end."""

import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue

from coatcheck.store import Store

#: How long one wait lasts at most: afterwards the thread looks whether it is still needed.
_SLICE = timedelta(seconds=10)
#: How long to leave a store alone that cannot be waited on, in seconds.
_PAUSE = 1.0


class Waiting:
    """Waits at the store, on request, and calls ``on_news`` when something came.

    Args:
        store: where to wait.
        on_news: called from the thread.
    """

    def __init__(self, store: Store, on_news: Callable[[], None]) -> None:
        self._store = store
        self._on_news = on_news
        self._requests: SimpleQueue[tuple[int, timedelta] | None] = SimpleQueue()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        #: A wait is under way; set by the main loop, cleared by the thread.
        self.is_waiting = False

    def wait(self, mark: int, timeout: timedelta) -> None:
        """Ask for a call when there is news since the claim with this mark, or at the timeout."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="coatcheck-wait", daemon=True)
            self._thread.start()
        self.is_waiting = True
        self._requests.put((mark, timeout))

    def stop(self) -> None:
        """Let the thread end when its wait does; it holds nothing that anybody needs."""
        self._stop.set()
        self._requests.put(None)

    def _work(self) -> None:
        while True:
            request = self._requests.get()
            if request is None or self._stop.is_set():
                return
            self._wait(*request)
            self.is_waiting = False
            if self._stop.is_set():
                return
            self._on_news()

    def _wait(self, mark: int, timeout: timedelta) -> None:
        left = timeout
        while left > timedelta() and not self._stop.is_set():
            piece = min(left, _SLICE)
            try:
                if self._store.wait_for_work(mark, piece):
                    return
            except Exception:  # noqa: BLE001  # the claim that follows meets the same and reports it
                self._stop.wait(_PAUSE)
                return
            left -= piece
