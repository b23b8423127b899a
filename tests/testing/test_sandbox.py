"""The server of the sandbox: it speaks enough HTTP, misbehaves on demand, and leaves nothing open."""

import gc
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from coatcheck.sandbox import Answer, Request, Server


def echo(request: Request) -> Answer:
    """Answer with what was asked; some paths misbehave."""
    match request.path:
        case "/slow":
            return Answer(200, b"slow", delay=0.05)
        case "/hang":
            return Answer(fault="hang")
        case "/reset":
            return Answer(fault="reset")
        case "/truncate":
            return Answer(200, b"0123456789", fault="truncate")
        case "/drop":
            return Answer(200, b"bye", fault="drop")
        case "/broken":
            raise RuntimeError("the app is broken")
    return Answer(200, f"{request.method} {request.path} {dict(request.query)} {request.body!r}".encode())


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a server that echoes."""
    with Server(echo) as server:
        yield server
    gc.collect()


@pytest.fixture
def link(server: Server) -> Iterator[socket.socket]:
    """Return a connection to it."""
    with socket.create_connection((server.host, server.port), timeout=5) as link:
        yield link


def receive(link: socket.socket, *ends: bytes) -> bytes:
    """Read until each of ``ends`` was seen in turn, or until the end of the connection."""
    seen = b""
    for end in ends:
        while end not in seen and (more := link.recv(65536)):
            seen += more
    return seen


def rest(link: socket.socket) -> bytes:
    """Read to the end of the connection."""
    seen = b""
    while more := link.recv(65536):
        seen += more
    return seen


def is_over(link: socket.socket) -> bool:
    """Return whether the other end closed the connection, in whatever manner."""
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True


def test_requests_in_one_packet_are_answered_in_order(link: socket.socket) -> None:
    """Keep-alive connections carry one answer per request, also behind a slow one."""
    link.sendall(
        b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
        b"POST /a%2Fb%20c?x=1&y= HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
        b"GET /last HTTP/1.1\r\n\r\n"
    )
    seen = receive(link, b"GET /last")
    answers = [
        seen.index(part) for part in (b"slow", b"POST /a/b c {'x': '1', 'y': ''} b'abc'", b"GET /last")
    ]
    assert answers == sorted(answers)
    assert seen.count(b"HTTP/1.1 200 OK\r\n") == 3


def test_a_request_may_arrive_byte_by_byte(link: socket.socket) -> None:
    """A packet is no request: both ends may cut anywhere."""
    for byte in b"PUT /x HTTP/1.1\r\ncontent-length: 2\r\n\r\nhi":
        link.sendall(bytes([byte]))
    assert b"PUT /x {} b'hi'" in receive(link, b"b'hi'")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /" + b"x" * 70_000,
    ],
)
def test_what_is_no_request_is_refused_and_the_connection_closed(link: socket.socket, sent: bytes) -> None:
    """A client with a bug gets an answer instead of a hanging connection."""
    link.sendall(sent)
    assert rest(link).startswith(b"HTTP/1.1 400 ")


def test_a_broken_app_answers_500(link: socket.socket) -> None:
    """A mistake in a test's own app is shown to its client, and the server goes on."""
    link.sendall(b"GET /broken HTTP/1.1\r\n\r\nGET /next HTTP/1.1\r\n\r\n")
    seen = receive(link, b"GET /next")
    assert b"HTTP/1.1 500" in seen
    assert b"RuntimeError: the app is broken" in seen


def test_a_reset_is_a_reset(link: socket.socket) -> None:
    """Clients tell a reset from a quiet end, so the server must too."""
    link.sendall(b"GET /reset HTTP/1.1\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        link.recv(1)


def test_a_truncated_answer_promises_more_than_it_sends(link: socket.socket) -> None:
    """The client must be able to notice."""
    link.sendall(b"GET /truncate HTTP/1.1\r\n\r\n")
    assert rest(link).endswith(b"Content-Length: 10\r\n\r\n01234")


def test_a_dropped_connection_ends_after_a_whole_answer(link: socket.socket) -> None:
    """That is how vendors close connections that clients want to use again."""
    link.sendall(b"GET /drop HTTP/1.1\r\n\r\n")
    seen = rest(link)
    assert seen.endswith(b"bye")
    assert b"close" not in seen


def test_a_server_closes_with_connections_that_hang() -> None:
    """A test that failed in the middle of a call must not hang in its clean-up."""
    server = Server(echo)
    with socket.create_connection((server.host, server.port), timeout=5) as link:
        link.sendall(b"GET /hang HTTP/1.1\r\n\r\n")
        while not server.connections:
            time.sleep(0.001)
        began = time.monotonic()
        server.close()
        server.close()
        assert time.monotonic() - began < 2
        assert is_over(link)
    assert not [thread for thread in threading.enumerate() if thread.name == "coatcheck-sandbox"]
    gc.collect()


def test_a_taken_port_is_an_error_that_leaves_nothing_open(server: Server) -> None:
    """The next attempt needs the loop and the thread to be gone."""
    with pytest.raises(OSError, match=r"(?i)address"):
        Server(echo, port=server.port)
    gc.collect()
