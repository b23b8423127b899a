"""What the store asks of a server, and what it says when the server is away, full, old or forgetful."""

import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import redis
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from tests.store_redis.conftest import Missing, find_redis6, find_redis7
from tests.store_redis.servers import Proxy, RedisCluster, RedisSentinel, RedisServer, free_port

from coatcheck.cli import main
from coatcheck.errors import StoreConfigError, StoreFullError, StoreUnavailableError
from coatcheck.model import Limit, Rate, Side, TaskStatus
from coatcheck.registry import Registry
from coatcheck.store import Filter, Kind, Room
from coatcheck.testing.records import claim, get, new_task, transition
from coatcheck_redis import connection as connection_module
from coatcheck_redis import store as store_module
from coatcheck_redis.store import RedisStore

PATIENCE = timedelta(seconds=60)
SECRET = "s3cret-pa55"
DAY = timedelta(days=1)
README = Path(__file__).parents[2] / "packages" / "store-redis" / "README.md"
#: Rules of an access list in the README: code that begins with one.
_RIGHTS = re.compile(r"`([~&+][^`]+)`")


@pytest.fixture
def own_server(missing: Missing, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test alone, which may be changed and ended."""
    with RedisServer(find_redis6(missing), tmp_path / "own", "--appendonly", "yes") as server:
        yield server


@pytest.fixture(params=[find_redis6, find_redis7])
def each_server(request: pytest.FixtureRequest, missing: Missing, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test alone, of the oldest kind and of today's."""
    with RedisServer(request.param(missing), tmp_path / "each") as server:
        yield server


@pytest.fixture
def store(redis7: RedisServer, namespace: str) -> Iterator[RedisStore]:
    """An empty store on the shared server."""
    with closing(RedisStore(redis7.url, namespace=namespace)) as opened:
        yield opened


# Where it is.


def test_the_plugin_opens_the_store(redis7: RedisServer, namespace: str) -> None:
    """A URL is enough: the installed package registers its schemes by itself."""
    from coatcheck.plugins import load_plugins

    registry = Registry()
    load_plugins(registry)
    with closing(registry.open_store(redis7.url, namespace=namespace, ageing=timedelta(hours=1))) as opened:
        assert (opened.kind, opened.namespace, opened.is_shared) == ("redis", namespace, True)


def test_a_socket_a_sentinel_and_a_cluster_lead_to_a_store(
    redis7: RedisServer, redis_sentinel: RedisSentinel, redis_cluster: RedisCluster, namespace: str
) -> None:
    """Each kind of URL opens a store that stores."""
    host, port = redis_cluster.addresses[0]
    for url in (
        f"unix://{redis7.folder / 's'}",
        f"redis+sentinel://127.0.0.1:{redis_sentinel.port}/{redis_sentinel.name}/0",
        f"redis+cluster://{host}:{port}",
    ):
        with closing(RedisStore(url, namespace=namespace)) as opened:
            task = new_task()
            opened.add([task])
            assert get(opened, task.id).params == task.params
            batch = claim(opened)
            assert task.id in [lease.task_id for lease in batch.leases]
            opened.add([new_task()])
            assert opened.wait_for_work(batch.mark, PATIENCE) is True


def test_the_time_is_the_servers(store: RedisStore, redis7: RedisServer) -> None:
    """Without a clock for tests no host's clock has a say (F38)."""
    seconds, micros = redis7.command("TIME")
    assert abs(store.now().timestamp() - int(seconds) - int(micros) / 1e6) < 30


@pytest.mark.parametrize("namespace", ["", "Big", "with-dash", "9", "x" * 41, "a}b"])
def test_a_namespace_is_a_plain_word(redis7: RedisServer, namespace: str) -> None:
    """It becomes the hash tag of all keys."""
    with pytest.raises(StoreConfigError, match="namespace"):
        RedisStore(redis7.url, namespace=namespace)


def test_ageing_stays_exact(redis7: RedisServer, namespace: str) -> None:
    """Ranks are numbers that Redis keeps exactly, so the time is bounded."""
    with pytest.raises(StoreConfigError, match="30 days"):
        RedisStore(redis7.url, namespace=namespace, ageing=31 * DAY)


@pytest.mark.parametrize(
    "url", ["redis://{}/0", "redis+cluster://{}", "redis+sentinel://{}/main", "unix:///nowhere/redis.sock"]
)
def test_an_address_without_a_server_is_unavailable(url: str) -> None:
    """Each kind of URL tells a server that is not there from one that is wrong."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            RedisStore(url.format(f"127.0.0.1:{taken.getsockname()[1]}"))


def make_certificates(folder: Path) -> dict[str, str]:
    """Write an authority of this test, and a certificate of ``localhost`` by it; return their files."""
    now = datetime.now(UTC)
    paths = {name: str(folder / f"{name}.pem") for name in ("ca", "cert", "key")}

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def sign(subject: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> bytes:
        builder = (
            x509.CertificateBuilder(name("authority"), name(subject), key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(extension, critical=False)
        )
        return builder.sign(authority, SHA256()).public_bytes(Encoding.PEM)

    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    Path(paths["ca"]).write_bytes(sign("authority", authority, x509.BasicConstraints(ca=True, path_length=0)))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    Path(paths["cert"]).write_bytes(sign("localhost", key, names))
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    Path(paths["key"]).write_bytes(plain)
    return paths


def test_tls_leads_to_a_store_that_was_proved_to_be_the_right_one(missing: Missing, tmp_path: Path) -> None:
    """Both sides show certificates; a server of an unknown authority or of another name gets no password."""
    files, port = make_certificates(tmp_path), free_port()
    options = ("--tls-port", str(port), "--tls-cert-file", files["cert"], "--tls-key-file", files["key"])
    mine = f"certfile={files['cert']}&keyfile={files['key']}"
    with RedisServer(find_redis7(missing), tmp_path / "tls", *options, "--tls-ca-cert-file", files["ca"]):
        with closing(RedisStore(f"rediss://localhost:{port}?ca_certs={files['ca']}&{mine}")) as store:
            mark = claim(store).mark
            store.add([new_task()])
            assert store.wait_for_work(mark, PATIENCE) is True
            assert len(claim(store).leases) == 1
        for url, reason in (
            (f"rediss://:{SECRET}@localhost:{port}?{mine}", "certificate chain|issuer certificate"),
            (
                f"rediss://:{SECRET}@127.0.0.1:{port}?ca_certs={files['ca']}&{mine}",
                "not valid for '127.0.0.1'",
            ),
        ):
            with pytest.raises(StoreConfigError, match=f"({reason}).*ca_certs") as caught:
                RedisStore(url)
            assert SECRET not in str(caught.value)
        unchecked = f"rediss://127.0.0.1:{port}?ca_certs={files['ca']}&{mine}&check_hostname=no"
        RedisStore(unchecked).close()


def test_a_clock_that_goes_back_is_only_a_delay(redis7: RedisServer, namespace: str) -> None:
    """After a failover to a server that is behind, workers commit, and no rate is exceeded (F38, G6)."""
    began = at = datetime(2030, 1, 1, tzinfo=UTC)
    minute = timedelta(minutes=1)
    with closing(RedisStore(redis7.url, namespace=namespace, clock=lambda: at)) as store:
        store.set_limit([Limit(account="*", side=Side.SUBMIT, rate=Rate(2, minute))])
        store.add([new_task() for _ in range(4)])
        first = claim(store).leases
        at = began - timedelta(hours=1)
        answers = store.commit([transition(lease, TaskStatus.SUBMITTED) for lease in first])
        assert [answer.outcome for answer in answers] == ["done", "done"]
        again = claim(store)
        assert {lease.kind for lease in again.leases} == {Kind.QUERY}
        assert (
            list(store.renew([(lease.task_id, lease.token) for lease in again.leases], minute)) == [True] * 2
        )
        at = began + minute - timedelta(microseconds=1)
        store.commit([transition(lease, TaskStatus.SUCCEEDED) for lease in again.leases])
        waiting = claim(store)
        assert (waiting.leases, waiting.next_at) == ((), began + minute)
        at = began + minute
        assert [lease.kind for lease in claim(store).leases] == [Kind.SUBMIT] * 2


# What it has to be.


def test_a_server_that_throws_tasks_away_is_refused(
    own_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Any policy but noeviction loses tasks; whoever knows better says so in the URL (F64)."""
    own_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with pytest.raises(StoreConfigError, match="noeviction"):
        RedisStore(own_server.url)
    with caplog.at_level(logging.WARNING, logger="coatcheck.redis"):
        RedisStore(f"{own_server.url}?allow_eviction=yes").close()
    assert "allkeys-lru" in caplog.text


def test_a_server_that_hides_its_policy_is_accepted_with_a_warning(
    redis7: RedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Hosts forbid CONFIG and INFO; the store then says what to look at (F64)."""
    user = f"u{namespace}"
    rights = ("~coatcheck:*", "&*", "+@all", "-config", "-info")
    redis7.command("ACL", "SETUSER", user, "on", f">{SECRET}", *rights)
    try:
        with caplog.at_level(logging.WARNING, logger="coatcheck.redis"):
            RedisStore(f"redis://{user}:{SECRET}@127.0.0.1:{redis7.port}/0", namespace=namespace).close()
    finally:
        redis7.command("ACL", "DELUSER", user)
    assert "maxmemory-policy" in caplog.text
    assert SECRET not in caplog.text


def test_the_documented_rights_are_enough(redis7: RedisServer, namespace: str) -> None:
    """A user with the rights that the README names can do everything."""
    user = f"u{namespace}"
    rights = " ".join(_RIGHTS.findall(README.read_text("utf-8"))).split()
    assert {"~coatcheck:*", "+@read", "+config|get"} <= {*rights}
    redis7.command("ACL", "SETUSER", user, "on", f">{SECRET}", *rights)
    try:
        url = f"redis://{user}:{SECRET}@127.0.0.1:{redis7.port}/0"
        with closing(RedisStore(url, namespace=namespace)) as opened:
            opened.add([new_task()])
            batch = claim(opened)
            opened.commit([transition(batch.leases[0], TaskStatus.FAILED)])
            assert opened.wait_for_change("missing", 1, PATIENCE) is True
            assert opened.prune({TaskStatus.FAILED: timedelta()}) == 1
            opened.pause("account", "x", by="me", reason="test")
            assert opened.stats().pauses
    finally:
        redis7.command("ACL", "DELUSER", user)


def test_an_old_server_is_refused(
    redis7: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says which version is needed and which was found."""
    monkeypatch.setattr(connection_module, "OLDEST", (99, 0))
    with pytest.raises(StoreConfigError, match=r"found \d+\.\d+"):
        RedisStore(redis7.url, namespace=namespace)


def test_a_newer_layout_is_left_alone(store: RedisStore, redis7: RedisServer, namespace: str) -> None:
    """Keys that a later version wrote are not touched by this one (G7)."""
    redis7.command("HSET", f"coatcheck:{{{namespace}}}:meta", "layout", 99)
    with pytest.raises(StoreConfigError, match="found 99"):
        RedisStore(redis7.url, namespace=namespace)


@pytest.mark.parametrize("user", [":wrong-pa55", "nobody:wrong-pa55"])
def test_a_wrong_password_is_an_error_of_the_configuration(
    redis7: RedisServer, namespace: str, user: str
) -> None:
    """Trying again does not help, and what was tried is not shown (G8)."""
    with pytest.raises(StoreConfigError) as found:
        RedisStore(f"redis://{user}@127.0.0.1:{redis7.port}/0", namespace=namespace)
    shown = [str(found.value), repr(found.value), repr(found.value.__cause__)]
    assert not any("wrong-pa55" in text for text in shown)


def test_a_store_shows_no_password(redis7: RedisServer, namespace: str) -> None:
    """Neither a store nor what it raises shows the secret of its URL (G8)."""
    user = f"u{namespace}"
    redis7.command("ACL", "SETUSER", user, "on", f">{SECRET}", "~*", "&*", "+@all")
    try:
        store = RedisStore(f"redis://{user}:{SECRET}@127.0.0.1:{redis7.port}/0", namespace=namespace)
    finally:
        redis7.command("ACL", "DELUSER", user)
    assert SECRET not in repr(store) + store.url + repr(vars(store))
    with pytest.raises((StoreConfigError, StoreUnavailableError)) as found:
        store.add([new_task()])
    assert SECRET not in f"{found.value!r} {found.value.__cause__!r}"
    store.close()


def test_commands_show_no_password(
    redis7: RedisServer, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is printed about the store, its URL is printed without what is secret in it (G8)."""
    monkeypatch.chdir(tmp_path)
    user = f"u{namespace}"
    redis7.command("ACL", "SETUSER", user, "on", f">{SECRET}", "~*", "&*", "+@all")
    try:
        url = f"redis://{user}:{SECRET}@127.0.0.1:{redis7.port}/0"
        told = {"COATCHECK_STORE": url, "COATCHECK_NAMESPACE": namespace}
        for words in ("stats", "stats --json", "list", "limits list", "worker --once"):
            answer = CliRunner().invoke(main, words.split(), env=told)
            assert answer.exit_code == 0, answer.output
            assert SECRET not in answer.output, words
    finally:
        redis7.command("ACL", "DELUSER", user)


# When it is full, forgetful or away.


def test_a_full_server_stores_nothing_of_a_submit_and_ends_what_it_has(each_server: RedisServer) -> None:
    """Out of memory a submit fails whole (F64); tasks that are there end, and a prune makes room."""
    with closing(RedisStore(each_server.url)) as store:
        first = new_task(dedupe_key="k", dedupe_digest=b"1")
        store.add([first])
        each_server.command("CONFIG", "SET", "maxmemory", 1)
        before = sorted(each_server.command("KEYS", "*"))
        counts = store.stats().by_status
        with pytest.raises(StoreFullError):
            store.add([new_task(dedupe_key=f"k{n}", dedupe_digest=b"1", tenant="t") for n in range(10)])
        assert sorted(each_server.command("KEYS", "*")) == before
        assert store.stats().by_status == counts
        assert len(store.list(Filter()).items) == 1
        (lease,) = claim(store).leases
        assert list(store.renew([(lease.task_id, lease.token)], DAY)) == [True]
        assert list(store.request_cancel([lease.task_id])) == [True]
        (answer,) = store.commit([transition(lease, TaskStatus.SUCCEEDED, result=b"result")])
        assert answer.outcome == "done"
        assert store.wait_for_change(lease.task_id, 0, PATIENCE) is True
        assert store.prune({TaskStatus.SUCCEEDED: timedelta()}) == 1
        each_server.command("CONFIG", "SET", "maxmemory", 0)
        (added,) = store.add([new_task(dedupe_key="k", dedupe_digest=b"2")])
        assert added.outcome == "created"


def test_a_replica_is_unavailable(redis7: RedisServer, own_server: RedisServer, namespace: str) -> None:
    """After a failover the old master refuses writes: callers wait for the new one, and no task is failed."""
    with closing(RedisStore(own_server.url, namespace=namespace)) as store:
        own_server.command("REPLICAOF", "127.0.0.1", redis7.port)
        with pytest.raises(StoreUnavailableError):
            store.add([new_task()])
        own_server.command("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize(
    "said",
    [
        "BUSY Redis is busy running a script.",
        "MISCONF Redis is configured to save RDB snapshots, but is unable to persist to disk.",
        "NOREPLICAS Not enough good replicas to write.",
        "Error running script (call to f_1): @user_script:1: -READONLY You can't write against a replica.",
    ],
)
def test_a_server_that_answers_not_now_is_unavailable(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """What passes by itself is no mistake of the configuration."""

    def refuse(*words: object) -> None:
        raise redis.ResponseError(said)

    monkeypatch.setattr(store._connection.client(), "execute_command", refuse)
    with pytest.raises(StoreUnavailableError, match="not answer now"):
        store.stats()


def test_scripts_that_the_server_forgot_are_sent_again(store: RedisStore, redis7: RedisServer) -> None:
    """A restart or a flush of scripts is not noticed by callers."""
    for _ in range(2):
        redis7.command("SCRIPT", "FLUSH")
        task = new_task()
        store.add([task])
        claim(store)
        assert get(store, task.id).params == task.params


def test_a_connection_that_was_cut_is_not_noticed(store: RedisStore, redis7: RedisServer) -> None:
    """Servers close idle connections; the next call opens a new one by itself."""
    for _ in range(3):
        store.add([new_task()])
        redis7.cut()
    assert store.stats().by_status[TaskStatus.PENDING_SUBMIT] == 3


def test_a_reply_that_was_lost_is_asked_for_again(redis7: RedisServer, namespace: str) -> None:
    """A claim whose reply is lost hands the same leases out again, in the same call or the next (F29)."""
    with Proxy(redis7.port) as proxy, closing(RedisStore(proxy.url, namespace=namespace)) as store:
        store.add([new_task() for _ in range(3)])
        claim(store, room=0)
        proxy.lose_reply(lambda data: b"EVALSHA" in data, times=2)
        nonce = secrets.token_hex(8)
        with pytest.raises(StoreUnavailableError):
            claim(store, room=2, nonce=nonce)
        again = claim(store, room=2, nonce=nonce)
        assert len(again.leases) == 2
        assert store.stats().by_status[TaskStatus.SUBMITTING] == 2
        proxy.lose_reply(lambda data: b"EVALSHA" in data)
        answers = store.commit([transition(lease, TaskStatus.SUBMITTED) for lease in again.leases])
        assert [answer.outcome for answer in answers] == ["done", "done"]
        assert proxy.lost == 3


def test_a_server_that_is_away_is_said_at_once(own_server: RedisServer) -> None:
    """Callers hear of it and are not made to wait; when it is back, the same store goes on (F30)."""
    with closing(RedisStore(own_server.url)) as store:
        task = new_task()
        store.add([task])
        own_server.stop()
        calls: dict[str, Any] = {
            "now": store.now,
            "add": lambda: store.add([new_task()]),
            "get": lambda: store.get([task.id]),
            "claim": lambda: claim(store),
            "unpause": lambda: store.unpause("account", "x"),
            "wait_for_work": lambda: store.wait_for_work(0, PATIENCE),
            "wait_for_change": lambda: store.wait_for_change(task.id, 0, PATIENCE),
        }
        for name, call in calls.items():
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="does not answer"):
                call()
            assert time.monotonic() - began < PATIENCE.total_seconds() / 2, name
        own_server.start()
        assert [lease.task_id for lease in claim(store).leases] == [task.id]


def test_a_server_that_is_silent_is_unavailable_after_the_timeout(own_server: RedisServer) -> None:
    """A frozen server holds a caller up for as long as the URL says, and no longer."""
    with closing(RedisStore(f"{own_server.url}?timeout=0.3")) as store:
        own_server.freeze()
        try:
            with pytest.raises(StoreUnavailableError):
                store.stats()
        finally:
            own_server.thaw()
        assert store.stats().by_status[TaskStatus.PENDING_SUBMIT] == 0


# Waiting.


def _wait_in_threads(*waits: Any) -> tuple[list[threading.Thread], list[Any]]:
    found: list[Any] = []

    def run(wait: Any) -> None:
        try:
            found.append(wait())
        except StoreUnavailableError as error:
            found.append(error)

    threads = [threading.Thread(target=run, args=(wait,)) for wait in waits]
    for thread in threads:
        thread.start()
    return threads, found


def _subscribers(server: RedisServer, namespace: str) -> int:
    channel = f"coatcheck:{{{namespace}}}:meta:news"
    return int(server.command("PUBSUB", "NUMSUB", channel)[1])


def _until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE.total_seconds()
    while not condition():
        assert time.monotonic() < end, "expected it within the patience"
        time.sleep(0.01)


def test_many_waiters_of_a_process_share_one_connection(
    store: RedisStore, redis7: RedisServer, namespace: str
) -> None:
    """A web process may wait for many tasks at once; each waiter hears of its own."""
    tasks = [new_task() for _ in range(30)]
    store.add(tasks)
    leases = claim(store).leases
    waits = [
        lambda lease=lease: store.wait_for_change(lease.task_id, lease.stored.row.version, PATIENCE)
        for lease in leases
    ]
    threads, found = _wait_in_threads(*waits)
    _until(lambda: redis7.command("ZCARD", f"coatcheck:{{{namespace}}}:watch") == 30)
    assert _subscribers(redis7, namespace) == 1
    store.commit([transition(lease, TaskStatus.SUCCEEDED) for lease in leases])
    for thread in threads:
        thread.join(60)
    assert found == [True] * 30


def test_news_of_another_process_wake_a_waiter(
    store: RedisStore, redis7: RedisServer, namespace: str
) -> None:
    """A worker on one machine starts what was submitted on another (F88)."""
    with closing(RedisStore(redis7.url, namespace=namespace)) as other:
        mark = claim(store).mark
        threads, found = _wait_in_threads(lambda: store.wait_for_work(mark, PATIENCE))
        _until(lambda: _subscribers(redis7, namespace) == 1)
        other.add([new_task()])
        threads[0].join(60)
    assert found == [True]


def test_a_cut_subscription_is_made_again(store: RedisStore, redis7: RedisServer, namespace: str) -> None:
    """Nothing that happens while nobody listens is missed."""
    mark = claim(store).mark
    task = new_task(delay=DAY)
    store.add([task])
    mark = claim(store).mark
    threads, found = _wait_in_threads(
        lambda: store.wait_for_work(mark, PATIENCE), lambda: store.wait_for_change(task.id, 0, PATIENCE)
    )
    _until(lambda: redis7.command("ZCARD", f"coatcheck:{{{namespace}}}:watch") == 1)
    for _ in range(3):
        redis7.cut()
        _until(lambda: store._listener._session is not None and store._listener._session.is_ready)
        _until(lambda: _subscribers(redis7, namespace) == 1)
    store.commit([transition(get(store, task.id), TaskStatus.CANCELED)])
    store.add([new_task()])
    for thread in threads:
        thread.join(60)
    assert found == [True, True]


def test_waiting_ends_when_the_server_goes(own_server: RedisServer) -> None:
    """A worker learns that the store is away without asking, and can back off."""
    with closing(RedisStore(own_server.url, namespace="gone")) as store:
        store.add([new_task(delay=DAY)])
        mark = claim(store).mark
        threads, found = _wait_in_threads(lambda: store.wait_for_work(mark, PATIENCE))
        _until(lambda: _subscribers(own_server, "gone") == 1)
        own_server.stop()
        threads[0].join(60)
        assert [type(item) for item in found] == [StoreUnavailableError]


def test_a_server_that_lost_its_last_writes_wakes_the_waiting(own_server: RedisServer) -> None:
    """A crash may take back what was counted; who waits for a higher count would sleep through news."""
    with closing(RedisStore(own_server.url, namespace="lost")) as store:
        for _ in range(3):
            store.add([new_task(handler_key="another")])
        mark = claim(store).mark
        threads, found = _wait_in_threads(lambda: store.wait_for_work(mark, PATIENCE))
        _until(lambda: store._listener._session is not None and store._listener._session.is_ready)
        own_server.command("HSET", "coatcheck:{lost}:meta", "work", 1)
        own_server.cut()
        threads[0].join(60)
        assert found == [True]


def test_lost_writes_are_noticed_whoever_listens_first(own_server: RedisServer) -> None:
    """Another thread of the process may have subscribed anew before the worker waits."""
    with closing(RedisStore(own_server.url, namespace="lost")) as store:
        for _ in range(3):
            store.add([new_task(handler_key="another")])
        mark = claim(store).mark
        assert store.wait_for_work(mark, timedelta(milliseconds=1)) is False
        session = store._listener._session
        own_server.command("HSET", "coatcheck:{lost}:meta", "work", 1)
        own_server.cut()
        _until(lambda: session is not None and session.is_over)
        store.wait_for_change("missing", 0, PATIENCE)
        assert store.wait_for_work(mark, PATIENCE) is True
        assert store.wait_for_work(claim(store).mark, timedelta(milliseconds=1)) is False


def test_writes_that_were_lost_before_anybody_listened_are_noticed(
    store: RedisStore, redis7: RedisServer, namespace: str
) -> None:
    """The first subscription of a process may be made after the loss, and by another thread."""
    for _ in range(3):
        store.add([new_task(handler_key="another")])
    mark = claim(store).mark
    redis7.command("HSET", f"coatcheck:{{{namespace}}}:meta", "work", 1)
    store.wait_for_change("missing", 0, PATIENCE)
    assert store.wait_for_work(mark, PATIENCE) is True


def test_closing_ends_all_waits(redis7: RedisServer, namespace: str) -> None:
    """Nobody is left behind in a store that is closed."""
    store = RedisStore(redis7.url, namespace=namespace)
    store.add([new_task("waited-for", delay=DAY)])
    mark = claim(store).mark
    threads, found = _wait_in_threads(
        lambda: store.wait_for_work(mark, PATIENCE),
        lambda: store.wait_for_change("waited-for", 0, PATIENCE),
    )
    _until(lambda: redis7.command("ZCARD", f"coatcheck:{{{namespace}}}:watch") == 1)
    store.close()
    for thread in threads:
        thread.join(30)
    assert [type(item) for item in found] == [StoreUnavailableError] * 2
    _until(lambda: _subscribers(redis7, namespace) == 0)


def test_an_idle_worker_asks_nothing(store: RedisStore, redis7: RedisServer) -> None:
    """While it waits, a worker makes no call at all (F88)."""
    mark = claim(store).mark
    store.wait_for_work(mark, timedelta(milliseconds=10))

    def calls() -> int:
        with redis7.client() as client:
            return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])

    before = calls()
    assert store.wait_for_work(mark, timedelta(seconds=1)) is False
    assert calls() == before


# Forking a process with threads is just what this is about.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_every_forked_child_gets_its_own_answers(store: RedisStore) -> None:
    """After a fork, with threads running, each answer belongs to its caller and the parent goes on (F70)."""
    is_over = threading.Event()

    def write(number: int) -> None:
        count = 0
        while not is_over.is_set():
            store.add([new_task(f"parent-{number}-{count}", handler_key="parent")])
            store.wait_for_work(0, timedelta(seconds=1))
            count += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = _be_a_child(store, child)
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    is_over.set()
    for thread in threads:
        thread.join()
    assert codes == [0, 0, 0, 0]
    assert store.add([new_task("after")])[0].stored.row.id == "after"


def _be_a_child(store: RedisStore, child: int) -> int:
    for number in range(50):
        task_id = f"child-{child}-{number}"
        store.add([new_task(task_id, handler_key=f"handler-{child}")])
        (found,) = store.get([task_id])
        if found is None or found.row.id != task_id:
            return 2
    batch = claim(store, handlers=[f"handler-{child}"], worker=f"child-{child}")
    if sorted(lease.task_id for lease in batch.leases) != sorted(f"child-{child}-{n}" for n in range(50)):
        return 3
    store.add([new_task(f"more-{child}", handler_key=f"handler-{child}")])
    if not store.wait_for_work(batch.mark, PATIENCE):
        return 4
    return 0 if store.wait_for_change(f"more-{child}", 7, PATIENCE) else 5


# Size.


def test_a_call_takes_more_than_luas_stack_holds(store: RedisStore) -> None:
    """Batches of thousands are one call like any other."""
    count = 3000
    store.add([new_task(f"task-{number}", tenant=f"t{number % 1000}") for number in range(count)])
    batch = store.claim(
        "w", "n", format=1, handlers=["contract:ocr"], room=Room(total=count), lease=timedelta(minutes=5)
    )
    assert len({lease.task_id for lease in batch.leases}) == count
    answers = store.commit([transition(lease, TaskStatus.SUCCEEDED) for lease in batch.leases])
    assert {answer.outcome for answer in answers} == {"done"}
    assert store.prune({TaskStatus.SUCCEEDED: timedelta()}, limit=count) == count
    assert store.stats().by_status[TaskStatus.SUCCEEDED] == 0


def test_large_results_are_written_in_portions(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call grows past what a server takes, however much is committed; answers keep their order."""
    monkeypatch.setattr(store_module, "_MOST_BYTES", 1000)
    store.add([new_task() for _ in range(9)])
    leases = claim(store).leases
    moves = [transition(lease, TaskStatus.SUCCEEDED, result=bytes(400)) for lease in leases]
    moves[4] = attrs.evolve(moves[4], key="another")
    moves[5] = attrs.evolve(moves[5], record="a text")  # type: ignore[arg-type]  # wrong on purpose
    outcomes = [answer.outcome for answer in store.commit(moves)]
    assert outcomes == ["done"] * 4 + ["lease_lost", "failed"] + ["done"] * 3
    assert store.stats().by_status[TaskStatus.SUCCEEDED] == 7


def test_a_pruned_namespace_leaves_next_to_nothing(
    store: RedisStore, redis7: RedisServer, namespace: str
) -> None:
    """What tasks leave in lanes, indexes and limits goes with them (F68)."""
    store.add([new_task(tenant=f"t{n}", dedupe_key=f"k{n}", dedupe_digest=b"1") for n in range(200)])
    leases = claim(store, room=200).leases
    store.commit([transition(lease, TaskStatus.SUCCEEDED, result=b"r") for lease in leases])
    while store.prune({TaskStatus.SUCCEEDED: timedelta()}, limit=50):
        pass
    for _ in range(20):
        store.prune({TaskStatus.SUCCEEDED: timedelta()})
    with redis7.client() as client:
        left = sorted(key.decode().rpartition(":")[2] for key in client.keys(f"coatcheck:{{{namespace}}}:*"))
        assert left == ["meta", "seen", "turns", "workers"]
        assert client.hlen(f"coatcheck:{{{namespace}}}:turns") <= 200


def test_no_script_touches_a_key_that_it_does_not_declare(redis7: RedisServer, namespace: str) -> None:
    """All keys of a call are declared and in one slot, whatever is in ids and names (F62)."""
    seen: list[str] = []
    ready = threading.Event()
    done = threading.Event()

    def watch() -> None:
        with redis7.client(decode_responses=True) as client, client.monitor() as monitor:
            ready.set()
            for command in monitor.listen():
                seen.append(f"{command['client_type']} {command['command']}")
                if "the-end" in command["command"]:
                    done.set()
                    return

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert ready.wait(60)
    with closing(RedisStore(redis7.url, namespace=namespace)) as store:
        _live_a_life(store)
    redis7.command("ECHO", "the-end")
    assert done.wait(60)
    watcher.join(60)
    _check_keys(seen, namespace)


def _live_a_life(store: RedisStore) -> None:
    from coatcheck.lifecycle import GateClose
    from coatcheck.model import Job

    store.set_limit(
        [
            Limit(account="{a}", live=2),
            Limit(tenant="*", live=3),
            Limit(provider="p", side=Side.SUBMIT, rate=Rate(4, DAY)),
        ]
    )
    store.pause("account", "x", by="me", reason="test")
    tasks = [
        new_task(f"{{task}}-{n}", account="{a}", provider_key="p", tenant=f"}}{n % 3}", priority=n % 2)
        for n in range(12)
    ]
    store.add([*tasks, new_task("held", account="x", dedupe_key="k", dedupe_digest=b"1")])
    leases = claim(store).leases
    store.renew([(lease.task_id, lease.token) for lease in leases], DAY)
    store.request_cancel([leases[0].task_id, tasks[5].id])
    gate = GateClose(delay=timedelta(milliseconds=1))
    store.commit(
        [
            transition(leases[0], TaskStatus.SUBMITTED, gate=gate),
            transition(leases[1], TaskStatus.SUBMIT_UNKNOWN, job=Job.GHOST, ghost_for=timedelta(0)),
        ]
    )
    for lease in claim(store).leases:
        store.commit([transition(lease, TaskStatus.FAILED, result=b"r", drop_params=True)])
    store.make_due([task.id for task in tasks], redrive=True)
    store.explain([task.id for task in tasks])
    store.list(Filter(tenant="}1"))
    store.list(Filter(quarantined=True))
    store.list(Filter(tenant="", dedupe_key="k"))
    store.get([task.id for task in tasks], payloads=True)
    store.unpause("account", "x")
    store.stats()
    store.wait_for_change("{task}-1", 99, timedelta(milliseconds=1))
    store.wait_for_work(0, timedelta(milliseconds=1))
    store.prune(dict.fromkeys([TaskStatus.FAILED, TaskStatus.CANCELED], timedelta()))


def _check_keys(seen: list[str], namespace: str) -> None:
    tag = re.escape(f"coatcheck:{{{namespace}}}:")
    keys_of = re.compile(rf" (\d+)((?: {tag}\w+)+)")
    declared: set[str] = set()
    scripts = commands = 0
    for line in seen:
        kind, command, *words = line.split(" ")
        if command in {"EVALSHA", "EVAL"}:
            found = keys_of.search(line)
            assert found, f"expected keys of this namespace, found {line}"
            declared = set(found[2].split())
            assert len(declared) == int(found[1]), "expected all keys under the tag of the namespace"
            scripts += 1
        elif kind == "lua" and command not in {"TIME", "PUBLISH"}:
            assert words[0] in declared, f"{command} touches {words[0]}, which is not declared"
            commands += 1
    assert scripts > 20
    assert commands > 200
