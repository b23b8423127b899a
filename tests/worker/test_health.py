"""How a worker is, for those who look after it."""

import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from tests.worker.house import House, running

from coatcheck import codec
from coatcheck.worker.health import HealthServer

Build = Callable[..., House]


def ask(port: int, path: str = "/health") -> tuple[int, Any]:
    """Return status and body of one page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return reply.status, codec.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, codec.loads(error.read())


def test_a_running_worker_answers_on_its_port(build: Build) -> None:
    """A probe sees that the loop moves and what it holds."""
    house = build()
    worker = house.worker(health_port=0)
    assert worker.health_port is None
    with running(worker):
        while worker.health_port is None:
            pass
        status, page = ask(worker.health_port)
        assert (status, page["worker_id"], page["is_alive"]) == (200, worker.worker_id, True)
        assert ask(worker.health_port, "/")[0] == 404


def test_a_worker_whose_loop_hangs_is_not_healthy(build: Build) -> None:
    """Health comes from a thread of its own, so that it can say that the loop has stopped."""
    house = build()
    worker = house.worker()
    assert worker.health().is_alive
    house.advance(31)
    health = worker.health()
    assert (health.is_alive, health.beat_age) == (False, 31)
    server = HealthServer(0, worker.health)
    server.start()
    try:
        status, page = ask(server.port)
        assert (status, page["is_alive"]) == (503, False)
    finally:
        server.stop()


@pytest.mark.parametrize("steps", [1, 3])
def test_health_counts_what_was_done(build: Build, steps: int) -> None:
    """Counters tell a busy worker from an idle one."""
    house = build()
    house.submit(steps)
    worker = house.worker()
    worker.step()
    health = worker.health()
    assert (health.committed, health.held, health.lost_leases, health.abandoned_calls) == (steps, 0, 0, 0)
