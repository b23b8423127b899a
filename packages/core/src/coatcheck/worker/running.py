"""One held step in three parts: get ready and take in the answer in the main loop, call in a thread.

Only the call itself needs a thread of its own. What stands before and after it is quick, and quicker when it
is done for many steps in a row than in between the calls of many threads.
"""

import contextlib
import time
from collections.abc import Callable

from coatcheck.model import TaskStatus
from coatcheck.step import Finished, Steps
from coatcheck.worker.held import Item

#: A call begins only while less than this part of the lease has passed since the worker last proved it.
LEASE_SHARE = 0.75


class Runner:
    """Runs items: ``prepare``, then ``call`` or ``call_async``, then ``finish``.

    Args:
        steps: runs the steps.
        lease: the length of a lease, in seconds.
        monotonic: measures durations, in seconds.
    """

    def __init__(self, steps: Steps, lease: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._patience = lease * LEASE_SHARE
        self._monotonic = monotonic

    def run(self, item: Item) -> None:
        """Run a whole step in this thread."""
        if self.prepare(item) and self.call(item):
            self.finish(item)

    def prepare(self, item: Item) -> bool:
        """Get a step ready for its call; false when it is over without one."""
        try:
            planned = self._steps.plan(item.lease, item.store_now(self._monotonic()))
        except Exception as problem:  # noqa: BLE001  # G10: one unreadable record must not stop the others
            item.problem = problem
        else:
            if not isinstance(planned, Finished):
                item.plan = planned
                item.limit = planned.limit.total_seconds()
                return True
            item.finished = planned
        item.begin()
        item.settle()
        return False

    def call(self, item: Item) -> bool:
        """Call the vendor, in any thread; returns whether there is anything to hand in."""
        if not self._begin(item):
            return False
        if item.started_at:
            assert item.plan is not None  # noqa: S101  # prepare left it there
            item.answer = self._steps.call(item.plan)
        return self._end(item)

    async def call_async(self, item: Item) -> bool:
        """Call the vendor on this event loop; returns whether there is anything to hand in."""
        if not self._begin(item):
            return False
        if item.started_at:
            assert item.plan is not None  # noqa: S101  # prepare left it there
            item.answer = await self._steps.call_async(item.plan)
        return self._end(item)

    def finish(self, item: Item) -> None:
        """Make the answer of a call the end of its step; late, if the main loop has ended the step before."""
        if item.is_late and item.answer is None:
            return  # it was cancelled
        try:
            finished = item.concluded or self._conclude(item)
        except Exception as problem:  # noqa: BLE001  # G10: nor must one that cannot be written
            if not item.is_late:
                item.problem = problem
            return
        if item.is_late:
            item.late = finished
        else:
            item.finished = finished

    def _begin(self, item: Item) -> bool:
        """Take the right to call, if the lease is good enough for it; false when the step was given back."""
        now = self._monotonic()
        if not item.is_lost and now - item.proved_at < self._patience:
            item.started_at = now
        # Else somebody else may be at it by the time that this call arrived at the vendor.
        return item.begin()

    def _end(self, item: Item) -> bool:
        item.ended_at = self._monotonic()
        if getattr(item.answer, "status", None) is TaskStatus.SUCCEEDED:
            # A result may be large: turning it into bytes is not for the main loop.
            with contextlib.suppress(Exception):
                item.concluded = self._conclude(item)
        item.is_late = not item.settle()
        return True

    def _conclude(self, item: Item) -> Finished:
        now = item.store_now(item.ended_at)
        if not item.started_at:
            return self._steps.release(item.lease, now)
        assert item.plan is not None  # noqa: S101  # prepare left it there
        return self._steps.conclude(item.plan, item.answer, now)
