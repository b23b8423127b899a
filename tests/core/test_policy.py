"""The pace of queries and retries, over all policies that can be made."""

from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coatcheck.policy import LONGEST_ASKED, PollPolicy

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)

draws = st.floats(0, 1)
counts = st.integers(1, 10_000_000)
short = st.timedeltas(min_value=timedelta(), max_value=timedelta(days=1))
asked = st.none() | st.timedeltas(min_value=-timedelta(hours=2), max_value=timedelta(hours=2))
factors = st.floats(1, 100) | st.integers(1, 100)
policies = st.builds(
    PollPolicy,
    first=short,
    start=short,
    step=short,
    factor=factors,
    cap=short,
    error_start=short,
    error_factor=factors,
    error_cap=short.filter(bool),
    jitter=draws,
)


def steady(**options: object) -> PollPolicy:
    """Return a policy without jitter."""
    return PollPolicy(**{"jitter": 0, **options})  # type: ignore[arg-type]  # each test names real options


def plan(policy: PollPolicy, queries: int) -> list[float]:
    """Return the delays of a job's first queries in seconds, without jitter."""
    delays = [policy.after_submit(None, 0), *(policy.after_query(n, None, 0) for n in range(1, queries))]
    return [delay.total_seconds() for delay in delays]


@given(policies, counts, asked, draws)
def test_no_call_is_made_earlier_than_the_vendor_asked(
    policy: PollPolicy, count: int, asked: timedelta | None, draw: float
) -> None:
    """Whatever the pace and the draw, a delay that a vendor asked for passes first, up to an hour (F49)."""
    least = min(asked or timedelta(), LONGEST_ASKED)
    assert policy.after_submit(asked, draw) >= least
    assert policy.after_query(count, asked, draw) >= least
    assert policy.after_throttle(asked, draw) >= least


@given(policies, counts, asked, draws)
@example(PollPolicy(start=timedelta(), factor=2), 5000, None, 0.0)
@example(PollPolicy(start=SECOND, factor=100, step=SECOND), 10_000_000, None, 1.0)
@example(PollPolicy(error_start=timedelta(), error_factor=2), 5000, None, 0.0)
@example(PollPolicy(factor=2, cap=timedelta(days=1)), 10_000_000, None, 0.0)
def test_delays_stay_within_their_bounds(
    policy: PollPolicy, count: int, asked: timedelta | None, draw: float
) -> None:
    """Nothing is negative, nothing is above its cap by more than the jitter, however often it is asked."""
    believed = max(min(asked or timedelta(), LONGEST_ASKED), timedelta())
    most = 1 + policy.jitter
    tick = timedelta(microseconds=1)
    assert policy.first <= policy.after_submit(None, draw) <= policy.first * most + tick
    assert timedelta() <= policy.after_query(count, None, draw) <= policy.cap * most + tick
    assert policy.after_query(count, asked, draw) <= max(policy.cap, believed) * most + tick
    assert timedelta() <= policy.after_error(count, draw) <= policy.error_cap * most + tick


@given(policies, counts, draws)
def test_intervals_never_shrink(policy: PollPolicy, count: int, draw: float) -> None:
    """A later query or error in a row waits at least as long as an earlier one."""
    assert policy.after_query(count + 1, None, draw) >= policy.after_query(count, None, draw)
    assert policy.after_error(count + 1, draw) >= policy.after_error(count, draw)


@given(counts)
def test_interval_of_zero_stays_zero(count: int) -> None:
    """A policy without pauses grows none after many queries, whatever its factor."""
    policy = PollPolicy(start=timedelta(), factor=2, error_start=timedelta())
    assert policy.after_query(count, None, 1) == timedelta()
    assert policy.after_error(count, 1) == timedelta()


def test_herd_is_spread_only_after_the_asked_delay() -> None:
    """A thousand tasks told to wait 60 s come back between 60 and 75 s, all over that window (F49)."""
    policy = PollPolicy(jitter=0.25)
    times = [policy.after_throttle(MINUTE, number / 999).total_seconds() for number in range(1000)]
    assert (min(times), max(times)) == (60, 75)
    assert {int(time) for time in times} == {*range(60, 75), 75}


def test_first_interval_growth_and_cap_make_the_plan() -> None:
    """First 30, interval 5, growth 2, cap 60: 30, then 5, 10, 20, 40, 60, 60 (F102)."""
    policy = steady(first=30 * SECOND, start=5 * SECOND, factor=2, cap=MINUTE)
    assert plan(policy, 7) == [30, 5, 10, 20, 40, 60, 60]


def test_vendors_hint_is_a_lower_bound() -> None:
    """Poll-after 7 makes the next poll at 7 s or later; a longer interval of ours stays (F102)."""
    policy = steady(start=5 * SECOND)
    assert policy.after_query(1, 7 * SECOND, 0) == 7 * SECOND
    assert policy.after_query(1, 3 * SECOND, 0) == 5 * SECOND


def test_jitter_keeps_within_ten_percent_of_the_plan_by_default() -> None:
    """The default adds at most a tenth (F102)."""
    assert PollPolicy(start=10 * SECOND).after_query(1, None, 1) == 11 * SECOND


def test_exponential_has_a_fixed_interval_and_doubles_after_errors() -> None:
    """A fixed interval; after errors 1, 2, 4 … 60 s."""
    policy = PollPolicy.exponential(2 * SECOND, jitter=0)
    assert plan(policy, 4) == [2, 2, 2, 2]
    errors = [policy.after_error(count, 0).total_seconds() for count in range(1, 9)]
    assert errors == [1, 2, 4, 8, 16, 32, 60, 60]


def test_ramp_is_for_slow_jobs() -> None:
    """First look after 60 s, then 30 s growing by 10 s to 60 s; after errors 2, 4, 8 s, at most 15 min."""
    policy = PollPolicy.ramp(jitter=0)
    assert plan(policy, 7) == [60, 30, 40, 50, 60, 60, 60]
    errors = [policy.after_error(count, 0).total_seconds() for count in (1, 2, 3, 9, 10, 50)]
    assert errors == [2, 4, 8, 512, 900, 900]


def test_throttle_without_a_delay_lasts_the_first_backoff() -> None:
    """The gate's own row of closings makes it longer; the task itself waits ``error_start``."""
    assert steady(error_start=3 * SECOND).after_throttle(None, 0) == 3 * SECOND


@pytest.mark.parametrize("make", [PollPolicy.exponential, PollPolicy.ramp])
def test_presets_have_no_error_cap_unless_asked(make: type[PollPolicy]) -> None:
    """Query errors are bounded by the deadline, not by a hidden number (F51)."""
    assert make().max_errors is None
    assert make(max_errors=5).max_errors == 5
