"""The event loop of the worker: one handler's coroutine does not hold up those of others."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.worker.house import PATIENCE, AsyncHandler, House, running

from coatcheck.model import QueryParams, SubmitResult, TaskStatus
from coatcheck.policy import PollPolicy

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
