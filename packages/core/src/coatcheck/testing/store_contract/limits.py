"""Rules of limits: rates, live jobs, pauses and gates, alone and together."""

from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import pytest

from coatcheck.lifecycle import GateClose
from coatcheck.model import Job, Limit, Rate, Side, Step, TaskStatus
from coatcheck.store import Kind, Lease, Outcome, Store
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import ACCOUNT, LEASE, PROVIDER, claim, get, row_of, transition
from coatcheck.testing.store_contract.base import (
    HOUR,
    MINUTE,
    SECOND,
    MakeStore,
    StoreRules,
    commit,
    done,
    finish,
    ids,
    one,
    put,
    put_many,
    start,
    track,
    track_many,
)


def live(count: int, **subject: Any) -> Limit:
    """Return a limit of live jobs."""
    return Limit(**subject, live=count)


def rate(count: int, per: timedelta, side: Side = Side.SUBMIT, /, **subject: Any) -> Limit:
    """Return a rate; for the account of the contract's tasks unless a subject is given."""
    return Limit(**(subject or {"account": ACCOUNT}), side=side, rate=Rate(count, per))


def grants(
    store: Store, clock: FakeClock, *, every: timedelta, until: timedelta
) -> list[tuple[datetime, Lease]]:
    """Claim all there is at each tick of the clock and return when each lease was given."""
    began = clock()
    found = []
    while clock() <= began + until:
        found += [(clock(), lease) for lease in claim(store).leases]
        clock.advance(every)
    return found


class LimitRules(StoreRules):
    """Limits hold across all workers, and a refused task is delayed, never failed (G6)."""

    # Live jobs.

    @pytest.mark.parametrize("subject", ["account", "tenant"])
    def test_live_jobs_are_limited(self, store: Store, subject: str) -> None:
        """From its claim a submit holds a slot; only what fits is started."""
        store.set_limit([live(2, **{subject: "x"})])
        waiting = put_many(store, 4, **{subject: "x"})
        free = put_many(store, 3, **{subject: "y"})
        first = claim(store)
        assert {*ids(first)} == {*waiting[:2], *free}
        assert ids(claim(store, worker="b")) == []
        done(store, transition(first.leases[ids(first).index(waiting[0])], TaskStatus.SUBMITTED, delay=HOUR))
        assert ids(claim(store)) == []
        assert {row_of(store, task_id).status for task_id in waiting[2:]} == {TaskStatus.PENDING_SUBMIT}

    @pytest.mark.parametrize("subject", ["account", "tenant"])
    @pytest.mark.parametrize(
        "status",
        [TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELED, TaskStatus.PENDING_SUBMIT],
    )
    def test_a_slot_comes_back_when_no_job_is_left(
        self, store: Store, subject: str, status: TaskStatus
    ) -> None:
        """A verdict, or a submit that certainly made no job, frees both kinds of slot (F53)."""
        same: dict[str, Any] = {subject: "x"}
        store.set_limit([live(1, **same)])
        lease = start(store, **same)
        waiting = put(store, **same)
        assert ids(claim(store)) == []
        done(store, transition(lease, status, delay=HOUR))
        assert ids(claim(store)) == [waiting]

    def test_a_job_holds_its_slot_through_its_life(self, store: Store, clock: FakeClock) -> None:
        """Lookups, queries, dead workers and releases keep the slot: the job exists (F55)."""
        store.set_limit([Limit(account=ACCOUNT, live=1)])
        lease = start(store)
        waiting = put(store)
        done(store, transition(lease, TaskStatus.SUBMITTING, next_step=Step.LOOKUP))
        done(store, transition(one(claim(store), lease.task_id, Kind.LOOKUP), TaskStatus.SUBMITTED))
        one(claim(store), lease.task_id, Kind.QUERY)
        clock.advance(LEASE)
        query = one(claim(store), lease.task_id, Kind.QUERY)
        done(store, transition(query, TaskStatus.RUNNING, claims="undo"))
        finish(store, one(claim(store), lease.task_id, Kind.QUERY))
        assert ids(claim(store)) == [waiting]

    def test_a_dead_worker_keeps_the_slot_of_its_submit(self, store: Store, clock: FakeClock) -> None:
        """Nobody knows whether a job exists, so its place stays taken until somebody does (F55)."""
        store.set_limit([Limit(account=ACCOUNT, live=1)])
        lost = start(store)
        waiting = put(store)
        clock.advance(2 * LEASE)
        recovery = one(claim(store), lost.task_id, Kind.RECOVER)
        done(store, transition(recovery, TaskStatus.PENDING_SUBMIT, delay=HOUR, job=Job.NONE))
        assert ids(claim(store)) == [waiting]

    def test_finishing_twice_frees_one_slot(self, store: Store, clock: FakeClock) -> None:
        """Slots are counted from live tasks: no double commit, late worker or repeat makes another (F53)."""
        store.set_limit([Limit(account=ACCOUNT, live=2)])
        late = start(store)
        start(store)
        put_many(store, 5)
        done(store, transition(late, TaskStatus.SUBMITTED, delay=HOUR))
        end = transition(get(store, late.task_id), TaskStatus.FAILED)
        done(store, end)
        done(store, end)
        assert commit(store, transition(late, TaskStatus.CANCELED)) != [Outcome.FAILED]
        assert len(claim(store).leases) == 1
        assert ids(claim(store)) == []

    def test_an_unseen_end_keeps_the_account_slot_for_a_while(self, store: Store, clock: FakeClock) -> None:
        """The job may go on at the vendor; the tenant, who waits no more, has its slot back (F55)."""
        store.set_limit([Limit(account=ACCOUNT, live=1), Limit(tenant="t", live=1)])
        lost = start(store, tenant="t")
        finish(store, lost, TaskStatus.TRACKING_TIMED_OUT, job=Job.GHOST, ghost_for=MINUTE)
        same_account = put(store)
        same_tenant = put(store, tenant="t", account="another")
        assert ids(claim(store, lease=HOUR)) == [same_tenant]
        clock.advance(MINUTE - SECOND)
        assert ids(claim(store)) == []
        clock.advance(SECOND)
        assert ids(claim(store)) == [same_account]

    def test_a_verdict_on_an_unseen_end_frees_its_slot(self, store: Store) -> None:
        """Where an operator says that no job exists, the account waits no longer (F55)."""
        store.set_limit([Limit(account=ACCOUNT, live=1)])
        lost = start(store)
        finish(store, lost, TaskStatus.SUBMIT_UNKNOWN, job=Job.GHOST, ghost_for=HOUR)
        waiting = put(store)
        assert ids(claim(store)) == []
        finish(store, get(store, lost.task_id), TaskStatus.FAILED, restart=True)
        assert ids(claim(store)) == [waiting]

    def test_a_slot_is_of_one_namespace_and_one_name(self, store: Store) -> None:
        """A full account says nothing of another, nor of a tenant of that name."""
        store.set_limit([Limit(account="x", live=1), Limit(tenant="x", live=1)])
        put(store, account="x", tenant="y")
        put(store, account="y", tenant="x")
        assert len(claim(store).leases) == 2

    def test_live_jobs_count_whenever_the_limit_came(self, store: Store) -> None:
        """A limit set while jobs run counts those that are there (F59)."""
        for _ in range(3):
            track(store, delay=HOUR)
        first = start(store)
        waiting = put(store)
        store.set_limit([Limit(account=ACCOUNT, live=4)])
        assert ids(claim(store)) == []
        finish(store, first)
        assert ids(claim(store)) == [waiting]

    def test_a_lowered_limit_is_obeyed_without_a_kill(self, store: Store) -> None:
        """Running jobs go on; nothing starts until there are few enough (F59)."""
        leases = [start(store) for _ in range(3)]
        waiting = put(store)
        store.set_limit([Limit(account=ACCOUNT, live=5)])
        store.set_limit([Limit(account=ACCOUNT, live=1)])
        for lease in leases:
            assert ids(claim(store)) == []
            finish(store, lease)
        assert ids(claim(store)) == [waiting]

    # Rates.

    @pytest.mark.parametrize(
        "subject", [{"provider": PROVIDER}, {"account": ACCOUNT}, {"provider": PROVIDER, "account": ACCOUNT}]
    )
    def test_a_rate_is_an_exact_sliding_window(
        self, store: Store, clock: FakeClock, subject: dict[str, Any]
    ) -> None:
        """In no window of its length are there more permits, and none is held back that fits."""
        store.set_limit([rate(3, 10 * SECOND, **subject)])
        began = clock()
        first, second = 2, 20
        put_many(store, first)
        times = [at for at, _ in grants(store, clock, every=SECOND, until=3 * SECOND)]
        put_many(store, second)
        times += [at for at, _ in grants(store, clock, every=SECOND, until=30 * SECOND)]
        offsets = [(at - began) / SECOND for at in times]
        assert offsets == [0, 0, 4, 10, 10, 14, 20, 20, 24, 30, 30, 34]

    def test_the_edge_of_a_window_is_exact(self, store: Store, clock: FakeClock) -> None:
        """A permit is free again when it is exactly as old as the window is long."""
        store.set_limit([rate(1, SECOND)])
        put_many(store, 2)
        one(claim(store))
        clock.advance(timedelta(microseconds=999_999))
        assert ids(claim(store)) == []
        clock.advance(timedelta(microseconds=1))
        one(claim(store))

    def test_rates_of_the_two_sides_are_apart(self, store: Store, clock: FakeClock) -> None:
        """Queries use no submit permits, and submits no query permits."""
        store.set_limit([rate(2, MINUTE), rate(1, MINUTE, Side.QUERY)])
        track_many(store, clock, 2)
        put_many(store, 3)
        found = []
        for _ in range(4):
            found.append(sorted(lease.kind for lease in claim(store, lease=HOUR).leases))
            clock.advance(MINUTE / 2)
        # The two submits of the queries' tasks were a second before the first claim.
        assert found == [[Kind.QUERY], [], [Kind.QUERY, Kind.SUBMIT, Kind.SUBMIT], []]

    def test_lookups_and_cancels_use_query_permits(self, store: Store, clock: FakeClock) -> None:
        """Whatever reads or stops a job is a call of the query side."""
        lease = start(store)
        done(store, transition(lease, TaskStatus.SUBMITTING, next_step=Step.LOOKUP))
        store.set_limit([rate(1, MINUTE, Side.QUERY)])
        lookup = one(claim(store), lease.task_id, Kind.LOOKUP)
        done(store, transition(lookup, TaskStatus.SUBMITTED))
        assert ids(claim(store)) == []
        store.request_cancel([lease.task_id])
        assert ids(claim(store)) == []
        clock.advance(MINUTE)
        cancel = one(claim(store), lease.task_id, Kind.CANCEL)
        done(store, transition(cancel, TaskStatus.SUBMITTED))
        assert ids(claim(store)) == []
        clock.advance(MINUTE)
        one(claim(store), lease.task_id, Kind.CANCEL)

    def test_a_resubmit_uses_a_submit_permit_and_no_slot(self, store: Store, clock: FakeClock) -> None:
        """The task holds its slot already, but the vendor counts the call."""
        store.set_limit([rate(1, MINUTE), Limit(account=ACCOUNT, live=1), rate(1, HOUR, Side.QUERY)])
        lease = start(store)
        done(store, transition(lease, TaskStatus.SUBMITTING, next_step=Step.RESUBMIT))
        assert ids(claim(store)) == []
        clock.advance(MINUTE)
        one(claim(store), lease.task_id, Kind.RESUBMIT)

    def test_a_rate_for_both_is_only_for_both(self, store: Store) -> None:
        """The provider under its other accounts, and the account at other providers, are left alone."""
        store.set_limit([rate(1, MINUTE, provider="p", account="a")])
        for provider, account in (("p", "a"), ("p", "a"), ("p", "b"), ("q", "a"), ("p", "b"), ("q", "a")):
            put(store, provider_key=provider, account=account)
        pairs = [(lease.stored.row.provider_key, lease.stored.row.account) for lease in claim(store).leases]
        assert {pair: pairs.count(pair) for pair in pairs} == {("p", "a"): 1, ("p", "b"): 2, ("q", "a"): 2}

    def test_a_rate_is_shared_by_all_workers(self, store: Store) -> None:
        """Two workers together get no more permits than one (G6)."""
        store.set_limit([rate(3, MINUTE)])
        put_many(store, 10)
        assert sum(len(claim(store, worker=worker, room=2).leases) for worker in "abc") == 3

    def test_a_raised_rate_frees_what_it_held(self, store: Store) -> None:
        """A limit that is changed counts from the next claim (F59)."""
        store.set_limit([rate(1, HOUR)])
        put_many(store, 4)
        assert len(claim(store).leases) == 1
        store.set_limit([rate(3, HOUR)])
        assert len(claim(store).leases) == 2
        assert ids(claim(store)) == []

    # Subjects and defaults.

    def test_a_limit_replaces_the_one_of_its_subject(self, store: Store) -> None:
        """What was set last holds, and only that is shown."""
        first, second = Limit(account=ACCOUNT, live=1), Limit(account=ACCOUNT, live=2)
        other = rate(5, MINUTE)
        store.set_limit([first, other])
        store.set_limit([second])
        assert {*store.stats().limits} == {second, other}
        put_many(store, 3)
        assert len(claim(store).leases) == 2

    @pytest.mark.parametrize(
        "lifted", [Limit(account=ACCOUNT, live=None), Limit(account=ACCOUNT, side=Side.SUBMIT, rate=None)]
    )
    def test_a_lifted_limit_limits_nothing(self, store: Store, lifted: Limit) -> None:
        """``None`` takes a limit away, and blocked tasks go (F52)."""
        store.set_limit([Limit(account=ACCOUNT, live=1) if lifted.side is None else rate(1, HOUR)])
        added = put_many(store, 3)
        one(claim(store))
        assert ids(claim(store)) == []
        store.set_limit([lifted])
        assert ids(claim(store)) == added[1:]

    def test_only_missing_limits_are_filled_in(self, store: Store) -> None:
        """A worker's defaults never overwrite what an operator set."""
        store.set_limit([Limit(account=ACCOUNT, live=2)])
        store.set_limit([Limit(account=ACCOUNT, live=5), Limit(tenant="", live=3)], only_missing=True)
        assert {*store.stats().limits} == {Limit(account=ACCOUNT, live=2), Limit(tenant="", live=3)}

    @pytest.mark.parametrize("subject", ["account", "tenant"])
    def test_the_default_holds_for_each_name_alone(self, store: Store, subject: str) -> None:
        """``*`` gives every name without a limit its own, not one for all together."""
        store.set_limit([live(1, **{subject: "*"}), live(2, **{subject: "b"})])
        for name in "abc":
            put_many(store, 3, **{subject: name})
        found = [getattr(lease.stored.row, subject) for lease in claim(store).leases]
        assert {name: found.count(name) for name in "abc"} == {"a": 1, "b": 2, "c": 1}

    @pytest.mark.parametrize(("subject", "column"), [("provider", "provider_key"), ("account", "account")])
    def test_the_default_rate_holds_for_each_name_alone(
        self, store: Store, subject: str, column: str
    ) -> None:
        """A default rate is counted for each name by itself, and gives way to the name's own."""
        store.set_limit([rate(1, MINUTE, **{subject: "*"}), rate(2, MINUTE, **{subject: "b"})])
        for name in "abc":
            put_many(store, 3, **{column: name})
        found = [getattr(lease.stored.row, column) for lease in claim(store).leases]
        assert {name: found.count(name) for name in "abc"} == {"a": 1, "b": 2, "c": 1}

    # Pauses.

    @pytest.mark.parametrize(
        ("kind", "column"), [("provider", "provider_key"), ("account", "account"), ("tenant", "tenant")]
    )
    def test_a_pause_stops_submits_and_no_queries(
        self, store: Store, clock: FakeClock, kind: str, column: str
    ) -> None:
        """Running jobs are watched to their end while nothing new starts (F59)."""
        tracked = track(store, **{column: "x"}, delay=SECOND).row.id
        stopped, free = put(store, **{column: "x"}), put(store, **{column: "y"})
        store.pause(kind, "x", by="me", reason="maintenance")
        clock.advance(SECOND)
        assert {*ids(claim(store))} == {tracked, free}
        assert row_of(store, stopped).status is TaskStatus.PENDING_SUBMIT
        assert store.unpause(kind, "x") is True
        assert ids(claim(store)) == [stopped]
        assert store.unpause(kind, "x") is False

    def test_a_pause_says_who_and_why(self, store: Store, clock: FakeClock) -> None:
        """Operators see each other's pauses; the newest reason stays."""
        store.pause("tenant", "t", by="first", reason="a")
        store.pause("tenant", "t", by="second", reason="b")
        (pause,) = store.stats().pauses
        assert (pause.kind, pause.name, pause.by, pause.reason) == ("tenant", "t", "second", "b")
        store.unpause("tenant", "t")
        assert store.stats().pauses == ()

    def test_two_pauses_are_lifted_one_by_one(self, store: Store) -> None:
        """A task that is stopped twice goes when nothing stops it any more."""
        task_id = put(store, tenant="t")
        store.pause("tenant", "t", by="me", reason="a")
        store.pause("account", ACCOUNT, by="me", reason="b")
        assert ids(claim(store)) == []
        store.unpause("tenant", "t")
        assert ids(claim(store)) == []
        store.unpause("account", ACCOUNT)
        assert ids(claim(store)) == [task_id]

    def test_limits_and_pauses_outlive_a_handle(
        self, store: Store, make_store: MakeStore, clock: FakeClock
    ) -> None:
        """A restart of the workers changes no limit (F59)."""
        if not store.is_shared:
            pytest.skip("this store is not shared (is_shared is False)")
        store.set_limit([rate(1, HOUR), Limit(tenant="t", live=1)])
        start(store, tenant="t")
        with closing(make_store(clock=clock)) as other:
            put(other, tenant="t", account="another")
            put(other)
            assert ids(claim(other)) == []

    # Gates.

    def test_a_gate_closes_one_side_of_one_account(self, store: Store, clock: FakeClock) -> None:
        """A vendor that asks for patience is left alone there, and only there."""
        query = track(store, delay=SECOND).row.id
        lease = start(store)
        done(
            store,
            transition(lease, TaskStatus.PENDING_SUBMIT, delay=MINUTE, gate=GateClose(delay=MINUTE)),
        )
        put(store)
        free = [put(store, account="another"), put(store, provider_key="another")]
        clock.advance(SECOND)
        assert {*ids(claim(store, lease=HOUR))} == {query, *free}
        clock.advance(MINUTE - 2 * SECOND)
        assert ids(claim(store)) == [], "expected the gate to be closed until its time"
        clock.advance(SECOND)
        assert lease.task_id in ids(claim(store))

    def test_a_gate_of_the_query_side_stops_queries(self, store: Store, clock: FakeClock) -> None:
        """Lookups, queries and cancels of that account wait; submits go on."""
        waiting = track_many(store, clock, 2)
        lease = one(claim(store, room=1), waiting[0], Kind.QUERY)
        done(store, transition(lease, TaskStatus.RUNNING, gate=GateClose(delay=MINUTE)))
        submit = put(store)
        store.request_cancel([waiting[1]])
        assert ids(claim(store)) == [submit]
        clock.advance(MINUTE)
        assert {*ids(claim(store))} >= {*waiting}

    def test_a_gate_closes_longer_each_time(self, store: Store, clock: FakeClock) -> None:
        """Without a delay: ``start``, times ``factor`` for each closing in a row, at most ``cap``."""
        gate = GateClose(start=2 * SECOND, factor=3.0, cap=30 * SECOND)
        task_id = put(store)
        for seconds in (2, 6, 18, 30, 30):
            lease = one(claim(store), task_id, Kind.SUBMIT)
            done(store, transition(lease, TaskStatus.PENDING_SUBMIT, gate=gate))
            (closed,) = store.stats().gates
            assert (closed.provider, closed.account, closed.side) == (PROVIDER, ACCOUNT, Side.SUBMIT)
            assert closed.until == clock() + seconds * SECOND
            clock.advance(seconds * SECOND - SECOND)
            assert ids(claim(store)) == []
            clock.advance(SECOND)
        assert store.stats().gates == ()

    def test_a_good_step_ends_the_row_of_closings(self, store: Store, clock: FakeClock) -> None:
        """After a step that closed nothing the next closing is a first one; the other side says nothing."""
        gate = GateClose(start=2 * SECOND, factor=3.0)
        lengths = []
        for outcome in ("closed", "closed", "good", "closed", "query", "closed"):
            lease = start(store)
            if outcome == "closed":
                finish(store, lease, TaskStatus.FAILED, gate=gate)
                lengths.append((store.stats().gates[0].until - clock()) / SECOND)
                clock.advance(HOUR)
            elif outcome == "good":
                finish(store, lease, TaskStatus.FAILED)
            else:
                # Neither a step of the other side nor one that made no call says anything about this gate.
                done(store, transition(lease, TaskStatus.SUBMITTED, side=None))
                finish(store, one(claim(store), lease.task_id, Kind.QUERY))
        assert lengths == [2, 6, 2, 6]

    # Together.

    @pytest.mark.parametrize("free", ["provider", "account", "both"])
    def test_limits_are_taken_together_or_not_at_all(self, store: Store, free: str) -> None:
        """A task that one limit refuses uses up nothing of the others (F04)."""
        permits = {
            "provider": rate(2, HOUR, provider=PROVIDER),
            "account": rate(2, HOUR, account="open"),
            "both": rate(2, HOUR, provider=PROVIDER, account="open"),
        }
        store.set_limit([permits[free], Limit(tenant="full", live=1)])
        holder = start(store, tenant="full", provider_key="another", account="another")
        put_many(store, 5, tenant="full", account="open", priority=9)
        for _ in range(3):
            assert ids(claim(store)) == []
        expected = put_many(store, 2, account="open")
        assert ids(claim(store)) == expected
        finish(store, holder)
        assert ids(claim(store)) == []

    def test_a_refused_task_takes_no_slot(self, store: Store, clock: FakeClock) -> None:
        """A rate that refuses leaves the account's and the tenant's places to others (F04)."""
        store.set_limit(
            [rate(1, HOUR, provider="slow"), Limit(account=ACCOUNT, live=2), Limit(tenant="t", live=2)]
        )
        start(store, provider_key="slow", tenant="t")
        put_many(store, 5, provider_key="slow", tenant="t", priority=9)
        other = put(store, tenant="t")
        assert ids(claim(store)) == [other]

    def test_every_limit_holds_at_every_moment(self, store: Store, clock: FakeClock) -> None:
        """Two workers under all limits at once start as much as fits and never more (G6)."""
        store.set_limit(
            [
                Limit(account=ACCOUNT, live=4),
                Limit(tenant="a", live=2),
                rate(3, 10 * SECOND),
                rate(2, 5 * SECOND, provider=PROVIDER),
            ]
        )
        for tenant in "ab":
            put_many(store, 10, tenant=tenant)
        running: list[tuple[Lease, datetime]] = []
        times: list[datetime] = []
        for _ in range(150):
            for held, until in [*running]:
                if clock() >= until:
                    store.renew([(held.task_id, held.token)], LEASE)
                    finish(store, held)
                    running.remove((held, until))
            for worker in "ab":
                for lease in claim(store, worker=worker, room=3, lease=HOUR).leases:
                    running.append((lease, clock() + 15 * SECOND))
                    times.append(clock())
            assert len(running) <= 4
            assert [held.stored.row.tenant for held, _ in running].count("a") <= 2
            for count, per in ((3, 10), (2, 5)):
                windows = zip(times, times[count:], strict=False)
                assert all((late - early) / SECOND >= per for early, late in windows)
            clock.advance(SECOND)
        assert len(times) == 20, "expected every task to have its turn"
