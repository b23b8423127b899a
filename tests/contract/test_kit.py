"""The parts of the kit that the contracts stand on: the clock, the builders and the strategies."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coatcheck.errors import ValidationError
from coatcheck.model import Job, Step, TaskStatus
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing import strategies
from coatcheck.testing.clock import START, FakeClock
from coatcheck.testing.records import claim, get, new_task, row_of, transition

ALL = {
    name: getattr(strategies, name)()
    for name in (
        "durations",
        "failures",
        "gates",
        "instants",
        "json_objects",
        "json_values",
        "limits",
        "names",
        "new_tasks",
        "payloads",
        "query_params",
        "rates",
        "resources",
        "submit_options",
        "tasks",
        "tenants",
        "traits",
        "usages",
    )
}


@pytest.mark.parametrize("name", ALL)
def test_every_strategy_makes_valid_values(name: str) -> None:
    """All values pass the checks of the classes that hold them."""

    @settings(max_examples=15, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(ALL[name])
    def draw(value: object) -> None:
        assert value is not None or name == "json_values"

    draw()


@given(st.data())
def test_a_store_keeps_any_task_that_the_strategies_make(data: st.DataObject) -> None:
    """What a strategy makes is what a store takes, byte for byte."""
    new = data.draw(strategies.new_tasks())
    clock = FakeClock()
    store = SqliteStore(":memory:", clock=clock)
    try:
        store.add([new])
        stored = get(store, new.id)
    finally:
        store.close()
    assert (stored.record, stored.params, stored.format) == (new.record, new.params, new.format)
    assert (stored.row.tenant, stored.row.account) == (new.tenant, new.account)
    assert stored.row.deadline_at - stored.row.scheduled_at == new.deadline


def test_a_clock_stands_still_until_it_is_moved() -> None:
    """Two calls without a move return one time."""
    clock = FakeClock()
    assert clock() == clock() == START
    assert clock.advance(1.5) == START + timedelta(seconds=1.5)
    assert clock.advance(timedelta(hours=1)) == clock()


def test_a_clock_never_goes_back() -> None:
    """A store's clock only goes on, so a test cannot ask for less."""
    clock = FakeClock()
    with pytest.raises(ValueError, match="0 or more"):
        clock.advance(-1)
    assert clock.move_to(START - timedelta(days=1)) == START


def test_a_clock_is_aware() -> None:
    """A naive start is refused, another zone is turned into UTC."""
    with pytest.raises(ValidationError, match="naive"):
        FakeClock(datetime(2031, 1, 1))  # noqa: DTZ001  # what is refused
    east = timezone(timedelta(hours=8))
    assert FakeClock(datetime(2031, 1, 1, 8, tzinfo=east))() == datetime(2031, 1, 1, tzinfo=UTC)


def test_builders_fill_in_what_follows_from_the_status() -> None:
    """A transition to a status has the step and the job that go with it."""
    store = SqliteStore(":memory:", clock=FakeClock())
    try:
        store.add([new_task("one")])
        (lease,) = claim(store).leases
        accepted = transition(lease, TaskStatus.SUBMITTED, delay=5)
        lost = transition(lease, TaskStatus.SUBMIT_UNKNOWN)
        row = row_of(store, "one")
    finally:
        store.close()
    assert (accepted.next_step, accepted.job, accepted.delay) == (
        Step.QUERY,
        Job.LIVE,
        timedelta(seconds=5),
    )
    assert (lost.next_step, lost.job, lost.delay) == (None, Job.GHOST, None)
    assert accepted.key == lease.token
    assert row.is_leased is True
