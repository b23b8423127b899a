"""Ending steps before their calls do: a call over its limit, a step that waits too long, a worker that stops.

Each is decided by who is first: the thread that wants to begin the call, or to say how it ended, or the main
loop, which runs everything in here.
"""

import logging
from collections.abc import Callable

from coatcheck.errors import HandlerError
from coatcheck.step import Finished, Plan, Steps
from coatcheck.store import Kind
from coatcheck.worker.aio import AsyncCalls
from coatcheck.worker.committing import Committer, Counts
from coatcheck.worker.held import Held, Item
from coatcheck.worker.patience import Log
from coatcheck.worker.pool import Pool

#: How often calls are compared with their limits, in seconds.
WATCH = 0.1
#: A step that waited this part of its lease for a thread is given back: another worker may have one.
_QUEUE_SHARE = 1 / 6

_SUBMITS = (Kind.SUBMIT, Kind.RESUBMIT)


class Cutter:
    """Ends steps for the main loop and gives them to the committer.

    Args:
        steps: makes the transitions.
        held: the steps.
        pool: where sync calls run.
        async_calls: where async calls run.
        committer: takes the steps that were ended.
        counts: given-up calls are counted in here.
        lease: the length of a lease, in seconds.
        log: says what was cut off.
        monotonic: measures durations, in seconds.
    """

    def __init__(
        self,
        steps: Steps,
        held: Held,
        *,
        pool: Pool,
        async_calls: AsyncCalls,
        committer: Committer,
        counts: Counts,
        lease: float,
        log: Log,
        monotonic: Callable[[], float],
    ) -> None:
        self._steps = steps
        self._held = held
        self._pool = pool
        self._async = async_calls
        self._committer = committer
        self._counts = counts
        self._patience = lease * _QUEUE_SHARE
        self._log = log
        self._monotonic = monotonic
        #: When to watch next, by the monotonic clock.
        self.next_at = 0.0

    def watch(self) -> None:
        """Give up calls over their limit; give back steps that wait too long for a thread."""
        now = self._monotonic()
        if now < self.next_at:
            return
        self.next_at = now + min(WATCH, self._patience)
        for item in self.unfinished():
            if item.lane is None:
                continue
            if item.started_at:
                if now - item.started_at > item.limit:
                    self._give_up(item)
            elif now - item.claimed_at > self._patience and not item.is_on_loop:
                self.take_back(item)

    def unfinished(self) -> list[Item]:
        """Return the held steps that have not ended."""
        return [item for item in self._held.snapshot() if not item.is_settled]

    def take_back(self, item: Item) -> bool:
        """Give back a step whose call has not begun; false when it has."""
        if not self._pool.take_back(item):
            return False
        item.settle()
        item.finished = self._release(item)
        self._committer.add((item,))
        return True

    def cut_off(self, item: Item) -> None:
        """End a step now, because the worker stops: a submit becomes unknown, anything else is given back."""
        if self.take_back(item) or not item.settle():
            return
        plan = _plan_of(item)
        if item.lease.kind in _SUBMITS:
            finished = self._unknown(
                item, "the worker was stopped before the vendor answered", "worker_stopped"
            )
        else:
            finished = self._release(item)
        self._log(
            logging.WARNING,
            "cut_off",
            "the worker stops: a %s of task %s was cut off",
            item.lease.kind,
            plan.task.id,
            task_id=plan.task.id,
            handler=plan.task.handler_key,
            kind=str(item.lease.kind),
        )
        self._leave_alone(item, finished)

    def end_late(self, item: Item) -> None:
        """Take in a call that returned after its step was ended here: at most it is a receipt."""
        if item.lane is not None:
            item.lane.stuck -= 1
        if item.late is not None:
            self._committer.add_receipt(item.late)

    def _give_up(self, item: Item) -> None:
        if not item.settle():
            return
        task = _plan_of(item).task
        text = f"{task.handler_key} did not return within its call limit of {item.limit:g} s and was given up"
        self._counts.abandoned_calls += 1
        self._log(
            logging.WARNING,
            "call_timeout",
            "%s",
            text,
            subject=task.handler_key,
            task_id=task.id,
            handler=task.handler_key,
            kind=str(item.lease.kind),
        )
        self._leave_alone(item, self._unknown(item, text, "call_timeout"))

    def _unknown(self, item: Item, text: str, code: str) -> Finished:
        now = item.store_now(self._monotonic())
        return self._steps.conclude(_plan_of(item), HandlerError(text, code), now, is_answer=False)

    def _release(self, item: Item) -> Finished:
        return self._steps.release(item.lease, item.store_now(self._monotonic()))

    def _leave_alone(self, item: Item, finished: Finished) -> None:
        """Commit a step whose call goes on: it keeps its provider's room until it returns."""
        if item.lane is not None:
            item.lane.stuck += 1
        if item.is_on_loop:
            self._async.give_up(item)
        else:
            self._pool.give_up()
        item.finished = finished
        self._committer.add((item,))


def _plan_of(item: Item) -> Plan:
    assert item.plan is not None  # noqa: S101  # a call that began has a plan
    return item.plan
