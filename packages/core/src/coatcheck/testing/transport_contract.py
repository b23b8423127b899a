"""``TransportContract``: what every transport promises, over real sockets on this machine.

Subclass it and give it a fixture named ``new_transport`` that returns what makes one. Nothing here looks
inside a transport; a server counts what arrives.
"""

import asyncio
import gc
import gzip
import io
import logging
import os
import socket
import ssl
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import attrs
import pytest

from coatcheck.errors import MaybeSentError, NotSentError, UnknownNameError, UnsafeUrlError, VendorError
from coatcheck.http import Call, FromUrl, Part, Reply
from coatcheck.model import Account
from coatcheck.sandbox import Answer, Request, Server
from coatcheck.testing.guard import Contract
from coatcheck.transport import FRESH, Transport

ACCOUNT = Account("default", lambda _: "secret")
TOKEN = "sk-very-secret-1234"  # noqa: S105  # what must never be seen

_PEM = Path(__file__).with_name("tls")


class Recorder:
    """An app that keeps what it was sent, and answers what it is told."""

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda _: Answer.json({"ok": True})

    def __call__(self, request: Request) -> Answer:
        """Record and answer."""
        self.seen.append(request)
        return self.answer(request)


class RawServer:
    """Answers each connection with the same bytes, over TLS if wanted, and keeps what came in first.

    Args:
        answer: the bytes; or a function that is given the connection.
        is_tls: whether to serve with the certificate of ``tls/server.pem``, for localhost and 127.0.0.1.
    """

    def __init__(self, answer: bytes | Callable[[Any], None], *, is_tls: bool = False) -> None:
        self.seen: list[bytes] = []
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.url = f"{'https' if is_tls else 'http'}://127.0.0.1:{self.port}"
        self._tls: ssl.SSLContext | None = None
        if is_tls:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(_PEM / "server.pem")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link: Any = self._socket.accept()[0]
            except OSError:
                return
            try:
                link.settimeout(10)
                if self._tls is not None:
                    link = self._tls.wrap_socket(link, server_side=True)
                self.seen.append(link.recv(65536))
                if callable(self._answer):
                    self._answer(link)
                else:
                    link.sendall(self._answer)
            except OSError:
                continue  # the client broke off
            finally:
                link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # A listener that is only closed would leave its thread in accept.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


def get(server: Server, path: str = "/", **fields: Any) -> Call:
    """Return a call to the server, with little patience."""
    return Call("GET", server.url + path, **{"timeout": timedelta(seconds=5), **fields})


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for something that happens in another thread."""
    deadline = time.monotonic() + 5
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert is_true()


class TransportContract(Contract):
    """The rules of a transport.

    The whole file of an implementer is ``class TestMyTransport(TransportContract)`` with the fixture
    ``new_transport``. Rules about event loops are skipped for transports without ``perform_async``.
    """

    @pytest.fixture
    def new_transport(self) -> Callable[[], Transport]:
        """Return what makes the transport under test."""
        raise NotImplementedError("give the contract a fixture named new_transport that makes your transport")

    @pytest.fixture
    def transport(self, new_transport: Callable[[], Transport], no_proxies: None) -> Iterator[Transport]:
        """Return a transport; a connection that it leaves open fails the test."""
        transport = new_transport()
        yield transport
        transport.close()
        gc.collect()

    @pytest.fixture(autouse=True)
    def no_proxies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Keep the settings of whoever runs the tests out of them."""
        for name in (
            "http_proxy",
            "https_proxy",
            "all_proxy",
            "no_proxy",
            "requests_ca_bundle",
            "curl_ca_bundle",
        ):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)

    @pytest.fixture
    def app(self) -> Recorder:
        """Return the app of the server."""
        return Recorder()

    @pytest.fixture
    def server(self, app: Recorder) -> Iterator[Server]:
        """Return a server that runs the app."""
        with Server(app) as server:
            yield server

    # What goes out.

    def test_a_call_arrives_as_it_was_described(
        self, app: Recorder, server: Server, transport: Transport
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
        assert seen.header("accept") == "*/*"
        assert (seen.header("cookie"), seen.header("authorization")) == (None, None)

    def test_headers_of_a_call_take_the_place_of_our_own(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """However they are spelt: a vendor that got two types would take either."""
        headers = {"content-type": "application/x-amz-json-1.1", "ACCEPT": "text/plain", "user-agent": "me"}
        transport.perform(Call("POST", server.url, headers=headers, json={}), ACCOUNT)
        (seen,) = app.seen
        assert seen.header("content-type") == "application/x-amz-json-1.1"
        assert (seen.header("accept"), seen.header("user-agent")) == ("text/plain", "me")

    def test_an_address_arrives_as_it_is_written(self, transport: Transport) -> None:
        """A signature may cover all of it; what is no ASCII is quoted, and a fragment stays here."""
        with RawServer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") as raw:
            transport.perform(Call("GET", raw.url + "/a%2Fb/%7E~/ü?x=%7E&y=a+b%20c&z=/?:@,;#top"), ACCOUNT)
            transport.perform(Call("GET", raw.url + "?q=1"), ACCOUNT)
        assert raw.seen[0].startswith(b"GET /a%2Fb/%7E~/%C3%BC?x=%7E&y=a+b%20c&z=/?:@,; HTTP/1.1\r\n")
        assert raw.seen[1].startswith(b"GET /?q=1 HTTP/1.1\r\n")
        assert f"\r\nHost: 127.0.0.1:{raw.port}\r\n".encode() in raw.seen[0]

    def test_forms_and_parts_are_encoded(self, app: Recorder, server: Server, transport: Transport) -> None:
        """Vendors that want no JSON get what browsers send."""
        transport.perform(Call("POST", server.url, form={"a": "1 2", "b": ["ü", "x"]}), ACCOUNT)
        parts: dict[str, Any] = {
            "file": [
                Part(content=b"page", filename='a".png', content_type="image/png"),
                Part(content=io.BytesIO(b"scan" * 100_000), filename="b.tif"),
            ],
            "name": Part(content="ü"),
        }
        transport.perform(Call("PUT", server.url, multipart=parts), ACCOUNT)
        form, multipart = app.seen
        assert form.body == b"a=1+2&b=%C3%BC&b=x"
        assert form.header("content-type") == "application/x-www-form-urlencoded"
        assert (multipart.header("content-type") or "").startswith("multipart/form-data; boundary=")
        assert (
            b'name="file"; filename="a%22.png"\r\nContent-Type: image/png\r\n\r\npage\r\n' in multipart.body
        )
        assert b'name="file"; filename="b.tif"\r\n\r\n' + b"scan" * 100_000 + b"\r\n" in multipart.body
        assert b'name="name"\r\n\r\n\xc3\xbc\r\n' in multipart.body
        assert multipart.body.endswith(b"--\r\n")

    def test_a_raw_body_is_sent_without_a_type(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """Signed places for uploads refuse a type that was not signed; a file goes out from its start."""
        transport.perform(Call("PUT", server.url, body=b"raw"), ACCOUNT)
        file = io.BytesIO(b"x" * 300_000)
        file.read()
        transport.perform(Call("PUT", server.url, body=file), ACCOUNT)
        transport.perform(Call("POST", server.url), ACCOUNT)
        assert [len(seen.body) for seen in app.seen] == [3, 300_000, 0]
        assert [seen.header("content-type") for seen in app.seen] == [None] * 3
        assert [seen.header("transfer-encoding") for seen in app.seen] == [None] * 3
        assert not file.closed

    def test_signing_comes_last(self, app: Recorder, server: Server, transport: Transport) -> None:
        """Credentials exist only in what goes out."""
        call = get(server, sign=lambda call: call.with_headers(Authorization="Bearer x").with_query(turn="y"))
        transport.perform(call, ACCOUNT)
        assert app.seen[0].header("authorization") == "Bearer x"
        assert app.seen[0].query == {"turn": "y"}
        assert call.headers == {}

    def test_a_missing_secret_gets_through_and_any_other_failure_to_sign_is_not_sent(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """Nothing has left in both cases, and the worker handles them differently."""

        def unknown(call: Call) -> Call:
            raise UnknownNameError("no secret", "account", "default")

        def broken(call: Call) -> Call:
            raise RuntimeError(TOKEN)

        with pytest.raises(UnknownNameError):
            transport.perform(get(server, sign=unknown), ACCOUNT)
        with pytest.raises(NotSentError, match="RuntimeError") as caught:
            transport.perform(get(server, sign=broken), ACCOUNT)
        assert caught.value.code == "bad_call"
        assert app.seen == []

    @pytest.mark.parametrize(
        "fields",
        [
            {"headers": {"X-Key": f"{TOKEN}\r\nX-Evil: 1"}},
            {"headers": {"X-Key": f"密-{TOKEN}"}},
            {"headers": {f"X-Key: {TOKEN}\r\nX": "1"}},
            {"headers": {"X-Key": 7}},
            {"json": {TOKEN: object()}},
            {"multipart": {"file": FromUrl(f"https://a.test/{TOKEN}")}},
        ],
    )
    def test_a_call_that_cannot_be_written_was_not_sent(
        self, app: Recorder, server: Server, transport: Transport, fields: dict[str, Any]
    ) -> None:
        """A broken header never leaves, and its value, which may be a secret, is not shown."""
        with pytest.raises(NotSentError) as caught:
            transport.perform(get(server, **fields), ACCOUNT)
        assert caught.value.code == "bad_call"
        assert TOKEN not in str(caught.value)
        assert app.seen == []

    @pytest.mark.parametrize("method", ["GET", "POST"])
    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_redirects_are_not_followed(
        self, app: Recorder, server: Server, transport: Transport, method: str, status: int
    ) -> None:
        """A redirected submit could be made twice, and a redirected key would go to somebody else."""
        other = Recorder()
        with Server(other) as elsewhere:
            app.answer = lambda _: Answer(status, headers={"Location": f"{elsewhere.url}/jobs/1"})
            call = Call(method, server.url, headers={"Authorization": "Bearer x"})
            reply = transport.perform(call, ACCOUNT)
            assert (reply.status, other.seen) == (status, [])
            assert reply.header("location") == f"{elsewhere.url}/jobs/1"

    def test_cookies_are_not_kept(self, app: Recorder, server: Server, transport: Transport) -> None:
        """A session that a vendor began for one task must not leak into the next."""
        app.answer = lambda _: Answer(headers={"Set-Cookie": "session=1"})
        for _ in range(2):
            transport.perform(get(server), ACCOUNT)
        assert [seen.header("cookie") for seen in app.seen] == [None, None]

    def test_netrc_adds_no_credentials(
        self,
        app: Recorder,
        server: Server,
        transport: Transport,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Another key than the account's is never tried."""
        netrc = tmp_path / "netrc"
        netrc.write_text("machine 127.0.0.1 login me password mine\n")
        monkeypatch.setenv("NETRC", str(netrc))
        transport.perform(get(server), ACCOUNT)
        assert app.seen[0].header("authorization") is None

    # The environment.

    def test_proxies_are_read_from_the_environment_once(
        self,
        app: Recorder,
        server: Server,
        new_transport: Callable[[], Transport],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Users of requests expect the variables to work, and no call should pay for reading them."""
        monkeypatch.setenv("HTTP_PROXY", server.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        direct = Recorder()
        with closing(new_transport()) as transport, Server(direct) as beside:
            for _ in range(2):
                reply = transport.perform(Call("GET", "http://vendor.test/jobs/1?a=b"), ACCOUNT)
                assert reply.json() == {"ok": True}
                monkeypatch.delenv("HTTP_PROXY", raising=False)
            transport.perform(get(beside), ACCOUNT)
        assert len(direct.seen) == 1
        assert [seen.path for seen in app.seen] == ["http://vendor.test/jobs/1"] * 2

    def test_a_proxy_gets_its_own_credentials_and_not_the_vendors(
        self,
        app: Recorder,
        server: Server,
        new_transport: Callable[[], Transport],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A tunnel is asked for in the clear."""
        monkeypatch.setenv("HTTPS_PROXY", server.url.replace("http://", "http://me:pw@"))
        app.answer = lambda _: Answer(403)
        call = Call("POST", "https://vendor.test/jobs", headers={"Authorization": TOKEN})
        with closing(new_transport()) as transport, pytest.raises(NotSentError, match="403") as caught:
            transport.perform(call, ACCOUNT)
        (seen,) = app.seen
        assert (seen.method, seen.header("authorization")) == ("CONNECT", None)
        assert seen.header("proxy-authorization") == "Basic bWU6cHc="
        assert "pw@" not in str(caught.value)

    def test_certificates_are_checked_against_the_bundle_of_the_environment(
        self, new_transport: Callable[[], Transport], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A vendor on the own network has a certificate of its own, and nobody else's is trusted."""
        answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
        with RawServer(answer, is_tls=True) as raw:
            with closing(new_transport()) as transport, pytest.raises(NotSentError) as caught:
                transport.perform(Call("POST", raw.url), ACCOUNT)
            assert "certificate" in str(caught.value).lower()
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(_PEM / "authority.pem"))
            with closing(new_transport()) as transport:
                assert transport.perform(Call("GET", raw.url), ACCOUNT).text == "hi"
                named = raw.url.replace("127.0.0.1", "localhost")
                monkeypatch.delenv("REQUESTS_CA_BUNDLE")
                assert transport.perform(Call("GET", named), ACCOUNT).text == "hi"
        assert [seen[:4] for seen in raw.seen] == [b"GET ", b"GET "]

    def test_a_bundle_that_cannot_be_read_is_not_sent(
        self, new_transport: Callable[[], Transport], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is a setting that is wrong, and the submit may go out when it is right."""
        monkeypatch.setenv("CURL_CA_BUNDLE", "/nowhere/bundle.pem")
        with closing(new_transport()) as transport, pytest.raises(NotSentError, match="CURL_CA_BUNDLE"):
            transport.perform(Call("POST", "https://127.0.0.1:1/"), ACCOUNT)

    # Connections.

    def test_connections_are_kept_by_account(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """A new connection per call costs a handshake each; one for two accounts could mix them up."""
        for _ in range(3):
            transport.perform(get(server), ACCOUNT)
        assert server.accepted == 1
        transport.perform(get(server), Account("other", lambda _: ""))
        assert server.accepted == 2

    def test_a_connection_that_idled_is_not_used_for_a_submit(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """The vendor may be closing it at this moment, and the submit's outcome would be unknown."""
        submit = Call("POST", server.url, creates=True)
        transport.perform(submit, ACCOUNT)
        before = server.accepted
        transport.perform(submit, ACCOUNT)
        assert server.accepted == before
        time.sleep(FRESH + 0.1)
        transport.perform(submit, ACCOUNT)
        assert server.accepted == before + 1

    def test_a_connection_that_the_vendor_closed_is_replaced(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """Vendors close idle connections without a word; the next call must not notice."""
        transport.perform(get(server), ACCOUNT)
        server.disconnect()
        wait_until(lambda: not server.connections)
        assert transport.perform(get(server), ACCOUNT).status == 200
        assert server.accepted == 2

    def test_many_threads_get_their_own_replies(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """A connection that two calls shared would swap their replies."""
        app.answer = lambda request: Answer.json({"path": request.path})

        def work(thread: int) -> bool:
            account = Account(f"account-{thread % 2}", lambda _: "")
            paths = [f"/{thread}/{turn}" for turn in range(40)]
            return all(transport.perform(get(server, path), account).json()["path"] == path for path in paths)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(8)))
        assert server.accepted <= 8

    def test_a_forked_process_opens_its_own_connections(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """A parent and a child on one connection would read each other's replies."""
        transport.perform(get(server), ACCOUNT)
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
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert transport.perform(get(server, "/parent"), ACCOUNT).status == 200
        assert server.accepted == 2
        assert [seen.path for seen in app.seen] == ["/", "/child", "/parent"]

    def test_a_closed_transport_sends_nothing(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """After close a call fails cleanly, and no connection is left."""
        transport.perform(get(server), ACCOUNT)
        transport.close()
        with pytest.raises(NotSentError, match="the transport is closed"):
            transport.perform(get(server), ACCOUNT)
        assert len(app.seen) == 1
        wait_until(lambda: not server.connections)

    # What errors mean.

    def test_a_refused_connection_was_not_sent(self, transport: Transport) -> None:
        """Nobody was there to see the call."""
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        with pytest.raises(NotSentError, match=r"onnect"):
            transport.perform(Call("POST", f"http://127.0.0.1:{port}/jobs?key=k", creates=True), ACCOUNT)

    def test_a_name_that_does_not_resolve_was_not_sent(self, transport: Transport) -> None:
        """Nobody was there to see the call."""
        with pytest.raises(NotSentError, match=r"http://vendor\.invalid") as caught:
            transport.perform(Call("POST", "http://vendor.invalid/jobs", query={"token": TOKEN}), ACCOUNT)
        assert TOKEN not in str(caught.value)

    def test_a_failed_handshake_was_not_sent(self, server: Server, transport: Transport) -> None:
        """The call goes out only after TLS has been agreed on."""
        with pytest.raises(NotSentError):
            transport.perform(Call("POST", server.url.replace("http:", "https:")), ACCOUNT)

    def test_a_handshake_that_hangs_was_not_sent(self, transport: Transport) -> None:
        """A timeout before the call went out is another thing than one after it."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
            with pytest.raises(NotSentError, match=r"imeout|timed out"):
                transport.perform(Call("POST", url, timeout=timedelta(seconds=0.2)), ACCOUNT)

    @pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
    @pytest.mark.parametrize("fault", ["reset", "truncate"])
    def test_a_lost_reply_may_have_been_sent_and_is_not_sent_again(
        self, app: Recorder, server: Server, transport: Transport, fault: Any, method: str
    ) -> None:
        """The vendor has the call; a retry here would be a second job, whatever HTTP says of the method."""
        app.answer = lambda _: attrs.evolve(Answer.json({"id": "job-1"}), fault=fault)
        for _ in range(2):
            with pytest.raises(MaybeSentError) as caught:
                transport.perform(Call(method, server.url, creates=True), ACCOUNT)
            assert caught.value.code == "connection_lost"
        assert len(app.seen) == 2

    def test_a_reset_on_a_kept_connection_may_have_been_sent(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """That a connection was old is no proof that the vendor did not read the call."""
        transport.perform(get(server), ACCOUNT)
        app.answer = lambda _: Answer(fault="reset")
        with pytest.raises(MaybeSentError):
            transport.perform(get(server), ACCOUNT)
        assert (len(app.seen), server.accepted) == (2, 1)

    @pytest.mark.parametrize(
        "answer", [b"", b"no HTTP at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]
    )
    def test_a_reply_that_is_none_may_have_been_sent(self, transport: Transport, answer: bytes) -> None:
        """Something was there and read the call."""
        with RawServer(answer) as raw, pytest.raises(MaybeSentError):
            transport.perform(Call("POST", raw.url), ACCOUNT)
        assert len(raw.seen) == 1

    def test_a_timeout_may_have_been_sent(self, app: Recorder, server: Server, transport: Transport) -> None:
        """The vendor may be working on it."""
        app.answer = lambda _: Answer(fault="hang")
        began = time.monotonic()
        with pytest.raises(MaybeSentError) as caught:
            transport.perform(get(server, timeout=timedelta(seconds=0.2)), ACCOUNT)
        assert caught.value.code == "timeout"
        assert 0.1 < time.monotonic() - began < 5

    def test_a_reply_that_trickles_ends_with_the_timeout(self, transport: Transport) -> None:
        """A vendor that sends a byte now and then must not hold a worker for ever."""
        stop = threading.Event()

        def trickle(link: socket.socket) -> None:
            link.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not stop.wait(0.02):
                link.sendall(b"1\r\nx\r\n")

        began = time.monotonic()
        with RawServer(trickle) as raw:
            with pytest.raises(MaybeSentError) as caught:
                transport.perform(Call("GET", raw.url, timeout=timedelta(seconds=0.3)), ACCOUNT)
            stop.set()
        assert caught.value.code == "timeout"
        assert time.monotonic() - began < 5

    # Bodies.

    def test_a_body_over_its_cap_is_an_error(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """An endless or inflated body must not fill the worker's memory, and is no news."""
        app.answer = lambda _: Answer(200, b"x" * 1001)
        assert len(transport.perform(get(server, body_cap=1001), ACCOUNT).body) == 1001
        with pytest.raises(VendorError, match="larger than 1000 bytes") as caught:
            transport.perform(get(server, body_cap=1000), ACCOUNT)
        assert (caught.value.code, caught.value.http_status) == ("body_too_large", 200)
        packed = gzip.compress(b"x" * 50_000_000)
        app.answer = lambda _: Answer(200, packed, headers={"Content-Encoding": "gzip"})
        with pytest.raises(VendorError, match="larger than"):
            transport.perform(get(server), ACCOUNT)

    def test_an_endless_body_is_cut(self, transport: Transport) -> None:
        """The cap holds while the body is read, not afterwards (F76)."""
        sent = [0]

        def flood(link: socket.socket) -> None:
            link.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while sent[0] < 1 << 30:
                link.sendall(b"x" * 65536)
                sent[0] += 65536

        with RawServer(flood) as raw, pytest.raises(VendorError, match="larger than"):
            transport.perform(Call("GET", raw.url), ACCOUNT)
        assert sent[0] < 1 << 27

    @pytest.mark.parametrize(
        ("encoding", "packed"),
        [
            ("gzip", gzip.compress(b'{"a": 1}')),
            ("deflate", zlib.compress(b'{"a": 1}')),
            ("deflate", zlib.compress(b'{"a": 1}')[2:-4]),
        ],
    )
    def test_a_compressed_body_is_unpacked(
        self, app: Recorder, server: Server, transport: Transport, encoding: str, packed: bytes
    ) -> None:
        """Readers see what the vendor meant, however it travelled."""
        app.answer = lambda _: Answer(200, packed, headers={"Content-Encoding": encoding})
        assert transport.perform(get(server), ACCOUNT).json() == {"a": 1}

    def test_a_body_that_cannot_be_unpacked_may_have_been_sent(
        self, app: Recorder, server: Server, transport: Transport
    ) -> None:
        """A reply that cannot be read is a lost one."""
        app.answer = lambda _: Answer(200, b"no gzip", headers={"Content-Encoding": "gzip"})
        with pytest.raises(MaybeSentError):
            transport.perform(get(server), ACCOUNT)

    def test_a_large_body_goes_into_a_file(self, app: Recorder, server: Server, transport: Transport) -> None:
        """Hundreds of downloads at the same time must not be held in memory."""
        content = os.urandom(3_000_000)
        app.answer = lambda _: Answer(200, content)
        reply = transport.perform(get(server, spool=True, body_cap=3_000_000), ACCOUNT)
        assert reply.body == b""
        assert reply.file is not None
        with reply.file as file:
            assert file.read() == content
        with pytest.raises(VendorError, match="larger than"):
            transport.perform(get(server, spool=True, body_cap=2_999_999), ACCOUNT)

    @pytest.mark.parametrize("status", [204, 304])
    def test_a_reply_without_a_body_is_a_reply(
        self, app: Recorder, server: Server, transport: Transport, status: int
    ) -> None:
        """The connection is used again afterwards."""
        app.answer = lambda _: Answer(status)
        for _ in range(2):
            assert transport.perform(get(server), ACCOUNT) == Reply(status, headers={"content-length": "0"})
        assert server.accepted == 1

    # Where calls lead.

    @pytest.mark.parametrize(
        "host",
        ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "2130706433", "0x7f.1", "0177.0.0.1", "localhost"],
    )
    def test_a_guarded_call_does_not_lead_inside(
        self, app: Recorder, server: Server, transport: Transport, host: str
    ) -> None:
        """An address that a request or a vendor supplied must not reach what only this machine can (F76)."""
        with pytest.raises(UnsafeUrlError):
            transport.perform(Call("GET", f"http://{host}:{server.port}/", guarded=True), ACCOUNT)
        assert app.seen == []

    @pytest.mark.parametrize("scheme", ["http", "https"])
    def test_a_guarded_name_that_leads_inside_is_refused(
        self,
        app: Recorder,
        server: Server,
        transport: Transport,
        monkeypatch: pytest.MonkeyPatch,
        scheme: str,
    ) -> None:
        """Anybody can let a name of their own lead to 127.0.0.1, also beside a public address."""
        with resolved(monkeypatch, [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"]]):
            for _ in range(2):
                with pytest.raises(UnsafeUrlError, match=r"files\.test"):
                    transport.perform(
                        Call("GET", f"{scheme}://files.test:{server.port}/", guarded=True), ACCOUNT
                    )
        assert app.seen == []

    def test_a_guarded_call_connects_to_the_address_that_was_checked(
        self, app: Recorder, server: Server, transport: Transport, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A name that answers differently the second time must not matter."""
        dialled: list[str] = []
        connect = socket.socket.connect

        def dial(self: socket.socket, address: Any) -> None:
            dialled.append(address[0])
            connect(self, ("127.0.0.1", server.port) if address[0] == "93.184.216.34" else address)

        monkeypatch.setattr(socket.socket, "connect", dial)
        with resolved(monkeypatch, [["93.184.216.34"], ["127.0.0.1"]]):
            call = Call("GET", f"http://files.test:{server.port}/a", guarded=True)
            assert transport.perform(call, ACCOUNT).status == 200
        assert "93.184.216.34" in dialled
        assert app.seen[0].header("host") == f"files.test:{server.port}"

    # Secrets.

    def test_no_secret_is_logged_or_shown(
        self, app: Recorder, server: Server, transport: Transport, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Clients log whole addresses at DEBUG, and quote them in their errors (G8)."""
        caplog.set_level(logging.DEBUG)

        def sign(call: Call) -> Call:
            return call.with_headers(Authorization=f"Bearer {TOKEN}").with_query(access_token=TOKEN)

        transport.perform(get(server, sign=sign), ACCOUNT)
        errors: list[Exception] = []
        for answer in (Answer(fault="reset"), Answer(200, b"x" * 2000)):
            app.answer = lambda _, answer=answer: answer  # type: ignore[misc]  # bound now
            with pytest.raises((MaybeSentError, VendorError)) as caught:
                transport.perform(get(server, sign=sign, body_cap=1000), ACCOUNT)
            errors.append(caught.value)
        with pytest.raises(NotSentError) as unsent:
            transport.perform(Call("GET", "http://127.0.0.1:1/jobs", sign=sign), ACCOUNT)
        odd = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nno header at all\r\nX: 1\r\n\r\nhi"
        with RawServer(odd) as raw:
            try:
                transport.perform(Call("GET", raw.url, sign=sign), ACCOUNT)
            except MaybeSentError as lost:
                errors.append(lost)
        assert len(app.seen) == 3
        assert TOKEN not in caplog.text
        for error in [*errors, unsent.value]:
            assert TOKEN not in f"{error} {error!r}"
            assert error.__cause__ is None
            assert error.__suppress_context__ or error.__context__ is None
        assert TOKEN not in repr(transport)

    # Event loops.

    def test_hundreds_of_calls_wait_at_the_same_time_on_one_loop(
        self, app: Recorder, server: Server, transport: Any
    ) -> None:
        """A thread for each of them would be the ceiling."""
        _need_async(transport)
        app.answer = lambda request: Answer.json({"path": request.path}, delay=0.3)

        async def all_of_them() -> float:
            began = time.monotonic()
            replies = await asyncio.gather(
                *(transport.perform_async(get(server, f"/{number}"), ACCOUNT) for number in range(300))
            )
            assert [reply.json()["path"] for reply in replies] == [f"/{number}" for number in range(300)]
            taken = time.monotonic() - began
            await transport.leave()
            return taken

        assert asyncio.run(all_of_them()) < 300 * 0.3 / 10
        wait_until(lambda: not server.connections)

    def test_a_cancelled_call_breaks_its_connection_off(
        self, app: Recorder, server: Server, transport: Any
    ) -> None:
        """A call that takes too long is given up, and its late reply must not be read by the next one."""
        _need_async(transport)
        app.answer = lambda _: Answer(fault="hang")

        async def give_up() -> None:
            task = asyncio.ensure_future(transport.perform_async(get(server), ACCOUNT))
            await asyncio.to_thread(wait_until, lambda: bool(app.seen))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            app.answer = lambda _: Answer.json({"turn": 2})
            assert (await transport.perform_async(get(server), ACCOUNT)).json() == {"turn": 2}
            await transport.leave()

        asyncio.run(give_up())

    def test_loops_and_threads_share_a_transport(self, app: Recorder, server: Server, transport: Any) -> None:
        """A worker calls on its loop while a manager refreshes from a thread; close reaches them all."""
        _need_async(transport)

        async def on_a_loop() -> None:
            assert (await transport.perform_async(get(server), ACCOUNT)).status == 200
            assert (await asyncio.to_thread(transport.perform, get(server), ACCOUNT)).status == 200
            await asyncio.to_thread(transport.close)
            with pytest.raises(NotSentError, match="closed"):
                await transport.perform_async(get(server), ACCOUNT)

        asyncio.run(on_a_loop())
        wait_until(lambda: not server.connections)


def _need_async(transport: Any) -> None:
    if not hasattr(transport, "perform_async"):
        pytest.skip("the transport has no perform_async")


@contextmanager
def resolved(monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]) -> Iterator[None]:
    """Let ``files.test`` lead to these addresses, the last ones for ever."""
    ask = socket.getaddrinfo
    left = list(answers)

    def answer(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("files.test", b"files.test"):
            return ask(host, port, *arguments, **options)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (one, int(port or 0)))
            for one in found
        ]

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", answer)
        yield


@contextmanager
def closing(transport: Transport) -> Iterator[Transport]:
    """Close a transport at the end of a block."""
    try:
        yield transport
    finally:
        transport.close()
        gc.collect()
