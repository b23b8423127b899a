"""Rules of the order in which waiting tasks go."""

from collections import Counter
from contextlib import closing

from coatcheck.model import TaskStatus
from coatcheck.store import Room, Store
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import claim, transition
from coatcheck.testing.store_contract.base import (
    HOUR,
    MINUTE,
    SECOND,
    MakeStore,
    StoreRules,
    done,
    ids,
    one,
    put,
    put_many,
    start,
    track,
)


def drain(store: Store, room: int = 1) -> list[str]:
    """Claim until nothing is left and return the ids in the order of the claims."""
    found: list[str] = []
    while leased := ids(claim(store, room=room)):
        found += leased
    return found


def tenants(store: Store, count: int) -> list[str]:
    """Claim ``count`` times one task and return whose tasks went."""
    return [one(claim(store, room=1)).stored.row.tenant for _ in range(count)]


class OrderRules(StoreRules):
    """Priority first, then tenants take turns, then the scheduled time, then creation."""

    def test_a_higher_priority_goes_first(self, store: Store) -> None:
        """Whatever was added first, and whatever its tenant's turn."""
        added = {priority: put(store, priority=priority) for priority in (0, -1000, 1000, 5, -3)}
        assert drain(store) == [added[priority] for priority in (1000, 5, 0, -3, -1000)]

    def test_a_priority_counts_across_lanes(self, store: Store) -> None:
        """Providers, accounts and tenants are no order of their own."""
        names = ("provider_key", "account", "tenant", "provider_key", "account", "tenant")
        added = [put(store, priority=n, **{name: str(n % 4)}) for n, name in enumerate(names)]
        assert drain(store) == added[::-1]

    def test_a_priority_counts_across_handlers(self, store: Store) -> None:
        """A worker with several handlers takes the best task of all of them."""
        added = [put(store, priority=n, handler_key=key) for n, key in enumerate("baabba")]
        found = [one(claim(store, room=1, handlers={"a", "b"})).task_id for _ in added]
        assert found == added[::-1]

    def test_inside_a_tenant_the_scheduled_time_decides(self, store: Store, clock: FakeClock) -> None:
        """A task that was to go earlier goes earlier, whenever it was added."""
        added = {seconds: put(store, delay=seconds * SECOND) for seconds in (30, 10, 20)}
        clock.advance(MINUTE)
        late = put(store)
        assert drain(store) == [added[10], added[20], added[30], late]

    def test_at_one_scheduled_time_creation_decides(self, store: Store, clock: FakeClock) -> None:
        """Equal tasks keep the order of their submits, in one call and over several."""
        at = clock() + MINUTE
        added = []
        for _ in range(3):
            added += put_many(store, 2, run_at=at)
            clock.advance(SECOND)
        clock.move_to(at)
        assert drain(store) == added

    def test_a_task_that_comes_back_keeps_its_place(self, store: Store, clock: FakeClock) -> None:
        """A throttled submit does not go to the end of the line."""
        first = start(store)
        others = put_many(store, 2)
        done(store, transition(first, TaskStatus.PENDING_SUBMIT, delay=SECOND))
        clock.advance(SECOND)
        assert drain(store) == [first.task_id, *others]

    def test_a_batch_takes_the_same_tasks_as_single_claims(self, store: Store) -> None:
        """A large claim is many small ones: the best tasks go, not the best lane."""
        added = [put(store, priority=-number, account=f"account-{number % 3}") for number in range(12)]
        assert [{*ids(claim(store, room=4))} for _ in range(3)] == [
            {*added[:4]},
            {*added[4:8]},
            {*added[8:]},
        ]

    def test_tenants_take_turns(self, store: Store) -> None:
        """Inside a priority each tenant starts as many tasks as any other, give or take one (F57)."""
        for tenant, count in {"a": 30, "b": 20, "": 10}.items():
            put_many(store, count, tenant=tenant)
        for _ in range(10):
            assert sorted(tenants(store, 3)) == ["", "a", "b"]
        for _ in range(10):
            assert sorted(tenants(store, 2)) == ["a", "b"]
        assert tenants(store, 10) == ["a"] * 10

    def test_tenants_take_turns_in_one_batch(self, store: Store) -> None:
        """A large claim is shared like many small ones."""
        for tenant in "abc":
            put_many(store, 20, tenant=tenant)
        shares = Counter(lease.stored.row.tenant for lease in claim(store, room=30).leases)
        assert set(shares.values()) == {10}

    def test_a_tenant_with_one_task_does_not_wait_for_a_noisy_one(self, store: Store) -> None:
        """However long the line of one tenant, another's first task goes among the next two (F57)."""
        put_many(store, 200, tenant="noisy")
        assert tenants(store, 20) == ["noisy"] * 20
        put(store, tenant="quiet")
        assert "quiet" in tenants(store, 2)

    def test_a_tenant_saves_up_no_turns(self, store: Store) -> None:
        """A tenant that comes back starts beside the others, not before them all."""
        put_many(store, 60, tenant="busy")
        put(store, tenant="rare")
        assert tenants(store, 40).count("rare") == 1
        put_many(store, 20, tenant="rare")
        assert Counter(tenants(store, 10)) == {"busy": 5, "rare": 5}

    def test_turns_count_tasks_and_not_lanes(self, store: Store) -> None:
        """A tenant with many accounts or providers gets no more turns than one with a single lane (F57)."""
        for number in range(10):
            put_many(store, 3, tenant="wide", account=f"a{number}", provider_key=f"p{number % 3}")
        put_many(store, 30, tenant="narrow")
        shares = Counter(tenants(store, 20))
        assert abs(shares["wide"] - shares["narrow"]) <= 2

    def test_turns_are_taken_inside_a_priority(self, store: Store) -> None:
        """A tenant's turn never lets a low priority pass a high one."""
        put_many(store, 5, tenant="a", priority=1)
        put_many(store, 5, tenant="b")
        assert tenants(store, 10) == ["a"] * 5 + ["b"] * 5

    def test_queries_go_by_their_due_time(self, store: Store, clock: FakeClock) -> None:
        """The most overdue query goes first, whatever its priority, handler or tenant (F21)."""
        added = {}
        for seconds in (30, 10, 50, 20, 40):
            added[seconds] = track(
                store,
                delay=seconds * SECOND,
                priority=seconds,
                tenant=str(seconds % 3),
                account=str(seconds % 4),
            ).row.id
        clock.advance(HOUR)
        assert drain(store) == [added[seconds] for seconds in (10, 20, 30, 40, 50)]

    def test_a_slow_provider_does_not_delay_another(self, store: Store, clock: FakeClock) -> None:
        """Tasks that have no room are passed over, however early they are (F21)."""
        early = [track(store, provider_key="slow", delay=SECOND).row.id for _ in range(5)]
        late = track(store, provider_key="quick", delay=2 * SECOND).row.id
        clock.advance(MINUTE)
        room = Room(total=3, per_provider={"slow": 1})
        assert sorted(ids(claim(store, room=room))) == sorted([early[0], late])

    # Ageing.

    def test_without_ageing_a_low_priority_waits(self, store: Store, clock: FakeClock) -> None:
        """Strict priorities are the default, and starve on purpose."""
        low = put(store, priority=0)
        clock.advance(20 * HOUR)
        high = put(store, priority=1)
        assert drain(store) == [high, low]

    def test_with_ageing_a_priority_is_a_head_start(self, make_store: MakeStore, clock: FakeClock) -> None:
        """Each step of priority is worth one ageing time of waiting (F58)."""
        with closing(make_store(clock=clock, ageing=MINUTE)) as store:
            low = put(store)
            clock.advance(10 * MINUTE)
            early, late = put(store, priority=15), put(store, priority=5)
            assert drain(store) == [early, low, late]

    def test_with_ageing_nothing_starves(self, make_store: MakeStore, clock: FakeClock) -> None:
        """Under a flood of high priorities an old task starts within the configured age (F58)."""
        with closing(make_store(clock=clock, ageing=MINUTE)) as store:
            began = clock()
            low = put(store, priority=0)
            found: list[str] = []
            while low not in found:
                assert clock() <= began + 12 * MINUTE, "expected the old task within its age"
                put(store, priority=10)
                found = ids(claim(store, room=1))
                clock.advance(20)
            assert clock() > began + 9 * MINUTE, "expected ten steps of priority to count for ten minutes"

    def test_with_ageing_tenants_take_turns_in_a_band(self, make_store: MakeStore, clock: FakeClock) -> None:
        """Tasks of nearly one age are shared between tenants."""
        with closing(make_store(clock=clock, ageing=HOUR)) as store:
            # The start of a band, so that a second later is the same band.
            clock.move_to(clock().replace(minute=0, second=0, microsecond=0) + HOUR)
            put_many(store, 6, tenant="a")
            clock.advance(SECOND)
            put_many(store, 6, tenant="b", priority=0)
            assert Counter(tenants(store, 6)) == {"a": 3, "b": 3}

    def test_with_ageing_the_rank_is_fixed_when_stored(self, make_store: MakeStore, clock: FakeClock) -> None:
        """A delayed task ages from its scheduled time, not from its creation."""
        with closing(make_store(clock=clock, ageing=MINUTE)) as store:
            delayed = put(store, delay=10 * MINUTE)
            clock.advance(5 * MINUTE)
            plain = put(store)
            clock.advance(5 * MINUTE)
            assert drain(store) == [plain, delayed]
