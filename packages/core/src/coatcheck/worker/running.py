"""Running one held step: the checks right before the call, the call, and who may say how it ended."""

import time
from collections.abc import Callable

from coatcheck.step import Finished, Steps
from coatcheck.worker.held import Item

#: A call begins only while less than this part of the lease has passed since the worker last proved it.
LEASE_SHARE = 0.75


class Runner:
    """Runs items, in whatever thread calls it.

    Args:
        steps: runs the steps.
        lease: the length of a lease, in seconds.
        monotonic: measures durations, in seconds.
    """

    def __init__(self, steps: Steps, lease: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._patience = lease * LEASE_SHARE
        self._monotonic = monotonic

    def run(self, item: Item) -> bool:
        """Run an item's step; returns whether there is anything to hand in."""
        try:
            finished = self._prepare(item)
            if finished is None:
                if not item.begin():
                    return False  # the main loop took it back before the call
                assert item.plan is not None  # noqa: S101  # _prepare left it there
                answer = self._steps.call(item.plan)
                finished = self._steps.conclude(item.plan, answer, item.store_now(self._monotonic()))
            elif not item.begin():
                return False
        except Exception as problem:  # noqa: BLE001  # G10: the main loop says what becomes of it
            return self._hand_in(item, None, problem)
        return self._hand_in(item, finished)

    async def run_async(self, item: Item) -> bool:
        """Run an item's step on this event loop; returns whether there is anything to hand in."""
        try:
            finished = self._prepare(item)
            if finished is None:
                if not item.begin():
                    return False
                assert item.plan is not None  # noqa: S101  # _prepare left it there
                answer = await self._steps.call_async(item.plan)
                finished = self._steps.conclude(item.plan, answer, item.store_now(self._monotonic()))
            elif not item.begin():
                return False
        except Exception as problem:  # noqa: BLE001  # G10: the main loop says what becomes of it
            return self._hand_in(item, None, problem)
        return self._hand_in(item, finished)

    def _prepare(self, item: Item) -> Finished | None:
        """Get everything ready for the call; returns the end of a step that must not, or need not, call."""
        now = self._monotonic()
        planned = self._steps.plan(item.lease, item.store_now(now))
        if isinstance(planned, Finished):
            return planned
        if item.is_lost or now - item.proved_at >= self._patience:
            # Somebody else may be at it by the time that this call arrived at the vendor.
            return self._steps.release(item.lease, item.store_now(now))
        item.plan = planned
        item.limit = planned.limit.total_seconds()
        item.started_at = now
        return None

    def _hand_in(self, item: Item, finished: Finished | None, problem: Exception | None = None) -> bool:
        if item.settle():
            item.finished, item.problem = finished, problem
        else:
            item.given_up, item.is_late = finished, True
        return True
