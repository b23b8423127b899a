"""The life cycle under random histories: a moody vendor, dying workers, late replies, impatient people.

The tiny store here keeps what real stores keep beside a record (due time, deadlines, flag, version, lease)
and asks ``advance`` about everything else. After each commit the promises of the life cycle are checked; at
the end the task is driven to its end by a willing worker, so that nothing waits for ever.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from coatcheck import lifecycle
from coatcheck.lifecycle import (
    CancelAnswered,
    Canceled,
    CancelFailed,
    CancelRequested,
    Claimed,
    Event,
    Failed,
    Found,
    GateClose,
    InProgress,
    Missed,
    Move,
    NotFound,
    NotReady,
    NotSent,
    Overdue,
    Receipt,
    Refreshed,
    Rejected,
    Released,
    Resolved,
    Resumed,
    Retried,
    State,
    StepFailed,
    Succeeded,
    Throttled,
    Unknown,
    advance,
    state_of,
    view,
)
from coatcheck.model import (
    CancelFlag,
    Failure,
    HandlerTraits,
    Job,
    Phase,
    QueryParams,
    Step,
    Task,
    TaskStatus,
    Verdict,
)

T0 = datetime(2026, 3, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)
ERROR = Failure("vendor_error", "an error page", Phase.QUERY, retryable=True)
GATE = GateClose()
JOB = QueryParams("job-1")

#: Events that people or late replies bring; all others come from a worker's step.
FROM_OUTSIDE = (Receipt, Resolved, Resumed, Retried, Refreshed)

seconds = st.integers(0, 100).map(lambda count: timedelta(seconds=count))
delays = st.integers(0, 40).map(lambda count: timedelta(seconds=count))
progresses = st.none() | st.integers(0, 100).map(float)
words = st.none() | st.sampled_from(["QUEUED", "WORKING"])

traits = st.builds(
    HandlerTraits,
    resubmit=st.sampled_from(["never", "idempotent"]),
    has_lookup=st.booleans(),
    has_cancel=st.booleans(),
    lookup_delay=st.just(timedelta(seconds=60)),
    not_found_limit=st.integers(1, 3),
    keep_params=st.sampled_from(["ended", "accepted"]),
)
in_progress = st.builds(
    InProgress,
    status=st.sampled_from([TaskStatus.SUBMITTED, TaskStatus.RUNNING]),
    delay=delays,
    query_params=st.just(JOB),
    progress=progresses,
    provider_status=words,
)
accepted_without_id = in_progress.map(
    lambda event: InProgress(status=event.status, delay=event.delay, progress=event.progress)
)
throttled = st.builds(Throttled, error=st.just(ERROR), delay=delays, gate=st.just(GATE))
vendor_ends = st.sampled_from([Succeeded(), Failed(error=ERROR)])
#: Replies that prove a job, replies that prove that there is none, and replies that prove nothing.
proofs = in_progress | in_progress | vendor_ends
denials = throttled | st.builds(NotSent, error=st.just(ERROR), delay=delays) | st.just(Rejected(error=ERROR))
riddles = accepted_without_id | st.builds(
    Unknown, error=st.just(ERROR), delay=delays, final=st.integers(0, 9).map(lambda number: number == 0)
)
query_answers: st.SearchStrategy[Any] = (
    in_progress
    | in_progress
    | in_progress
    | throttled
    | vendor_ends
    | st.just(Canceled())
    | st.builds(StepFailed, error=st.just(ERROR), delay=delays, cap=st.sampled_from([None, None, 3]))
    | st.builds(NotReady, delay=delays)
    | st.builds(NotFound, error=st.just(ERROR), delay=delays)
)
cancel_answers = st.builds(
    CancelAnswered, outcome=st.sampled_from(["done", "accepted", "refused"]), delay=delays
) | st.builds(CancelFailed, error=st.just(ERROR), delay=delays)
lookup_troubles = throttled | st.builds(StepFailed, error=st.just(ERROR), delay=delays)
OPERATORS: list[Event] = [
    Retried(),
    Resumed(),
    Refreshed(),
    Refreshed(gone=True),
    Resolved(to="pending"),
    Resolved(to="failed"),
    Resolved(to="submitted", query_params=JOB),
]
anything = (
    proofs
    | denials
    | riddles
    | query_answers
    | cancel_answers
    | st.sampled_from(OPERATORS)
    | st.builds(Receipt, reply=proofs | denials | riddles, generation=st.integers(1, 2))
    | st.sampled_from(
        [Claimed(), Missed(), Overdue(), Released(), CancelRequested(), Found(query_params=JOB, delay=LEASE)]
    )
)


def aware(length: timedelta | None, start: datetime) -> datetime | None:
    """Return the instant ``length`` after ``start``."""
    return None if length is None else start + length


@define
class Row:
    """What a store keeps of one task; ``task`` is the record with the hot columns of its last commit."""

    task: Task
    now: datetime = T0
    job: Job = Job.NONE
    lease_until: datetime | None = None
    #: Something made the task due while it was leased.
    is_due_after: bool = False
    flag: CancelFlag = CancelFlag.NONE
    #: Keys that submits were sent with, by generation; and job creations by generation.
    keys: dict[int, str] = field(factory=dict)
    created: dict[int, int] = field(factory=dict)
    #: Submits whose reply was lost: generation, and what it would have said.
    late: list[tuple[int, Any]] = field(factory=list)
    was_missed: bool = False
    cancels_asked: int = 0
    cancels_wanted: int = 0
    shown_end: TaskStatus | None = None

    def read(self) -> Task:
        """Return the task as a claim or a reader gets it."""
        return self.task.evolve(cancel=self.flag, is_leased=self.is_leased)

    @property
    def is_leased(self) -> bool:
        """Whether a worker holds it, dead or alive."""
        return self.lease_until is not None

    @property
    def state(self) -> State:
        """The table's row."""
        return state_of(self.task)

    def commit(self, event: Event) -> bool:
        """Ask ``advance`` and write what it decides; check every promise on the way."""
        before = self.read()
        move = advance(before, event, self.now)
        if move is None:
            return False
        self._check(before, event, move)
        self._write(move)
        self._check_row()
        return True

    def _write(self, move: Move) -> None:
        task = move.task
        changes: dict[str, Any] = {"version": self.task.version + 1, "updated_at": self.now}
        if move.restart:
            changes |= {
                "scheduled_at": self.now,
                "deadline_at": self.now + task.deadline,
                "queue_deadline_at": aware(task.queue_deadline, self.now),
                "stall_at": None,
            }
            self.shown_end = None
        if move.progressed and task.status.is_queryable:
            changes["stall_at"] = aware(task.stall_limit, self.now)
        task = task.evolve(**changes)
        due = None
        if move.delay is not None:
            is_due_now = self.is_due_after and task.next_step is not Step.LOOKUP
            due = self.now if is_due_now else self.now + move.delay
            limits = [task.deadline_at, task.stall_at]
            if task.status is TaskStatus.PENDING_SUBMIT:
                limits.append(task.queue_deadline_at)
            due = min(due, *(limit for limit in limits if limit is not None))
        if move.cancel is not None:
            self.flag = move.cancel
        self.task = task.evolve(due_at=due, cancel=self.flag, is_leased=False)
        self.job, self.lease_until, self.is_due_after = move.job, None, False

    # The promises.

    def _check(self, before: Task, event: Event, move: Move) -> None:
        after = move.task
        if before.status.is_end:
            assert isinstance(event, FROM_OUTSIDE), "ends absorb what workers bring"
        is_new = isinstance(event, Retried | Resumed | Resolved) or (
            isinstance(event, Receipt)
            and (after.status, after.notes) != (before.status, (*before.notes, *after.notes[-1:]))
        )
        assert after.generation == before.generation + is_new, "only these start a generation"
        assert move.restart == is_new
        if before.progress is not None and not isinstance(event, Retried):
            assert after.progress is not None
            assert after.progress >= before.progress, "progress never falls"
        if before.status is TaskStatus.RUNNING:
            assert after.status is not TaskStatus.SUBMITTED, "SUBMITTED never follows RUNNING"
        if before.cancel is CancelFlag.REQUESTED and not isinstance(event, Retried | Resumed | Resolved):
            handled = isinstance(event, CancelAnswered | CancelFailed)
            assert move.cancel is None or (handled and move.cancel is CancelFlag.HANDLED), (
                "a cancel is never lost"
            )
        if isinstance(event, Retried):
            assert after.idempotency_key not in {before.idempotency_key, *self.keys.values()}
        else:
            assert after.idempotency_key == before.idempotency_key, "only retry makes a new key"

    def _check_row(self) -> None:
        task = self.task
        if task.due_at is not None:
            assert task.due_at <= task.deadline_at, "deadlines bound due times"
            assert task.stall_at is None or task.due_at <= task.stall_at
        if task.status.is_end:
            assert task.due_at is None
            expected = self._job_of_end()
        else:
            assert task.due_at is not None
            expected = Job.NONE if task.status is TaskStatus.PENDING_SUBMIT else Job.LIVE
        assert self.job is expected, f"{task.status} {task.verdict} {task.error}"
        self.look()

    def _job_of_end(self) -> Job:
        """A verdict, or that nothing was ever accepted, frees the slot; otherwise a job may go on."""
        task = self.task
        if task.status is TaskStatus.SUBMIT_UNKNOWN:
            return Job.GHOST
        if task.verdict is Verdict.VENDOR or task.query_params is None:
            return Job.NONE
        if task.status is TaskStatus.FAILED and task.verdict is Verdict.USER:
            return Job.NONE
        return Job.GHOST

    def look(self) -> None:
        """Read as an application does: an end that was shown once is not taken back in that generation."""
        seen = view(self.read(), self.now).status
        if self.shown_end is not None:
            assert seen is self.shown_end, "an end that was shown is not taken back"
        elif seen.is_end:
            self.shown_end = seen


class Life(RuleBasedStateMachine):
    """One task and everybody who does something with it."""

    row: Row

    @initialize(
        traits=traits,
        cancel_on_deadline=st.booleans(),
        deadline=st.integers(60, 900),
        queue_deadline=st.none() | st.integers(30, 300),
        stall_limit=st.none() | st.integers(30, 300),
        wait=delays,
        key=st.sampled_from(["task-1", "order-2"]),
    )
    def submit(
        self,
        *,
        traits: HandlerTraits,
        cancel_on_deadline: bool,
        deadline: int,
        queue_deadline: int | None,
        stall_limit: int | None,
        wait: timedelta,
        key: str,
    ) -> None:
        """A new task."""
        queue = None if queue_deadline is None else timedelta(seconds=queue_deadline)
        scheduled_at = T0 + wait
        self.row = Row(
            Task(
                id="task-1",
                status=TaskStatus.PENDING_SUBMIT,
                handler_key="test:vendor",
                provider_key="test",
                account="default",
                idempotency_key=key,
                traits=traits,
                cancel_on_deadline=cancel_on_deadline,
                deadline=timedelta(seconds=deadline),
                queue_deadline=queue,
                stall_limit=None if stall_limit is None else timedelta(seconds=stall_limit),
                created_at=T0,
                updated_at=T0,
                scheduled_at=scheduled_at,
                deadline_at=scheduled_at + timedelta(seconds=deadline),
                queue_deadline_at=aware(queue, scheduled_at),
                due_at=scheduled_at,
            )
        )

    # Workers.

    @precondition(lambda self: not self.row.task.status.is_end)
    @rule(data=st.data(), rounds=st.integers(1, 8))
    def work(self, *, data: st.DataObject, rounds: int) -> None:
        """When the task is due, workers take it and go through with their steps; the last may be busy."""
        row = self.row
        for left in reversed(range(rounds)):
            if row.task.status.is_end:
                return
            if not row.is_leased:
                self.take(data)
            if row.is_leased and (left or data.draw(st.integers(0, 3), "busy") > 0):
                self.finish(data)

    def take(self, data: st.DataObject) -> None:
        """Time passes until the task is due, or longer, and a worker claims it."""
        row = self.row
        row.now = max(row.now, row.task.due_at or row.now)
        if data.draw(st.integers(0, 9), "late") == 0:
            row.now += data.draw(seconds, "by")
        row.look()
        if row.task.status.is_queryable and row.now >= row.task.deadline_at + LEASE:
            assert row.commit(Overdue())
        else:
            self.claim()

    def claim(self) -> None:
        """A worker takes the task; what needs no vendor is done at once, as any worker would."""
        row, task = self.row, self.row.read()
        if row.state is State.PENDING_SUBMIT:
            if task.cancel is CancelFlag.REQUESTED:
                assert row.commit(CancelRequested())
            elif lifecycle.submit_deadline_at(task) <= row.now:
                assert row.commit(Overdue())
            else:
                move = advance(task, Claimed(), row.now)
                assert move is not None
                # The store's own move: no commit, no version.
                row.task, row.job = move.task, move.job
                row.lease_until = row.now + LEASE
        elif row.state in (State.RESUBMIT, State.LOOKUP) and task.deadline_at <= row.now:
            assert row.commit(Overdue())
        elif task.cancel is CancelFlag.REQUESTED and self.ends_without_a_call():
            assert row.commit(CancelRequested())
        else:
            row.lease_until = row.now + LEASE

    def ends_without_a_call(self) -> bool:
        """Whether a cancel needs no vendor where the task is."""
        task = self.row.task
        return self.row.state is State.RESUBMIT or (task.status.is_queryable and not task.traits.has_cancel)

    def finish(self, data: st.DataObject) -> None:
        """A step ends: mostly with the vendor's answer, sometimes with the worker's death or a release."""
        in_submit = self.row.state in (State.SUBMITTING, State.RESUBMIT)
        fates = ["answer"] * (2 if in_submit else 8) + ["death", "release"]
        fate = data.draw(st.sampled_from(fates), "fate")
        if fate == "release":
            self.release()
        elif in_submit:
            reply = data.draw(proofs | denials | riddles, "reply")
            self.submit_ends(reply, is_lost=fate == "death", riddle_made_job=data.draw(st.booleans(), "job"))
        elif fate == "death":
            self.die()
        elif self.row.state is State.LOOKUP:
            self.lookup_ends(
                data.draw(st.none() | lookup_troubles, "trouble"), finds=data.draw(st.booleans())
            )
        elif self.wants_cancel_call():
            self.row.cancels_asked += 1
            answer: Event = data.draw(cancel_answers, "answer")
            assert self.row.commit(answer)
        else:
            seen = data.draw(query_answers, "answer")
            assert self.row.commit(seen)

    def wants_cancel_call(self) -> bool:
        """Whether the leased step is a call of the vendor's cancel."""
        task = self.row.read()
        return task.status.is_queryable and (
            task.next_step is Step.CANCEL or (task.cancel is CancelFlag.REQUESTED and task.traits.has_cancel)
        )

    def submit_ends(self, reply: Any, *, is_lost: bool, riddle_made_job: bool) -> None:
        """The vendor answers a submit; if the worker is gone, the reply may come later as a receipt."""
        row = self.row
        is_proof = isinstance(reply, Succeeded | Failed) or (
            isinstance(reply, InProgress) and reply.query_params is not None
        )
        is_denial = isinstance(reply, Throttled | NotSent | Rejected)
        self.send(made_job=is_proof or (not is_denial and riddle_made_job))
        if is_lost:
            row.late.append((row.task.generation, reply))
            row.now += LEASE * 3 / 2
            reply = Unknown(error=ERROR, delay=timedelta(seconds=1))
        assert row.commit(reply)

    def send(self, *, made_job: bool) -> None:
        """Note that a submit left, and whether the vendor made a job of it."""
        row = self.row
        generation = row.task.generation
        row.keys[generation] = row.task.idempotency_key
        honours_key = row.task.traits.resubmit == "idempotent"
        if made_job and not (honours_key and row.created.get(generation)):
            row.created[generation] = row.created.get(generation, 0) + 1
        if row.created.get(generation, 0) > 1:
            assert row.was_missed, "at most one job per generation, except where a lookup found none"

    def lookup_ends(self, trouble: Any, *, finds: bool) -> None:
        """The vendor answers a lookup: truthfully, or "not found" although a job is on its way."""
        row = self.row
        if trouble is not None:
            assert row.commit(trouble)
        elif row.created.get(row.task.generation) and finds:
            assert row.commit(Found(query_params=JOB, delay=timedelta(seconds=5)))
        else:
            row.was_missed = True
            assert row.commit(Missed())

    def release(self) -> None:
        """A worker gives its claim back because nothing was sent."""
        state = self.row.state
        assert self.row.commit(Released())
        assert self.row.state is (State.PENDING_SUBMIT if state is State.SUBMITTING else state)

    def die(self) -> None:
        """A worker dies in a step that creates nothing: the lease runs out and anybody may go on."""
        row = self.row
        row.now += LEASE
        row.lease_until = None
        if row.state is State.LOOKUP:
            assert row.commit(Unknown(error=ERROR, delay=timedelta(seconds=1)))

    # People and time.

    @rule(length=seconds)
    def wait(self, *, length: timedelta) -> None:
        """Time passes."""
        self.row.now += length
        self.row.look()

    @rule(wanted=st.integers(0, 3))
    def cancel(self, *, wanted: int) -> None:
        """Somebody wants the task stopped: the flag lies beside the record, no version changes."""
        row = self.row
        if view(row.read(), row.now).status.is_end or (wanted and row.state is State.PENDING_SUBMIT):
            return
        if row.flag is CancelFlag.NONE:
            row.flag = CancelFlag.REQUESTED
            row.cancels_wanted += 1
            if row.is_leased:
                row.is_due_after = True
            elif row.state is not State.LOOKUP:
                row.task = row.task.evolve(due_at=min(row.now, row.task.due_at or row.now))

    @precondition(lambda self: not self.row.is_leased and self.row.shown_end is not None)
    @rule(data=st.data())
    def operate(self, *, data: st.DataObject) -> None:
        """An operator makes one of the moves that the table has for the task."""
        row = self.row
        row.commit(Overdue())
        allowed = [event for event in OPERATORS if (row.state, type(event)) in lifecycle.TABLE]
        if allowed:
            row.commit(data.draw(st.sampled_from(allowed)))

    @precondition(lambda self: self.row.late)
    @rule(data=st.data())
    def deliver_late_reply(self, *, data: st.DataObject) -> None:
        """A submit's reply arrives long after its lease was lost."""
        row = self.row
        generation, reply = row.late.pop(data.draw(st.integers(0, len(row.late) - 1)))
        before, due = row.task, row.task.due_at
        row.commit(Receipt(reply=reply, generation=generation))
        is_noted = row.task.version > before.version and row.task.generation == before.generation
        if is_noted and due is not None:
            assert row.task.due_at == max(due, min(row.now, row.task.deadline_at)), "a note moves no due time"
        if generation != before.generation:
            assert row.task is before, "an older generation's reply changes nothing"

    @rule(event=anything)
    def disturb(self, *, event: Event) -> None:
        """Any event at all is either in the table or changes nothing; asking is free of effects."""
        task = self.row.read()
        copy = dict(task.__dict__)
        move = advance(task, event, self.row.now)
        assert move is None or (state_of(task), type(event)) in lifecycle.TABLE
        assert move is None or not task.status.is_end or isinstance(event, FROM_OUTSIDE), "ends absorb"
        assert task.__dict__ == copy

    def teardown(self) -> None:
        """A willing worker brings every task to its end, and every cancel to the vendor."""
        if not hasattr(self, "row"):
            return
        row = self.row
        has_flag = row.flag is CancelFlag.REQUESTED and not row.task.status.is_end
        asked_before = row.cancels_asked
        for _ in range(200):
            if row.task.status.is_end:
                break
            if not row.is_leased:
                row.now = max(row.now, row.task.due_at or row.now)
                self.claim()
            elif row.state in (State.SUBMITTING, State.RESUBMIT):
                self.send(made_job=True)
                row.commit(
                    InProgress(status=TaskStatus.RUNNING, delay=timedelta(seconds=20), query_params=JOB)
                )
            elif row.state is State.LOOKUP:
                row.was_missed = True
                row.commit(Missed())
            elif self.wants_cancel_call():
                row.cancels_asked += 1
                row.commit(CancelAnswered(outcome="refused", delay=timedelta(seconds=20)))
            else:
                row.commit(InProgress(status=TaskStatus.RUNNING, delay=timedelta(seconds=20)))
        assert row.task.status.is_end, "nothing waits for ever"
        if has_flag:
            never_had_a_job = row.task.query_params is None
            assert (
                row.cancels_asked > asked_before
                or row.task.status is TaskStatus.CANCELED
                or row.task.status is TaskStatus.SUBMIT_UNKNOWN
                or never_had_a_job
            ), "a cancel is never lost"


TestLife = pytest.mark.filterwarnings("error")(Life.TestCase)


@given(
    ended=st.sampled_from(
        [state for state in State if state.name in TaskStatus.__members__ and TaskStatus[state.name].is_end]
    ),
    events=st.lists(anything.filter(lambda event: not isinstance(event, FROM_OUTSIDE)), min_size=1),
)
def test_ends_absorb_whatever_workers_bring(ended: State, events: list[Event]) -> None:
    """No answer, flag or deadline changes a task that has ended."""
    task = Task(
        id="task-1",
        status=TaskStatus[ended.name],
        next_step=None,
        handler_key="test:vendor",
        provider_key="test",
        account="default",
        query_params=JOB,
        created_at=T0,
        scheduled_at=T0,
        updated_at=T0,
        deadline_at=T0,
    )
    assert [advance(task, event, T0 + LEASE) for event in events] == [None] * len(events)
