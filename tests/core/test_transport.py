"""The requests transport over real sockets: what it sends, what it keeps, and what its errors mean."""

import gc
import gzip
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from coatcheck import transport as transport_module
from coatcheck.errors import MaybeSentError, NotSentError, UnknownNameError, VendorError
from coatcheck.http import Call, Part
from coatcheck.model import Account
from coatcheck.sandbox import Answer, Request, Server
from coatcheck.testing.vendor import LocalVendor
from coatcheck.transport import RequestsTransport

ACCOUNT = Account("default", lambda _: "secret")


class Recorder:
    """An app that keeps what it was sent, and answers what it is told."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda _: Answer.json({"ok": True})

    def __call__(self, request: Request) -> Answer:
        """Record and answer."""
        self.seen.append(request)
        return self.answer(request)


@pytest.fixture
def app() -> Recorder:
    """Return the app of the server."""
    return Recorder()


@pytest.fixture
def server(app: Recorder) -> Iterator[Server]:
    """Return a server that runs the app."""
    with Server(app) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the proxies of whoever runs the tests out of them."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def transport() -> Iterator[RequestsTransport]:
    """Return the transport; a connection that it leaves open fails the test."""
    with RequestsTransport() as transport:
        yield transport
    gc.collect()


def get(server: Server, path: str = "/", **fields: Any) -> Call:
    """Return a call to the server, with little patience."""
    return Call("GET", server.url + path, **{"timeout": timedelta(seconds=5), **fields})


# What goes out.


def test_a_call_arrives_as_it_was_described(
    app: Recorder, server: Server, transport: RequestsTransport
) -> None:
    """Method, path, query, headers and body are the handler's; the rest says who we are."""
    call = Call(
        "POST",
        server.url + "/jobs?a=1",
        query={"b": ["2", "3"], "c": "ü &", "none": None},
        headers={"X-Kind": "test"},
        json={"text": "ü"},
    )
    reply = transport.perform(call, ACCOUNT)
    assert (reply.status, reply.json()) == (200, {"ok": True})
    assert reply.header("content-TYPE") == "application/json"
    (seen,) = app.seen
    assert (seen.method, seen.path) == ("POST", "/jobs")
    assert seen.query == {"a": "1", "b": "3", "c": "ü &"}
    assert seen.json() == {"text": "ü"}
    assert seen.header("x-kind") == "test"
    assert seen.header("content-type") == "application/json"
    assert (seen.header("user-agent") or "").startswith("coatcheck/")
    assert seen.header("authorization") is None


def test_forms_and_parts_are_encoded(app: Recorder, server: Server, transport: RequestsTransport) -> None:
    """Vendors that want no JSON get what browsers send."""
    transport.perform(Call("POST", server.url, form={"a": "1 2", "b": "ü"}), ACCOUNT)
    parts = {
        "file": Part(content=b"page", filename="a.png", content_type="image/png"),
        "name": Part(content="ü"),
    }
    transport.perform(Call("PUT", server.url, multipart=parts), ACCOUNT)
    transport.perform(Call("PUT", server.url, body=b"raw"), ACCOUNT)
    form, multipart, raw = app.seen
    assert form.body == b"a=1+2&b=%C3%BC"
    assert form.header("content-type") == "application/x-www-form-urlencoded"
    assert (multipart.header("content-type") or "").startswith("multipart/form-data; boundary=")
    assert b'name="file"; filename="a.png"\r\nContent-Type: image/png\r\n\r\npage' in multipart.body
    assert b'name="name"\r\n\r\n\xc3\xbc' in multipart.body
    assert (raw.body, raw.header("content-type")) == (b"raw", None)


def test_signing_comes_last(app: Recorder, server: Server, transport: RequestsTransport) -> None:
    """Credentials exist only in what goes out."""
    call = get(server, sign=lambda call: call.with_headers(Authorization="Bearer x").with_query(token="y"))
    transport.perform(call, ACCOUNT)
    assert app.seen[0].header("authorization") == "Bearer x"
    assert app.seen[0].query == {"token": "y"}
    assert call.headers == {}


def test_a_missing_secret_gets_through_and_any_other_failure_to_sign_is_not_sent(
    app: Recorder, server: Server, transport: RequestsTransport
) -> None:
    """Nothing has left in both cases, and the worker handles them differently."""

    def unknown(call: Call) -> Call:
        raise UnknownNameError("no secret", "account", "default")

    def broken(call: Call) -> Call:
        raise RuntimeError("secret")

    with pytest.raises(UnknownNameError):
        transport.perform(get(server, sign=unknown), ACCOUNT)
    with pytest.raises(NotSentError, match="RuntimeError") as caught:
        transport.perform(get(server, sign=broken), ACCOUNT)
    assert caught.value.code == "bad_call"
    assert app.seen == []


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"X-Key": "sk-1\r\nX-Evil: 1"}},
        {"headers": {"X-Key": "密-sk-1"}},
        {"headers": {"X-Key": 7}},
        {"json": {"sk-1": object()}},
    ],
)
def test_a_call_that_cannot_be_written_was_not_sent(
    app: Recorder, server: Server, transport: RequestsTransport, fields: dict[str, Any]
) -> None:
    """A broken header never leaves, and its value, which may be a secret, is not shown."""
    with pytest.raises(NotSentError) as caught:
        transport.perform(get(server, **fields), ACCOUNT)
    assert caught.value.code == "bad_call"
    assert "sk-1" not in str(caught.value)
    assert app.seen == []


def test_redirects_are_not_followed(app: Recorder, server: Server, transport: RequestsTransport) -> None:
    """A redirected submit could be made twice, and a redirected key would go to somebody else."""
    with LocalVendor() as other:
        app.answer = lambda _: Answer(302, headers={"Location": f"{other.url}/jobs/1"})
        reply = transport.perform(get(server, headers={"Authorization": "Bearer x"}), ACCOUNT)
        assert (reply.status, other.calls) == (302, [])


def test_cookies_are_not_kept(app: Recorder, server: Server, transport: RequestsTransport) -> None:
    """A session that a vendor began for one task must not leak into the next."""
    app.answer = lambda _: Answer(headers={"Set-Cookie": "session=1"})
    for _ in range(2):
        transport.perform(get(server), ACCOUNT)
    assert [seen.header("cookie") for seen in app.seen] == [None, None]


def test_netrc_adds_no_credentials(
    app: Recorder,
    server: Server,
    transport: RequestsTransport,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another key than the account's is never tried."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    monkeypatch.setenv("NETRC", str(netrc))
    transport.perform(get(server), ACCOUNT)
    assert app.seen[0].header("authorization") is None


def test_proxies_are_read_from_the_environment_once(
    app: Recorder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users of requests expect the variables to work, and no call should pay for reading them."""
    monkeypatch.setenv("HTTP_PROXY", server.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with RequestsTransport() as transport, LocalVendor() as direct:
        for _ in range(2):
            reply = transport.perform(Call("GET", "http://vendor.test/jobs/1"), ACCOUNT)
            assert reply.json() == {"ok": True}
            monkeypatch.delenv("HTTP_PROXY", raising=False)
        transport.perform(Call("GET", f"{direct.url}/jobs/1"), ACCOUNT)
        assert direct.count("query") == 1
    assert [seen.path for seen in app.seen] == ["http://vendor.test/jobs/1"] * 2


# Connections.


def test_connections_are_kept_by_account(app: Recorder, server: Server, transport: RequestsTransport) -> None:
    """A new connection per call costs a handshake each; one for two accounts could mix them up."""
    for _ in range(3):
        transport.perform(get(server), ACCOUNT)
    assert server.accepted == 1
    transport.perform(get(server), Account("other", lambda _: ""))
    assert server.accepted == 2


def test_a_connection_that_idled_is_not_used_for_a_submit(
    app: Recorder, server: Server, transport: RequestsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor may be closing it at this moment, and the submit's outcome would be unknown."""
    submit = get(server, creates=True)
    transport.perform(submit, ACCOUNT)
    transport.perform(submit, ACCOUNT)
    assert server.accepted == 1
    monkeypatch.setattr(transport_module.protocol, "FRESH", 0.0)
    transport.perform(submit, ACCOUNT)
    assert server.accepted == 2
    transport.perform(get(server), ACCOUNT)
    assert server.accepted == 2


def test_a_connection_that_the_vendor_closed_is_replaced(
    app: Recorder, server: Server, transport: RequestsTransport
) -> None:
    """Vendors close idle connections without a word; the next call must not notice."""
    transport.perform(get(server), ACCOUNT)
    server.disconnect()
    deadline = time.monotonic() + 5
    while server.connections and time.monotonic() < deadline:
        time.sleep(0.005)
    assert transport.perform(get(server), ACCOUNT).status == 200
    assert server.accepted == 2


def test_connections_that_idled_for_long_are_closed(
    app: Recorder, server: Server, transport: RequestsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst must not leave its connections open for ever."""
    app.answer = lambda _: Answer(delay=0.2)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: transport.perform(get(server), ACCOUNT), range(4)))
    assert server.connections == 4
    monkeypatch.setattr(transport_module.protocol, "IDLE", 0.0)
    app.answer = lambda _: Answer()
    for _ in range(4):
        transport.perform(get(server), ACCOUNT)
    deadline = time.monotonic() + 5
    while server.connections > 1 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert server.connections <= 1


def test_many_threads_get_their_own_replies(
    app: Recorder, server: Server, transport: RequestsTransport
) -> None:
    """A connection that two calls shared would swap their replies."""
    app.answer = lambda request: Answer.json({"path": request.path})

    def work(thread: int) -> bool:
        account = Account(f"account-{thread % 2}", lambda _: "")
        return all(
            transport.perform(get(server, f"/{thread}/{turn}"), account).json()["path"] == f"/{thread}/{turn}"
            for turn in range(40)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert server.accepted <= 8


def test_a_forked_process_opens_its_own_connections(
    app: Recorder, server: Server, transport: RequestsTransport
) -> None:
    """A parent and a child on one connection would read each other's replies."""
    transport.perform(get(server), ACCOUNT)
    transport._lock.acquire()  # as a thread of the parent may hold it at the fork
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads, which is what this is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if transport.perform(get(server, "/child"), ACCOUNT).status == 200 else 1
            transport.close()
        finally:
            os._exit(status)
    transport._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert transport.perform(get(server, "/parent"), ACCOUNT).status == 200
    assert server.accepted == 2
    assert [seen.path for seen in app.seen] == ["/", "/child", "/parent"]


def test_a_closed_transport_sends_nothing(app: Recorder, server: Server) -> None:
    """After close a call fails cleanly; one that is under way ends, and its connection is closed with it."""
    transport = RequestsTransport()
    app.answer = lambda _: Answer(delay=0.2)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(transport.perform, get(server), ACCOUNT)
        while not app.seen:
            time.sleep(0.005)
        transport.close()
        assert under_way.result().status == 200
    with pytest.raises(NotSentError, match="the transport is closed"):
        transport.perform(get(server), ACCOUNT)
    assert len(app.seen) == 1
    gc.collect()


# What errors mean.


def test_a_refused_connection_was_not_sent(transport: RequestsTransport) -> None:
    """Nobody was there to see the call."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(NotSentError, match="ConnectionRefusedError"):
        transport.perform(Call("POST", f"http://127.0.0.1:{port}/jobs?key=k", creates=True), ACCOUNT)


def test_a_name_that_does_not_resolve_was_not_sent(transport: RequestsTransport) -> None:
    """Nobody was there to see the call."""
    with pytest.raises(NotSentError, match=r"http://vendor\.invalid") as caught:
        transport.perform(Call("POST", "http://vendor.invalid/jobs", query={"token": "sk-1"}), ACCOUNT)
    assert "sk-1" not in str(caught.value)


def test_a_failed_handshake_was_not_sent(server: Server, transport: RequestsTransport) -> None:
    """The call goes out only after TLS has been agreed on."""
    with pytest.raises(NotSentError, match="SSLError"):
        transport.perform(Call("POST", server.url.replace("http:", "https:")), ACCOUNT)


def test_a_handshake_that_hangs_was_not_sent(transport: RequestsTransport) -> None:
    """A timeout before the call went out is another thing than one after it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(NotSentError, match=r"imeout|timed out"):
            transport.perform(Call("POST", url, timeout=timedelta(seconds=0.2)), ACCOUNT)


def test_a_tunnel_that_a_proxy_refuses_was_not_sent(
    app: Recorder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor has not seen a call that its proxy did not let through."""
    monkeypatch.setenv("HTTPS_PROXY", server.url)
    app.answer = lambda _: Answer(403)
    with RequestsTransport() as transport, pytest.raises(NotSentError, match="403"):
        transport.perform(Call("POST", "https://vendor.test/jobs"), ACCOUNT)
    assert [seen.method for seen in app.seen] == ["CONNECT"]


@pytest.mark.parametrize("fault", ["reset", "truncate"])
def test_a_lost_reply_may_have_been_sent_and_is_not_sent_again(
    app: Recorder, server: Server, transport: RequestsTransport, fault: Any
) -> None:
    """The vendor has the call; a retry here would be a second job."""
    app.answer = lambda _: attrs.evolve(Answer.json({"id": "job-1"}), fault=fault)
    for _ in range(2):
        with pytest.raises(MaybeSentError) as caught:
            transport.perform(get(server, creates=True), ACCOUNT)
        assert caught.value.code == "connection_lost"
    assert len(app.seen) == 2


def test_a_reset_on_a_kept_connection_may_have_been_sent(
    app: Recorder, server: Server, transport: RequestsTransport
) -> None:
    """That a connection was old is no proof that the vendor did not read the call."""
    transport.perform(get(server), ACCOUNT)
    app.answer = lambda _: Answer(fault="reset")
    with pytest.raises(MaybeSentError):
        transport.perform(get(server, creates=True), ACCOUNT)
    assert (len(app.seen), server.accepted) == (2, 1)


def test_a_timeout_may_have_been_sent(app: Recorder, server: Server, transport: RequestsTransport) -> None:
    """The vendor may be working on it."""
    app.answer = lambda _: Answer(fault="hang")
    began = time.monotonic()
    with pytest.raises(MaybeSentError) as caught:
        transport.perform(get(server, timeout=timedelta(seconds=0.2)), ACCOUNT)
    assert caught.value.code == "timeout"
    assert 0.1 < time.monotonic() - began < 5


def test_a_reply_that_trickles_ends_with_the_timeout(transport: RequestsTransport) -> None:
    """A vendor that sends a byte now and then must not hold a worker's thread for ever."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def trickle() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(65536)
                link.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while not stop.wait(0.02):
                    try:
                        link.sendall(b"1\r\nx\r\n")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        began = time.monotonic()
        try:
            with pytest.raises(MaybeSentError, match="did not end within"):
                transport.perform(Call("GET", url, timeout=timedelta(seconds=0.3)), ACCOUNT)
            assert time.monotonic() - began < 5
        finally:
            stop.set()
            thread.join()


def test_a_body_over_its_cap_is_an_error(app: Recorder, server: Server, transport: RequestsTransport) -> None:
    """An endless or inflated body must not fill the worker's memory, and is no news."""
    app.answer = lambda _: Answer(200, b"x" * 1001)
    assert len(transport.perform(get(server, body_cap=1001), ACCOUNT).body) == 1001
    with pytest.raises(VendorError, match="larger than 1000 bytes") as caught:
        transport.perform(get(server, body_cap=1000), ACCOUNT)
    assert (caught.value.code, caught.value.http_status) == ("body_too_large", 200)
    app.answer = lambda _: Answer(200, gzip.compress(b"x" * 5_000_000), headers={"Content-Encoding": "gzip"})
    with pytest.raises(VendorError, match="larger than"):
        transport.perform(get(server), ACCOUNT)


def test_a_compressed_body_is_unpacked(app: Recorder, server: Server, transport: RequestsTransport) -> None:
    """Readers see what the vendor meant, however it travelled."""
    app.answer = lambda _: Answer(200, gzip.compress(b'{"a": 1}'), headers={"Content-Encoding": "gzip"})
    assert transport.perform(get(server), ACCOUNT).json() == {"a": 1}


def test_a_body_that_cannot_be_unpacked_may_have_been_sent(
    app: Recorder, server: Server, transport: RequestsTransport
) -> None:
    """A reply that cannot be read is a lost one."""
    app.answer = lambda _: Answer(200, b"no gzip", headers={"Content-Encoding": "gzip"})
    with pytest.raises(MaybeSentError):
        transport.perform(get(server), ACCOUNT)


def test_an_error_shows_no_secret_and_carries_no_cause_that_does(transport: RequestsTransport) -> None:
    """Errors of HTTP clients quote the whole URL; a traceback in a log would print it (G8)."""
    call = Call("GET", "http://127.0.0.1:1/jobs", sign=lambda call: call.with_query(access_token="sk-1"))
    with pytest.raises(NotSentError) as caught:
        transport.perform(call, ACCOUNT)
    assert "sk-1" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
