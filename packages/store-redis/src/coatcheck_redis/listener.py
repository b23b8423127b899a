"""Waiting: one subscription for each process, and the threads that sleep until it brings news.

A subscription that is lost is made again while somebody waits; what happened meanwhile is asked for. Nobody
polls.
"""

import threading
import time
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from coatcheck.errors import CoatcheckError, StoreUnavailableError
from coatcheck_redis.connection import Connection
from coatcheck_redis.rows import SEPARATOR

#: How long nothing may be heard before the server is asked whether it is still there, in seconds.
SILENCE = 20.0
#: How much longer than its wait a watched task is announced, in seconds.
_MARGIN = 60.0
#: How often a subscription is tried: the first may have been cut while it was made.
_TRIES = 3


class _Session:
    """One subscription, from its start to its end."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        #: How often there was work, as far as it is known.
        self.mark = 0
        #: The same at its start.
        self.first_mark = 0
        self.is_ready = False
        self.error: Exception | None = None
        self.watched: dict[str, set[threading.Event]] = {}
        self.pubsub: Any = None
        self.thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None

    def end(self, error: Exception) -> None:
        with self.condition:
            self.error = error
            self.condition.notify_all()
            for events in self.watched.values():
                for event in events:
                    event.set()

    def hear(self, data: bytes) -> None:
        kind, rest = data[:1], data[1:].decode()
        with self.condition:
            if kind == b"w":
                self.mark = max(self.mark, int(rest))
                self.condition.notify_all()
            else:
                for id_ in rest.split(SEPARATOR):
                    for event in self.watched.get(id_, ()):
                        event.set()


class Listener:
    """What threads of one process wait with."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.start_anew()

    def start_anew(self) -> None:
        """Forget the thread that a forked child does not have."""
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self._is_stopped = False

    def wait_for_work(self, mark: int, timeout: float) -> bool:
        """Block until there was work more often than ``mark``, or until the time is over."""
        end = time.monotonic() + timeout
        has_moved = False
        while True:
            session = self._ready(end)
            if session is None:
                return False
            if has_moved:
                has_lost = session.first_mark < mark
            else:
                # Most often the news of the caller's own mark is still under way.
                has_lost = session.mark < mark and self._counted() < mark
            if has_lost:
                # The server has lost its last writes: what is counted now was not seen by anybody.
                return True
            with session.condition:
                session.condition.wait_for(
                    lambda: session.mark > mark or session.is_over,  # noqa: B023  # waited for here
                    max(end - time.monotonic(), 0),
                )
                if session.mark > mark:
                    return True
            if not session.is_over:
                return False
            has_moved = True

    def wait_for_change(self, task_id: str, version: int, timeout: float) -> bool:
        """Block until a task has another version, or until the time is over."""
        end = time.monotonic() + timeout
        event = threading.Event()
        while True:
            session = self._ready(end)
            if session is None:
                return self._version(task_id, 0) != version
            with session.condition:
                session.watched.setdefault(task_id, set()).add(event)
            try:
                while not session.is_over:
                    event.clear()
                    left = end - time.monotonic()
                    if self._version(task_id, max(left, 0)) != version:
                        return True
                    if session.is_over:
                        break
                    if not event.wait(max(end - time.monotonic(), 0)):
                        return False
            finally:
                with session.condition:
                    session.watched[task_id].discard(event)
                    if not session.watched[task_id]:
                        del session.watched[task_id]

    def _counted(self) -> int:
        """Return how often there was work."""
        return int(self._connection.run("mark", [""]))

    def _version(self, task_id: str, left: float) -> int | None:
        """Say that somebody waits for the task, and return its version."""
        found = self._connection.run("watch", ["", task_id, int((left + _MARGIN) * 1_000_000)])
        return int(found) if found else None

    def _ready(self, end: float) -> _Session | None:
        """Return a subscription that hears everything from now on; ``None`` when the time is over first."""
        error: Exception | None = None
        for _ in range(_TRIES):
            session = self._current()
            with session.condition:
                session.condition.wait_for(
                    lambda: session.is_ready or session.is_over,  # noqa: B023  # waited for here
                    max(end - time.monotonic(), 0),
                )
                error = session.error
                if error is None:
                    return session if session.is_ready else None
        if isinstance(error, CoatcheckError):
            raise type(error)(str(error)) from error
        raise StoreUnavailableError(f"{self._connection.address.label} does not answer: {error}") from error

    def _current(self) -> _Session:
        """Return the subscription of this process, a new one after the end of the last."""
        with self._lock:
            self._connection.check_open()
            session = self._session
            if session is None or session.is_over:
                session = self._session = _Session()
                session.thread = threading.Thread(
                    target=self._listen, args=(session,), name="coatcheck-redis-listener", daemon=True
                )
                session.thread.start()
            return session

    # In the listener's thread.

    def _listen(self, session: _Session) -> None:
        pubsub = None
        try:
            with self._connection.translated():
                pubsub = session.pubsub = self._connection.subscribe()
                is_asked = False
                while not self._is_stopped:
                    message = pubsub.get_message(timeout=SILENCE)
                    if message is None:
                        if is_asked:
                            raise StoreUnavailableError(f"{self._connection.address.label} went silent")
                        is_asked = True
                        pubsub.ping()
                        continue
                    is_asked = False
                    if message["type"] == "subscribe":
                        mark = self._counted()
                        with session.condition:
                            session.first_mark, session.is_ready = mark, True
                            session.mark = max(mark, session.mark)
                            session.condition.notify_all()
                    elif message["type"] == "message":
                        session.hear(message["data"])
            session.end(StoreUnavailableError(f"the store {self._connection.address.label} is closed"))
        except Exception as error:  # noqa: BLE001  # whoever waits has to hear of it
            session.end(error)
        finally:
            if pubsub is not None:
                with suppress(RedisError, OSError):
                    self._connection.unsubscribe(pubsub)

    def stop(self) -> None:
        """End the thread; whoever waits is told that the store is closed."""
        with self._lock:
            self._is_stopped = True
            session, self._session = self._session, None
        if session is None or session.thread is None:
            return
        if session.pubsub is not None and not session.is_over:
            with suppress(RedisError, OSError, CoatcheckError):
                # The answer wakes the thread.
                session.pubsub.ping()
        if session.thread is not threading.current_thread():
            session.thread.join(5)
