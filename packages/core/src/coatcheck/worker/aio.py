"""One event loop, in a thread of its own, for the calls of async handlers."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from coatcheck.transport.loop import new_event_loop
from coatcheck.worker.held import Item
from coatcheck.worker.inbox import Inbox

#: So many calls begin at once; so many more may each ``TICK``, in seconds, while fewer than that end.
STEP = 32
TICK = 0.002
#: How long a stopped loop waits for its thread, in seconds.
_JOIN = 1.0


class AsyncCalls:
    """Runs items as tasks of one event loop and hands them in. The thread starts with the first item.

    How many there are at a time is bounded by the room that the worker claims. One more begins whenever one
    ends, and others from time to time while those under way take long: many calls at the same time cost more
    memory traffic each than a few, which a vendor that answers at once never needs.

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
        #: How many ended since the last tick, and whether there is a next one.
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
        if not self._is_ticking:
            self._tick()

    def _tick(self) -> None:
        for _ in range(min(STEP - self._ended, len(self._waiting))):
            self._begin_next()
        self._ended = 0
        self._is_ticking = bool(self._waiting)
        if self._is_ticking:
            asyncio.get_running_loop().call_later(TICK, self._tick)

    def _begin_next(self) -> None:
        item = self._waiting.popleft()
        self._tasks[item] = asyncio.get_running_loop().create_task(self._one(item))

    async def _one(self, item: Item) -> None:
        is_to_hand_in = True
        try:
            is_to_hand_in = await self._run(item)
        except asyncio.CancelledError:
            item.is_late = True  # only the worker cancels, after it gave the step up
        finally:
            del self._tasks[item]
            self._ended += 1
            if self._waiting:
                self._begin_next()
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
