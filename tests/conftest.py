"""Settings that hold for every test: Hypothesis profiles, and what a missing server means."""

import os
import signal
from collections.abc import Callable
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

IN_CI = os.environ.get("CI", "").lower() not in {"", "0", "false"}

# A shell that starts a job in the background makes it ignore Ctrl-C, and so do all its children; the tests
# that press Ctrl-C mean a program that was started in the usual way.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Deadlines are off: on two shared cores they measure the neighbours, not the code.
settings.register_profile("dev", max_examples=20, deadline=None)
settings.register_profile(
    "ci",
    max_examples=100,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", max_examples=5000, stateful_step_count=100, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))


@pytest.fixture(scope="session")
def missing() -> Callable[[str], NoReturn]:
    """Return what a fixture calls when its server is not there: it skips on a laptop and fails in CI.

    ``missing("redis-server: apt-get install redis-server")`` says what was missing and how to get it.
    """

    def stop(what: str) -> NoReturn:
        if IN_CI:
            pytest.fail(f"CI runs every test, but this was missing: {what}")
        pytest.skip(what)

    return stop
