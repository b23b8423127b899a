"""Stores that break one rule each: the contract, or the state machine, must catch them all."""

import inspect
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import attrs
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from coatcheck.model import CancelFlag, Job, Limit, Rate, TaskStatus
from coatcheck.store import (
    Added,
    Batch,
    Committed,
    NewTask,
    Outcome,
    Room,
    Stats,
    Store,
    Stored,
    Transition,
)
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.stores.sqlite import claim as claim_module
from coatcheck.stores.sqlite.lanes import Lanes
from coatcheck.stores.sqlite.resources import Resources
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import new_key
from coatcheck.testing.store_contract import GROUPS, StoreContract, StoreRules
from coatcheck.testing.store_machine import store_machine


def rules(contract: type[StoreRules]) -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield the rules as pytest would find them."""
    return (
        (name, rule)
        for name, rule in inspect.getmembers(contract, inspect.isfunction)
        if name.startswith("test_")
    )


def cases(rule: Callable[..., None]) -> Iterator[dict[str, Any]]:
    """Yield the parameters of each case of a rule, as pytest would."""
    marks = [mark for mark in getattr(rule, "pytestmark", []) if mark.name == "parametrize"]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        case: dict[str, Any] = {}
        for mark, value in zip(marks, values, strict=True):
            names = [mark.args[0]] if isinstance(mark.args[0], str) else list(mark.args[0])
            given = getattr(value, "values", value) if len(names) > 1 else [value]
            case.update(zip(names, given, strict=True))
        yield case


def fails(rule: Callable[..., None], kind: type["Honest"], case: dict[str, Any]) -> bool:
    """Return whether a rule goes red for a new store."""
    clock = FakeClock()

    def make_store(**options: Any) -> Store:
        return kind(":memory:", **options)

    offered = {"clock": clock, "make_store": make_store, **case}
    with closing(make_store(clock=clock)) as store:
        wanted = inspect.signature(rule).parameters
        given = {name: value for name, value in {"store": store, **offered}.items() if name in wanted}
        try:
            rule(StoreContract(), **given)
        except pytest.skip.Exception:
            return False
        except (Exception, pytest.fail.Exception):  # noqa: BLE001  # any exception turns a test red
            return True
    return False


def is_caught(kind: type["Honest"], name: str) -> bool:
    """Return whether some case of a rule goes red for a store."""
    rule = getattr(StoreContract, name)
    return any(fails(rule, kind, case) for case in cases(rule))


class Honest(SqliteStore):
    """A correct store, for the others to break."""


# Adding and reading.


class Forgetful(Honest):
    """Takes every add for a new one: a dedupe key is only a comment."""

    def add(self, tasks: Sequence[NewTask]) -> Sequence[Added]:
        """Drop the keys."""
        return super().add([attrs.evolve(task, dedupe_key=None) for task in tasks])


class Halfway(Honest):
    """Stores tasks one by one, so that a refused call leaves some behind."""

    def add(self, tasks: Sequence[NewTask]) -> Sequence[Added]:
        """Add each alone."""
        return [added for task in tasks for added in super(Halfway, self).add([task])]


class Textual(Honest):
    """Keeps records as text."""

    def add(self, tasks: Sequence[NewTask]) -> Sequence[Added]:
        """Lose what is no text."""
        return super().add(
            [attrs.evolve(task, record=task.record.decode(errors="ignore").encode()) for task in tasks]
        )


class Gossiping(Honest):
    """Shows any tenant's task to everybody."""

    def get(
        self, ids: Sequence[str], *, tenant: str | None = None, payloads: bool = False
    ) -> Sequence[Stored | None]:
        """Look past the tenant."""
        return super().get(ids, payloads=payloads)


class Undead(Honest):
    """Goes on after it was closed."""

    def close(self) -> None:
        """Stay open."""


# Claiming.


class Early(Honest):
    """Has a clock for claims that is a second fast."""

    def claim(self, *args: Any, **options: Any) -> Batch:
        """Claim in the future."""
        right = self._clock
        assert right is not None
        self._clock = lambda: right() + timedelta(seconds=1)
        try:
            return super().claim(*args, **options)
        finally:
            self._clock = right


class Repeating(Honest):
    """Ignores the nonce, so that a lost reply is a second batch."""

    def claim(self, worker_id: str, nonce: str, **options: Any) -> Batch:
        """Claim anew each time."""
        return super().claim(worker_id, new_key(), **options)


class Silent(Honest):
    """Never says when to come back."""

    def claim(self, *args: Any, **options: Any) -> Batch:
        """Leave the time out."""
        return attrs.evolve(super().claim(*args, **options), next_at=None)


class Generous(Honest):
    """Hands tasks to workers that cannot read them."""

    def claim(self, *args: Any, format: int, **options: Any) -> Batch:
        """Take the worker for a newer one."""
        return super().claim(*args, format=format + 1, **options)


class Careless(Honest):
    """Hands a suspect to anybody."""

    def claim(self, *args: Any, room: Room, **options: Any) -> Batch:
        """Take every worker for an idle one."""
        return super().claim(*args, room=attrs.evolve(room, is_idle=True), **options)


class Unfair(Honest):
    """Forgets whose turn it is."""

    def claim(self, *args: Any, **options: Any) -> Batch:
        """Start the turns anew before each claim."""
        self.execute("DELETE FROM @tenants")
        self.execute("UPDATE @lanes SET key2 = 0")
        return super().claim(*args, **options)

    def execute(self, text: str) -> None:
        """Tamper with the tables."""
        with self._writing() as unit:
            unit.run(text)


class Levelling(Honest):
    """Knows no priorities."""

    def add(self, tasks: Sequence[NewTask]) -> Sequence[Added]:
        """Make all tasks equal."""
        return super().add([attrs.evolve(task, priority=0) for task in tasks])


class Blessing(Unfair):
    """Forgets that workers died."""

    def claim(self, *args: Any, **options: Any) -> Batch:
        """Forgive before each claim."""
        self.execute("UPDATE @tasks SET claims = 0, suspect_at = NULL WHERE finished_at IS NULL")
        return super(Unfair, self).claim(*args, **options)


# Leases and commits.


class Unfenced(Honest):
    """Lets anybody write who once held the task."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tokens: dict[str, str] = {}

    def claim(self, *args: Any, **options: Any) -> Batch:
        """Note the token of each task."""
        batch = super().claim(*args, **options)
        self.tokens.update({lease.task_id: lease.token for lease in batch.leases})
        return batch

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Write with the newest token, whoever asks."""
        return super().commit(
            [
                attrs.evolve(move, key=self.tokens.get(move.task_id, move.key)) if move.is_leased else move
                for move in transitions
            ]
        )


class Punctual(Unfenced):
    """Refuses a commit because the lease's time has passed."""

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Look at the clock."""
        answers = []
        for move in transitions:
            with self._reading() as unit:
                until = unit.one("SELECT lease_until FROM @tasks WHERE id = ?", move.task_id)
                is_late = until is not None and until <= unit.now
            lost = Committed(outcome=Outcome.LEASE_LOST)
            answers.append(lost if move.is_leased and is_late else super(Unfenced, self).commit([move])[0])
        return answers


class Trusting(Honest):
    """Takes any decision, however old the record it was made on."""

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Expect what is there."""
        moves = []
        for move in transitions:
            (stored,) = self.get([move.task_id])
            if not move.is_leased and stored is not None:
                row = stored.row
                moves.append(attrs.evolve(move, expected_version=row.version, expected_status=row.status))
            else:
                moves.append(move)
        return super().commit(moves)


class Once(Honest):
    """Does not recognise a repeated commit."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.keys: set[str] = set()

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Refuse a key that was used."""
        answers = []
        for move in transitions:
            known = move.key in self.keys
            self.keys.add(move.key)
            answers.append(Committed(outcome=Outcome.LEASE_LOST) if known else super().commit([move])[0])
        return answers


class AllOrNothing(Honest):
    """Writes nothing where one of a batch cannot be written."""

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Give up at the first missing task."""
        if None in self.get([move.task_id for move in transitions]):
            return [Committed(outcome=Outcome.FAILED) for _ in transitions]
        return super().commit(transitions)


class Boundless(Honest):
    """Waits as long as a vendor asks, past the deadline."""

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Forget the deadlines while writing."""
        answers = super().commit(transitions)
        with self._writing() as unit:
            for move in transitions:
                if move.delay:
                    due = unit.now + move.delay // timedelta(microseconds=1)
                    unit.run("UPDATE @tasks SET due_at = ? WHERE id = ?", due, move.task_id)
        return answers


class Stuck(Honest):
    """Renews nothing and says that it did."""

    def renew(self, leases: Sequence[tuple[str, str]], lease: timedelta) -> Sequence[bool]:
        """Nod."""
        return [True for _ in leases]


class Bumping(Honest):
    """Makes a cancel flag a new version."""

    def request_cancel(self, ids: Sequence[str], *, tenant: str | None = None) -> Sequence[bool]:
        """Flag and count up."""
        answers = super().request_cancel(ids, tenant=tenant)
        with self._writing() as unit:
            for id_ in ids:
                unit.run("UPDATE @tasks SET version = version + 1 WHERE id = ?", id_)
        return answers


class Deaf(Honest):
    """Loses the cancel flag in a commit that says nothing of it."""

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Clear the flag."""
        return super().commit(
            [attrs.evolve(move, cancel=move.cancel or CancelFlag.NONE) for move in transitions]
        )


# Limits.


class Miscounting(Honest):
    """Allows one live job more than it was told."""

    def set_limit(self, limits: Sequence[Limit], *, only_missing: bool = False) -> None:
        """Add one."""
        more = [attrs.evolve(limit, live=limit.live + 1) if limit.live else limit for limit in limits]
        super().set_limit(more, only_missing=only_missing)


class Hasty(Honest):
    """Measures rates with a window that is too short."""

    def set_limit(self, limits: Sequence[Limit], *, only_missing: bool = False) -> None:
        """Cut a tenth off."""
        shorter = [
            attrs.evolve(limit, rate=Rate(limit.rate.count, limit.rate.per * 0.9)) if limit.rate else limit
            for limit in limits
        ]
        super().set_limit(shorter, only_missing=only_missing)


class Exorcist(Honest):
    """Gives the account its slot back although the job may go on."""

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Believe in no ghosts."""
        return super().commit(
            [attrs.evolve(move, job=Job.NONE) if move.job is Job.GHOST else move for move in transitions]
        )


class Restless(Honest):
    """Knows no pauses."""

    def pause(self, kind: str, name: str, *, by: str, reason: str) -> None:
        """Go on."""


class Open(Honest):
    """Never closes a gate."""

    def commit(self, transitions: Sequence[Transition]) -> Sequence[Committed]:
        """Leave the gate open."""
        return super().commit([attrs.evolve(move, gate=None) for move in transitions])


class OneWake(Lanes):
    """Wakes as many lanes as a freed resource has room for, and thinks that this is all."""

    def wake_due(self, resources: Resources, portion: int) -> int:
        """Forget the wake, whether or not those lanes can use the room."""
        woken = super().wake_due(resources, portion)
        self._unit.run("DELETE FROM @wakes WHERE at <= ?", self._unit.now)
        return woken


class Sleeping(Honest):
    """Loses the room that the first lane in line cannot use."""

    def claim(self, *args: Any, **options: Any) -> Batch:
        """Wake once."""
        with patch.object(claim_module, "Lanes", OneWake):
            return super().claim(*args, **options)


class Lost(Honest):
    """Does not look at blocked lanes again."""

    def _forget(self) -> None:
        with self._writing() as unit:
            unit.run("DELETE FROM @wakes")

    def set_limit(self, limits: Sequence[Limit], *, only_missing: bool = False) -> None:
        """Set the limit and wake nobody."""
        super().set_limit(limits, only_missing=only_missing)
        self._forget()

    def unpause(self, kind: str, name: str) -> bool:
        """End the pause and wake nobody."""
        answer = super().unpause(kind, name)
        self._forget()
        return answer


# The rest.


class Sweeping(Honest):
    """Prunes whatever ended, also what holds a slot."""

    def prune(self, older_than: Mapping[TaskStatus, timedelta], *, limit: int = 1000) -> int:
        """Forget the slots first."""
        with self._writing() as unit:
            unit.run("UPDATE @tasks SET job = 0 WHERE finished_at IS NOT NULL")
        return super().prune(older_than, limit=limit)


class Miscalculating(Honest):
    """Counts no ended tasks."""

    def stats(self) -> Stats:
        """Leave the ends out."""
        found = super().stats()
        return attrs.evolve(found, by_status={s: n for s, n in found.by_status.items() if not s.is_end})


class Numb(Honest):
    """Hears no news while it waits."""

    def wait_for_work(self, mark: int, timeout: timedelta) -> bool:
        """Say that nothing came."""
        return False


class Nervous(Honest):
    """Takes everything for news."""

    def wait_for_work(self, mark: int, timeout: timedelta) -> bool:
        """Say that something came."""
        return True


class Mixed(Honest):
    """Takes every namespace for one: each handle is the first one."""

    first: "Mixed | None" = None

    def __init__(
        self, path: str, *, clock: Callable[[], datetime], namespace: str = "x", **options: Any
    ) -> None:
        super().__init__(path, clock=clock, namespace=namespace, **options)
        if namespace == "two" and Mixed.first is not None:
            self._database = Mixed.first._database
        Mixed.first = self


#: For each broken store a rule that must go red, by groups of rules.
BROKEN: dict[type[Honest], Collection[str]] = {
    Forgetful: {
        "test_an_equal_request_under_one_key_is_a_replay",
        "test_one_key_makes_one_task_under_threads",
    },
    Halfway: {"test_what_the_store_cannot_keep_is_refused_whole"},
    Textual: {"test_payloads_are_kept_byte_for_byte"},
    Gossiping: {"test_another_tenants_task_looks_like_a_missing_one"},
    Undead: {"test_a_closed_store_is_unavailable"},
    Mixed: {"test_namespaces_are_apart"},
    Early: {"test_nothing_is_claimed_before_it_is_due", "test_the_time_is_the_stores"},
    Repeating: {"test_a_repeated_claim_returns_the_same_leases"},
    Silent: {"test_a_claim_says_when_to_come_back", "test_the_earliest_time_is_the_one_to_come_back"},
    Generous: {"test_rows_of_a_newer_format_stay_untouched"},
    Careless: {"test_a_task_that_killed_two_workers_runs_alone"},
    Blessing: {"test_a_task_that_killed_three_workers_is_quarantined"},
    Unfair: {"test_tenants_take_turns", "test_a_tenant_with_one_task_does_not_wait_for_a_noisy_one"},
    Levelling: {"test_a_higher_priority_goes_first"},
    Unfenced: {"test_a_worker_that_was_replaced_cannot_write", "test_a_recovered_submit_is_fenced_off"},
    Punctual: {"test_a_late_worker_may_write_while_nobody_else_holds_the_task"},
    Stuck: {"test_a_task_that_is_renewed_is_never_taken_over", "test_each_renewal_has_its_own_answer"},
    Trusting: {"test_an_unleased_commit_needs_the_expected_version"},
    Once: {"test_a_repeated_commit_is_done", "test_a_repeated_unleased_commit_is_done"},
    AllOrNothing: {"test_one_bad_row_does_not_spoil_the_others"},
    Boundless: {"test_a_query_is_due_at_its_deadline_at_the_latest"},
    Bumping: {"test_a_cancel_flag_changes_nothing_else", "test_a_version_rises_at_commits_only"},
    Deaf: {"test_a_cancel_during_a_step_is_not_lost", "test_every_commit_of_a_generation_keeps_the_flag"},
    Miscounting: {"test_live_jobs_are_limited", "test_every_limit_holds_at_every_moment"},
    Hasty: {"test_a_rate_is_an_exact_sliding_window", "test_the_edge_of_a_window_is_exact"},
    Exorcist: {"test_an_unseen_end_keeps_the_account_slot_for_a_while"},
    Restless: {"test_a_pause_stops_submits_and_no_queries"},
    Open: {"test_a_gate_closes_one_side_of_one_account"},
    Sleeping: {"test_a_task_that_is_blocked_twice_passes_its_turn_on"},
    Lost: {"test_a_blocked_task_goes_when_nothing_refuses_it", "test_a_wider_limit_starts_all_that_fits"},
    Sweeping: {"test_prune_leaves_rows_that_hold_a_slot"},
    Miscalculating: {"test_stats_count_tasks_by_status"},
    Numb: {"test_what_came_after_the_claim_is_noticed"},
    Nervous: {"test_a_quiet_store_lets_the_worker_sleep"},
}

#: Broken stores that random histories find too.
CAUGHT_BY_THE_MACHINE = [
    Early,
    Silent,
    Blessing,
    Unfenced,
    Trusting,
    Once,
    Boundless,
    Deaf,
    Miscounting,
    Restless,
    Sleeping,
    Lost,
    Sweeping,
]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in BROKEN for name in BROKEN[kind]])
def test_the_contract_catches_a_broken_store(kind: type[Honest], name: str) -> None:
    """The rule that the store breaks goes red, and it is green for the store that is not broken."""
    assert is_caught(kind, name)
    assert not is_caught(Honest, name)


@pytest.mark.parametrize("group", GROUPS)
def test_every_group_of_rules_is_broken_by_somebody(group: type[StoreRules]) -> None:
    """A group that no broken store tests may be checking nothing."""
    assert {name for name, _ in rules(group)} & {name for names in BROKEN.values() for name in names}


@pytest.mark.parametrize("kind", CAUGHT_BY_THE_MACHINE)
def test_the_machine_catches_a_broken_store(kind: type[Honest]) -> None:
    """Nobody has to think of the case: a random history shows that the store does not keep the rule."""
    machine = store_machine(lambda clock: kind(":memory:", clock=clock))
    quick = settings(
        max_examples=400,
        stateful_step_count=40,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=quick)
