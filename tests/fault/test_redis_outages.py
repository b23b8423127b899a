"""What a Redis that fails for a moment does to tasks: nothing but a delay."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.store_redis.servers import Proxy, RedisServer

from coatcheck.accounts import Accounts
from coatcheck.errors import StoreFullError, StoreUnavailableError
from coatcheck.manager import Manager
from coatcheck.model import Task, TaskStatus
from coatcheck.registry import Registry
from coatcheck.testing.vendor import JobRequest, LocalVendor, PlainVendorHandler
from coatcheck.transport import Urllib3Transport
from coatcheck.worker import Worker, WorkerSettings
from coatcheck_redis.scripts import script
from coatcheck_redis.store import RedisStore

pytestmark = pytest.mark.parametrize("redis_server", ["6.2", "7"], indirect=True)

TASKS = 20
PATIENCE = 120.0


@pytest.fixture
def vendor() -> Iterator[LocalVendor]:
    """A vendor that knows no keys: a second submit of a task would be a second job."""
    with LocalVendor(honours_key=False) as vendor:
        yield vendor


@pytest.fixture
def manager(redis_server: RedisServer, vendor: LocalVendor) -> Iterator[Manager]:
    """A manager with a connection of its own to the server."""
    store = RedisStore(redis_server.url)
    with Manager(store, registry(vendor), accounts=Accounts(environ={})) as manager:
        yield manager
    store.close()


def registry(vendor: LocalVendor) -> Registry:
    """Return the handler, which never submits again: whatever goes wrong with a submit is seen."""
    made = Registry()
    made.add_handler(PlainVendorHandler(vendor.url))
    return made


@contextmanager
def working(url: str, vendor: LocalVendor) -> Iterator[Worker]:
    """Run a worker for a ``with`` block."""
    store, transport = RedisStore(url), Urllib3Transport()
    worker = Worker(
        store,
        registry(vendor),
        accounts=Accounts(environ={}),
        transport=transport,
        settings=WorkerSettings(threads=4, room=64),
    )
    thread = threading.Thread(target=worker.run, kwargs={"stop_signals": False})
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
        transport.close()
        store.close()


def to(name: str) -> Callable[[bytes], bool]:
    """Return what recognises the calls of one verb."""
    return lambda data: script(name).sha.encode() in data


def submit(manager: Manager, polls: int = 1) -> list[str]:
    """Submit tasks and return their ids."""
    return [manager.submit(JobRequest.of(f"text {number}", polls=polls)).id for number in range(TASKS)]


def ends(manager: Manager, ids: list[str]) -> list[Task]:
    """Wait for the ends and return the tasks."""
    end = time.monotonic() + PATIENCE
    while True:
        tasks = [manager.get(task_id) for task_id in ids]
        if all(task.status.is_end for task in tasks):
            return tasks
        assert time.monotonic() < end, tasks
        time.sleep(0.02)


def check(tasks: list[Task], vendor: LocalVendor, polls: int = 1) -> None:
    """All have succeeded, by one submit and not one query too many, and nothing was written twice."""
    assert {task.status for task in tasks} == {TaskStatus.SUCCEEDED}
    assert vendor.created == {f"text {number}": 1 for number in range(TASKS)}
    assert vendor.count("query") == (polls + 1) * TASKS
    # One commit for each call.
    assert {task.version for task in tasks} == {1 + polls + 1}


@pytest.mark.parametrize("verb", ["claim", "commit"])
def test_lost_replies_of_the_store_do_no_harm(
    redis_server: RedisServer, manager: Manager, vendor: LocalVendor, verb: str
) -> None:
    """What was done and not heard of is heard of at the repeat: nothing unknown, nothing twice (G2)."""
    ids = submit(manager)
    with Proxy(redis_server.port) as proxy:
        # The store repeats it once by itself; what comes then, the worker has to repeat.
        proxy.lose_reply(to(verb), times=5)
        with working(proxy.url, vendor):
            tasks = ends(manager, ids)
        assert proxy.lost == 5
    check(tasks, vendor)


def test_a_submit_whose_reply_was_lost_stores_one_task(
    redis_server: RedisServer, manager: Manager, vendor: LocalVendor
) -> None:
    """The caller gets its task, and there is no other (G1)."""
    with Proxy(redis_server.port) as proxy:
        store = RedisStore(proxy.url)
        with Manager(store, registry(vendor), accounts=Accounts(environ={})) as submitter:
            proxy.lose_reply(to("add"), times=3)
            task = submitter.submit(JobRequest.of("text"))
        store.close()
        assert proxy.lost == 3
    assert [found.id for found in manager.list().items] == [task.id]


def test_scripts_that_the_server_forgets_are_sent_again(
    redis_server: RedisServer, manager: Manager, vendor: LocalVendor
) -> None:
    """SCRIPT FLUSH at any moment is not noticed."""
    stop = threading.Event()

    def flush() -> None:
        while not stop.wait(0.005):
            redis_server.command("SCRIPT", "FLUSH")

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        with working(redis_server.url, vendor):
            tasks = ends(manager, submit(manager, polls=3))
    finally:
        stop.set()
        thread.join(PATIENCE)
    check(tasks, vendor, polls=3)


def contents(server: RedisServer) -> dict[bytes, Any]:
    """Return all that the server holds, key by key."""
    with server.client() as client:
        readers = {
            b"hash": client.hgetall,
            b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
            b"set": client.smembers,
            b"string": client.get,
        }
        return {key: readers[client.type(key)](key) for key in client.scan_iter("*")}


def test_a_full_server_refuses_new_tasks_whole_and_finishes_the_old(
    redis_server: RedisServer, manager: Manager, vendor: LocalVendor
) -> None:
    """A refused submit leaves nothing behind; what was accepted before goes on to its end (G1)."""
    ids = submit(manager)
    before = contents(redis_server)
    assert before
    redis_server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(StoreFullError):
        manager.submit(JobRequest.of("too much"), dedupe_key="key")
    assert contents(redis_server) == before
    with working(redis_server.url, vendor):
        tasks = ends(manager, ids)
        check(tasks, vendor)
        redis_server.command("CONFIG", "SET", "maxmemory", "0")
        late = manager.submit(JobRequest.of("too much"), dedupe_key="key")
        assert not late.is_replay
        assert ends(manager, [late.id])[0].status is TaskStatus.SUCCEEDED


def test_workers_wait_for_a_server_that_is_away(
    redis_server: RedisServer, manager: Manager, vendor: LocalVendor
) -> None:
    """Callers hear of it at once; workers pause, go on by themselves, and no attempt is used up."""
    with working(redis_server.url, vendor):
        ids = [
            manager.submit(JobRequest.of(f"text {number}"), delay=timedelta(milliseconds=40 * number)).id
            for number in range(TASKS)
        ]
        for _ in range(3):
            redis_server.kill()
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError):
                manager.get(ids[0])
            assert time.monotonic() - began < 30
            redis_server.start()
            redis_server.cut()
        tasks = ends(manager, ids)
    check(tasks, vendor)
    assert {task.submit_attempts for task in tasks} == {1}


def test_a_server_that_hangs_is_given_up_and_tried_again(
    redis_server: RedisServer, manager: Manager, vendor: LocalVendor
) -> None:
    """A call ends with its time limit, and the worker goes on when the server does."""
    ids = submit(manager)
    hasty = f"{redis_server.url}?timeout=2"
    store = RedisStore(hasty)
    with working(hasty, vendor):
        redis_server.freeze()
        try:
            with pytest.raises(StoreUnavailableError):
                store.get(ids)
        finally:
            redis_server.thaw()
        tasks = ends(manager, ids)
    store.close()
    check(tasks, vendor)
