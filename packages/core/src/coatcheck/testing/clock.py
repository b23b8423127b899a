"""A clock that stands still until a test moves it; nothing here reads the real time."""

from datetime import UTC, datetime, timedelta

from coatcheck.model import check_aware

#: Where a clock starts that was given no time.
START = datetime(2031, 3, 4, 5, 6, 7, tzinfo=UTC)


class FakeClock:
    """A callable that returns an aware UTC time, for everything that takes a ``clock``.

    Args:
        start: the first time, an aware datetime.

    Raises:
        ValidationError: ``start`` is naive.
    """

    def __init__(self, start: datetime = START) -> None:
        self._now = check_aware(start, "start")

    def __call__(self) -> datetime:
        """Return the time. It changes only by ``advance`` and ``move_to``."""
        return self._now

    def advance(self, by: timedelta | float) -> datetime:
        """Move on by a timedelta, or by seconds, and return the new time.

        Raises:
            ValueError: ``by`` is negative; the clock of a store never goes back.
        """
        step = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if step < timedelta():
            raise ValueError(f"a clock can only be advanced by 0 or more, found {step!r}; make a new clock")
        self._now += step
        return self._now

    def move_to(self, at: datetime) -> datetime:
        """Move on to this instant and return it; an instant that has passed changes nothing."""
        self._now = max(self._now, check_aware(at, "at"))
        return self._now

    def __repr__(self) -> str:
        return f"FakeClock({self._now.isoformat()})"
