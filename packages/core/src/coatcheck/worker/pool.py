"""A bounded pool of threads that shares them out among providers.

Steps wait per provider; a thread is asked for a provider, not for a step, and goes on with the provider's
steps as long as there are any and nobody else waits. So a step costs no wake-up of its own when calls are
quick, a provider never has more threads than its bound, and threads are woken one by one while calls block.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from coatcheck.worker.held import Item, Lane
from coatcheck.worker.inbox import Inbox

#: After this long, in seconds, a thread looks whether another provider waits for one.
_SLICE = 0.005
#: How long a stopped pool waits for its threads, in seconds.
_JOIN = 0.5


class Pool:
    """Threads that run items and hand them in.

    Args:
        run: runs an item's step and says whether it is to be handed in.
        inbox: where ended steps go.
        threads: how many may work at the same time; calls that were given up do not count.
        monotonic: measures durations, in seconds.
    """

    def __init__(
        self,
        run: Callable[[Item], bool],
        inbox: Inbox,
        threads: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._inbox = inbox
        self._limit = threads
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._requests: SimpleQueue[Lane | None] = SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._tokens = 0
        self._stuck = 0
        self._is_stopped = False

    @property
    def is_busy(self) -> bool:
        """Whether a thread works on something, apart from calls that were given up."""
        return self._tokens > self._stuck

    def put(self, items: Iterable[Item]) -> None:
        """Let these steps run when their providers' turns come."""
        by_lane: dict[int, list[Item]] = {}
        for item in items:
            by_lane.setdefault(id(item.lane), []).append(item)
        with self._lock:
            for group in by_lane.values():
                lane = group[0].lane
                assert lane is not None  # noqa: S101  # steps without a lane are not for the pool
                lane.items.extend(group)
                self._ask(lane)

    def take_back(self, item: Item) -> bool:
        """Remove a step that waits for a thread; false when a thread has it already."""
        with self._lock:
            if item.lane is None or not item.begin():
                return False
            # If a thread has it in hand already, or takes one meanwhile, it will see that it may not begin.
            with contextlib.suppress(ValueError, IndexError, RuntimeError):
                item.lane.items.remove(item)
            return True

    def give_up(self) -> None:
        """Take a thread that hangs in a call as lost, and let another one come in its place."""
        with self._lock:
            self._stuck += 1
            self._hire()

    def stop(self) -> None:
        """Let threads end; those that hang in a call are left alone."""
        with self._lock:
            self._is_stopped = True
            threads = list(self._threads)
        for _ in threads:
            self._requests.put(None)
        end = time.monotonic() + _JOIN
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    # Called with the lock held.

    def _ask(self, lane: Lane) -> None:
        if lane.items and not lane.is_waking and lane.tokens < lane.bound:
            lane.tokens += 1
            lane.is_waking = True
            self._tokens += 1
            self._hire()
            self._requests.put(lane)

    def _hire(self) -> None:
        if len(self._threads) < min(self._tokens, self._limit + self._stuck) and not self._is_stopped:
            thread = threading.Thread(target=self._work, name="coatcheck-call", daemon=True)
            self._threads.add(thread)
            thread.start()

    # In the threads.

    def _work(self) -> None:
        while True:
            lane = self._requests.get()
            if lane is None or not self._serve(lane):
                return

    def _serve(self, lane: Lane) -> bool:
        """Run a provider's steps; false when this thread's call was given up, so that it is one too many."""
        items, end = lane.items, self._monotonic() + _SLICE
        lane.is_waking = False
        while True:
            try:
                item = items.popleft()
            except IndexError:
                if self._leave(lane):
                    return True
                continue
            if items and not lane.is_waking and lane.tokens < lane.bound:
                with self._lock:
                    self._ask(lane)
            if self._run(item):
                is_late = item.is_late
                self._inbox.put(item)
                if is_late:
                    self._leave_late(lane)
                    return False
            if self._monotonic() > end and not self._requests.empty():
                self._requests.put(lane)
                return True

    def _leave(self, lane: Lane) -> bool:
        with self._lock:
            if lane.items:
                return False
            lane.tokens -= 1
            self._tokens -= 1
            is_busy = self.is_busy
        if not is_busy:
            self._inbox.ring()
        return True

    def _leave_late(self, lane: Lane) -> None:
        with self._lock:
            lane.tokens -= 1
            self._tokens -= 1
            self._stuck -= 1
            self._threads.discard(threading.current_thread())
            self._ask(lane)
