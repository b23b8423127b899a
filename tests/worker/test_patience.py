"""Backing off, and a log that cannot flood."""

import logging

import pytest
from tests.worker.house import Ticks

from coatcheck.worker.patience import Backoff, Log


def test_a_failing_store_is_left_alone_for_longer_each_time() -> None:
    """Delays double up to a cap, and a success starts anew."""
    backoff = Backoff(lambda: 0.0, first=1.0, cap=5.0)
    assert [backoff.fail(10.0) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert (backoff.until, backoff.failures) == (15.0, 5)
    backoff.succeed()
    assert (backoff.fail(20.0), backoff.until) == (1.0, 21.0)


def test_one_subject_gets_ten_lines_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """A row that fails for ever does not fill the disk, and does not silence the others (F96)."""
    ticks = Ticks()
    log = Log(ticks)
    with caplog.at_level(logging.WARNING, "coatcheck.worker"):
        for _ in range(100):
            log(logging.WARNING, "broken", "task %s", "a", subject="a", task_id="a")
        log(logging.WARNING, "broken", "task %s", "b", subject="b", task_id="b")
        assert len(caplog.records) == 11
        ticks.advance(61)
        log(logging.WARNING, "broken", "task %s", "a", subject="a", task_id="a")
    assert len(caplog.records) == 12
    assert caplog.records[0].getMessage() == "task a"
    assert (caplog.records[0].action, caplog.records[0].task_id) == ("broken", "a")  # type: ignore[attr-defined]  # structured


def test_the_budgets_themselves_take_no_room(caplog: pytest.LogCaptureFixture) -> None:
    """A million subjects leave a bounded map behind (F87)."""
    log = Log(Ticks(), subjects=50)
    with caplog.at_level(logging.CRITICAL, "coatcheck.worker"):
        for number in range(1000):
            log(logging.CRITICAL, "broken", "x", subject=str(number))
    assert len(log._seen) == 50
