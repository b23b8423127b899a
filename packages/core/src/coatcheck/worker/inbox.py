"""Where steps that ended wait for the main loop, and how it is woken: the meeting place of all threads."""

import contextlib
from collections import deque
from queue import Empty, SimpleQueue

from coatcheck.worker.held import Item


class Inbox:
    """Items come in from any thread; the main loop alone waits and takes them out.

    A hand-over costs a bell only where somebody listens for it: while the main loop gathers a group for one
    commit it does not want to be woken by each step of it.
    """

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_listening = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: Item) -> None:
        """Hand in a step that ended."""
        self._items.append(item)
        if self._is_listening:
            self._is_listening = False
            self._bell.put(None)

    def ring(self) -> None:
        """Wake the main loop; safe in a signal handler."""
        self._bell.put(None)

    def take(self) -> list[Item]:
        """Return all that came in."""
        items = self._items
        return [items.popleft() for _ in range(len(items))]

    def wait(self, timeout: float, *, for_items: bool) -> None:
        """Block until the bell rings or the time is over.

        Args:
            timeout: seconds.
            for_items: whether an item that comes in rings it too.
        """
        # Listening first, looking second: an item that comes in between rings.
        self._is_listening = for_items
        if not (for_items and self._items):
            with contextlib.suppress(Empty):
                self._bell.get(timeout=max(0.0, timeout))
            while not self._bell.empty():
                self._bell.get()
        self._is_listening = False
