"""Where steps that ended wait for the main loop, and how it is woken: the meeting place of all threads."""

import contextlib
from collections import deque
from queue import Empty, SimpleQueue

from coatcheck.worker.held import Item

_NEVER = 1 << 60


class Inbox:
    """Items come in from any thread; the main loop alone waits and takes them out.

    A hand-over rings only where it matters: while the main loop gathers a group for one commit it does not
    want to be woken by each step of it.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._ring_at = _NEVER

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """Hand in a step that ended."""
        self._items.append(item)
        if len(self._items) >= self._ring_at:
            self._ring_at = _NEVER
            self._bell.put(None)

    def ring(self) -> None:
        """Wake the main loop; safe in a signal handler."""
        self._bell.put(None)

    def take(self) -> list[Item]:
        """Return all that came in."""
        items = self._items
        return [items.popleft() for _ in range(len(items))]

    def wait(self, timeout: float, count: int = 1) -> None:
        """Block until that many items are here, until the bell rings for something else, or the time is over.

        Args:
            timeout: seconds.
            count: how many items are worth waking up for.
        """
        # Set first, looked at second: an item that comes in between rings.
        self._ring_at = count
        if len(self._items) < count:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=max(0.0, timeout))
            while not self._bell.empty():
                self._bell.get()
        self._ring_at = _NEVER
