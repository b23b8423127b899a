"""What all rules of a store share: the fixtures, and short ways to bring tasks into a state."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol

import pytest

from coatcheck.model import Job, TaskStatus
from coatcheck.store import Batch, Committed, Kind, Lease, Outcome, Room, Store, Stored, Transition
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.guard import Contract
from coatcheck.testing.records import HANDLER, LEASE, claim, get, new_task, transition

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


class MakeStore(Protocol):
    """Opens the store under test.

    Called several times in one test it opens several handles of the same data, as far as the store can
    (``is_shared``); each test gets new data.
    """

    def __call__(
        self,
        *,
        clock: Callable[[], datetime],
        namespace: str = "default",
        ageing: timedelta | None = None,
    ) -> Store:
        """Return an open store that takes its time from ``clock``."""
        ...


class StoreRules(Contract):
    """Base of the groups of rules."""

    #: The capabilities that the store under test is to have.
    capabilities: ClassVar[frozenset[str]] = frozenset()

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Return the factory of the store under test."""
        raise NotImplementedError("give the contract a fixture named make_store that opens your store")

    @pytest.fixture
    def clock(self) -> FakeClock:
        """Return the clock of the store under test."""
        return FakeClock()

    @pytest.fixture
    def store(self, make_store: MakeStore, clock: FakeClock) -> Iterator[Store]:
        """Yield an open, empty store."""
        with closing(make_store(clock=clock)) as opened:
            yield opened


def put(store: Store, **changes: Any) -> str:
    """Add one task and return its id."""
    task = new_task(**changes)
    store.add([task])
    return task.id


def put_many(store: Store, count: int, **changes: Any) -> list[str]:
    """Add ``count`` equal tasks in one call and return their ids in order."""
    tasks = [new_task(**changes) for _ in range(count)]
    store.add(tasks)
    return [task.id for task in tasks]


def ids(batch: Batch) -> list[str]:
    """Return the ids of the leased tasks in the order in which they were given out."""
    return [lease.task_id for lease in batch.leases]


def kinds(batch: Batch) -> dict[str, Kind]:
    """Return what each task was claimed for."""
    return {lease.task_id: lease.kind for lease in batch.leases}


def one(batch: Batch, task_id: str | None = None, kind: Kind | None = None) -> Lease:
    """Return the only lease of a batch, which is for this task and of this kind."""
    assert len(batch.leases) == 1, f"expected one lease, found {kinds(batch)}"
    (lease,) = batch.leases
    assert task_id in (None, lease.task_id)
    assert kind in (None, lease.kind)
    return lease


def commit(store: Store, *transitions: Transition) -> list[Outcome]:
    """Commit and return the outcomes."""
    answers: list[Committed] = list(store.commit(transitions))
    assert len(answers) == len(transitions), "expected one answer for each transition"
    return [answer.outcome for answer in answers]


def done(store: Store, *transitions: Transition) -> None:
    """Commit transitions that must be written."""
    assert commit(store, *transitions) == [Outcome.DONE] * len(transitions)


def start(store: Store, *, claims: Mapping[str, Any] | None = None, **changes: Any) -> Lease:
    """Add a task and claim its submit; nothing else may be claimable then."""
    task_id = put(store, **changes)
    options = {"handlers": {changes.get("handler_key", HANDLER)}, **(claims or {})}
    return one(claim(store, **options), task_id, Kind.SUBMIT)


def track(store: Store, *, delay: timedelta | float = 0, **changes: Any) -> Stored:
    """Add a task, submit it and return it SUBMITTED, its first query due after ``delay``."""
    lease = start(store, **changes)
    done(store, transition(lease, TaskStatus.SUBMITTED, delay=delay))
    return get(store, lease.task_id)


def track_many(store: Store, clock: FakeClock, count: int, **changes: Any) -> list[str]:
    """Return the ids of ``count`` tasks that were submitted in turn and whose first queries are due now."""
    added = [track(store, delay=SECOND, **changes).row.id for _ in range(count)]
    clock.advance(SECOND)
    return added


def lose(store: Store, clock: FakeClock, count: int = 1, **options: Any) -> None:
    """Let ``count`` workers claim the only claimable task and die, one after the other."""
    for _ in range(count):
        one(claim(store, room=Room(total=10, is_idle=True), **options))
        clock.advance(options.get("lease", LEASE) + SECOND)


def finish(
    store: Store, held: Lease | Stored, status: TaskStatus = TaskStatus.SUCCEEDED, **changes: Any
) -> None:
    """End a task, with no job left at the vendor unless ``job`` says otherwise."""
    done(store, transition(held, status, **{"job": Job.NONE, **changes}))


def follow(store: Store, clock: FakeClock, *, calls: int = 5, **options: Any) -> tuple[Lease, datetime]:
    """Claim whenever the store says so, and return the first lease and the time of its claim.

    The clock is only moved to what ``next_at`` says, so a store that forgets to say it is found out.
    """
    for _ in range(calls):
        batch = claim(store, **options)
        if batch.leases:
            return batch.leases[0], batch.now
        assert batch.next_at is not None, "expected a time to claim again, found None"
        assert batch.next_at >= batch.now, f"expected a time from {batch.now} on, found {batch.next_at}"
        clock.move_to(batch.next_at)
    raise AssertionError(f"expected a lease within {calls} claims, each at the next_at of the one before")
