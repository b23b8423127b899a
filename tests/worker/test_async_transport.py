"""Handlers over HTTP whose calls run on the worker's event loop, because the transport can."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.worker.house import PATIENCE, House, running

from coatcheck.http import Reply
from coatcheck.model import QueryContext, QueryParams, QueryResult, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck.testing.vendor import JobRequest, LocalVendor, VendorHandler
from coatcheck.transport import RequestsTransport
from coatcheck.transport.over_aiohttp import AiohttpTransport

AT_ONCE = PollPolicy(first=timedelta(), start=timedelta(), error_start=timedelta(), jitter=0)


@pytest.fixture
def vendor() -> Iterator[LocalVendor]:
    """Return the vendor."""
    with LocalVendor() as vendor:
        yield vendor


@pytest.fixture
def transport() -> Iterator[AiohttpTransport]:
    """Return the transport; what the worker leaves open on its loop fails the test."""
    with AiohttpTransport() as transport:
        yield transport
        assert all(loop is transport._loop for loop in transport._houses)
    gc.collect()


class Threads(VendorHandler):
    """Notes in which threads its replies are read."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.names: set[str] = set()

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult:
        """Note the thread."""
        self.names.add(threading.current_thread().name)
        return super().read_query(reply, params, context)


def submit(house: House, count: int, **script: Any) -> list[str]:
    """Submit jobs with a script."""
    return [house.manager.submit(JobRequest.of(f"text {number}", **script)).id for number in range(count)]


def test_hundreds_of_calls_wait_at_the_vendor_with_two_threads(
    build: Callable[..., House], vendor: LocalVendor, transport: AiohttpTransport
) -> None:
    """Threads times latency is no ceiling any more, and the handler is the same."""
    handler = Threads(vendor.url, poll=AT_ONCE)
    house = build(handler, is_live=True)
    ids = submit(house, 100, polls=1, latency=0.3)
    began = time.monotonic()
    with running(house.worker(threads=2, transport=transport)):
        house.wait(ids, TaskStatus.SUCCEEDED)
    assert time.monotonic() - began < 100 * 3 * 0.3 / 5
    assert handler.names == {"coatcheck-loop"}
    assert set(vendor.created.values()) == {1}


def test_the_same_handler_runs_in_threads_over_another_transport(
    build: Callable[..., House], vendor: LocalVendor
) -> None:
    """Handlers do not notice what performs their calls."""
    handler = Threads(vendor.url, poll=AT_ONCE)
    house = build(handler, is_live=True)
    ids = submit(house, 3)
    with RequestsTransport() as transport, running(house.worker(transport=transport)):
        house.wait(ids, TaskStatus.SUCCEEDED)
    assert handler.names == {"coatcheck-call"}


def test_a_method_of_the_handlers_own_stays_in_a_thread(
    build: Callable[..., House], vendor: LocalVendor, transport: AiohttpTransport
) -> None:
    """It may block, and it expects a result, not a coroutine."""

    class Own(Threads):
        def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
            result = super().query(params, context)
            self.names.add(threading.current_thread().name)
            return result

    handler = Own(vendor.url, poll=AT_ONCE)
    house = build(handler, is_live=True)
    ids = submit(house, 3)
    with running(house.worker(transport=transport)):
        house.wait(ids, TaskStatus.SUCCEEDED)
    assert handler.names == {"coatcheck-call"}


def test_a_large_reply_is_read_away_from_the_loop(
    build: Callable[..., House], vendor: LocalVendor, transport: AiohttpTransport
) -> None:
    """Reading it takes as long as hundreds of polls, which would all be late."""
    handler = Threads(vendor.url, poll=AT_ONCE)
    house = build(handler, is_live=True)
    task = house.manager.submit(JobRequest.of("x" * 200_000, polls=0))
    small = house.manager.submit(JobRequest.of("y", polls=0))
    handler.names.clear()
    with running(house.worker(transport=transport)):
        house.wait([task.id, small.id], TaskStatus.SUCCEEDED)
    assert house.task(task.id).result.text == "X" * 200_000


def test_step_and_refresh_use_the_transport_without_a_loop(
    build: Callable[..., House], vendor: LocalVendor, transport: AiohttpTransport
) -> None:
    """Cron jobs and people who look now have no event loop."""
    house = build(VendorHandler(vendor.url, poll=AT_ONCE), is_live=True)
    (task_id,) = submit(house, 1, polls=1)
    worker = house.worker(transport=transport)
    deadline = time.monotonic() + PATIENCE
    while house.task(task_id).status is not TaskStatus.SUCCEEDED and time.monotonic() < deadline:
        worker.step()
    assert house.task(task_id).status is TaskStatus.SUCCEEDED


def test_a_call_over_its_limit_is_given_up_on_the_loop(
    build: Callable[..., House], vendor: LocalVendor, transport: AiohttpTransport
) -> None:
    """A vendor that hangs keeps neither a task nor a connection."""
    handler = VendorHandler(vendor.url, poll=AT_ONCE)
    handler.call_limit = timedelta(seconds=0.3)
    house = build(handler, is_live=True)
    (task_id,) = submit(house, 1, polls=0, on_query=["hang"])
    with running(house.worker(transport=transport)) as worker:
        house.wait([task_id], TaskStatus.SUCCEEDED)
        assert worker.health().abandoned == 0
    assert vendor.count("query") == 2


def test_a_stop_closes_the_connections_of_the_loop(
    build: Callable[..., House], vendor: LocalVendor, transport: AiohttpTransport
) -> None:
    """Also those of calls that it cuts off; the transport may be used by the next worker."""
    house = build(VendorHandler(vendor.url, poll=AT_ONCE), is_live=True)
    ids = submit(house, 2, polls=0, on_query=["hang"])
    with running(house.worker(transport=transport, grace=timedelta())):
        deadline = time.monotonic() + PATIENCE
        while vendor.count("query") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert house.statuses(ids) == {TaskStatus.SUBMITTED}
    with running(house.worker(transport=transport)):
        house.wait(ids, TaskStatus.SUCCEEDED)
