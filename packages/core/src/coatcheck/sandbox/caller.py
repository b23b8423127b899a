"""What makes a local vendor call back: one thread that posts callbacks, one after another.

Nothing here knows a protocol: the calls are described, signed and all, by whoever has something to tell.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from coatcheck.errors import CoatcheckError
from coatcheck.http import Call, Reply
from coatcheck.model import Account

_log = logging.getLogger(__name__)

#: How often a callback is sent that nobody accepts, and how many seconds lie in between.
TRIES = 3
PAUSE = 0.5
#: How long an answer to it may take.
PATIENCE = timedelta(seconds=10)
#: How many of the latest callbacks are kept, to be looked at by tests.
KEPT = 1000

_NOBODY = Account("nobody", lambda _: "")


class Caller:
    """Posts callbacks from a thread of its own, which begins with the first one."""

    def __init__(self) -> None:
        #: The latest callbacks that were accepted, oldest first, each with the status of the answer.
        self.accepted: deque[tuple[Call, int]] = deque(maxlen=KEPT)
        self._waiting: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._timers: set[threading.Timer] = set()
        self._thread: threading.Thread | None = None
        self._is_closed = threading.Event()
        self._lock = threading.Lock()

    def post(self, call: Call) -> None:
        """Send a callback soon, and again where it is not answered with 2xx."""
        with self._lock:
            if self._is_closed.is_set():
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="coatcheck-caller", daemon=True)
                self._thread.start()
        self._waiting.put(call)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something after a while, unless it is closed before."""
        with self._lock:
            if self._is_closed.is_set():
                return
            timer = threading.Timer(seconds, lambda: None)
            timer.function = partial(self._do, timer, act)
            timer.daemon = True
            self._timers.add(timer)
            timer.start()

    def close(self) -> None:
        """Send nothing more and end the thread; a second call does nothing."""
        with self._lock:
            self._is_closed.set()
            timers = list(self._timers)
        for timer in timers:
            timer.cancel()
            timer.join()
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    def _do(self, timer: threading.Timer, act: Callable[[], None]) -> None:
        try:
            act()
        finally:
            with self._lock:
                self._timers.discard(timer)

    def _run(self) -> None:
        # Here, not above: most local vendors never call anybody.
        from coatcheck.transport import RequestsTransport

        transport = RequestsTransport()
        try:
            while (call := self._waiting.get()) is not None:
                self._send(transport.perform, call)
        finally:
            transport.close()

    def _send(self, perform: Callable[[Call, Account], Reply], call: Call) -> None:
        for turn in range(TRIES):
            try:
                status = perform(call.evolve(timeout=PATIENCE), _NOBODY).status
            except CoatcheckError as error:
                _log.info("%r did not arrive: %s", call, error)
            else:
                if 200 <= status < 300:
                    self.accepted.append((call, status))
                    return
                _log.info("%r was answered with %s", call, status)
            if turn + 1 < TRIES and self._is_closed.wait(PAUSE):
                return
