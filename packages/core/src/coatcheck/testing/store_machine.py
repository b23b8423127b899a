"""A Hypothesis state machine that drives a store through whole lives of tasks, beside the plain model.

``store_machine(make_store)`` returns a machine class; its ``TestCase`` is what pytest runs. Several workers
claim, commit moves of the real life cycle, die and come late; users cancel; operators pause, limit, retry and
resolve; time goes on in steps. After every step the store's rows are those of the model, and at the end every
task can be brought to an end.
"""

import itertools
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, ClassVar

import attrs
from attrs import define
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coatcheck.lifecycle import (
    CancelAnswered,
    Canceled,
    CancelFailed,
    CancelRequested,
    Event,
    Failed,
    Found,
    GateClose,
    InProgress,
    Missed,
    NotFound,
    NotReady,
    NotSent,
    Overdue,
    Receipt,
    Rejected,
    Released,
    Resolved,
    Resumed,
    Retried,
    StepFailed,
    Succeeded,
    Throttled,
    Unknown,
    advance,
)
from coatcheck.model import (
    CancelFlag,
    Failure,
    HandlerTraits,
    Limit,
    Phase,
    QueryParams,
    Rate,
    Side,
    Task,
    TaskStatus,
)
from coatcheck.store import Batch, Kind, Lease, Outcome, Room, Row, Store, Stored, Transition
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import LEASE, new_key, new_task, transition_of
from coatcheck.testing.store_model import Asked, ModelTask, StoreModel

HANDLERS = ("handler-1", "handler-2")
PROVIDERS = ("provider-1", "provider-2")
ACCOUNTS = ("account-1", "account-2")
TENANTS = ("", "tenant-1", "tenant-2")
WORKERS = ("worker-1", "worker-2", "worker-3")
_PLAIN = HandlerTraits(lookup_delay=timedelta(seconds=20), max_job_time=timedelta(seconds=100))
#: What vendors can do.
VENDORS = {
    "plain": _PLAIN,
    "idempotent": attrs.evolve(_PLAIN, resubmit="idempotent"),
    "lookup": attrs.evolve(_PLAIN, has_lookup=True),
    "cancel": attrs.evolve(_PLAIN, has_cancel=True),
    "all": attrs.evolve(_PLAIN, resubmit="idempotent", has_lookup=True, has_cancel=True),
}
_ERROR = Failure("made_up", "a test says so", Phase.QUERY, retryable=True)
_ENDS = [status for status in TaskStatus if status.is_end]
#: The fields that a record takes from its row.
_HOT = [name for name in Row.__annotations__ if name != "id"]

_SECONDS = st.sampled_from([0, 1, 5, 16, 31, 46, 700]).map(lambda seconds: timedelta(seconds=seconds))
_LENGTHS = st.sampled_from([None, None, 20, 100]).map(lambda s: None if s is None else timedelta(seconds=s))
_WORKERS = st.sampled_from(WORKERS)
_PICKS = st.integers(0, 1000)
_GATES = st.sampled_from(
    [
        None,
        None,
        GateClose(delay=timedelta(seconds=20)),
        GateClose(start=timedelta(seconds=2), cap=timedelta(seconds=10)),
    ]
)

_LIVE: list[dict[str, Any]] = [{"account": ACCOUNTS[0]}, {"tenant": TENANTS[1]}]
_RATED: list[dict[str, Any]] = [
    {"provider": PROVIDERS[0], "side": Side.SUBMIT},
    {"account": ACCOUNTS[1], "side": Side.SUBMIT},
    {"provider": PROVIDERS[1], "account": ACCOUNTS[0], "side": Side.SUBMIT},
    {"account": ACCOUNTS[0], "side": Side.QUERY},
]
_RATES = [Rate(1, timedelta(seconds=5)), Rate(2, timedelta(seconds=31)), Rate(4, timedelta(seconds=31)), None]
_LIMITS = st.sampled_from(
    [Limit(**subject, live=live) for subject in _LIVE for live in (1, 2, 3, None)]
    + [Limit(**subject, rate=rate) for subject in _RATED for rate in _RATES]
)
_NAMES = ("handler_key", "provider_key", "account", "tenant", "priority", "vendor")
_VALUES = list(itertools.product(HANDLERS, PROVIDERS, (ACCOUNTS[0], *ACCOUNTS), TENANTS, (0, 5, -5), VENDORS))
_EXTRAS: list[dict[str, Any]] = [
    {},
    {},
    {"delay": timedelta(seconds=5)},
    {"delay": timedelta(seconds=20), "deadline": timedelta(seconds=60)},
    {"deadline": timedelta(seconds=60), "record": bytes(range(256))},
    {"queue_deadline": timedelta(seconds=20)},
    {"stall_limit": timedelta(seconds=20)},
    {"stall_limit": timedelta(seconds=100), "deadline": timedelta(seconds=60)},
    {"dedupe_key": "key-1", "dedupe_digest": b"1"},
    {"dedupe_key": "key-1", "dedupe_digest": b"2"},
    {"dedupe_key": "key-2", "dedupe_digest": b"1"},
    {"format": 2},
]


def _spec(number: int) -> dict[str, Any]:
    """Return what one task is like; one draw picks all of it, because draws are what takes the time."""
    extras, plain = divmod(number, len(_VALUES))
    return dict(zip(_NAMES, _VALUES[plain], strict=True)) | _EXTRAS[extras]


_SPECS = st.lists(st.integers(0, len(_VALUES) * len(_EXTRAS) - 1).map(_spec), min_size=1, max_size=5)

MakeStore = Callable[[FakeClock], Store]


@define
class Held:
    """A lease, and the record that the worker read with it."""

    lease: Lease
    task: Task


class StoreMachine(RuleBasedStateMachine):
    """The machine; ``store_machine`` gives it a store to drive."""

    #: Opens a new, empty store.
    make_store: ClassVar[MakeStore]
    #: The ageing of that store.
    ageing: ClassVar[timedelta | None]

    @initialize(
        begun=_SPECS, more=_SPECS, even_more=_SPECS, live=st.integers(1, 3), limit=st.none() | _LIMITS
    )
    def open(
        self,
        begun: list[dict[str, Any]],
        more: list[dict[str, Any]],
        even_more: list[dict[str, Any]],
        live: int,
        limit: Limit | None,
    ) -> None:
        """Open a new store with limits and submit the first tasks, some of them to their vendors too."""
        self.clock = FakeClock()
        self.store = type(self).make_store(self.clock)
        self.model = StoreModel(ageing=self.ageing)
        self.records: dict[str, Task] = {}
        self.held: dict[str, list[Held]] = {worker: [] for worker in WORKERS}
        #: Leases of workers that died or gave up; somebody may still come late with one.
        self.lost: list[Held] = []
        self.last_claim: tuple[dict[str, Any], Batch] | None = None
        self.last_commit: Transition | None = None
        self.added = 0
        self.add(begun)
        self.work(WORKERS[0], [0], timedelta(seconds=1))
        self.set_limit(Limit(account=ACCOUNTS[0], live=live))
        if limit is not None:
            self.set_limit(limit)
        self.add(more + even_more)

    def teardown(self) -> None:
        """Bring every task to its end, then close the store."""
        if not hasattr(self, "store"):
            return
        try:
            if sys.exc_info()[0] is None:
                self.finish_everything()
        finally:
            self.store.close()

    @invariant()
    def store_and_model_agree(self) -> None:
        """Every row is what the model says, none is missing or too many, and the store's counts are right."""
        known = list(self.model.tasks)
        for stored in self.store.get(known):
            assert stored is not None, f"a task is missing: {known}"
            self.model.check_row(stored.row)

        counts = {status: count for status, count in self.store.stats().by_status.items() if count}
        statuses = [task.status for task in self.model.tasks.values()]
        assert counts == {status: statuses.count(status) for status in {*statuses}}

    # What users do.

    @rule(specs=_SPECS)
    def add(self, specs: list[dict[str, Any]]) -> None:
        """Somebody submits tasks."""
        tasks = []
        for spec in specs:
            self.added += 1
            changes = {name: spec[name] for name in spec if name != "vendor"}
            tasks.append((new_task(f"task-{self.added}", **changes), VENDORS[spec["vendor"]]))
        expected = [self.model.add(new, self.clock()) for new, _ in tasks]
        answers = self.store.add([new for new, _ in tasks])
        assert [(answer.outcome, answer.stored.row.id) for answer in answers] == expected
        for (new, traits), answer in zip(tasks, answers, strict=True):
            if new.id in self.model.tasks:
                hot = {name: getattr(answer.stored.row, name) for name in _HOT}
                self.records[new.id] = Task(id=new.id, idempotency_key=new.id, traits=traits, **hot)

    @precondition(lambda self: self.model.tasks)
    @rule(picks=st.lists(_PICKS, min_size=1, max_size=3), how=st.sampled_from(["cancel", "hint", "redrive"]))
    def nudge(self, picks: list[int], how: str) -> None:
        """A user wants tasks stopped, or a callback or an operator wants them looked at now."""
        tasks = list({task.id: task for task in map(self._task, picks)}.values())
        if how == "cancel":
            # A cancel that was dealt with may be asked for again or not.
            tasks = [task for task in tasks if task.cancel is CancelFlag.NONE]
            answers = self.store.request_cancel([task.id for task in tasks])
            expected = [self.model.request_cancel(task, self.clock()) for task in tasks]
        else:
            redrive = how == "redrive"
            answers = self.store.make_due([task.id for task in tasks], redrive=redrive)
            expected = [self.model.make_due(task, self.clock(), redrive=redrive) for task in tasks]
        assert list(answers) == expected
        self.last_claim = None

    # What workers do.

    @rule(
        worker=_WORKERS,
        room=st.builds(
            Room,
            total=st.sampled_from([1, 2, 3, 5, 0]),
            per_provider=st.sampled_from([{}, {}, {PROVIDERS[0]: 0}, {PROVIDERS[0]: 1, PROVIDERS[1]: 2}]),
        ),
        handlers=st.sampled_from([HANDLERS, HANDLERS, HANDLERS[:1], HANDLERS[1:]]),
        skip=st.sampled_from([(), (), (), ACCOUNTS[:1]]),
        format=st.sampled_from([2, 2, 1]),
    )
    def claim(
        self, worker: str, room: Room, handlers: tuple[str, ...], skip: tuple[str, ...], format: int
    ) -> None:
        """A worker claims what it has room for."""
        room = attrs.evolve(room, is_idle=not self.held[worker])
        self._claim(worker, Asked(handlers=handlers, room=room, format=format, lease=LEASE, skip=skip))

    @precondition(lambda self: self.model.tasks)
    @rule(worker=_WORKERS, picks=st.lists(_PICKS, min_size=1, max_size=3), places=st.integers(1, 3))
    def refresh(self, worker: str, picks: list[int], places: int) -> None:
        """A user wants to look at certain tasks now."""
        wanted = [self._task(pick).id for pick in picks]
        room = Room(total=places)
        self._claim(worker, Asked(handlers=HANDLERS, room=room, format=2, lease=LEASE, only=wanted))

    @rule(worker=_WORKERS)
    def claim_everything(self, worker: str) -> None:
        """A worker that can do everything takes all that can go; nothing may be forgotten."""
        self._claim(worker, self._everything(is_idle=not self.held[worker]))

    @rule(worker=_WORKERS, answers=st.lists(_PICKS, min_size=1, max_size=4), delay=_SECONDS)
    def work(self, worker: str, answers: list[int], delay: timedelta) -> None:
        """A worker claims all that it can and finishes it at once."""
        self.claim_everything(worker)
        mine, self.held[worker] = self.held[worker], []
        self._commit(
            [
                self._step(held, answers[number % len(answers)], delay, None, b"worked")
                for number, held in enumerate(mine)
            ]
        )

    @precondition(lambda self: any(self.held.values()))
    @rule(picks=st.lists(st.tuples(_PICKS, _PICKS), min_size=1, max_size=3), delay=_SECONDS, gate=_GATES)
    def commit(self, picks: list[tuple[int, int]], delay: timedelta, gate: GateClose | None) -> None:
        """Workers finish steps, and commit them together."""
        moves = []
        for pick, answer in picks:
            workers = [worker for worker in WORKERS if self.held[worker]]
            if workers:
                mine = self.held[workers[pick % len(workers)]]
                record = f"answer {answer}".encode()
                moves.append(self._step(mine.pop(pick % len(mine)), answer, delay, gate, record))
        self._commit(moves)

    @precondition(lambda self: self.last_claim is not None or self.last_commit is not None)
    @rule()
    def repeat(self) -> None:
        """The reply of the last claim, or of a commit, got lost."""
        if self.last_claim is not None:
            arguments, batch = self.last_claim
            again = self.store.claim(**arguments)
            assert [(lease.task_id, lease.token, lease.kind) for lease in again.leases] == [
                (lease.task_id, lease.token, lease.kind) for lease in batch.leases
            ]
        if self.last_commit is not None:
            self._write([self.last_commit])

    @rule(worker=_WORKERS, wait=st.booleans())
    def die(self, worker: str, wait: bool) -> None:  # noqa: FBT001  # drawn by Hypothesis
        """A worker takes all that it can and is gone; sometimes its leases run out before anybody comes."""
        self.claim_everything(worker)
        self.lost += self.held[worker]
        self.held[worker] = []
        if wait:
            self.wait(LEASE * 1.5)

    @precondition(lambda self: self.lost)
    @rule(pick=_PICKS, answer=_PICKS, delay=_SECONDS)
    def come_late(self, pick: int, answer: int, delay: timedelta) -> None:
        """A worker that was thought dead commits after all."""
        held = self.lost[pick % len(self.lost)]
        self._commit([self._step(held, answer, delay, None, b"late")])

    @precondition(lambda self: any(self.held.values()) or self.lost)
    @rule(which=st.sampled_from([*WORKERS, "lost"]))
    def renew(self, which: str) -> None:
        """A worker proves that it lives."""
        leases = self.lost if which == "lost" else self.held[which]
        answers = self.store.renew([(held.lease.task_id, held.lease.token) for held in leases], LEASE)
        for held, answer in zip(leases, answers, strict=True):
            assert answer is self.model.renew(held.lease.task_id, held.lease.token, LEASE, self.clock())
        self.last_claim = None

    # What operators do.

    @rule(limit=_LIMITS)
    def set_limit(self, limit: Limit) -> None:
        """A limit is set, changed or lifted while everything runs."""
        self.store.set_limit([limit])
        self.model.set_limit(limit)
        self.last_claim = None

    @rule(
        which=st.sampled_from([("provider", PROVIDERS[1]), ("account", ACCOUNTS[1]), ("tenant", TENANTS[2])])
    )
    def pause_or_unpause(self, which: tuple[str, str]) -> None:
        """Submits of somebody are stopped, or let go on."""
        self.last_claim = None
        if which in self.model.paused:
            assert self.store.unpause(*which) is True
            self.model.paused.remove(which)
        else:
            self.store.pause(*which, by="operator", reason="test")
            self.model.paused.add(which)

    @precondition(lambda self: self.model.tasks)
    @rule(pick=_PICKS, choice=_PICKS, is_stale=st.sampled_from([False, False, True]))
    def decide(self, pick: int, choice: int, is_stale: bool) -> None:  # noqa: FBT001  # drawn by Hypothesis
        """An operator retries, resumes or resolves, or a late reply is handed in as a receipt."""
        known = self._task(pick)
        (stored,) = self.store.get([known.id])
        assert stored is not None
        task = self._read(stored)
        events: list[Event] = [
            Retried(),
            Resumed(),
            Resolved(to="pending"),
            Resolved(to="failed"),
            Resolved(to="submitted", query_params=QueryParams("resolved")),
            Receipt(reply=_accepted(timedelta(seconds=3)), generation=task.generation),
            Receipt(reply=Rejected(error=_ERROR), generation=task.generation),
            Receipt(reply=Unknown(error=_ERROR, delay=timedelta()), generation=task.generation),
            CancelRequested(),
        ]
        answers = [advance(task, event, self.clock()) for event in events]
        possible = [answer for answer in answers if answer is not None]
        if not possible:
            return
        chosen = possible[choice % len(possible)]
        move = transition_of(stored, chosen, record=b"decided")
        if is_stale:
            move = attrs.evolve(move, expected_version=stored.row.version - 1)
        self._commit([(move, chosen.task)])

    @precondition(lambda self: any(task.status.is_end for task in self.model.tasks.values()))
    @rule(statuses=st.sets(st.sampled_from(_ENDS), min_size=1), age=_SECONDS)
    def prune(self, *, statuses: set[TaskStatus], age: timedelta) -> None:
        """Old history is deleted."""
        known = list(self.model.tasks)
        count = self.store.prune(dict.fromkeys(statuses, age))
        found = self.store.get(known)
        gone = [task_id for task_id, stored in zip(known, found, strict=True) if stored is None]
        assert count == len(gone)
        self.model.prune(gone, statuses, age, self.clock())
        self.last_claim = None

    @rule(by=_SECONDS)
    def wait(self, by: timedelta) -> None:
        """Time goes on."""
        self.clock.advance(by)
        self.last_claim = None

    # How.

    def _task(self, pick: int) -> ModelTask:
        known = list(self.model.tasks.values())
        return known[pick % len(known)]

    def _everything(self, *, is_idle: bool) -> Asked:
        return Asked(handlers=HANDLERS, room=Room(total=1000, is_idle=is_idle), format=2, lease=LEASE)

    def _read(self, stored: Stored) -> Task:
        """Return the record with the hot columns of its row, as a reader gets it."""
        row = stored.row
        return self.records[row.id].evolve(**{name: getattr(row, name) for name in _HOT})

    def _claim(self, worker: str, asked: Asked) -> Batch:
        arguments: dict[str, Any] = {
            "worker_id": worker,
            "nonce": new_key(),
            "format": asked.format,
            "handlers": asked.handlers,
            "room": asked.room,
            "lease": asked.lease,
            "skip": asked.skip,
            "only": asked.only,
        }
        batch = self.store.claim(**arguments)
        assert batch.now == self.clock()
        self.model.claim(batch, asked)
        self.held[worker] += [Held(lease, self._read(lease.stored)) for lease in batch.leases]
        self.last_claim = (arguments, batch) if batch.leases else None
        return batch

    def _step(
        self, held: Held, answer: int, delay: timedelta, gate: GateClose | None, payload: bytes
    ) -> tuple[Transition, Task]:
        """Return what a worker makes of its lease."""
        now = self.clock()
        events = _answers(held.lease.kind, held.task, now, delay, gate)
        for event in [events[answer % len(events)], *events]:
            move = advance(held.task, event, now)
            if move is not None:
                return transition_of(held.lease, move, record=payload), move.task
        raise AssertionError(f"no event fits {held.lease.kind} of {held.task}")

    def _commit(self, moves: list[tuple[Transition, Task]]) -> None:
        outcomes = self._write([move for move, _ in moves])
        for (move, task), outcome in zip(moves, outcomes, strict=True):
            if outcome is Outcome.DONE and self.model.tasks[task.id].keys[-1] == move.key:
                self.records[task.id] = task
                self.last_commit = move
        self.last_claim = None

    def _write(self, moves: list[Transition]) -> list[Outcome]:
        outcomes = [answer.outcome for answer in self.store.commit(moves)]
        assert len(outcomes) == len(moves)
        for move, outcome in zip(moves, outcomes, strict=True):
            is_repeat = move.task_id in self.model.tasks and move.key in self.model.tasks[move.task_id].keys
            assert outcome in self.model.commit(move, self.clock()), f"{outcome} for {move}"
            if move.gate is not None and outcome is Outcome.DONE and not is_repeat:
                self._see_gate(move)
        return outcomes

    def _see_gate(self, move: Transition) -> None:
        """Check how long a gate closed, and take it over: how it grows is for the contract to say."""
        new = self.model.tasks[move.task_id].new
        gates = {(gate.provider, gate.account, gate.side): gate.until for gate in self.store.stats().gates}
        assert move.side is not None
        assert move.gate is not None
        door = (new.provider_key, new.account, move.side)
        shortest = move.gate.delay or move.gate.start
        assert gates[door] >= self.clock() + shortest
        assert gates[door] <= max(
            self.model.gates.get(door, self.clock()), self.clock() + (move.gate.delay or move.gate.cap)
        )
        self.model.gates[door] = gates[door]

    def finish_everything(self) -> None:
        """With every door open, all tasks come to their end: none is forgotten, none is stuck."""
        for limit, _ in list(self.model.limits.values()):
            lifted = Limit(
                provider=limit.provider, account=limit.account, tenant=limit.tenant, side=limit.side
            )
            self.store.set_limit([lifted])
            self.model.set_limit(lifted)
        for which in list(self.model.paused):
            self.store.unpause(*which)
        self.model.paused.clear()
        for worker in WORKERS:
            self.held[worker] = []
        for _ in range(200):
            if not self._bring_on():
                return
        raise AssertionError(
            f"expected every task to end, found {[str(task) for task in self._unfinished()]}"
        )

    def _unfinished(self) -> list[ModelTask]:
        return [task for task in self.model.tasks.values() if not task.status.is_end]

    def _bring_on(self) -> bool:
        """Let one worker do all that is due now, or let time go on; return whether anything is left."""
        waiting = [task.id for task in self._unfinished()]
        if not waiting:
            return False
        self.store.make_due(waiting, redrive=True)
        for task_id in waiting:
            self.model.make_due(self.model.tasks[task_id], self.clock(), redrive=True)
        batch = self._claim(WORKERS[0], self._everything(is_idle=True))
        self._commit([self._end(held) for held in self.held[WORKERS[0]]])
        self.held[WORKERS[0]] = []
        self.store_and_model_agree()
        if not batch.leases:
            assert batch.next_at is not None, f"expected a time to come back for {waiting}"
            self.clock.move_to(batch.next_at)
        return True

    def _end(self, held: Held) -> tuple[Transition, Task]:
        """Return a move that brings a task nearer to its end."""
        now, kind = self.clock(), held.lease.kind
        nearer: list[Event] = [
            CancelRequested(),
            CancelAnswered(outcome="done", delay=timedelta()),
            Overdue(),
            Succeeded(),
            Found(query_params=QueryParams("found"), delay=timedelta()),
            Unknown(error=_ERROR, delay=timedelta()),
        ]
        if kind is not Kind.CANCEL:
            nearer = nearer[2:]
        if kind is not Kind.EXPIRE:
            nearer = [event for event in nearer if not isinstance(event, Overdue)]
        for event in nearer:
            move = advance(held.task, event, now)
            if move is not None:
                return transition_of(held.lease, move, record=b"end"), move.task
        raise AssertionError(f"no event ends {kind} of {held.task}")


def _accepted(delay: timedelta, status: TaskStatus = TaskStatus.SUBMITTED) -> InProgress:
    return InProgress(status=status, delay=delay, query_params=QueryParams("job"))


def _answers(kind: Kind, task: Task, now: datetime, delay: timedelta, gate: GateClose | None) -> list[Event]:
    """Return what may come of a step, the plainest first."""
    asked = gate or GateClose(delay=delay or timedelta(seconds=1))
    throttled = Throttled(error=_ERROR, delay=delay, gate=asked)
    is_canceled = task.cancel is CancelFlag.REQUESTED
    if kind is Kind.EXPIRE:
        return [Overdue()]
    if kind is Kind.RECOVER:
        return [Unknown(error=_ERROR, delay=delay)]
    if kind is Kind.CANCEL and (task.status is TaskStatus.PENDING_SUBMIT or not task.traits.has_cancel):
        return [CancelRequested()]
    if kind is Kind.CANCEL:
        return [
            CancelAnswered(outcome="accepted", delay=delay),
            CancelAnswered(outcome="done", delay=delay),
            CancelAnswered(outcome="refused", delay=delay),
            CancelFailed(error=_ERROR, delay=delay, gate=gate),
            Released(),
        ]
    if kind in {Kind.RESUBMIT, Kind.LOOKUP} and now >= task.deadline_at:
        return [Overdue()]
    if kind is Kind.RESUBMIT and is_canceled:
        return [CancelRequested()]
    if kind is Kind.LOOKUP:
        found = Found(query_params=QueryParams("job"), delay=delay)
        return [found, Missed(), StepFailed(error=_ERROR, delay=delay, gate=gate), throttled, Released()]
    if kind in {Kind.SUBMIT, Kind.RESUBMIT}:
        return [
            _accepted(delay),
            _accepted(delay, TaskStatus.RUNNING),
            NotSent(error=_ERROR, delay=delay),
            throttled,
            Unknown(error=_ERROR, delay=delay),
            Rejected(error=_ERROR, gate=gate),
            Succeeded(),
            Failed(error=_ERROR),
            Released(),
        ]
    return [
        InProgress(status=TaskStatus.RUNNING, delay=delay),
        InProgress(status=TaskStatus.RUNNING, delay=delay, progress=50.0),
        NotReady(delay=delay),
        throttled,
        StepFailed(error=_ERROR, delay=delay, gate=gate),
        NotFound(error=_ERROR, delay=delay),
        Succeeded(),
        Failed(error=_ERROR),
        Canceled(),
        Released(),
    ]


def store_machine(make_store: MakeStore, *, ageing: timedelta | None = None) -> type[StoreMachine]:
    """Return the machine for one kind of store.

    Args:
        make_store: opens a new, empty store that takes its time from the clock that it is given; called once
            per run.
        ageing: that of the stores which ``make_store`` opens.
    """
    return type("Machine", (StoreMachine,), {"make_store": staticmethod(make_store), "ageing": ageing})
