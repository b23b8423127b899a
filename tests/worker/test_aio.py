"""The event loop of the worker: one handler's coroutine does not hold up those of others."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.worker.house import PATIENCE, AsyncHandler, House, running

from coatcheck.model import QueryParams, SubmitResult, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck.worker import aio
from coatcheck.worker.aio import STEP, AsyncCalls
from coatcheck.worker.held import Item
from coatcheck.worker.inbox import Inbox

Build = Callable[..., House]
ONCE = PollPolicy(first=timedelta(hours=1), jitter=0)


def test_steps_begin_although_a_handler_keeps_the_loop_busy(build: Build) -> None:
    """A coroutine that never lets the loop come to rest delays the others, and does not stop them (G10)."""
    busy, quick = AsyncHandler(key="test:busy", poll=ONCE), AsyncHandler(key="test:quick", poll=ONCE)
    reached, over = threading.Event(), threading.Event()

    async def spin() -> Any:
        reached.set()
        is_over = False
        while not is_over:
            await asyncio.sleep(0)
            is_over = over.is_set()
        return SubmitResult.submitted(QueryParams("job"))

    busy.on_submit = lambda _: spin()
    house = build(busy, quick)
    slow = house.submit(handler_key="test:busy")
    with running(house.worker()):
        try:
            assert reached.wait(PATIENCE)
            house.wait(house.submit(50, handler_key="test:quick"), TaskStatus.SUBMITTED)
        finally:
            over.set()
        house.wait(slow, TaskStatus.SUBMITTED)


class Calls:
    """What runs instead of vendor calls: how many are under way, and how many were at most."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.begun = threading.Semaphore(0)
        self._over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def quick(self, _: Item) -> bool:
        """Take as long as it takes the loop to come round."""
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return True

    async def slow(self, _: Item) -> bool:
        """Take until the test says so."""
        self._loop = asyncio.get_running_loop()
        self.begun.release()
        await self._over.wait()
        return True

    def end(self) -> None:
        """Let the slow ones end."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._over.set)


def wait_for(inbox: Inbox, count: int) -> None:
    """Wait until that many were handed in; the bell may ring for other reasons before."""
    end = time.monotonic() + PATIENCE
    while len(inbox) < count and time.monotonic() < end:
        inbox.wait(end - time.monotonic(), count)


def items(count: int) -> list[Any]:
    """Return stand-ins: the loop looks at none of their parts."""
    return [object() for _ in range(count)]


@pytest.mark.parametrize("count", [1, STEP, 40 * STEP])
def test_calls_that_end_at_once_never_need_more_than_a_few_at_a_time(count: int) -> None:
    """One begins when one ends: a vendor that answers at once is not asked by hundreds of connections."""
    calls, inbox = Calls(), Inbox()
    loop = AsyncCalls(calls.quick, inbox)
    loop.put(items(count))
    wait_for(inbox, count)
    loop.stop()
    assert len(inbox) == count
    assert calls.most <= 4 * STEP


def test_what_comes_when_nothing_waits_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many calls ended before, nobody waits for a tick that is not needed."""
    monkeypatch.setattr(aio, "TICK", 1000.0)
    calls, inbox = Calls(), Inbox()
    loop = AsyncCalls(calls.quick, inbox)
    for count in (40 * STEP, 1):
        loop.put(items(count))
        wait_for(inbox, count)
        assert len(inbox.take()) == count
    loop.stop()


def test_calls_that_take_long_do_not_hold_up_the_others() -> None:
    """All that were put are under way although none has ended: the room alone bounds them."""
    calls, inbox = Calls(), Inbox()
    loop = AsyncCalls(calls.slow, inbox)
    loop.put(items(10 * STEP))
    for _ in range(10 * STEP):
        assert calls.begun.acquire(timeout=PATIENCE), "expected the next call to begin"
    calls.end()
    wait_for(inbox, 10 * STEP)
    loop.stop()
    assert len(inbox) == 10 * STEP
