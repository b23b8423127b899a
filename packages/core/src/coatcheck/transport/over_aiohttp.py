"""The async transport, over ``aiohttp``; needs ``pip install "coatcheck[aiohttp]"``."""

import asyncio
import socket
import threading
import time
import zlib
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Any, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from coatcheck.errors import CoatcheckError, NotSentError
from coatcheck.http import Call, Reply
from coatcheck.http.address import check_address
from coatcheck.model import Account
from coatcheck.transport import protocol
from coatcheck.transport.environment import Environment
from coatcheck.transport.forks import forks
from coatcheck.transport.guard import check_behind_proxy
from coatcheck.transport.loop import new_event_loop
from coatcheck.transport.outgoing import Outgoing, Stream, prepare
from coatcheck.transport.reading import Body, is_inside, maybe_sent, not_sent

#: How long ``close`` waits for connections of event loops that others run, in seconds.
_PATIENCE = 5.0
#: Sessions that a parent process goes on using; a forked one must not even close them.
_INHERITED: list[object] = []


#: A type that a call does not give is not made up for its body.
_NO_TYPE = ("Content-Type",)
#: How often calls are compared with their deadlines, in seconds.
_WATCH = 0.05


class AiohttpTransport:
    """Hundreds of calls at the same time on one event loop, without a thread for each.

    A worker runs it on its own loop; ``perform``, for everybody else, on one in a thread of the transport.
    Connections are pooled by origin and account. Proxies and CA bundles come from the environment as users of
    requests expect, read once; SOCKS proxies are for the other transports. A process that was forked opens
    connections of its own.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._environment = Environment()
        self._houses: dict[asyncio.AbstractEventLoop, _House] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._forks = forks()
        self._lock = threading.Lock()
        self._is_closed = False

    async def perform_async(self, call: Call, account: Account) -> Reply:
        """Send the call once; see ``AsyncTransport.perform_async``."""
        outgoing = prepare(call)
        seconds = call.timeout.total_seconds()
        until = time.monotonic() + seconds
        proxy = self._environment.proxy(outgoing.origin.url)
        if proxy is not None:
            await self._check_proxy(proxy, outgoing, call)
        house = self._house()
        body = outgoing.body
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # narrows the type: a coroutine runs in a task
        house.deadlines.add(task, until)
        response: aiohttp.ClientResponse | None = None
        try:
            response = await house.session(account.name, call).request(
                outgoing.method,
                # As it is: a signature may cover it.
                URL(outgoing.url, encoded=True),
                headers=outgoing.headers,
                data=_chunks(body) if isinstance(body, Stream) else body,
                skip_auto_headers=None if outgoing.method == "GET" and body is None else _NO_TYPE,
                allow_redirects=False,
                timeout=_timeout(seconds),
                proxy=proxy,
                ssl=self._environment.tls() if outgoing.origin.scheme == "https" else True,
            )
            # A response that is read to its end has given its connection back.
            content, file = await _read(response, call, until)
        except BaseException as error:
            if response is not None:
                response.close()
            if isinstance(error, CoatcheckError) or not house.is_ours(error, task):
                raise
            # The one question is whether the call was sent.
            describe = not_sent if _is_unsent(error) else maybe_sent
            is_late = isinstance(error, asyncio.CancelledError)
            raise describe(TimeoutError("the time is over") if is_late else error, call) from None
        finally:
            house.deadlines.remove(task)
        return Reply(response.status, content, response.headers, file=file)

    def perform(self, call: Call, account: Account) -> Reply:
        """Send the call once, from a thread without an event loop; see ``Transport.perform``."""
        loop = self._own_loop()
        return asyncio.run_coroutine_threadsafe(self.perform_async(call, account), loop).result()

    async def leave(self) -> None:
        """Close what was opened on the running event loop, which is about to end."""
        house = self._houses.pop(asyncio.get_running_loop(), None)
        if house is not None:
            await house.close()

    def close(self) -> None:
        """Close every connection; on event loops of others too, if they still run."""
        with self._lock:
            self._is_closed = True
            own, self._loop = self._loop, None
        if self._forks != forks():
            _INHERITED.append(self._houses)
            return
        for loop in list(self._houses):
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(self.leave(), loop).result(_PATIENCE)
        if own is not None and self._thread is not None:
            own.call_soon_threadsafe(own.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _house(self) -> "_House":
        self._check_open()
        loop = asyncio.get_running_loop()
        house = self._houses.get(loop)
        if house is None:
            house = self._houses.setdefault(loop, _House(loop))
        return house

    def _check_open(self) -> None:
        if self._forks != forks():
            _INHERITED.append(self._houses)
            self._start()
        if self._is_closed:
            raise NotSentError("the transport is closed; nothing was sent")

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        self._check_open()
        with self._lock:
            if self._loop is None:
                self._loop = new_event_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="coatcheck-aiohttp", daemon=True
                )
                self._thread.start()
            return self._loop

    async def _check_proxy(self, proxy: str, outgoing: Outgoing, call: Call) -> None:
        if not proxy.startswith(("http://", "https://")):
            raise NotSentError(
                f"aiohttp knows http and https proxies, found {proxy.partition('://')[0]} for "
                f"{outgoing.origin.url}; use the transport over requests with it",
                code="bad_proxy",
            )
        if call.guarded:
            await asyncio.to_thread(check_behind_proxy, outgoing.origin.host, outgoing.origin.port)


@lru_cache(maxsize=256)
def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    connecting = min(protocol.CONNECT_TIMEOUT, seconds)
    return aiohttp.ClientTimeout(total=None, connect=connecting, sock_connect=connecting)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


class _House:
    """What is open on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.deadlines = _Deadlines(loop)
        #: By account, whether connections must be fresh, and whether addresses must be public.
        self._sessions: dict[tuple[str, bool, bool], aiohttp.ClientSession] = {}

    def session(self, account: str, call: Call) -> aiohttp.ClientSession:
        """Return the session whose connections the call may use."""
        key = (account, call.creates, call.guarded)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _new_session(is_fresh=call.creates, is_guarded=call.guarded)
        return session

    def is_ours(self, error: BaseException, task: "asyncio.Task[Any]") -> bool:
        """Whether an error is one of the call: not when somebody else cancelled it, or wants to end."""
        if isinstance(error, asyncio.CancelledError):
            return self.deadlines.is_over(task) and not task.uncancel()
        return isinstance(error, Exception)

    async def close(self) -> None:
        """Close all connections."""
        self.deadlines.close()
        for session in self._sessions.values():
            await session.close()


class _Deadlines:
    """Breaks off the calls of one loop whose time is over: one timer for hundreds of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._until: dict[asyncio.Task[Any], float] = {}
        self._over: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, task: "asyncio.Task[Any]", until: float) -> None:
        """Watch a call."""
        self._until[task] = until
        if self._timer is None:
            self._timer = self._loop.call_later(_WATCH, self._look)

    def remove(self, task: "asyncio.Task[Any]") -> None:
        """Watch a call no more."""
        self._until.pop(task, None)
        self._over.discard(task)

    def is_over(self, task: "asyncio.Task[Any]") -> bool:
        """Whether the call was broken off here."""
        return task in self._over

    def close(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(_WATCH, self._look) if self._until else None
        now = time.monotonic()
        for task, until in self._until.items():
            if now > until and task not in self._over:
                self._over.add(task)
                task.cancel()


def _new_session(*, is_fresh: bool, is_guarded: bool) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0,  # the worker bounds the calls
        keepalive_timeout=protocol.FRESH if is_fresh else protocol.IDLE,
        resolver=_PublicResolver() if is_guarded else None,
    )
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )
    # Calls that HTTP takes for repeatable would be sent again when a connection breaks.
    session._retry_connection = False  # noqa: SLF001  # there is no public way
    return session


class _PublicResolver(AbstractResolver):
    """Resolves names to public addresses only; what it returns is what is connected to."""

    def __init__(self) -> None:
        self._resolver = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        for entry in found:
            check_address(entry["host"], host)
        return found

    async def close(self) -> None:
        await self._resolver.close()


async def _chunks(body: Stream) -> AsyncIterator[bytes]:
    # The files are spooled ones: reading a piece takes no longer than a task switch.
    for chunk in body.chunks():
        yield chunk


async def _read(response: aiohttp.ClientResponse, call: Call, until: float) -> tuple[bytes, Any]:
    encoding = response.headers.get("Content-Encoding")
    if encoding is None and not call.spool and response.content.is_eof():
        # The answer to a poll usually came in one piece, head and all.
        content = response.content.read_nowait()
        if len(content) <= call.body_cap:
            return content, None
    else:
        content = b""
    body = Body(call, response.status, until)
    try:
        body.add(content)
        if encoding is None or encoding.strip().lower() not in _PACKED:
            async for chunk in response.content.iter_any():
                body.add(chunk)
        else:
            unpacker = _Unpacker()
            async for chunk in response.content.iter_any():
                unpacker.put(chunk)
                while piece := unpacker.get(body.wanted):
                    body.add(piece)
            unpacker.end()
    except BaseException:
        body.drop()
        raise
    return body.done()


_PACKED = frozenset({"gzip", "x-gzip", "deflate"})


class _Unpacker:
    """Unpacks a body piece by piece, so that a small one cannot fill the memory before its cap is seen."""

    def __init__(self) -> None:
        # With 32 it finds out itself whether it is zlib or gzip.
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._data = b""
        self._is_begun = False

    def put(self, chunk: bytes) -> None:
        """Take what came in."""
        self._data += chunk

    def get(self, size: int) -> bytes:
        """Return the next piece, of at most ``size`` bytes; nothing: more must come in."""
        if self._unpacker.eof:
            return b""
        try:
            piece = self._unpacker.decompress(self._data, size)
        except zlib.error:
            if self._is_begun:
                raise
            # What some servers call deflate has no head at all.
            self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
            piece = self._unpacker.decompress(self._data, size)
        self._is_begun = True
        self._data = self._unpacker.unconsumed_tail
        return piece

    def end(self) -> None:
        """Refuse a body that is cut off."""
        if self._is_begun and not self._unpacker.eof:
            raise EOFError("the compressed body is cut off")


def _is_unsent(error: BaseException) -> bool:
    """Whether no connection was made: a timeout of the whole call may have struck there too."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return True
    if isinstance(error, aiohttp.ClientHttpProxyError | aiohttp.ClientProxyConnectionError):
        return True
    return is_inside(error, "connect", aiohttp.TCPConnector)
