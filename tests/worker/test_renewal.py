"""Renewing leases, and what a worker may still do when it cannot."""

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.worker.house import Handler, House, fails

from coatcheck.accounts import Accounts
from coatcheck.lifecycle import Released
from coatcheck.step import Steps
from coatcheck.store import Batch, Room
from coatcheck.worker.held import Held, Item
from coatcheck.worker.patience import Log
from coatcheck.worker.renewal import Renewal
from coatcheck.worker.running import Runner

Build = Callable[..., House]
LEASE = timedelta(seconds=30)


def claim(house: House, nonce: str = "n", **changes: Any) -> Batch:
    """Claim as a worker does."""
    values: dict[str, Any] = {
        "format": 1,
        "handlers": ["test:vendor"],
        "room": Room(total=8),
        "lease": LEASE,
        **changes,
    }
    batch: Batch = house.store.claim("w", nonce, **values)
    return batch


def held_of(house: House, batch: Batch) -> tuple[Held, list[Item]]:
    """Hold the leases of a batch."""
    held = Held(room=100, threads=8, bounds={}, default_bound=8, async_calls=1)
    items = [
        Item(lease, held.lane("test:vendor"), batch.now, house.ticks.now, house.ticks.now)
        for lease in batch.leases
    ]
    for item in items:
        held.add(item)
    return held, items


def renewal_of(house: House, held: Held) -> Renewal:
    """Return a renewal by the test's clock, for a main loop that is alive."""
    made = Renewal(house.store, held, LEASE, Log(house.ticks), house.ticks)
    made.alive_until = house.ticks.now + 30
    return made


def runner_of(house: House) -> Runner:
    """Return what runs steps by the test's clock."""
    steps = Steps(house.registry, Accounts(environ={}), rng=lambda: 0.5, monotonic=house.ticks)
    return Runner(steps, LEASE.total_seconds(), house.ticks)


def test_all_leases_are_renewed_at_once(build: Build) -> None:
    """One store call renews everything, and proves that the worker still holds it."""
    house = build(is_faulty=True)
    house.submit(3)
    held, items = held_of(house, claim(house))
    house.advance(10)
    assert renewal_of(house, held).renew()
    assert len(house.store.named("renew")) == 1
    assert {item.proved_at for item in items} == {house.ticks.now}
    house.advance(29)
    assert not claim(house, "other").leases


def test_a_main_loop_that_hangs_loses_its_leases(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    """A worker whose loop has not moved for a lease does not keep its tasks from others."""
    house = build(is_faulty=True)
    house.submit()
    held, _ = held_of(house, claim(house))
    renewal = renewal_of(house, held)
    house.advance(30)
    with caplog.at_level(logging.ERROR, "coatcheck.worker"):
        assert renewal.renew()
    assert house.store.named("renew") == []
    assert caplog.records[0].action == "renewal_stopped"  # type: ignore[attr-defined]  # a structured record


def test_a_store_that_does_not_answer_proves_nothing(build: Build) -> None:
    """A failed renewal is tried again and is no proof of the lease (F37)."""
    house = build(is_faulty=True)
    house.submit()
    held, (item,) = held_of(house, claim(house))
    before = item.proved_at
    house.store.before["renew"] = fails(1)
    house.advance(10)
    renewal = renewal_of(house, held)
    assert not renewal.renew()
    assert item.proved_at == before
    assert renewal.renew()
    assert item.proved_at == house.ticks.now


def test_a_lease_that_somebody_else_has_is_lost(build: Build) -> None:
    """A step whose lease was lost does not begin any more."""
    handler = Handler()
    house = build(handler)
    house.submit()
    held, (item,) = held_of(house, claim(house))
    house.advance(46)  # half a lease after its end anybody may recover it
    assert len(claim(house, "other").leases) == 1
    item.proved_at = house.ticks.now
    renewal_of(house, held).renew()
    assert item.is_lost
    runner_of(house).run(item)
    assert handler.submits == []
    assert item.finished is not None
    assert isinstance(item.finished.event, Released)


@pytest.mark.parametrize(("age", "is_called"), [(22.0, True), (22.5, False), (29.0, False)])
def test_no_call_begins_when_three_quarters_of_the_lease_have_passed(
    build: Build, age: float, *, is_called: bool
) -> None:
    """Whoever cannot prove its lease starts no side effect; the step is given back (F37)."""
    handler = Handler()
    house = build(handler)
    (task_id,) = house.submit()
    _, (item,) = held_of(house, claim(house))
    house.advance(age)
    runner_of(house).run(item)
    assert bool(handler.submits) is is_called
    assert item.finished is not None
    assert isinstance(item.finished.event, Released) is not is_called
    house.store.commit([item.finished.transition])
    assert house.task(task_id).submit_attempts == int(is_called)


def test_a_good_renewal_gives_a_waiting_step_its_time_back(build: Build) -> None:
    """The three quarters count from the last proof, not from the claim."""
    handler = Handler()
    house = build(handler)
    house.submit()
    held, (item,) = held_of(house, claim(house))
    house.advance(20)
    renewal_of(house, held).renew()
    house.advance(20)
    runner_of(house).run(item)
    assert len(handler.submits) == 1


def test_what_the_main_loop_took_back_is_not_called(build: Build) -> None:
    """Between giving back and calling there is one decision, and it is made once (G2)."""
    handler = Handler()
    house = build(handler)
    house.submit()
    _, (item,) = held_of(house, claim(house))
    assert item.begin()
    runner_of(house).run(item)
    assert (handler.submits, item.finished) == ([], None)


def test_an_answer_after_the_step_was_ended_is_kept_as_late(build: Build) -> None:
    """The main loop's word stands; the answer is at most a receipt."""
    house = build()
    house.submit()
    _, (item,) = held_of(house, claim(house))
    assert item.settle()
    runner_of(house).run(item)
    assert (item.is_late, item.finished) == (True, None)
    assert item.late is not None


def test_the_thread_renews_by_itself_until_it_is_stopped(build: Build) -> None:
    """With a short lease the thread comes round soon, and ends with its worker."""
    house = build(is_faulty=True)
    house.submit()
    held, _ = held_of(house, claim(house))
    renewed = threading.Event()
    house.store.after["renew"] = lambda *_: renewed.set()
    renewal = Renewal(house.store, held, timedelta(milliseconds=150), Log(house.ticks), house.ticks)
    renewal.alive_until = house.ticks.now + 30
    renewal.start()
    assert renewed.wait(20)
    renewal.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "coatcheck-renewal"]
