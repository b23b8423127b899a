"""What a worker holds: its leases, and per provider how many steps run, wait and may be claimed.

Only bookkeeping lives here; nothing calls a store, a handler or a clock. Leases are few (at most the room),
and each is gone once its commit is acknowledged, so nothing in here grows.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from coatcheck.step import Finished, Plan
from coatcheck.store import SUSPECT_CLAIMS, Lease, Room

#: Steps are fetched ahead for this long, in seconds, at the pace at which the provider's steps end.
AHEAD = 0.1
#: Over how long that pace is averaged, in seconds.
_PACE_OVER = 0.1
#: Providers without a step are forgotten when more than this many are known.
_LANES_KEPT = 256


class Item:
    """One lease that is held, and what has become of its step so far.

    Two questions are settled by taking the only element of a list, which one thread alone can do: whether the
    call begins or the claim is given back, and whose end of the step counts, the call's or the main loop's.
    """

    __slots__ = (
        "_end",
        "_start",
        "answer",
        "claimed_at",
        "concluded",
        "ended_at",
        "finished",
        "is_late",
        "is_lost",
        "is_on_loop",
        "lane",
        "late",
        "lease",
        "limit",
        "now",
        "plan",
        "problem",
        "proved_at",
        "retry_at",
        "started_at",
        "tries",
    )

    def __init__(
        self, lease: Lease, lane: "Lane | None", now: datetime, sent_at: float, claimed_at: float
    ) -> None:
        self.lease = lease
        #: ``None`` for a step that calls no vendor.
        self.lane = lane
        self.now = now
        self.claimed_at = claimed_at
        #: When the claim or the last good renewal was sent, by the monotonic clock.
        self.proved_at = sent_at
        #: When the call began; 0 before it, and when it was not made because the lease was too old.
        self.started_at = 0.0
        self.ended_at = 0.0
        #: The hard limit of the call, in seconds.
        self.limit = math.inf
        self.plan: Plan | None = None
        #: What the handler returned, or the exception that it raised.
        self.answer: object = None
        #: What the answer came to, if the thread that called has found that out already.
        self.concluded: Finished | None = None
        self.finished: Finished | None = None
        #: What an unreadable record, or a bug of ours, raised.
        self.problem: Exception | None = None
        #: Another worker has the task.
        self.is_lost = False
        #: Its call runs on the event loop instead of in a thread.
        self.is_on_loop = False
        #: The call ended after the main loop had ended the step; ``late`` is what it came to, if anything.
        self.is_late = False
        self.late: Finished | None = None
        self.tries = 0
        self.retry_at = 0.0
        self._start = [True]
        self._end = [True]

    def begin(self) -> bool:
        """Take the right to start the call (or to give the claim back); true once."""
        return _take(self._start)

    def settle(self) -> bool:
        """Take the right to say how the step ended; true once."""
        return _take(self._end)

    @property
    def is_settled(self) -> bool:
        """Whether the step has ended, one way or the other."""
        return not self._end

    def store_now(self, monotonic: float) -> datetime:
        """Return the store's time at this reading of the monotonic clock."""
        return self.now + timedelta(seconds=monotonic - self.claimed_at)


def _take(token: list[bool]) -> bool:
    try:
        return token.pop()  # atomic: exactly one caller gets the element
    except IndexError:
        return False


class Lane:
    """The steps of one provider that this worker holds."""

    __slots__ = (
        "bound",
        "ended",
        "held",
        "is_async",
        "is_waking",
        "items",
        "name",
        "pace",
        "paced_at",
        "room_bound",
        "stuck",
        "tokens",
    )

    def __init__(self, name: str, bound: int, room_bound: int) -> None:
        self.name = name
        #: How many threads may work for this provider at the same time.
        self.bound = bound
        #: How many steps may be held without being ahead of the calls.
        self.room_bound = room_bound
        #: Waiting for a thread; the pool's.
        self.items: deque[Item] = deque()
        #: Threads that work for the provider or were asked to; the pool's, under its lock.
        self.tokens = 0
        #: Some of its handlers are async.
        self.is_async = False
        #: A thread was asked and has not come yet.
        self.is_waking = False
        #: Steps claimed and not yet committed.
        self.held = 0
        #: Calls that were given up and have not ended.
        self.stuck = 0
        #: Steps that ended since the pace was looked at, and the pace in steps a second.
        self.ended = 0
        self.pace = 0.0
        self.paced_at = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether nothing is known about the provider that could not be found out again."""
        return not (self.held or self.stuck or self.tokens or self.items or self.pace >= 1)

    def free(self, monotonic: float, most_ahead: int) -> tuple[int, int]:
        """Return how many steps may be claimed now, and how many of them are ahead of the calls."""
        passed = monotonic - self.paced_at
        if passed > 0:
            fading = math.exp(-passed / _PACE_OVER)
            self.pace = self.pace * fading + self.ended / passed * (1 - fading)
            self.ended, self.paced_at = 0, monotonic
        ahead = min(most_ahead, int(self.pace * AHEAD))
        return max(0, self.room_bound + ahead - self.held - self.stuck), ahead


class Held:
    """All leases that a worker holds, by token.

    Args:
        room: how many at most.
        threads: how many calls of sync handlers run at the same time.
        bounds: the bound of each provider that has one of its own.
        default_bound: the bound of every other provider.
        async_calls: the bound of providers with async handlers.
    """

    def __init__(
        self,
        *,
        room: int,
        threads: int,
        bounds: Mapping[str, int],
        default_bound: int,
        async_calls: int,
    ) -> None:
        self.items: dict[str, Item] = {}
        self.lanes: dict[str, Lane] = {}
        #: A task that killed two workers is held: nothing else may be claimed meanwhile.
        self.is_alone = False
        #: The last room left something out that may be claimed when a step ends.
        self.was_tight = False
        #: How many steps ended lately, a second.
        self.pace = 0.0
        self._room = room
        self._threads = threads
        self._bounds = bounds
        self._default_bound = default_bound
        self._async_calls = async_calls
        self.async_providers: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return len(self.items)

    def snapshot(self) -> list[Item]:
        """Return what is held now; for other threads than the main one."""
        return list(self.items.copy().values())

    def lane(self, provider: str) -> Lane:
        """Return the lane of a provider."""
        lane = self.lanes.get(provider)
        if lane is None:
            bound = self._bounds.get(provider, self._default_bound)
            lane = self.lanes[provider] = Lane(provider, bound, self._room_bound(provider))
            lane.is_async = provider in self.async_providers
        return lane

    def _room_bound(self, provider: str) -> int:
        is_async = provider in self.async_providers
        return self._bounds.get(provider, self._async_calls if is_async else self._default_bound)

    def add(self, item: Item) -> None:
        """Hold one more."""
        self.items[item.lease.token] = item
        if item.lane is not None:
            item.lane.held += 1
            # A claim counts itself.
            self.is_alone |= item.lease.stored.row.claims > SUSPECT_CLAIMS

    def drop(self, item: Item, *, has_ended: bool = True) -> None:
        """Let go of one; of one that is not held nothing happens.

        Args:
            item: which.
            has_ended: false for one that is given back: it says nothing about how quickly steps end here.
        """
        if self.items.pop(item.lease.token, None) is None:
            return
        if item.lane is not None:
            item.lane.held -= 1
            item.lane.ended += has_ended
        if not self.items:
            self.is_alone = False

    def room(self, monotonic: float) -> Room:
        """Return how many more steps can be held.

        A provider has its bound, and as much more as it finishes within ``AHEAD``. What is fetched ahead for
        one provider takes no place from another: only what could run counts against the total.
        """
        if len(self.lanes) > _LANES_KEPT:
            self.lanes = {name: lane for name, lane in self.lanes.items() if not lane.is_idle}
        left = self._room - len(self.items)
        free: dict[str, int] = dict(self._bounds)
        running = all_ahead = 0
        self.pace = 0.0
        places = self._threads + (self._async_calls if self.async_providers else 0)
        for name in self.async_providers:
            free[name] = self._room_bound(name)
        for lane in self.lanes.values():
            free[lane.name], ahead = lane.free(monotonic, self._room // 2)
            all_ahead += ahead
            self.pace += lane.pace
            running += min(lane.held, lane.room_bound)
        total = max(0, min(left, places + all_ahead - running))
        return Room(
            total=total,
            per_provider=free,
            default=self._default_bound,
            is_idle=not self.items,
        )

    def note_claim(self, room: Room, leases: Iterable[Lease]) -> None:
        """Remember whether a claim took all that some provider, or the worker, had room for."""
        taken: dict[str, int] = {}
        for lease in leases:
            provider = lease.stored.row.provider_key
            taken[provider] = taken.get(provider, 0) + 1
        full = any(room.of(name) <= taken.get(name, 0) for name in {*self.lanes, *taken})
        self.was_tight = full or room.total <= sum(taken.values())
