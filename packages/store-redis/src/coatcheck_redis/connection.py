"""The connection to one Redis: scripts are run here, and what its errors mean to a caller is decided here.

A client never crosses a fork: the child makes its own. Nothing here knows a verb of the store.
"""

import logging
import os
import re
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis
from redis.client import PubSub
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostError
from redis.exceptions import TimeoutError as SlowError

from coatcheck.errors import CoatcheckError, StoreConfigError, StoreFullError, StoreUnavailableError
from coatcheck_redis.address import Address, Client
from coatcheck_redis.scripts import script

log = logging.getLogger("coatcheck.redis")

#: The oldest server that has all commands that the scripts use.
OLDEST = (6, 2)
SAFE_POLICY = "noeviction"
#: Errors after which nothing is to be asked of this connection again.
_REFUSED = (AuthenticationError, AuthorizationError, BusyLoadingError)
_AWAY = (
    LostError,
    SlowError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    ReadOnlyError,
    TryAgainError,
)
#: What a server says that answers, but not now; the words of a script's error are not always taken apart.
_LATER = re.compile(r"\b(BUSY|LOADING|MASTERDOWN|NOREPLICAS|CLUSTERDOWN|TRYAGAIN|READONLY|MISCONF)\b")
_FULL = "command not allowed when used memory"

#: Clients that a child inherited: never used, never closed, since closing would disturb the parent's.
_inherited: list[object] = []
_open: "weakref.WeakSet[Connection]" = weakref.WeakSet()


class Connection:
    """One Redis as one namespace sees it.

    Args:
        address: where it is.
        prefix: what the namespace's keys begin with; it holds their hash tag.
        start_anew: called in a forked child.
    """

    def __init__(self, address: Address, prefix: str, start_anew: Callable[[], None]) -> None:
        self.address = address
        self._on_fork = start_anew
        self.channel = f"{prefix}meta:news"
        self._prefix = prefix
        self._keys: dict[str, tuple[str, ...]] = {}
        self._is_closed = False
        self._start_anew()
        _open.add(self)

    def __repr__(self) -> str:
        return f"<Connection {self.address.label}>"

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._client: Client = None
        self._pubsubs: list[PubSub] = []

    def check_open(self) -> None:
        """Refuse a closed connection."""
        if self._is_closed:
            raise self._closed()

    def _closed(self) -> StoreUnavailableError:
        return StoreUnavailableError(f"the store {self.address.label} is closed; open a new one")

    def client(self) -> Client:
        """Return the client of this process."""
        with self._lock:
            self.check_open()
            if self._client is None:
                self._client = self.address.client()
            return self._client

    def keys(self, name: str) -> tuple[str, ...]:
        """Return the keys that a script declares."""
        found = self._keys.get(name)
        if found is None:
            found = self._keys[name] = tuple(self._prefix + key for key in script(name).keys)
        return found

    def run(self, name: str, arguments: Sequence[Any], *, again: bool = True) -> Any:
        """Run a script.

        Args:
            name: which.
            arguments: its ``ARGV``.
            again: whether the call may be repeated. That the server has closed a connection meanwhile is
                found out only by using it, so such a call is then made a second time, at once.

        Raises:
            StoreUnavailableError: the server does not answer; the script may have run or not.
            StoreFullError: the server has no memory left; nothing was stored.
            StoreConfigError: the server refuses us.
        """
        wanted = script(name)
        keys = self.keys(name)
        words = (len(keys), *keys, *arguments)
        with self.translated():
            try:
                return self._run(wanted.sha, wanted.text, words)
            except (LostError, ReadOnlyError) as error:
                if not again or isinstance(error, _REFUSED):
                    raise
                return self._run(wanted.sha, wanted.text, words)

    def _run(self, sha: str, text: str, words: Sequence[Any]) -> Any:
        client = self.client()
        try:
            return client.execute_command("EVALSHA", sha, *words)
        except NoScriptError:
            # The server has forgotten the script, or never knew it; it remembers what it was sent.
            return client.execute_command("EVAL", text, *words)

    # Listening.

    def subscribe(self) -> PubSub:
        """Return a subscription to the namespace's news; the caller gives it back with ``unsubscribe``."""
        pubsub: PubSub = self.client().pubsub()
        with self._lock:
            self._pubsubs.append(pubsub)
        pubsub.subscribe(self.channel)
        return pubsub

    def unsubscribe(self, pubsub: PubSub) -> None:
        """End a subscription."""
        with self._lock:
            if pubsub in self._pubsubs:
                self._pubsubs.remove(pubsub)
        pubsub.close()

    # Checks.

    def check_server(self) -> None:
        """Refuse servers that are too old, or that throw data away when they are full.

        Raises:
            StoreConfigError: with what to change.
            StoreUnavailableError: the server does not answer.
        """
        with self.translated():
            for node in self._servers():
                self._check_version(node)
                self._check_policy(node)

    def _servers(self) -> Iterator[Redis]:
        client = self.client()
        if self.address.kind == "cluster":
            for node in client.get_primaries():
                yield client.get_redis_connection(node)
        else:
            yield client

    def _check_version(self, server: Redis) -> None:
        try:
            found = str(server.info("server").get("redis_version", ""))
        except ResponseError:
            log.warning(
                "%s does not tell its version (INFO is refused); expected Redis 6.2 or newer",
                self.address.label,
            )
            return
        match = re.match(r"(\d+)\.(\d+)", found)
        if match is not None and (int(match[1]), int(match[2])) < OLDEST:
            raise StoreConfigError(
                f"expected Redis 6.2 or newer (or Valkey) at {self.address.label}, found {found}; upgrade it",
                self.address.label,
            )

    def _check_policy(self, server: Redis) -> None:
        policy = self._policy(server)
        if policy is None:
            log.warning(
                "%s does not tell its maxmemory-policy; make sure that it is noeviction, or tasks get lost "
                "when its memory is full",
                self.address.label,
            )
        elif policy != SAFE_POLICY and self.address.may_evict:
            log.warning("%s may throw tasks away: its maxmemory-policy is %s", self.address.label, policy)
        elif policy != SAFE_POLICY:
            raise StoreConfigError(
                f"expected maxmemory-policy noeviction at {self.address.label}, found {policy}: the server "
                "would throw tasks away when its memory is full; run CONFIG SET maxmemory-policy noeviction, "
                "or add allow_eviction=yes to the store's URL",
                self.address.label,
            )

    @staticmethod
    def _policy(server: Redis) -> str | None:
        for read in (
            lambda: server.config_get("maxmemory-policy").get("maxmemory-policy"),
            lambda: server.info("memory").get("maxmemory_policy"),
        ):
            try:
                found = read()
            except ResponseError:
                # Hosts like to hide the one or the other.
                continue
            if found is not None:
                return found.decode() if isinstance(found, bytes) else str(found)
        return None

    # Errors.

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn redis-py's errors into ours."""
        try:
            yield
        except RedisError as error:
            raise self._meaning(error) from error
        except (OSError, RedisClusterException) as error:
            raise StoreUnavailableError(f"{self.address.label} does not answer: {error}") from error
        except Exception as error:
            # A call that another thread closes the connection of meets a client that is half taken apart.
            if self._is_closed and not isinstance(error, CoatcheckError):
                raise self._closed() from error
            raise

    def _meaning(self, error: RedisError) -> CoatcheckError:
        text, label = str(error), self.address.label
        if _FULL in text:
            return StoreFullError(
                f"{label} has no memory left; nothing was stored: "
                "prune tasks, or raise maxmemory, and try again"
            )
        if isinstance(error, AuthenticationError | AuthorizationError | NoPermissionError):
            return StoreConfigError(
                f"{label} refuses this user: {text}; check user, password and permissions in the store's URL",
                label,
            )
        unverified = _unverified(error)
        if unverified is not None:
            return StoreConfigError(
                f"{label} shows a certificate that cannot be verified: {unverified.verify_message}; name its "
                "authority with ca_certs in the store's URL, and the server as its certificate does",
                label,
            )
        if isinstance(error, _AWAY):
            return StoreUnavailableError(f"{label} does not answer: {text}")
        if _LATER.search(text):
            return StoreUnavailableError(f"{label} does not answer now: {text}")
        if isinstance(error, ResponseError):
            return StoreConfigError(f"{label} refuses a command that the store needs: {text}", label)
        return StoreUnavailableError(f"{label} does not answer: {type(error).__name__}: {text}")

    # Ends and forks.

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._is_closed

    def close(self) -> None:
        """Give the connections of this process back."""
        with self._lock:
            self._is_closed = True
            client, self._client = self._client, None
            _open.discard(self)
        if client is not None:
            with self.translated():
                client.close()

    def after_fork_in_child(self) -> None:
        """Start anew with connections of the child's own."""
        _inherited.extend([self._client, *self._pubsubs])
        self._start_anew()
        self._on_fork()


def _unverified(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return what was wrong with a certificate, if that is behind an error of redis-py."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def _after_fork_in_child() -> None:
    for connection in list(_open):
        connection.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
