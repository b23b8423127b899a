"""What the transports do beside their contract: what is kept, for how long, and what a missing extra says."""

import gc
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from coatcheck.errors import ConfigError, NotSentError, UnsafeUrlError
from coatcheck.http import Call
from coatcheck.model import Account
from coatcheck.plugins import load_plugins
from coatcheck.registry import Registry
from coatcheck.sandbox import Answer, Server
from coatcheck.testing.transport_contract import Recorder, get, wait_until
from coatcheck.transport import RequestsTransport, Urllib3Transport, protocol
from coatcheck.transport.over_aiohttp import AiohttpTransport
from coatcheck.transport.pool import PooledTransport

ACCOUNT = Account("default", lambda _: "secret")
POOLED = [RequestsTransport, Urllib3Transport]


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


@pytest.fixture(params=POOLED)
def transport(request: pytest.FixtureRequest) -> Iterator[PooledTransport]:
    """Return each transport over threads; a connection that it leaves open fails the test."""
    with request.param() as transport:
        yield transport
    gc.collect()


def test_connections_that_idled_for_long_are_closed(
    app: Recorder, server: Server, transport: PooledTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst must not leave its connections open for ever."""
    app.answer = lambda _: Answer(delay=0.2)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: transport.perform(get(server), ACCOUNT), range(4)))
    assert server.connections == 4
    monkeypatch.setattr(protocol, "IDLE", 0.0)
    app.answer = lambda _: Answer()
    for _ in range(4):
        transport.perform(get(server), ACCOUNT)
    wait_until(lambda: server.connections <= 1)


def test_a_fork_while_a_thread_holds_the_lock_does_no_harm(
    app: Recorder, server: Server, transport: PooledTransport
) -> None:
    """The lock is copied as it was, and nobody in the child would ever give it back."""
    transport.perform(get(server), ACCOUNT)
    transport._lock.acquire()
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
    assert [seen.path for seen in app.seen] == ["/", "/child"]


def test_a_call_under_way_ends_when_the_transport_is_closed(
    app: Recorder, server: Server, transport: PooledTransport
) -> None:
    """Its reply is worth reading, and its connection is closed with it."""
    app.answer = lambda _: Answer(delay=0.2)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(transport.perform, get(server), ACCOUNT)
        wait_until(lambda: bool(app.seen))
        transport.close()
        assert under_way.result().status == 200
    wait_until(lambda: not server.connections)


@pytest.mark.parametrize("make", [*POOLED, AiohttpTransport])
def test_a_guarded_call_behind_a_proxy_is_checked_as_far_as_we_can_tell(
    app: Recorder, server: Server, make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy connects, and may be the only one that can resolve the name."""
    monkeypatch.setenv("HTTP_PROXY", server.url)
    transport = make()
    try:
        for host in ("127.0.0.1", "localhost"):
            with pytest.raises(UnsafeUrlError):
                transport.perform(Call("GET", f"http://{host}/a", guarded=True), ACCOUNT)
        assert transport.perform(Call("GET", "http://files.invalid/a", guarded=True), ACCOUNT).status == 200
    finally:
        transport.close()
    assert [seen.path for seen in app.seen] == ["http://files.invalid/a"]


def test_aiohttp_says_which_proxies_it_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that went around a proxy would be worse than calls that fail."""
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with AiohttpTransport() as transport, pytest.raises(NotSentError, match="requests") as caught:
        transport.perform(Call("GET", "http://vendor.test/"), ACCOUNT)
    assert caught.value.code == "bad_proxy"


def test_other_users_of_urllib3_keep_their_logs(
    server: Server, transport: PooledTransport, caplog: pytest.LogCaptureFixture
) -> None:
    """Only what is logged of our own calls is kept out."""
    caplog.set_level(logging.DEBUG)
    transport.perform(get(server), ACCOUNT)
    logging.getLogger("urllib3.connectionpool").debug("somebody else's line")
    assert "somebody else's line" in caplog.text
    assert "GET" not in caplog.text


def test_connecting_tries_all_addresses_of_a_guarded_name(
    app: Recorder, server: Server, transport: PooledTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first address of a host is often one of IPv6, which many networks do not have."""
    from coatcheck.transport import connections

    port = server.port
    monkeypatch.setattr(connections, "public_addresses", lambda *_: ["127.0.0.2", "127.0.0.1"])
    assert transport.perform(Call("GET", f"http://files.test:{port}/", guarded=True), ACCOUNT).status == 200
    monkeypatch.setattr(connections, "public_addresses", lambda *_: ["127.0.0.2", "127.0.0.3"])
    with pytest.raises(NotSentError, match=r"files\.test"):
        transport.perform(Call("GET", f"http://files.test:{port}/", guarded=True), Account("b", lambda _: ""))


def test_a_missing_extra_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes transport = "aiohttp" need not know that it is an extra."""
    registry = Registry()
    load_plugins(registry)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "coatcheck.transport.over_aiohttp", raising=False)
    with pytest.raises(ConfigError, match=r'pip install "coatcheck\[aiohttp\]"'):
        registry.transport("aiohttp")


def test_a_closed_aiohttp_transport_ends_its_thread(server: Server) -> None:
    """A script that is over must end."""
    transport = AiohttpTransport()
    transport.perform(get(server), ACCOUNT)
    assert any(thread.name == "coatcheck-aiohttp" for thread in threading.enumerate())
    transport.close()
    transport.close()
    assert not any(thread.name == "coatcheck-aiohttp" for thread in threading.enumerate())
    gc.collect()


def test_certificates_are_read_once_for_all_connections() -> None:
    """Reading the bundle takes longer than a call."""
    with RequestsTransport() as transport:
        assert transport._environment.tls() is transport._environment.tls()
