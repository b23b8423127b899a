"""A small HTTP server for development and tests: a function answers, and it can misbehave on demand.

Here is the serving machinery only (sockets, keep-alive, faults on the wire); what a vendor says is an ``App``
that somebody else writes. It is no server for the open network: it reads what well-behaved clients send and
listens on the loopback interface.
"""

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, unquote

from attrs import field, frozen

from coatcheck import codec
from coatcheck.model import EMPTY

#: The largest head and body that are read, in bytes.
HEAD_CAP = 64 * 1024
BODY_CAP = 64 * 1024 * 1024

_BOUNDARY = re.compile(r'boundary="?([^";]+)', re.IGNORECASE)
_PARAMETER = re.compile(r'(?i)[ ;](name|filename)="([^"]*)"')
_PART_TYPE = re.compile(r"(?im)^content-type: *([^\r\n]+)")
_REASONS = {status.value: status.phrase for status in HTTPStatus}


@frozen
class Request:
    """What a client sent: the path without its query and unquoted, header names in lower case."""

    method: str
    path: str
    query: Mapping[str, str] = EMPTY
    headers: Mapping[str, str] = EMPTY
    body: bytes = b""

    def json(self) -> Any:
        """Return the body as a JSON value; a ``ValueError`` if it is none."""
        return codec.loads(self.body)

    def header(self, name: str) -> str | None:
        """Return one header, or ``None``."""
        return self.headers.get(name.lower())

    def form(self) -> dict[str, str]:
        """Return the fields of a form body, the last of each name."""
        return dict(parse_qsl(self.body.decode(), keep_blank_values=True))

    def parts(self) -> dict[str, "FormPart"]:
        """Return the parts of a multipart body, the last of each name; none if the body is something else."""
        boundary = _BOUNDARY.search(self.header("content-type") or "")
        found: dict[str, FormPart] = {}
        if boundary is None:
            return found
        for piece in self.body.split(b"--" + boundary[1].encode())[1:-1]:
            head, _, content = piece.partition(b"\r\n\r\n")
            said = {name.lower(): value for name, value in _PARAMETER.findall(head.decode())}
            kind = _PART_TYPE.search(head.decode())
            found[said.get("name", "")] = FormPart(
                content.removesuffix(b"\r\n"), said.get("filename"), kind[1] if kind else None
            )
        return found


@frozen
class FormPart:
    """One part of a multipart body that a client sent."""

    content: bytes
    filename: str | None
    content_type: str | None

    @property
    def text(self) -> str:
        """The content as text."""
        return self.content.decode()


@frozen
class Answer:
    """What the server does about a request.

    Args:
        status: the HTTP status.
        body: the body.
        headers: further headers.
        delay: seconds until the answer goes out.
        fault: instead of a whole answer: "reset" breaks the connection off, "truncate" does so in the middle
            of the body, "hang" never answers, "drop" closes the connection quietly after a whole answer that
            promised to keep it.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default=EMPTY, kw_only=True)
    delay: float = field(default=0.0, kw_only=True)
    fault: Literal["reset", "truncate", "hang", "drop"] | None = field(default=None, kw_only=True)

    @classmethod
    def json(
        cls, value: Any, status: int = 200, *, headers: Mapping[str, str] = EMPTY, delay: float = 0.0
    ) -> "Answer":
        """Return an answer with a JSON body."""
        return cls(
            status, codec.dumps(value), headers={"Content-Type": "application/json", **headers}, delay=delay
        )

    def encoded(self) -> bytes:
        """Return the answer as it goes over the wire."""
        lines = [f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Status')}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines.append(f"Content-Length: {len(self.body)}\r\n\r\n")
        return "\r\n".join(lines).encode("latin-1") + self.body


#: Answers requests; called in the server's thread, one at a time, so it must not block (use
#: ``Answer(delay=…)``).
App = Callable[[Request], Answer]


class Server:
    """Serves an ``App`` over HTTP/1.1 in a thread of its own, with keep-alive.

    ``with Server(app) as server: … server.url …``; ``close`` ends every connection, those that hang included.

    Args:
        app: answers the requests; an exception of it is answered with 500.
        host: the address to listen on.
        port: the port; 0 takes a free one.
    """

    def __init__(self, app: App, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.app = app
        self._loop = asyncio.new_event_loop()
        self._links: set[_Link] = set()
        #: Connections that clients made so far.
        self.accepted = 0
        self._is_running = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="coatcheck-sandbox", daemon=True)
        try:
            self._socket = socket.create_server((host, port), backlog=1024)
        except BaseException:
            self._loop.close()
            raise
        self.host, self.port = host, self._socket.getsockname()[1]
        self._thread.start()
        # A stop that reaches the loop before it runs would end its start, not it.
        self._is_running.wait()

    @property
    def url(self) -> str:
        """Where the server is, without a trailing slash."""
        return f"http://{self.host}:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._links)

    def close(self) -> None:
        """Stop listening, break off all connections and end the thread; a second call does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def disconnect(self) -> None:
        """Close all connections quietly, as a vendor does with those that idle for too long."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(loop.create_server(lambda: _Link(self), sock=self._socket))
        loop.call_soon(self._is_running.set)
        try:
            loop.run_forever()
        finally:
            server.close()
            for link in list(self._links):
                link.wire.abort()
            # The aborted connections are closed by callbacks of the loop.
            loop.run_until_complete(asyncio.sleep(0))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _disconnect(self) -> None:
        for link in list(self._links):
            link.wire.close()


class _Link(asyncio.Protocol):
    """One connection: requests are read and answered one after another."""

    wire: asyncio.Transport

    def __init__(self, server: Server) -> None:
        self._server = server
        self._unread = bytearray()
        self._is_busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # narrows the type: streams get no other transport
        self.wire = transport
        self._server.accepted += 1
        self._server._links.add(self)  # noqa: SLF001  # the server and its links are one thing

    def connection_lost(self, exc: Exception | None) -> None:
        self._server._links.discard(self)  # noqa: SLF001  # see above

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._answer_all()

    def _answer_all(self) -> None:
        while not self._is_busy and not self.wire.is_closing():
            try:
                request = self._take()
            except ValueError as error:
                self.wire.write(Answer(400, str(error).encode()).encoded())
                self.wire.close()
                return
            if request is None:
                return
            try:
                answer = self._server.app(request)
            except Exception as error:  # noqa: BLE001  # a mistake in an app does not end the server
                answer = Answer(500, f"{type(error).__name__}: {error}".encode())
            if answer.delay > 0:
                self._is_busy = True
                asyncio.get_running_loop().call_later(answer.delay, self._finish, answer)
            else:
                self._send(answer)

    def _finish(self, answer: Answer) -> None:
        self._is_busy = False
        if not self.wire.is_closing():
            self._send(answer)
            self._answer_all()

    def _send(self, answer: Answer) -> None:
        match answer.fault:
            case None:
                self.wire.write(answer.encoded())
            case "hang":
                # Never free again: what the client sends from now on is left unread.
                self._is_busy = True
            case "reset":
                self._reset()
            case "truncate":
                encoded = answer.encoded()
                self.wire.write(encoded[: len(encoded) - max(1, len(answer.body) // 2)])
                self.wire.close()
            case "drop":
                self.wire.write(answer.encoded())
                self.wire.close()

    def _reset(self) -> None:
        """Break the connection off with a TCP reset, which closing alone would not send."""
        plug = self.wire.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.wire.abort()

    def _take(self) -> Request | None:
        """Take one whole request from what has arrived, or ``None`` if it is not all there.

        Raises:
            ValueError: it cannot be read.
        """
        if self._unread and not self._unread[:1].isalpha():
            raise ValueError("send HTTP, not TLS")
        end = self._unread.find(b"\r\n\r\n")
        if end < 0:
            if len(self._unread) > HEAD_CAP:
                raise ValueError("the head is too long")
            return None
        lines = self._unread[:end].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        if "transfer-encoding" in headers:
            raise ValueError("send a Content-Length")
        length = int(headers.get("content-length", "0"))
        if not 0 <= length <= BODY_CAP:
            raise ValueError("the body is too long")
        start = end + 4
        if len(self._unread) < start + length:
            return None
        method, target, _ = lines[0].split(" ", 2)
        path, _, query = target.partition("?")
        body = bytes(self._unread[start : start + length])
        del self._unread[: start + length]
        return Request(
            method,
            unquote(path) if "%" in path else path,
            dict(parse_qsl(query, keep_blank_values=True)) if query else EMPTY,
            headers,
            body,
        )
