"""Connections kept between calls, by origin and account; each is used by one call at a time.

So it is known exactly how long each one idled, and a submit never meets one that the vendor may be closing.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Self

from coatcheck.errors import NotSentError
from coatcheck.http import Call, Reply
from coatcheck.model import Account
from coatcheck.transport import protocol
from coatcheck.transport.environment import Environment
from coatcheck.transport.forks import forks
from coatcheck.transport.guard import check_behind_proxy
from coatcheck.transport.outgoing import Origin, Outgoing, prepare


class Line(ABC):
    """One connection, open or not."""

    #: When its last call ended, by the monotonic clock.
    idle_since = 0.0

    @abstractmethod
    def exchange(self, outgoing: Outgoing, call: Call) -> Reply:
        """Send the call and read the reply; whoever calls closes the line if that fails."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; the next call opens it again."""


class PooledTransport(ABC):
    """A transport over lines.

    Connections are pooled by origin and account. Proxies and CA bundles come from the environment as users of
    requests expect (``HTTPS_PROXY``, ``NO_PROXY``, ``REQUESTS_CA_BUNDLE``, ``CURL_CA_BUNDLE``), read once per
    origin and not per call; netrc files are not read. A process that was forked opens connections of its own.
    """

    def __init__(self) -> None:
        self._environment = Environment()
        self._pools: dict[tuple[str, str, bool], _Pool] = {}
        self._forks = forks()
        self._lock = threading.Lock()
        self._is_closed = False

    @abstractmethod
    def _open(self, origin: Origin, proxy: str | None, *, is_guarded: bool) -> Line:
        """Return a new line; nothing is connected yet."""

    def perform(self, call: Call, account: Account) -> Reply:
        """Send the call once; see ``Transport.perform``."""
        outgoing = prepare(call)
        pool = self._pool(outgoing.origin, account.name, call.guarded)
        line = pool.take(protocol.FRESH if call.creates else protocol.IDLE)
        try:
            reply = line.exchange(outgoing, call)
        except BaseException:
            # Half a reply may be left on the connection.
            line.close()
            raise
        pool.give_back(line)
        return reply

    def close(self) -> None:
        """Close idle connections now, and those in use when their call ends."""
        with self._lock:
            self._is_closed = True
            pools = list(self._pools.values())
            self._pools.clear()
        for pool in pools:
            pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pool(self, origin: Origin, account: str, is_guarded: bool) -> "_Pool":  # noqa: FBT001  # a part of the key
        if self._forks != forks():
            self._leave_parent()
        pool = self._pools.get((origin.url, account, is_guarded))
        if pool is None:
            proxy = self._environment.proxy(origin.url)
            if proxy is not None and is_guarded:
                check_behind_proxy(origin.host, origin.port)
            with self._lock:
                if self._is_closed:
                    raise NotSentError(f"the transport is closed; nothing was sent to {origin.url}")
                pool = self._pools.setdefault(
                    (origin.url, account, is_guarded),
                    _Pool(lambda: self._open(origin, proxy, is_guarded=is_guarded)),
                )
        return pool

    def _leave_parent(self) -> None:
        """After a fork: the parent goes on using the connections that we inherited."""
        # The locks too may have been copied while a thread of the parent held them.
        self._lock = threading.Lock()
        self._environment = Environment()
        inherited, self._pools, self._forks = self._pools, {}, forks()
        for pool in inherited.values():
            pool.close()


class _Pool:
    """The idle lines to one origin for one account, the latest used last."""

    def __init__(self, new: Callable[[], Line]) -> None:
        self._new = new
        self._idle: deque[Line] = deque()
        self._is_closed = False

    def take(self, freshness: float) -> Line:
        """Return the line used last if it idled for at most ``freshness`` seconds, else one to be opened."""
        try:
            line = self._idle.pop()
        except IndexError:
            return self._new()
        if time.monotonic() - line.idle_since > freshness:
            line.close()
        return line

    def give_back(self, line: Line) -> None:
        """Keep the line for the next call, and close the one that idled longest if for too long."""
        line.idle_since = now = time.monotonic()
        self._idle.append(line)
        if self._is_closed:
            self.close()
        elif now - self._idle[0].idle_since > protocol.IDLE:
            self._close_one()

    def close(self) -> None:
        """Close all idle lines, and from now on those that come back."""
        self._is_closed = True
        while self._idle:
            self._close_one()

    def _close_one(self) -> None:
        try:
            self._idle.popleft().close()
        except IndexError:
            # Another thread took it meanwhile.
            return
