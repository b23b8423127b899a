"""Threads shared out among providers: real threads, calls that block until the test lets them go."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.worker.house import PATIENCE, Gate
from tests.worker.test_held import NOW, lease_of

from coatcheck.worker.held import Held, Item
from coatcheck.worker.inbox import Inbox
from coatcheck.worker.pool import Pool


class Desk:
    """A pool whose steps do what the test says, and what it handed in."""

    def __init__(self, threads: int, do: Callable[[Item], object], bound: int | None = None) -> None:
        self.held = Held(
            room=10_000,
            threads=threads,
            bounds={},
            default_bound=bound or max(1, threads * 3 // 4),
            async_calls=1,
        )
        self.inbox = Inbox()
        self.threads_seen: set[int] = set()
        self._do = do
        self._numbers = iter(range(1_000_000))
        self.pool = Pool(self._run, self.inbox, threads)

    def _run(self, item: Item) -> bool:
        if not item.begin():
            return False
        self.threads_seen.add(threading.get_ident())
        self._do(item)
        if not item.settle():
            item.is_late = True
        return True

    def put(self, provider: str, count: int) -> list[Item]:
        """Give the pool that many steps of a provider."""
        lane = self.held.lane(provider)
        items = [Item(lease_of(next(self._numbers), provider), lane, NOW, 0.0, 0.0) for _ in range(count)]
        self.pool.put(items)
        return items

    def wait(self, count: int) -> list[Item]:
        """Wait until that many steps were handed in."""
        came: list[Item] = []
        while len(came) < count:
            self.inbox.wait(PATIENCE)
            more = self.inbox.take()
            if not more and not self.pool.is_busy and len(came) < count:
                more = self.inbox.take()
                assert more, f"only {len(came)} of {count} steps were handed in"
            came += more
        return came


@contextmanager
def desk(threads: int, do: Callable[[Item], object], bound: int | None = None) -> Iterator[Desk]:
    """Make a desk and stop its threads afterwards."""
    made = Desk(threads, do, bound)
    try:
        yield made
    finally:
        made.pool.stop()


def test_every_step_is_run_and_handed_in_once() -> None:
    """Steps of several providers, put in many portions, all come back, each a single time."""
    with desk(8, lambda _: None) as one:
        items = [item for portion in range(200) for item in one.put(f"provider-{portion % 7}", 10)]
        came = one.wait(2000)
        assert sorted(map(id, came)) == sorted(map(id, items))
        assert len(one.pool._threads) <= 8
        assert {lane.tokens for lane in one.held.lanes.values()} == {0}


def test_blocking_calls_get_as_many_threads_as_their_provider_may_have() -> None:
    """A provider's bound is reached, and never passed."""
    gate = Gate(lambda _: None)
    with desk(8, gate, bound=5) as one:
        one.put("a", 20)
        gate.wait(5)
        assert not gate.reached.acquire(timeout=0.05)
        gate.open()
        one.wait(20)


def test_a_provider_that_hangs_does_not_take_the_threads_of_another() -> None:
    """Half of the pool hangs, the other provider's steps all end meanwhile (G10)."""
    gate = Gate(lambda _: None)
    with desk(4, lambda item: gate(item) if item.lane and item.lane.name == "hangs" else None) as one:
        one.put("hangs", 100)
        gate.wait(3)
        fine = one.put("fine", 300)
        assert {id(item) for item in one.wait(300)} == {id(item) for item in fine}
        gate.open()
        one.wait(100)


def test_providers_take_turns_on_the_threads() -> None:
    """A provider whose steps never run out does not keep a thread from the others for long."""
    order: list[str] = []

    def note(item: Item) -> None:
        assert item.lane is not None
        order.append(item.lane.name)
        if item.lane.name == "endless" and len(order) < 100_000:
            one.put("endless", 1)

    with desk(1, note) as one:
        one.put("endless", 50)
        one.put("other", 1)
        while "other" not in order:
            one.wait(1)
        order.extend(["enough"] * 100_000)


def test_a_lost_thread_is_replaced_and_its_late_reply_is_handed_in() -> None:
    """A call that is given up leaves the pool its width, and keeps its own provider's place until it ends."""
    gate = Gate(lambda _: None)
    with desk(1, lambda item: gate(item) if item.lane and item.lane.name == "hangs" else None) as one:
        (hung,) = one.put("hangs", 1)
        gate.wait()
        assert hung.settle()
        one.pool.give_up()
        one.put("fine", 3)
        assert not any(item.is_late for item in one.wait(3))
        waiting = one.put("hangs", 1)
        assert not gate.reached.acquire(timeout=0.05)
        gate.open()
        came = one.wait(2)
        assert [item.is_late for item in came] == [True, False]
        assert came == [hung, *waiting]
        assert one.held.lane("hangs").tokens <= 1


def test_a_step_that_waits_can_be_taken_back_but_not_one_that_began() -> None:
    """What was taken back is never called, even if a thread had it in hand."""
    called: list[Item] = []
    gate = Gate(called.append)
    with desk(1, gate) as one:
        first, second, third = one.put("a", 3)
        gate.wait()
        assert not one.pool.take_back(first)
        assert one.pool.take_back(second)
        gate.open()
        assert one.wait(2) == [first, third]
        assert called == [first, third]


def test_a_stopped_pool_leaves_no_thread_behind() -> None:
    """Threads that are not stuck in a call end with the pool."""
    with desk(4, lambda _: None) as one:
        one.put("a", 50)
        one.wait(50)
        threads = list(one.pool._threads)
    assert threads
    assert not any(thread.is_alive() for thread in threads)
