"""A manager over a store in memory, a vendor that says what a test wants, and a worker by hand."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

from attrs import field, frozen

from coatcheck import codec
from coatcheck.accounts import Accounts
from coatcheck.codec import persistent
from coatcheck.errors import ValidationError
from coatcheck.handler import TaskHandler
from coatcheck.manager import Manager
from coatcheck.model import (
    CancelResult,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
    Task,
)
from coatcheck.policy import PollPolicy
from coatcheck.registry import Registry
from coatcheck.step import Steps
from coatcheck.store import Room
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.clock import FakeClock

Answer = QueryResult | Exception | Callable[[], QueryResult]


@persistent("test.manager.job")
@frozen
class Job:
    """A request; ``extra`` takes whatever a test wants to smuggle in."""

    name: str = "a"
    size: int | None = None
    extra: Any = None


@persistent("test.manager.other")
@frozen
class Other:
    """A request of another type."""

    name: str = "b"


@persistent("test.manager.result")
@frozen
class Outcome:
    """A result."""

    text: str


DONE = QueryResult.succeeded(Outcome("done"))


class Vendor(TaskHandler[Job]):
    """A handler whose answers a test sets."""

    key = "acme:job"
    poll = PollPolicy(first=timedelta(), start=timedelta(), jitter=0)

    def __init__(self, key: str = "acme:job", **attributes: Any) -> None:
        self.key = key
        self.submits: list[SubmitContext] = []
        self.queries: list[QueryContext] = []
        self.submit_answer: SubmitResult | Exception = SubmitResult.running(QueryParams("job-1"))
        self.query_answer: QueryResult | Exception = DONE
        vars(self).update(attributes)

    def validate(self, params: Job) -> None:
        """Refuse one name, and break at another."""
        if params.name == "refused":
            raise ValidationError("name may not be 'refused'", "name")
        if params.name == "broken":
            raise KeyError("oops")

    def submit(self, params: Job, context: SubmitContext) -> SubmitResult:
        """Answer as the test wants."""
        self.submits.append(context)
        if isinstance(self.submit_answer, Exception):
            raise self.submit_answer
        return self.submit_answer

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Answer as the test wants."""
        self.queries.append(context)
        if isinstance(self.query_answer, Exception):
            raise self.query_answer
        return self.query_answer


class CancelingVendor(Vendor):
    """A vendor that can stop a job."""

    def cancel(self, params: QueryParams, context: QueryContext) -> CancelResult:
        """Stop it."""
        return CancelResult.done()


@frozen(kw_only=True)
class House:
    """Everything that a manager's test needs."""

    clock: FakeClock
    store: SqliteStore
    registry: Registry
    manager: Manager
    vendor: Vendor
    #: Names that the accounts know; any will do.
    accounts: Accounts = field(factory=lambda: Accounts(environ={}))

    def work(self, rounds: int = 1) -> None:
        """Do what a worker does: claim everything that is due, call the vendor, commit."""
        steps = Steps(self.registry, self.accounts)
        for _ in range(rounds):
            batch = self.store.claim(
                "worker-1",
                uuid4().hex,
                format=codec.FORMAT,
                handlers=list(self.registry.handlers),
                room=Room(total=100, is_idle=True),
                lease=timedelta(seconds=30),
            )
            self.store.commit([steps.run(lease, batch.now) for lease in batch.leases])

    def count(self) -> int:
        """Return how many tasks are stored."""
        return sum(self.store.stats().by_status.values())

    def submitted(self, **options: Any) -> Task:
        """Return a task that the vendor has taken."""
        task = self.manager.submit(Job(), **options)
        self.work()
        return self.manager.get(task.id)


def build(*vendors: Vendor, store: SqliteStore | None = None, **options: Any) -> House:
    """Return a house with these vendors, or with the usual one; over a memory whose clock stands still."""
    clock = FakeClock()
    store = SqliteStore(":memory:", clock=clock) if store is None else store
    registry = Registry()
    vendors = vendors or (Vendor(),)
    for vendor in vendors:
        registry.add_handler(vendor)
    manager = Manager(store, registry, accounts=Accounts(environ={}), **options)
    return House(clock=clock, store=store, registry=registry, manager=manager, vendor=vendors[0])
