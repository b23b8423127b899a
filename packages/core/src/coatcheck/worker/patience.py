"""Little helpers of the worker: backing off, and logging that cannot flood."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("coatcheck.worker")


class Backoff:
    """How long to leave a failing store alone: doubling from ``first`` to ``cap``, with jitter.

    Args:
        rng: a random draw from 0 to 1.
        first: the first delay, in seconds.
        cap: the longest delay, in seconds.
    """

    def __init__(self, rng: Callable[[], float], first: float = 0.05, cap: float = 5.0) -> None:
        self._rng = rng
        self._first = first
        self._cap = cap
        self.failures = 0
        self.until = 0.0

    def fail(self, now: float) -> float:
        """Note a failure and return how long to wait, in seconds."""
        delay = min(self._cap, self._first * 2.0 ** min(self.failures, 30)) * (1 + 0.2 * self._rng())
        self.failures += 1
        self.until = now + delay
        return delay

    def succeed(self) -> None:
        """Forget the failures."""
        self.failures, self.until = 0, 0.0


class Log:
    """A logger with a budget: at most ``lines`` lines a minute about the same subject.

    Args:
        monotonic: measures durations, in seconds.
        lines: the budget of each subject.
        subjects: how many subjects are remembered; the oldest is forgotten first.
    """

    def __init__(self, monotonic: Callable[[], float], *, lines: int = 10, subjects: int = 1000) -> None:
        self._monotonic = monotonic
        self._lines = lines
        self._subjects = subjects
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __call__(
        self, level: int, action: str, message: str, *args: Any, subject: str = "", **fields: Any
    ) -> None:
        """Log a structured record, unless its subject has spent its budget.

        Args:
            level: a level of ``logging``.
            action: what happened, as one word for machines; with ``subject`` it names the budget.
            message: the text.
            args: fill in the message.
            subject: whom it is about: a task, a handler; blank for the worker itself.
            fields: further fields of the record; ``error`` adds its traceback.
        """
        if not _log.isEnabledFor(level) or not self._may(f"{action}/{subject}"):
            return
        error = fields.pop("error", None)
        _log.log(level, message, *args, extra={"action": action, **fields}, exc_info=error)

    def _may(self, subject: str) -> bool:
        now = self._monotonic()
        since, count = self._seen.get(subject, (now, 0))
        if now - since >= 60:
            since, count = now, 0
        self._seen[subject] = (since, count + 1)
        self._seen.move_to_end(subject)
        if len(self._seen) > self._subjects:
            self._seen.popitem(last=False)
        return count < self._lines
