"""Writing what steps came to: in groups, again if the store did not answer; and late replies as receipts."""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

from attrs import define

from coatcheck.errors import StoreError
from coatcheck.lifecycle import Released
from coatcheck.model import TaskStatus
from coatcheck.step import Finished, Steps
from coatcheck.store import Committed, Outcome, Store
from coatcheck.worker.held import Held, Item
from coatcheck.worker.patience import Backoff, Log

#: How many transitions go into one write.
GROUP = 500
#: How often a row that cannot be written is tried before it is left to its lease.
_TRIES = 3
#: How often, and from what delay in seconds on, a receipt is tried while another worker holds its task.
_RECEIPT_TRIES = 5
_RECEIPT_DELAY = 0.2
#: How many receipts may wait.
_RECEIPTS = 1000

_NOW = timedelta()

#: Called for each commit that the store acknowledged: the task before, the task after.
Observer = Callable[[Any, Any], None]


@define
class _Receipt:
    finished: Finished
    due_at: float
    tries: int = 0


@define
class Counts:
    """What happened since the worker started."""

    committed: int = 0
    lost_leases: int = 0
    abandoned_calls: int = 0


class Committer:
    """Commits finished steps of held items and hands in receipts.

    Args:
        store: where to.
        steps: makes the transitions of receipts.
        held: what is let go of once it is acknowledged.
        backoff: how long a failing store is left alone.
        log: says what went wrong.
        monotonic: measures durations, in seconds.
        observer: hears of each change of a task.
        counts: counted in here.
    """

    def __init__(
        self,
        store: Store,
        steps: Steps,
        held: Held,
        *,
        backoff: Backoff,
        log: Log,
        monotonic: Callable[[], float],
        observer: Observer | None,
        counts: Counts,
    ) -> None:
        self._store = store
        self._steps = steps
        self._held = held
        self._backoff = backoff
        self._log = log
        self._monotonic = monotonic
        self._observer = observer
        self._counts = counts
        self._waiting: deque[Item] = deque()
        self._parked: list[Item] = []
        self._receipts: deque[_Receipt] = deque(maxlen=_RECEIPTS)
        #: The accounts of steps that were released because an account is not configured here.
        self.unknown_accounts: list[str] = []

    @property
    def has_work(self) -> bool:
        """Whether something waits to be written, now or later."""
        return bool(self._waiting or self._parked or self._receipts)

    @property
    def has_group(self) -> bool:
        """Whether steps wait to be written now."""
        return bool(self._waiting)

    def add(self, items: Iterable[Item]) -> None:
        """Take in steps that ended; what cannot be committed is let go of."""
        for item in items:
            if item.finished is not None:
                self._waiting.append(item)
                if item.finished.is_unknown_account:
                    self.unknown_accounts.append(item.finished.task.account)
            else:
                self._give_to_its_lease(item)

    def add_receipt(self, finished: Finished) -> None:
        """Take in the late reply of a submit."""
        if not isinstance(finished.event, Released):
            self._receipts.append(_Receipt(finished, self._monotonic()))

    def next_at(self) -> float | None:
        """Return when something is to be tried again, by the monotonic clock."""
        times = [item.retry_at for item in self._parked] + [receipt.due_at for receipt in self._receipts]
        return min(times, default=None)

    def run(self) -> float | None:
        """Write what waits; returns the shortest delay, in seconds, after which a written task is due.

        When the store does not answer everything stays for the next time: transitions keep their keys, by
        which a commit whose reply was lost is recognised.
        """
        now = self._monotonic()
        if self._parked:
            ready = [item for item in self._parked if item.retry_at <= now]
            self._parked = [item for item in self._parked if item.retry_at > now]
            self._waiting.extend(ready)
        soonest: float | None = None
        while self._waiting:
            group = [self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))]
            try:
                answers = self._commit(group)
            except StoreError as error:
                self._waiting.extendleft(reversed(group))
                self._store_failed(error, "commit")
                return soonest
            for item, answer in zip(group, answers, strict=True):
                delay = self._acknowledged(item, answer)
                if delay is not None and (soonest is None or delay < soonest):
                    soonest = delay
        if self._receipts:
            self._hand_in(now)
        return soonest

    def forget(self) -> int:
        """Give up what could not be written; returns how many steps that were."""
        count = len(self._waiting) + len(self._parked) + len(self._receipts)
        for item in self._waiting:
            self._held.drop(item)
        for item in self._parked:
            self._give_to_its_lease(item)
        self._waiting.clear()
        self._parked.clear()
        self._receipts.clear()
        return count

    def _commit(self, group: list[Item]) -> list[Committed]:
        transitions = [item.finished.transition for item in group if item.finished is not None]
        try:
            answers = list(self._store.commit(transitions))
        except StoreError:
            raise  # not about one row: the whole store is away, or full
        except Exception as error:  # noqa: BLE001  # a store's bug with one row must not cost the others (G10)
            if len(group) == 1:
                return [Committed(outcome=Outcome.FAILED, message=f"{type(error).__name__}: {error}")]
            return [answer for item in group for answer in self._commit([item])]
        self._backoff.succeed()
        return answers

    def _acknowledged(self, item: Item, answer: Committed) -> float | None:
        finished = item.finished
        assert finished is not None  # noqa: S101  # only finished items wait
        if answer.outcome is Outcome.DONE:
            self._counts.committed += 1
            is_given_back = isinstance(finished.event, Released)
            self._held.drop(item, has_ended=not is_given_back)
            if self._observer is not None and not is_given_back:
                before, after = finished.task, finished.after
                if before.status is not after.status or before.generation != after.generation:
                    now = item.store_now(self._monotonic())
                    self._observer(before, after.evolve(updated_at=now, is_leased=False))
            return self._due_in(item, finished)
        if answer.outcome in (Outcome.LEASE_LOST, Outcome.CONFLICT):
            self._counts.lost_leases += 1
            self._held.drop(item)
            self._log(
                logging.WARNING,
                "lease_lost",
                "the lease of a task was lost before its step could be written",
                subject=finished.task.handler_key,
                task_id=finished.task.id,
                handler=finished.task.handler_key,
                kind=str(item.lease.kind),
            )
            self.add_receipt(finished)
            return None
        item.tries += 1
        item.problem = StoreError(answer.message)
        if item.tries >= _TRIES:
            self._give_to_its_lease(item)
        else:
            item.retry_at = self._monotonic() + 2.0 ** (item.tries - 1)
            self._parked.append(item)
        return None

    def _due_in(self, item: Item, finished: Finished) -> float | None:
        """Return in how many seconds the task is due again, with the store's bound by the deadlines."""
        delay, after = finished.transition.delay, finished.after
        if delay is None or delay <= _NOW:
            return None if delay is None else 0.0
        bound = after.deadline_at - item.store_now(self._monotonic())
        if after.stall_limit is not None:
            bound = min(bound, after.stall_limit)
        if after.queue_deadline is not None:
            bound = min(bound, after.queue_deadline)
        return max(0.0, min(delay, bound).total_seconds())

    def _give_to_its_lease(self, item: Item) -> None:
        """Let go of a step that cannot be written: its lease runs out, and after three it is quarantined."""
        self._held.drop(item)
        row, problem = item.lease.stored.row, item.problem
        self._log(
            logging.ERROR,
            "step_not_written",
            "a step of task %s cannot be written: %s",
            row.id,
            problem,
            subject=row.id,
            error=problem if problem is not None and problem.__traceback__ else None,
            task_id=row.id,
            handler=row.handler_key,
            kind=str(item.lease.kind),
        )

    def _store_failed(self, error: Exception, verb: str) -> None:
        delay = self._backoff.fail(self._monotonic())
        self._log(
            logging.WARNING,
            "store_unavailable",
            "the store does not answer a %s, trying again in %.1f s: %s",
            verb,
            delay,
            error,
            subject=verb,
        )

    # Receipts.

    def _hand_in(self, now: float) -> None:
        for _ in range(len(self._receipts)):
            receipt = self._receipts.popleft()
            if receipt.due_at > now:
                self._receipts.append(receipt)
                continue
            try:
                is_over = self._try_receipt(receipt.finished)
            except Exception as error:  # noqa: BLE001  # the task says "unknown" already; the reply is worth a few tries
                self._log(logging.WARNING, "receipt_failed", "a late reply could not be handed in: %s", error)
                is_over = False
            receipt.tries += 1
            if not is_over and receipt.tries < _RECEIPT_TRIES:
                receipt.due_at = now + _RECEIPT_DELAY * 4.0 ** (receipt.tries - 1)
                self._receipts.append(receipt)

    def _try_receipt(self, finished: Finished) -> bool:
        """Hand in one late reply; false when it should be tried again."""
        for _ in range(2):
            (stored,) = self._store.get([finished.task.id])
            if stored is None:
                return True
            before, now = stored.row, self._store.now()
            transition = self._steps.receipt(finished, stored, now)
            if transition is None:
                # A worker that is about to recover the task holds it: afterwards the reply may be wanted.
                return not (before.is_leased and before.status is TaskStatus.SUBMITTING)
            (answer,) = self._store.commit([transition])
            if answer.outcome is Outcome.DONE:
                self._told(finished, transition, now)
                return True
            if answer.outcome is not Outcome.CONFLICT:
                return True
        return False

    def _told(self, finished: Finished, transition: Any, now: datetime) -> None:
        self._log(
            logging.INFO,
            "receipt",
            "the late reply of a submit was handed in: %s",
            transition.status,
            subject=finished.task.handler_key,
            task_id=finished.task.id,
            handler=finished.task.handler_key,
        )
        if self._observer is not None:
            before = finished.task.evolve(status=transition.expected_status)
            self._observer(
                before,
                finished.after.evolve(
                    status=transition.status, generation=transition.generation, updated_at=now
                ),
            )
