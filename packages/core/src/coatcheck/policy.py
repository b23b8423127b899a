"""When to query next and how long to back off.

Pure functions of counts, of what the vendor asked for and of one random draw; no clock and no random source
live here.
"""

from datetime import timedelta

from attrs import field, frozen

from coatcheck.errors import ValidationError
from coatcheck.model import check_duration, check_whole

#: A vendor's own delay is never believed beyond this.
LONGEST_ASKED = timedelta(hours=1)


@frozen(kw_only=True)
class PollPolicy:
    """The pace of one handler's queries and of its retries after errors.

    Args:
        first: from the accepted submit to the first query.
        start: from the first query to the second.
        step: added to the interval at each further query.
        factor: multiplies the interval at each further query.
        cap: the longest interval.
        error_start: the delay after a first error, and of a gate that the vendor closed without naming a
            delay.
        error_factor: multiplies that delay at each further error in a row.
        error_cap: the longest delay after errors.
        max_errors: consecutive query errors that fail the task; ``None`` (default) leaves it to the deadline.
        jitter: the largest share (0…1) that is added at random to any delay; nothing is ever subtracted.

    Raises:
        ValidationError: a value is out of its range.
    """

    first: timedelta = timedelta(seconds=1)
    start: timedelta = timedelta(seconds=1)
    step: timedelta = timedelta()
    factor: float = 1.0
    cap: timedelta = timedelta(seconds=60)
    error_start: timedelta = timedelta(seconds=1)
    error_factor: float = 2.0
    error_cap: timedelta = timedelta(seconds=60)
    max_errors: int | None = None
    jitter: float = field(default=0.1)

    def __attrs_post_init__(self) -> None:
        for name in ("first", "start", "step", "cap", "error_start"):
            check_duration(getattr(self, name), f"poll.{name}", zero=True)
        check_duration(self.error_cap, "poll.error_cap")
        if self.max_errors is not None:
            check_whole(self.max_errors, "poll.max_errors", 1, 1_000_000)
        for name, low, high in (("factor", 1, 100), ("error_factor", 1, 100), ("jitter", 0, 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ValidationError(
                    f"poll.{name} must be a number from {low} to {high}, found {value!r}", f"poll.{name}"
                )

    @classmethod
    def exponential(
        cls,
        interval: timedelta = timedelta(seconds=5),
        *,
        max_errors: int | None = None,
        jitter: float = 0.1,
    ) -> "PollPolicy":
        """A fixed interval; after errors 1 s, doubling to 60 s."""
        return cls(first=interval, start=interval, cap=interval, max_errors=max_errors, jitter=jitter)

    @classmethod
    def ramp(cls, *, max_errors: int | None = None, jitter: float = 0.1) -> "PollPolicy":
        """For slow jobs: first look after 60 s, then 30 s growing by 10 s to 60 s.

        After errors 2 s, doubling to 15 min.
        """
        return cls(
            first=timedelta(seconds=60),
            start=timedelta(seconds=30),
            step=timedelta(seconds=10),
            cap=timedelta(seconds=60),
            error_start=timedelta(seconds=2),
            error_cap=timedelta(minutes=15),
            max_errors=max_errors,
            jitter=jitter,
        )

    def after_submit(self, asked: timedelta | None, draw: float) -> timedelta:
        """Return the delay from an accepted submit to the first query.

        Args:
            asked: what the vendor asked for; the delay is never shorter than it.
            draw: a random number from 0 to 1.
        """
        return self._spread(max(self.first, _believed(asked)), draw)

    def after_query(self, queries: int, asked: timedelta | None, draw: float) -> timedelta:
        """Return the delay to the query that follows the ``queries``-th one (counted from 1)."""
        earlier = max(0, queries - 1)
        try:
            interval = _grown(self.start, self.factor, earlier) + self.step * earlier
        except OverflowError:
            interval = self.cap
        return self._spread(max(min(interval, self.cap), _believed(asked)), draw)

    def after_error(self, errors: int, draw: float) -> timedelta:
        """Return the backoff after the ``errors``-th error in a row (counted from 1)."""
        try:
            delay = _grown(self.error_start, self.error_factor, max(0, errors - 1))
        except OverflowError:
            delay = self.error_cap
        return self._spread(min(delay, self.error_cap), draw)

    def after_throttle(self, asked: timedelta | None, draw: float) -> timedelta:
        """Return the delay after a throttle: what the vendor asked for, or ``error_start``."""
        return self._spread(self.error_start if asked is None else _believed(asked), draw)

    def _spread(self, delay: timedelta, draw: float) -> timedelta:
        return delay + delay * (self.jitter * draw) if self.jitter else delay


def _grown(start: timedelta, factor: float, times: int) -> timedelta:
    """Return ``start`` times ``factor`` to the power of ``times``.

    As a float: a whole factor to the power of some thousand queries would be a number of megabytes.

    Raises:
        OverflowError: it is longer than any timedelta.
    """
    return start * float(factor) ** times if start else start


def _believed(asked: timedelta | None) -> timedelta:
    """Clamp what a vendor asked for to a sane range."""
    return timedelta() if asked is None else min(max(asked, timedelta()), LONGEST_ASKED)
