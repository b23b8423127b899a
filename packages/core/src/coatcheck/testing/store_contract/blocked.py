"""Rules of blocked tasks: what was refused goes as soon as nothing refuses it, and no lane is forgotten."""

from collections.abc import Callable
from typing import Any

import pytest
from attrs import field, frozen

from coatcheck.lifecycle import GateClose
from coatcheck.model import Job, Limit, Rate, Side, TaskStatus
from coatcheck.store import Batch, Kind, Lease, Room, Store
from coatcheck.testing.clock import FakeClock
from coatcheck.testing.records import HANDLER, claim, get, new_task, transition
from coatcheck.testing.store_contract.base import (
    HOUR,
    MINUTE,
    StoreRules,
    done,
    finish,
    follow,
    ids,
    kinds,
    one,
    put,
    put_many,
    start,
)

_LONG = 100 * HOUR
_HANDLERS = frozenset({HANDLER, "first", "second"})


@frozen
class Scene:
    """A store whose account ``shared`` has one job of the provider ``first``, beside the tasks of a case."""

    store: Store
    clock: FakeClock
    #: Leased for very long; its commits can close the gate of (first, shared).
    witness: Lease
    #: Whether both tasks belong to one tenant.
    has_one_tenant: bool

    def claim(self, **options: Any) -> Batch:
        """Claim as a worker that can do everything, unless something else is given."""
        return claim(self.store, **{"handlers": _HANDLERS, "room": 20, "format": 2, **options})

    def hold(self, **changes: Any) -> Lease:
        """Start a task of neither provider and hold its lease for very long."""
        options = {"handlers": {HANDLER}, "lease": _LONG}
        return start(self.store, claims=options, **{"deadline": 2 * _LONG, **changes})

    def first(self) -> str:
        """Add the task that would go first."""
        tenant = "shared" if self.has_one_tenant else "own"
        return put(
            self.store,
            handler_key="first",
            provider_key="first",
            account="shared",
            tenant=tenant,
            priority=9,
            deadline=2 * _LONG,
            format=2,
        )

    def second(self) -> str:
        """Add the task that would go second."""
        return put(
            self.store,
            handler_key="second",
            provider_key="second",
            account="shared",
            tenant="shared",
            deadline=2 * _LONG,
        )


def set_scene(store: Store, clock: FakeClock, *, has_one_tenant: bool = False) -> Scene:
    """Start the witness, long before anything else."""
    options = {"handlers": {HANDLER}, "lease": _LONG}
    changes = {"provider_key": "first", "account": "shared", "tenant": "witness", "deadline": 2 * _LONG}
    lease = start(store, claims=options, **changes)
    done(store, transition(lease, TaskStatus.SUBMITTED))
    witness = one(claim(store, lease=_LONG), lease.task_id, Kind.QUERY)
    clock.advance(2 * HOUR)
    return Scene(store, clock, witness, has_one_tenant)


@frozen
class Block:
    """A way to refuse both tasks, and how it ends with room for one of them."""

    refuse: Callable[[Scene], Lease | None]
    end: Callable[[Scene, Lease], object]
    has_one_tenant: bool = False


def _fill_account(scene: Scene) -> Lease:
    scene.store.set_limit([Limit(account="shared", live=2)])
    return scene.hold(account="shared")


def _fill_tenant(scene: Scene) -> Lease:
    scene.store.set_limit([Limit(tenant="shared", live=1)])
    return scene.hold(tenant="shared")


def _use_up_rate(scene: Scene) -> Lease:
    scene.store.set_limit([Limit(account="shared", side=Side.SUBMIT, rate=Rate(1, MINUTE))])
    return scene.hold(account="shared")


def _pause(scene: Scene) -> None:
    scene.store.pause("account", "shared", by="me", reason="test")


def _end_unseen(scene: Scene, holder: Lease) -> None:
    finish(scene.store, holder, TaskStatus.SUBMIT_UNKNOWN, job=Job.GHOST, ghost_for=MINUTE)
    assert ids(scene.claim()) == []
    scene.clock.advance(MINUTE)


def _end_by_operator(scene: Scene, holder: Lease) -> None:
    done(scene.store, transition(holder, TaskStatus.SUBMITTED, delay=_LONG))
    finish(scene.store, get(scene.store, holder.task_id), TaskStatus.FAILED)


def _give_back(scene: Scene, holder: Lease) -> None:
    done(scene.store, transition(holder, TaskStatus.PENDING_SUBMIT, delay=_LONG))


BLOCKS = {
    "a slot freed by an end": Block(_fill_account, lambda scene, holder: finish(scene.store, holder)),
    "a slot freed by time": Block(_fill_account, _end_unseen),
    "a slot freed by an operator": Block(_fill_account, _end_by_operator),
    "a slot given back": Block(_fill_account, _give_back),
    "a raised limit": Block(
        _fill_account, lambda scene, _: scene.store.set_limit([Limit(account="shared", live=3)])
    ),
    "a lifted limit": Block(
        _fill_account, lambda scene, _: scene.store.set_limit([Limit(account="shared", live=None)])
    ),
    "a tenant's slot": Block(
        _fill_tenant, lambda scene, holder: finish(scene.store, holder), has_one_tenant=True
    ),
    "a rate": Block(_use_up_rate, lambda scene, _: scene.clock.advance(MINUTE)),
    "a pause": Block(_pause, lambda scene, _: scene.store.unpause("account", "shared")),
}


@frozen
class Obstacle:
    """A second thing that comes to stand in the way of the first task only, while both are refused."""

    put_up: Callable[[Scene, str], object] = lambda _scene, _first: None
    #: ``None``: the first task is gone for good.
    take_away: Callable[[Scene], object] | None = lambda _scene: None
    #: What the worker that comes next says of itself.
    worker: dict[str, Any] = field(factory=dict)


def _close_gate(scene: Scene, first: str) -> None:
    gate = GateClose(delay=HOUR)
    move = transition(scene.witness, TaskStatus.SUBMITTED, delay=_LONG, side=Side.SUBMIT, gate=gate)
    done(scene.store, move)


def _use_up_provider(scene: Scene, first: str) -> None:
    scene.store.set_limit([Limit(provider="first", side=Side.SUBMIT, rate=Rate(1, HOUR))])
    scene.hold(provider_key="first", account="elsewhere")


def _fill_own_tenant(scene: Scene, first: str) -> None:
    scene.store.set_limit([Limit(tenant="own", live=1)])
    scene.hold(tenant="own", account="elsewhere")


def _cancel(scene: Scene, first: str) -> None:
    scene.store.request_cancel([first])
    finish(scene.store, one(scene.claim(), first, Kind.CANCEL), TaskStatus.CANCELED)


def _cancel_by_operator(scene: Scene, first: str) -> None:
    finish(scene.store, get(scene.store, first), TaskStatus.CANCELED)


def _allow_provider(scene: Scene) -> None:
    scene.store.set_limit([Limit(provider="first", side=Side.SUBMIT, rate=None)])


OBSTACLES = {
    "its provider is paused": Obstacle(
        lambda scene, _: scene.store.pause("provider", "first", by="me", reason="test"),
        lambda scene: scene.store.unpause("provider", "first"),
    ),
    "its gate is closed": Obstacle(_close_gate, lambda scene: scene.clock.advance(HOUR)),
    "its provider's rate is used up": Obstacle(_use_up_provider, _allow_provider),
    "its tenant's quota is full": Obstacle(
        _fill_own_tenant, lambda scene: scene.store.set_limit([Limit(tenant="own", live=2)])
    ),
    "the worker has no handler for it": Obstacle(worker={"handlers": {HANDLER, "second"}}),
    "the worker has no room for it": Obstacle(worker={"room": Room(total=10, per_provider={"first": 0})}),
    "the worker cannot read it": Obstacle(worker={"format": 1}),
    "it was canceled": Obstacle(_cancel, None),
    "it was canceled by an operator": Obstacle(_cancel_by_operator, None),
}

_CASES = [
    pytest.param(block, obstacle, id=f"{block}, but {obstacle}")
    for block in BLOCKS
    for obstacle in OBSTACLES
    if not (BLOCKS[block].has_one_tenant and "tenant" in obstacle)
]


class BlockedRules(StoreRules):
    """A refused task is delayed, never forgotten (G6): whatever it waits for, it goes when that is there."""

    @pytest.mark.parametrize("block", BLOCKS)
    def test_a_blocked_task_goes_when_nothing_refuses_it(
        self, store: Store, clock: FakeClock, block: str
    ) -> None:
        """The best of the blocked tasks goes with the next claim, by whoever makes it."""
        scene = set_scene(store, clock, has_one_tenant=BLOCKS[block].has_one_tenant)
        holder = BLOCKS[block].refuse(scene)
        scene.second()
        first = scene.first()
        assert ids(scene.claim()) == []
        BLOCKS[block].end(scene, holder)  # type: ignore[arg-type]  # only a pause has no holder, and asks for none
        assert ids(scene.claim(room=1, worker="another")) == [first]

    @pytest.mark.parametrize(("block", "obstacle"), _CASES)
    def test_a_task_that_is_blocked_twice_passes_its_turn_on(
        self, store: Store, clock: FakeClock, block: str, obstacle: str
    ) -> None:
        """Room that the first in line cannot use goes to the next at once, and the first is not forgotten."""
        case, second_thing = BLOCKS[block], OBSTACLES[obstacle]
        scene = set_scene(store, clock, has_one_tenant=case.has_one_tenant)
        holder = case.refuse(scene)
        first, second = scene.first(), scene.second()
        assert ids(scene.claim()) == []
        second_thing.put_up(scene, first)
        case.end(scene, holder)  # type: ignore[arg-type]  # only a pause has no holder, and asks for none
        lease = one(scene.claim(**second_thing.worker), second, Kind.SUBMIT)
        assert ids(scene.claim(**second_thing.worker)) == []
        finish(store, lease)
        if second_thing.take_away is not None:
            second_thing.take_away(scene)
            clock.advance(MINUTE)
            assert ids(scene.claim()) == [first]

    @pytest.mark.parametrize("worker", [{"room": 0}, {"handlers": ()}, {"skip": ["shared"]}, {"format": 1}])
    def test_room_that_one_worker_cannot_use_waits_for_another(
        self, store: Store, clock: FakeClock, worker: dict[str, Any]
    ) -> None:
        """A claim that could not take the freed place does not use up the news of it."""
        scene = set_scene(store, clock)
        holder = _fill_account(scene)
        first = scene.first()
        assert ids(scene.claim()) == []
        finish(store, holder)
        for _ in range(3):
            assert ids(scene.claim(**worker)) == []
        assert ids(scene.claim()) == [first]

    def test_each_free_place_starts_one_task(self, store: Store, clock: FakeClock) -> None:
        """Places freed together wake as many tasks, in whatever lanes they wait."""
        store.set_limit([Limit(account="shared", live=4)])
        leases = [start(store, account="shared") for _ in range(4)]
        waiting = {put(store, account="shared", tenant=f"t{n}", provider_key=f"p{n % 3}") for n in range(12)}
        assert ids(claim(store)) == []
        while waiting:
            done(store, *(transition(lease, TaskStatus.SUCCEEDED) for lease in leases[:3]))
            batch = claim(store)
            assert len(batch.leases) == 3
            assert {*ids(batch)} <= waiting
            waiting -= {*ids(batch)}
            assert ids(claim(store)) == []
            leases = [*leases[3:], *batch.leases]

    def test_many_blocked_lanes_do_not_hide_one_that_can_go(self, store: Store, clock: FakeClock) -> None:
        """However many lanes stand before it behind another door, a free place finds the one that fits."""
        store.set_limit([Limit(account="shared", live=1)])
        holder = start(store, account="shared")
        for number in range(60):
            put(store, account="shared", provider_key="first", tenant=f"t{number}", priority=9)
        second = put(store, account="shared", provider_key="second")
        assert ids(claim(store)) == []
        store.pause("provider", "first", by="me", reason="test")
        finish(store, holder)
        assert ids(claim(store)) == [second]

    def test_what_a_worker_cannot_take_hides_nothing_from_it(self, store: Store, clock: FakeClock) -> None:
        """A vendor that hangs, or an account that is not there, stops no other, whatever its line (G10)."""
        lines = range(5000)
        store.add([new_task(provider_key="slow", account="away", tenant=f"t{n}", priority=1) for n in lines])
        workers: list[dict[str, Any]] = [
            {"room": Room(total=5, per_provider={"slow": 0})},
            {"skip": ["away"], "worker": "another"},
        ]
        for worker in workers:
            quick = put(store)
            lease, _ = follow(store, clock, **worker)
            assert lease.task_id == quick
            quiet_until = claim(store, **worker).next_at
            assert quiet_until is not None
            assert quiet_until > clock(), "expected a worker that can take nothing to be left in peace"

    def test_a_wider_limit_starts_all_that_fits(self, store: Store, clock: FakeClock) -> None:
        """Raising, lifting and unpausing reach every blocked lane, not only the first."""
        store.set_limit([Limit(account="shared", live=1)])
        start(store, account="shared")
        added = {put(store, account="shared", tenant=f"t{number}") for number in range(20)}
        assert ids(claim(store)) == []
        store.set_limit([Limit(account="shared", live=11)])
        started = {*ids(claim(store))}
        assert len(started) == 10
        store.set_limit([Limit(account="shared", live=None)])
        assert {*ids(claim(store))} == added - started

    def test_an_opened_gate_starts_all_that_waits(self, store: Store, clock: FakeClock) -> None:
        """Both sides of many lanes go on when their gates have ended."""
        leases = [start(store, tenant=f"u{number}") for number in range(5)]
        for lease in leases:
            done(store, transition(lease, TaskStatus.SUBMITTED))
        first = one(claim(store, room=1))
        done(store, transition(first, TaskStatus.SUBMITTED, gate=GateClose(delay=MINUTE)))
        assert ids(claim(store)) == []
        clock.advance(MINUTE)
        found = {lease.task_id for lease in claim(store).leases if lease.kind is Kind.QUERY}
        assert found == {lease.task_id for lease in leases}

    def test_a_rate_lets_blocked_lanes_go_in_their_order(self, store: Store, clock: FakeClock) -> None:
        """An empty rate keeps the line as it was, however many lanes wait."""
        store.set_limit([Limit(account="shared", side=Side.SUBMIT, rate=Rate(2, MINUTE))])
        added = [
            put(store, account="shared", provider_key=f"p{number % 4}", priority=-number)
            for number in range(10)
        ]
        found: list[str] = []
        for _ in range(5):
            leased = ids(claim(store, lease=HOUR))
            assert len(leased) == 2
            found += leased
            clock.advance(MINUTE)
        assert {*found[:2]} == {*added[:2]}
        assert [{*found[n : n + 2]} for n in range(0, 10, 2)] == [
            {*added[n : n + 2]} for n in range(0, 10, 2)
        ]

    def test_blocked_tasks_still_expire_and_cancel(self, store: Store, clock: FakeClock) -> None:
        """A door in front of the submit holds up neither the user nor the deadline."""
        store.set_limit([Limit(account="shared", live=1)])
        start(store, account="shared", claims={"lease": _LONG})
        late, unwanted = (put(store, account="shared", deadline=HOUR) for _ in range(2))
        put_many(store, 2, account="shared")
        assert ids(claim(store)) == []
        store.request_cancel([unwanted])
        one(claim(store, handlers=(), lease=_LONG), unwanted, Kind.CANCEL)
        clock.advance(HOUR)
        one(claim(store, handlers=(), lease=_LONG), late, Kind.EXPIRE)

    def test_a_task_that_is_too_late_takes_no_place(self, store: Store, clock: FakeClock) -> None:
        """However many tasks give up at once, the place that they wait for goes to one that can use it."""
        store.set_limit([Limit(account="shared", live=1)])
        late = {*put_many(store, 600, account="shared", deadline=MINUTE)}
        first = put(store, account="shared", tenant="another", priority=-1)
        clock.advance(MINUTE)
        found: dict[str, Kind] = {}
        for _ in range(50):
            batch = claim(store, room=10, lease=HOUR)
            found |= kinds(batch)
            if batch.next_at != clock():
                break
        assert found == {first: Kind.SUBMIT, **dict.fromkeys(late, Kind.EXPIRE)}
