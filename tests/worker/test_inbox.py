"""The meeting place of the worker's threads."""

import threading
import time

from tests.worker.house import PATIENCE
from tests.worker.test_held import NOW, lease_of

from coatcheck.worker.held import Item
from coatcheck.worker.inbox import Inbox


def item() -> Item:
    """Return any item."""
    return Item(lease_of(1), None, NOW, 0.0, 0.0)


def test_an_item_that_is_there_already_is_not_waited_for() -> None:
    """No wake-up is lost between a look and a wait."""
    inbox = Inbox()
    inbox.put(item())
    began = time.monotonic()
    inbox.wait(PATIENCE)
    assert time.monotonic() - began < PATIENCE / 2
    assert len(inbox.take()) == 1


def test_a_loop_that_gathers_a_group_is_not_woken_by_its_items() -> None:
    """Under load the bell rings for news, not for each step."""
    inbox = Inbox()
    inbox.put(item())
    began = time.monotonic()
    inbox.wait(0.02, 5)
    assert time.monotonic() - began >= 0.015
    inbox.ring()
    inbox.wait(PATIENCE, 5)
    assert time.monotonic() - began < PATIENCE / 2


def test_a_group_that_is_full_is_worth_waking_up_for() -> None:
    """The loop gathers for a while, or until there is enough for one commit."""
    inbox = Inbox()

    def put_five() -> None:
        for _ in range(5):
            inbox.put(item())

    threading.Timer(0.01, put_five).start()
    began = time.monotonic()
    inbox.wait(PATIENCE, 5)
    assert time.monotonic() - began < PATIENCE / 2
    assert len(inbox.take()) == 5


def test_nothing_is_lost_among_many_threads() -> None:
    """Each item of eight threads is taken exactly once, and the taker never sleeps through one."""
    inbox = Inbox()
    each = 500

    def put() -> None:
        for _ in range(each):
            inbox.put(item())

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    taken = 0
    while taken < 8 * each:
        inbox.wait(PATIENCE)
        came = len(inbox.take())
        assert came
        taken += came
    for thread in threads:
        thread.join()
    assert len(inbox) == 0
