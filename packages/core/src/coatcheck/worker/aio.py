"""One event loop, in a thread of its own, for the calls of async handlers."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from coatcheck.transport.loop import new_event_loop
from coatcheck.worker.held import Item
from coatcheck.worker.inbox import Inbox

#: So many calls run at the same time in any case, and so many more each ``TICK`` (in seconds) in which fewer
#: than that end.
STEP = 32
TICK = 0.002
#: How long a stopped loop waits for its thread, in seconds.
_JOIN = 1.0


class AsyncCalls:
    """Runs items as tasks of one event loop and hands them in. The thread starts with the first item.

    How many there are at a time is bounded by the room that the worker claims. Beyond a few, one begins when
    one ends, and others from time to time while those under way take long: hundreds at the same time cost a
    fourth more CPU each, and a vendor that answers at once never needs them.

    Args:
        run: runs an item's step and says whether it is to be handed in.
        inbox: where ended steps go.
        at_end: closes what the steps left open on the loop.
    """

    def __init__(
        self,
        run: Callable[[Item], Awaitable[bool]],
        inbox: Inbox,
        at_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._run = run
        self._inbox = inbox
        self._at_end = at_end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        # The loop itself keeps weak references only.
        self._tasks: dict[Item, asyncio.Task[None]] = {}
        self._waiting: deque[Item] = deque()
        #: How many ended since the last tick, and whether another one is to come.
        self._ended = 0
        self._is_ticking = False

    @property
    def is_busy(self) -> bool:
        """Whether a step is on the loop."""
        return bool(self._tasks)

    def put(self, items: Iterable[Item]) -> None:
        """Start these steps."""
        if self._loop is None:
            self._loop = new_event_loop()
            self._thread = threading.Thread(target=self._work, name="coatcheck-loop", daemon=True)
            self._thread.start()
        self._loop.call_soon_threadsafe(self._start, list(items))

    def give_up(self, item: Item) -> None:
        """Cancel a step whose call takes too long; it is handed in as late once it has ended."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, item)

    def stop(self) -> None:
        """Cancel what is left and end the thread; a step that blocks the loop is left alone."""
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._cancel_all)
        self._thread.join(_JOIN)
        self._loop = self._thread = None

    # On the loop.

    def _work(self) -> None:
        loop = self._loop
        assert loop is not None  # noqa: S101  # made before the thread
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()

    def _start(self, items: list[Item]) -> None:
        self._waiting.extend(items)
        self._begin(STEP - len(self._tasks))
        if self._waiting and not self._is_ticking:
            self._ended = 0
            self._tick_later()

    def _tick_later(self) -> None:
        self._is_ticking = True
        asyncio.get_running_loop().call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        self._begin(STEP - self._ended)
        self._ended = 0
        if self._waiting:
            self._tick_later()

    def _begin(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(min(count, len(self._waiting))):
            item = self._waiting.popleft()
            self._tasks[item] = loop.create_task(self._one(item))

    async def _one(self, item: Item) -> None:
        is_to_hand_in = True
        try:
            is_to_hand_in = await self._run(item)
        except asyncio.CancelledError:
            item.is_late = True  # only the worker cancels, after it gave the step up
        finally:
            del self._tasks[item]
            self._ended += 1
            self._begin(1)
            if is_to_hand_in:
                self._inbox.put(item)
            if not self._tasks:
                self._inbox.ring()

    def _cancel(self, item: Item) -> None:
        task = self._tasks.get(item)
        if task is not None:
            task.cancel()

    def _cancel_all(self) -> None:
        loop = asyncio.get_running_loop()
        self._waiting.clear()
        for task in self._tasks.values():
            task.cancel()
        waiting = list(self._tasks.values())

        async def end() -> None:
            if waiting:
                await asyncio.wait(waiting, timeout=_JOIN / 2)
            with contextlib.suppress(Exception):
                if self._at_end is not None:
                    await asyncio.wait_for(self._at_end(), _JOIN / 4)
            await loop.shutdown_asyncgens()
            loop.stop()

        # Kept by the loop until it stops: nothing else runs on it any more.
        self._last = loop.create_task(end())
