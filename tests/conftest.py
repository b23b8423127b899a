"""Settings that hold for every test: Hypothesis profiles, and what an absent server means."""

import os

from hypothesis import HealthCheck, settings

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

IN_CI = os.environ.get("CI", "") not in {"", "0", "false"}

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))
