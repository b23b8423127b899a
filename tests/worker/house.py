"""What the tests of the worker share: a scripted handler, a store that can fail, clocks that stand still."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from attrs import define, field, frozen

from coatcheck.accounts import Accounts
from coatcheck.codec import persistent
from coatcheck.errors import StoreUnavailableError
from coatcheck.handler import TaskHandler
from coatcheck.manager import Manager
from coatcheck.model import (
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
    Task,
    TaskStatus,
)
from coatcheck.policy import PollPolicy
from coatcheck.registry import Registry
from coatcheck.store import Committed, Outcome, Store, Transition
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.clock import FakeClock
from coatcheck.worker import Worker, WorkerSettings

#: How long a test waits for a thread before it fails, in seconds; never how long it takes.
PATIENCE = 20.0
AT_ONCE = PollPolicy(first=timedelta(), start=timedelta(), error_start=timedelta(), jitter=0)


@persistent("test.worker.request")
@frozen
class Request:
    """What the scripted handlers are asked for."""

    name: str = "page"


class Ticks:
    """A monotonic clock that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time, in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on."""
        self.now += seconds


class Handler(TaskHandler[Request]):
    """Takes every submit and succeeds at the query number ``queries``, unless a test sets other answers."""

    key = "test:vendor"
    poll = AT_ONCE
    queries = 1

    def __init__(self, **settings: Any) -> None:
        self.submits: list[str] = []
        self.looks: list[str] = []
        self.on_submit: Callable[[SubmitContext], Any] = _taken
        self.on_query: Callable[[QueryParams, QueryContext], Any] = self._look
        for name, value in settings.items():
            setattr(self, name, value)

    def submit(self, params: Request, context: SubmitContext) -> Any:
        """Note the submit, and answer."""
        self.submits.append(context.idempotency_key)
        return self.on_submit(context)

    def query(self, params: QueryParams, context: QueryContext) -> Any:
        """Note the query, and answer."""
        self.looks.append(context.task_id)
        return self.on_query(params, context)

    def _look(self, params: QueryParams, context: QueryContext) -> QueryResult:
        if context.query_count + 1 < self.queries:
            return QueryResult.running()
        return QueryResult.succeeded({"of": params.external_task_id})


def _taken(context: SubmitContext) -> SubmitResult:
    return SubmitResult.submitted(QueryParams(f"job-{context.task_id}"))


class AsyncHandler(Handler):
    """The same with coroutine methods."""

    async def submit(self, params: Request, context: SubmitContext) -> Any:
        """Note the submit, and answer."""
        self.submits.append(context.idempotency_key)
        answer = self.on_submit(context)
        return await answer if hasattr(answer, "__await__") else answer

    async def query(self, params: QueryParams, context: QueryContext) -> Any:
        """Note the query, and answer."""
        self.looks.append(context.task_id)
        answer = self.on_query(params, context)
        return await answer if hasattr(answer, "__await__") else answer


class Gate:
    """A call that blocks until the test opens it: ``handler.on_query = gate``."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer = answer
        self.reached = threading.Semaphore(0)
        self._open = threading.Event()

    def __call__(self, *arguments: Any) -> Any:
        """Say that the call is here, and wait."""
        self.reached.release()
        if not self._open.wait(PATIENCE):
            raise AssertionError("nobody opened the gate")
        return self._answer(*arguments)

    def wait(self, count: int = 1) -> None:
        """Wait until that many calls are here."""
        for _ in range(count):
            assert self.reached.acquire(timeout=PATIENCE), "the call did not come"

    def open(self) -> None:
        """Let them all go on."""
        self._open.set()


@define
class FaultyStore:
    """A store in front of a real one; ``before`` and ``after`` may raise instead of a call or its answer."""

    real: Store
    before: dict[str, Callable[..., None]] = field(factory=dict)
    after: dict[str, Callable[..., None]] = field(factory=dict)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(factory=list)
    #: A task whose row cannot be written.
    breaks: str = ""

    def commit(self, transitions: Sequence[Transition]) -> list[Committed]:
        """Write all but the broken row."""
        good = [transition for transition in transitions if transition.task_id != self.breaks]
        answers = iter(self.__getattr__("commit")(good) if good else ())
        broken = Committed(outcome=Outcome.FAILED, message="a constraint of the test")
        return [broken if transition.task_id == self.breaks else next(answers) for transition in transitions]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append((name, arguments, keywords))
            if name in self.before:
                self.before[name](*arguments, **keywords)
            answer = found(*arguments, **keywords)
            if name in self.after:
                self.after[name](*arguments, **keywords)
            return answer

        return call

    def named(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """Return the arguments of the calls of one verb."""
        return [(arguments, keywords) for called, arguments, keywords in self.calls if called == name]


def fails(times: int) -> Callable[..., None]:
    """Return what raises ``StoreUnavailableError`` the first ``times`` times."""
    left = [times]

    def fail(*arguments: Any, **keywords: Any) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise StoreUnavailableError("the test took the store away")

    return fail


@define
class House:
    """A store, its manager, and workers for it."""

    store: Any
    registry: Registry
    clock: FakeClock
    ticks: Any
    manager: Manager

    def worker(self, **changes: Any) -> Worker:
        """Return a worker by the test's clocks; settings are given as keywords of ``WorkerSettings``."""
        own = {
            name: changes.pop(name)
            for name in ("plugins", "limits", "monotonic", "store", "transport")
            if name in changes
        }
        return Worker(
            own.pop("store", self.store),
            self.registry,
            accounts=Accounts(environ={}),
            settings=WorkerSettings(**changes),
            rng=lambda: 0.5,
            **{"monotonic": self.ticks, **own},
        )

    def submit(self, count: int = 1, **options: Any) -> list[str]:
        """Submit requests and return the tasks' ids."""
        return [self.manager.submit(Request(), **options).id for _ in range(count)]

    def task(self, task_id: str) -> Task:
        """Return a task as it is now."""
        return self.manager.get(task_id)

    def statuses(self, ids: list[str]) -> set[TaskStatus]:
        """Return the states of these tasks."""
        return {self.task(task_id).status for task_id in ids}

    def wait(self, ids: list[str], *statuses: TaskStatus) -> None:
        """Wait until all of these tasks are in one of these states."""
        end = time.monotonic() + PATIENCE
        for task_id in ids:
            while (task := self.task(task_id)).status not in statuses:
                left = timedelta(seconds=end - time.monotonic())
                assert left > timedelta(), f"{task_id} is {task.status}, error {task.error}"
                self.store.wait_for_change(task_id, task.version, min(left, timedelta(seconds=1)))

    def advance(self, seconds: float) -> None:
        """Move both clocks on."""
        self.clock.advance(seconds)
        self.ticks.advance(seconds)


def build(
    *handlers: Handler, path: str = ":memory:", is_faulty: bool = False, is_live: bool = False
) -> House:
    """Return a house with these handlers, whose clocks stand still; those of a live one go."""
    clock = FakeClock()
    real = SqliteStore(path, clock=None if is_live else clock)
    store: Any = FaultyStore(real) if is_faulty else real
    registry = Registry()
    for handler in handlers:
        registry.add_handler(handler)
    manager = Manager(store, registry, accounts=Accounts(environ={}))
    return House(store, registry, clock, time.monotonic if is_live else Ticks(), manager)


@contextmanager
def running(worker: Worker) -> Iterator[Worker]:
    """Run a worker in a thread, and end it with the block."""
    problems: list[BaseException] = []

    def work() -> None:
        try:
            worker.run(stop_signals=False)
        except BaseException as problem:  # noqa: BLE001  # shown in the test's thread
            problems.append(problem)

    thread = threading.Thread(target=work, name="test-worker")
    thread.start()
    try:
        yield worker
    finally:
        if not worker.health().is_draining:  # a second stop would end the grace
            worker.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the worker did not stop"
        if problems:
            raise problems[0]
