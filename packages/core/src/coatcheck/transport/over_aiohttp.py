"""The async transport, over ``aiohttp``; needs ``pip install "coatcheck[aiohttp]"``."""

import asyncio
import os
import socket
import threading
import time
import zlib
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import Any, Self

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from attrs import frozen
from yarl import URL

from coatcheck.errors import CoatcheckError, NotSentError
from coatcheck.http import Call, Reply
from coatcheck.http.address import check_address
from coatcheck.model import Account
from coatcheck.transport import protocol
from coatcheck.transport.environment import Environment
from coatcheck.transport.guard import check_behind_proxy
from coatcheck.transport.outgoing import Outgoing, Stream, prepare
from coatcheck.transport.reading import Body, is_inside, maybe_sent, not_sent

#: How long ``close`` waits for connections of event loops that others run, in seconds.
_PATIENCE = 5.0
#: Sessions that a parent process goes on using; a forked one must not even close them.
_INHERITED: list[object] = []


@frozen
class _Key:
    """Which calls may share connections."""

    account: str
    #: Connections that idled for longer than ``FRESH`` are not used.
    is_fresh: bool
    is_guarded: bool


_Sessions = dict[_Key, aiohttp.ClientSession]


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
        self._sessions: dict[asyncio.AbstractEventLoop, _Sessions] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_closed = False

    async def perform_async(self, call: Call, account: Account) -> Reply:
        """Send the call once; see ``AsyncTransport.perform_async``."""
        outgoing = prepare(call)
        seconds = call.timeout.total_seconds()
        until = time.monotonic() + seconds
        body = outgoing.body
        proxy = self._environment.proxy(outgoing.origin.url)
        if proxy is not None:
            await self._check_proxy(proxy, outgoing, call)
        session = self._session(_Key(account.name, call.creates, call.guarded))
        try:
            async with session.request(
                outgoing.method,
                # As it is: a signature may cover it.
                URL(outgoing.url, encoded=True),
                headers=outgoing.headers,
                data=_chunks(body) if isinstance(body, Stream) else body,
                allow_redirects=False,
                timeout=_timeout(seconds),
                proxy=proxy,
                ssl=self._environment.tls() if outgoing.origin.scheme == "https" else True,
            ) as response:
                content = await _read(response, call, until)
        except CoatcheckError:
            raise
        except Exception as error:  # noqa: BLE001  # the one question is whether the call was sent
            raise (not_sent if _is_unsent(error) else maybe_sent)(error, call) from None
        return Reply(response.status, content[0], response.headers, file=content[1])

    def perform(self, call: Call, account: Account) -> Reply:
        """Send the call once, from a thread without an event loop; see ``Transport.perform``."""
        loop = self._own_loop()
        return asyncio.run_coroutine_threadsafe(self.perform_async(call, account), loop).result()

    async def leave(self) -> None:
        """Close what was opened on the running event loop, which is about to end."""
        for session in self._sessions.pop(asyncio.get_running_loop(), {}).values():
            await session.close()

    def close(self) -> None:
        """Close every connection; on event loops of others too, if they still run."""
        with self._lock:
            self._is_closed = True
            own, self._loop = self._loop, None
        if self._pid != os.getpid():
            _INHERITED.append(self._sessions)
            return
        for loop in list(self._sessions):
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(self.leave(), loop).result(_PATIENCE)
        if own is not None and self._thread is not None:
            own.call_soon_threadsafe(own.stop)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _session(self, key: _Key) -> aiohttp.ClientSession:
        self._check_open()
        loop = asyncio.get_running_loop()
        sessions = self._sessions.get(loop)
        if sessions is None:
            sessions = self._sessions.setdefault(loop, {})
        session = sessions.get(key)
        if session is None:
            session = sessions[key] = _new_session(key)
        return session

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            _INHERITED.append(self._sessions)
            self._start()
        if self._is_closed:
            raise NotSentError("the transport is closed; nothing was sent")

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        self._check_open()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
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
    return aiohttp.ClientTimeout(total=seconds, connect=connecting, sock_connect=connecting)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _new_session(key: _Key) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=0,  # the worker bounds the calls
        keepalive_timeout=protocol.FRESH if key.is_fresh else protocol.IDLE,
        resolver=_PublicResolver() if key.is_guarded else None,
    )
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Content-Type",),
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
    body = Body(call, response.status, until)
    encoding = response.headers.get("Content-Encoding")
    try:
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


def _is_unsent(error: Exception) -> bool:
    """Whether no connection was made: a timeout of the whole call may have struck there too."""
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return True
    if isinstance(error, aiohttp.ClientHttpProxyError | aiohttp.ClientProxyConnectionError):
        return True
    return is_inside(error, "connect", aiohttp.TCPConnector)
