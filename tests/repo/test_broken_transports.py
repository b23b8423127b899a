"""Transports that break one rule each: the contract must catch them all."""

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("scripts") / "broken_transports.py"
#: The rule that each of them breaks.
RULES = {
    "Retrying": "test_a_lost_reply_may_have_been_sent_and_is_not_sent_again",
    "Redirected": "test_redirects_are_not_followed",
    "Remembering": "test_cookies_are_not_kept",
    "Alarmed": "test_a_refused_connection_was_not_sent",
    "Hopeful": "test_a_timeout_may_have_been_sent",
    "Boundless": "test_a_body_over_its_cap_is_an_error",
    "Careless": "test_a_guarded_call_does_not_lead_inside",
    "Rebound": "test_a_guarded_call_connects_to_the_address_that_was_checked",
    "Sharing": "test_connections_are_kept_by_account",
    "Stale": "test_a_connection_that_idled_is_not_used_for_a_submit",
    "Unsigned": "test_signing_comes_last",
    "Chatty": "test_no_secret_is_logged_or_shown",
    "Hoarding": "test_a_large_body_goes_into_a_file",
    "Immortal": "test_a_closed_transport_sends_nothing",
}


def outcomes(*tests: str) -> dict[str, str]:
    """Run tests of the script and return what became of them, the worst for one with several cases."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-vv", "--tb=no", "-W", "default", *tests],
        capture_output=True,
        text=True,
        check=False,
        cwd=SCRIPT.parent,
        timeout=250,
    )
    found: dict[str, str] = {}
    for name, rule, outcome in re.findall(r"::Test(\w+)::(\w+)\S* <- \S+ (PASSED|FAILED)", run.stdout):
        key = f"{name}::{rule}"
        found[key] = outcome if found.get(key, "PASSED") == "PASSED" else found[key]
    assert found, run.stdout + run.stderr
    return found


def test_every_broken_transport_fails_the_rule_that_it_breaks() -> None:
    """A contract that nobody can fail would say nothing about those who pass."""
    found = outcomes(*(f"{SCRIPT.name}::Test{name}::{rule}" for name, rule in RULES.items()))
    assert found == {f"{name}::{rule}": "FAILED" for name, rule in RULES.items()}


def test_an_honest_transport_passes_these_rules() -> None:
    """Else they would catch everybody."""
    rules = set(RULES.values())
    found = outcomes(*(f"{SCRIPT.name}::TestHonest::{rule}" for rule in rules))
    assert found == {f"Honest::{rule}": "PASSED" for rule in rules}
