"""Writing decided moves: the checks that fence off late writers, the columns that follow, what is freed.

Transitions are written in one transaction; if one row cannot be written, the others are written without it.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from coatcheck.micros import span
from coatcheck.model import Job, Step, TaskStatus
from coatcheck.store import Committed, Outcome, Transition
from coatcheck.stores.sqlite.hot import COLUMNS, LASTING, Hot
from coatcheck.stores.sqlite.lanes import Lanes
from coatcheck.stores.sqlite.resources import key_of
from coatcheck.stores.sqlite.unit import LISTED, Unit, listed

# Plain values: reaching into an enum costs as much as the rest of what is done for a row.
_PENDING = TaskStatus.PENDING_SUBMIT.value
_LOOKUP = Step.LOOKUP.value
_NO_JOB, _LIVE, _GHOST = Job.NONE.value, Job.LIVE.value, Job.GHOST.value
_ENDS = frozenset(status for status in TaskStatus if status.is_end)
_QUERYABLE = frozenset(status for status in TaskStatus if status.is_queryable)

_DONE = Committed(outcome=Outcome.DONE)
_LOST = Committed(outcome=Outcome.LEASE_LOST, message="the lease belongs to somebody else now")
_GONE = Committed(outcome=Outcome.LEASE_LOST, message="there is no such task any more")
_NO_MONEY = Committed(
    outcome=Outcome.FAILED,
    message="this store keeps no ledger and no outbox; leave postings and events out or use one that does",
)

_KEPT = (
    "UPDATE @tasks SET version = ?, status = ?, generation = ?, format = ?, cancel = ?, redue = 0, "
    "claims = ?, token = NULL, lease_until = NULL, lost_at = NULL, last_key = ?, lane = ?, ord1 = ?, "
    "ord2 = ?, due_at = ?, stall_at = ?, updated_at = ?, next_step = ?, record = ?"
)
#: A step that keeps what few moves change: the indexes over that are left alone.
_STAY = _KEPT + " WHERE seq = ?"
_MOVE = _KEPT + (
    ", look_at = ?, suspect_at = ?, job = ?, ghost_until = ?, finished_at = ?, scheduled_at = ?, "
    "deadline_at = ?, queue_deadline_at = ? WHERE seq = ?"
)


def load(unit: Unit, ids: Sequence[str], columns: str = COLUMNS) -> dict[str, Hot]:
    """Return the rows of these ids."""
    rows = unit.packed(columns, f"@tasks WHERE id IN {LISTED}", listed(ids))
    return {hot.id: hot for hot in (Hot(*values) for values in rows)}


class Commit:
    """One group of transitions."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._lanes = Lanes(unit)
        self._stay: list[tuple[Any, ...]] = []
        self._move: list[tuple[Any, ...]] = []
        self._results: list[tuple[int, bytes]] = []
        self._dropped: list[tuple[int]] = []
        self._freed: dict[str, None] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._gates: dict[tuple[str, str, str], Any] = {}

    def run(self, transitions: Sequence[Transition]) -> list[Committed]:
        """Write all of them; raises ``sqlite3.Error`` when one cannot be written."""
        rows = load(self._unit, [transition.task_id for transition in transitions], LASTING)
        answers = [self._one(rows.get(t.task_id), t) for t in transitions]
        unit = self._unit
        unit.many(_STAY, self._stay)
        unit.many(_MOVE, self._move)
        unit.many(
            "INSERT INTO @results VALUES (?, ?) ON CONFLICT (seq) DO UPDATE SET data = excluded.data",
            self._results,
        )
        unit.many("DELETE FROM @params WHERE seq = ?", self._dropped)
        unit.count(self._counts)
        self._lanes.settle()
        self._lanes.wake_now(self._freed)
        return answers

    def _one(self, hot: Hot | None, transition: Transition) -> Committed:
        if hot is None:
            return _GONE
        refusal = _refusal(hot, transition)
        if refusal is not None:
            return refusal
        old_status, old_job, rare = hot.status, hot.job, _rare(hot)
        self._apply(hot, transition)
        self._write(hot, transition, is_move=transition.restart or rare != _rare(hot))
        if old_status != hot.status:
            self._counts[old_status] -= 1
            self._counts[hot.status] += 1
        if transition.result is not None:
            self._results.append((hot.seq, transition.result))
        if transition.drop_params:
            self._dropped.append((hot.seq,))
        if old_job != hot.job:
            if old_job == _LIVE:
                self._freed[key_of("live", "tenant", hot.tenant)] = None
            if hot.job == _NO_JOB:
                self._freed[key_of("live", "account", hot.account)] = None
        self._gate(hot, transition)
        return _DONE

    def _apply(self, hot: Hot, transition: Transition) -> None:
        """Give the row the columns that follow from the move."""
        now = self._unit.now
        delay = None if transition.delay is None else span(transition.delay)
        was_end = hot.finished_at is not None
        hot.version += 1
        hot.status = str(transition.status)
        hot.format = transition.format
        hot.next_step = None if transition.next_step is None else str(transition.next_step)
        hot.token, hot.lease_until, hot.last_key = None, None, transition.key
        if transition.claims == "reset":
            hot.claims = 0
        elif transition.claims == "undo":
            hot.claims = max(0, hot.claims - 1)
        hot.job = int(transition.job)
        if hot.job == _GHOST:
            if not was_end or transition.restart or hot.ghost_until is None:
                hot.ghost_until = now + span(transition.ghost_for)
            if hot.ghost_until <= now:
                hot.job = _NO_JOB
        else:
            hot.ghost_until = None
        if transition.restart:
            hot.scheduled_at = now
            hot.deadline_at = now + hot.deadline
            hot.queue_deadline_at = None if hot.queue_deadline is None else now + hot.queue_deadline
            hot.stall_at = None
        if transition.cancel is not None:
            hot.cancel = int(transition.cancel)
        if transition.status in _ENDS:
            hot.finished_at = hot.finished_at if was_end and not transition.restart else now
        else:
            hot.finished_at = None
        if transition.progressed and hot.stall_limit is not None and transition.status in _QUERYABLE:
            hot.stall_at = now + hot.stall_limit
        hot.due_at = self._due(hot, delay)
        hot.redue = 0
        self._lanes.place(hot)

    def _due(self, hot: Hot, delay: int | None) -> int | None:
        if delay is None:
            return None
        due = self._unit.now if hot.redue and hot.next_step != _LOOKUP else self._unit.now + delay
        if hot.status == _PENDING:
            return min(due, hot.submit_deadline_at)
        limit = hot.deadline_at if hot.stall_at is None else min(hot.deadline_at, hot.stall_at)
        return min(due, limit)

    def _write(self, hot: Hot, transition: Transition, *, is_move: bool) -> None:
        kept = (
            hot.version,
            hot.status,
            transition.generation,
            hot.format,
            hot.cancel,
            hot.claims,
            hot.last_key,
            hot.lane,
            hot.ord1,
            hot.ord2,
            hot.due_at,
            hot.stall_at,
            self._unit.now,
            hot.next_step,
            transition.record,
        )
        if is_move:
            times = (hot.scheduled_at, hot.deadline_at, hot.queue_deadline_at)
            self._move.append((*kept, *_rare(hot), *times, hot.seq))
        else:
            self._stay.append((*kept, hot.seq))

    # Gates.

    def _gate(self, hot: Hot, transition: Transition) -> None:
        """Close the gate of the step's side, or end its row of closings."""
        if transition.side is None:
            return
        unit = self._unit
        gate = (hot.provider, hot.account, str(transition.side))
        if gate not in self._gates:
            self._gates[gate] = unit.run(
                "SELECT until, streak FROM @gates WHERE provider = ? AND account = ? AND side = ?", *gate
            ).fetchone()
        known = self._gates[gate]
        closing = transition.gate
        if closing is None:
            if known is not None and known[0] <= unit.now:
                unit.run("DELETE FROM @gates WHERE provider = ? AND account = ? AND side = ?", *gate)
                self._gates[gate] = None
            return
        until, streak = known or (0, 0)
        # Answers to calls that were under way when the gate closed are the same closing, not another one in a
        # row.
        if until <= unit.now:
            streak += 1
        if closing.delay is not None:
            length = span(closing.delay)
        else:
            length = min(
                span(closing.cap), int(span(closing.start) * closing.factor ** min(max(streak, 1) - 1, 64))
            )
        until = max(until, unit.now + length)
        unit.run(
            "INSERT INTO @gates VALUES (?, ?, ?, ?, ?) ON CONFLICT (provider, account, side) "
            "DO UPDATE SET until = excluded.until, streak = excluded.streak",
            *gate,
            until,
            streak,
        )
        self._gates[gate] = (until, streak)


def _rare(hot: Hot) -> tuple[int | None, ...]:
    """Return what most steps leave as it was, in the order of ``_MOVE``."""
    return (hot.look_at, hot.suspect_at, hot.job, hot.ghost_until, hot.finished_at)


def _refusal(hot: Hot, transition: Transition) -> Committed | None:
    """Return why a transition may not be written, DONE for a repeat, or ``None``."""
    if hot.last_key == transition.key:
        return _DONE
    if transition.is_leased:
        if hot.token != transition.key:
            return _LOST
    elif hot.token is not None:
        return Committed(outcome=Outcome.CONFLICT, message="a worker holds the task; try again")
    elif (hot.version, hot.status) != (transition.expected_version, transition.expected_status):
        found = f"version {hot.version} {hot.status}"
        wanted = f"version {transition.expected_version} {transition.expected_status}"
        return Committed(outcome=Outcome.CONFLICT, message=f"expected {wanted}, found {found}; read it again")
    if transition.events or transition.postings:
        return _NO_MONEY
    return None


def commit_each(unit: Unit, transitions: Sequence[Transition]) -> list[Committed]:
    """Write transitions one by one, so that a row that cannot be written spoils no other."""
    answers = []
    for transition in transitions:
        unit.run("SAVEPOINT one")
        try:
            answers += Commit(unit).run([transition])
        except (sqlite3.DatabaseError, OverflowError, TypeError, ValueError) as error:
            unit.run("ROLLBACK TO one")
            answers.append(Committed(outcome=Outcome.FAILED, message=f"{type(error).__name__}: {error}"))
        unit.run("RELEASE one")
    return answers
