"""How the selectors spread their choices: exact, smooth, uniform or minimal in movement, as each promises."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from random import Random
from threading import Barrier

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coatcheck import selector as selectors
from coatcheck.model import SubmitOptions
from coatcheck.selector import Selector, SelectorContext
from coatcheck.testing.selector_contract import StubCandidate, StubRequest

THREADS = 8
names = st.text("abcdefgh:-", min_size=1, max_size=6).filter(str.strip)
weight_tables = st.dictionaries(names, st.integers(1, 12), min_size=1, max_size=6)
tenant_names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=9)
groups = st.lists(names, min_size=2, max_size=6, unique=True)


def context(keys: Iterable[str], tenant: str = "") -> SelectorContext:
    """Return a context with these candidates and this tenant."""
    return SelectorContext(
        request=StubRequest(1),
        options=SubmitOptions(tenant=tenant),
        candidates=tuple(map(StubCandidate, keys)),
    )


def choices(selector: Selector, seen: SelectorContext, count: int) -> list[str]:
    """Return the keys of ``count`` choices in one context."""
    return [selector.select(seen).key for _ in range(count)]


def choices_in_threads(selector: Selector, seen: SelectorContext, count: int) -> Counter[str]:
    """Return how often each key was chosen when all threads choose ``count`` times at once."""
    start = Barrier(THREADS)

    def work(_: int) -> list[str]:
        start.wait(timeout=30)
        return choices(selector, seen, count)

    with ThreadPoolExecutor(THREADS) as pool:
        return Counter(key for part in pool.map(work, range(THREADS)) for key in part)


def by_tenant(selector: Selector, keys: Iterable[str], tenants: Iterable[str]) -> dict[str, str]:
    """Return which key each tenant was sent to."""
    candidates = tuple(map(StubCandidate, keys))
    return {
        tenant: selector.select(
            SelectorContext(
                request=StubRequest(1), options=SubmitOptions(tenant=tenant), candidates=candidates
            )
        ).key
        for tenant in tenants
    }


def consistent(weights: dict[str, int] | None = None) -> Selector:
    """Return a consistent hash of the tenant."""
    return selectors.consistent_hash(lambda seen: seen.options.tenant, weights)


@given(groups, st.integers(1, 40))
def test_round_robin_is_exact_under_threads(keys: list[str], count: int) -> None:
    """After any number of choices by many threads, no candidate is more than one turn ahead of another."""
    chosen = choices_in_threads(selectors.round_robin(), context(keys), count)
    turns = [chosen[key] for key in keys]
    assert sum(turns) == THREADS * count
    assert max(turns) - min(turns) <= 1


@given(groups, groups, st.lists(st.booleans(), max_size=60))
def test_round_robin_goes_through_each_set_in_order(
    one: list[str], other: list[str], order: list[bool]
) -> None:
    """However requests for two candidate sets are mixed, each set takes turns by sorted key."""
    selector = selectors.round_robin()
    seen: dict[tuple[str, ...], int] = {}
    for first in order:
        keys = tuple(sorted(one if first else other))
        turn = seen.setdefault(keys, 0)
        assert selector.select(context(keys)).key == keys[turn % len(keys)]
        seen[keys] += 1


@given(weight_tables)
@example({"a": 1, "b": 1})
@example({"a": 20, "b": 3, "c": 3, "d": 20, "e": 9, "f": 1})
def test_weighted_is_exact_in_each_cycle_and_smooth_inside(weights: dict[str, int]) -> None:
    """Each cycle holds exactly the weights; nobody is a turn ahead or 1/2 + … + 1/n turns behind."""
    total, slack = (
        sum(weights.values()),
        sum((Fraction(1, n) for n in range(2, len(weights) + 1)), Fraction()),
    )
    selector, seen = selectors.weighted(weights), context(weights)
    first = choices(selector, seen, total)
    assert Counter(first) == weights
    assert choices(selector, seen, total) == first
    for key, weight in weights.items():
        for turn in range(1, total + 1):
            ahead = first[:turn].count(key) - Fraction(turn * weight, total)
            assert -slack <= ahead < 1


@given(weight_tables, st.integers(1, 4))
def test_weighted_is_exact_under_threads(weights: dict[str, int], cycles: int) -> None:
    """No turn of a cycle is lost or given twice when threads choose at once."""
    total = sum(weights.values())
    chosen = choices_in_threads(selectors.weighted(weights), context(weights), cycles * total)
    assert chosen == {key: THREADS * cycles * weight for key, weight in weights.items()}


@given(groups, st.integers(0, 2**32))
@settings(max_examples=20)
def test_random_is_uniform(keys: list[str], seed: int) -> None:
    """Every candidate gets its share of 10,000 draws within 3 percentage points."""
    chosen = Counter(choices(selectors.random(Random(seed)), context(keys), 10_000))
    assert all(abs(chosen[key] / 10_000 - 1 / len(keys)) < 0.03 for key in keys)


@given(groups, st.integers(0, 2**32))
def test_random_draws_repeat_with_their_seed(keys: list[str], seed: int) -> None:
    """A test that gives the source of draws gets the same choices again."""
    one, other = (choices(selectors.random(Random(seed)), context(keys), 30) for _ in range(2))
    assert one == other


@given(groups, st.data())
def test_a_removed_candidate_moves_only_its_own_keys(keys: list[str], data: st.DataObject) -> None:
    """Taking a candidate away, or adding it back, leaves every other key where it is."""
    tables = st.fixed_dictionaries({key: st.integers(1, 9) for key in keys})
    weights = data.draw(st.none() | tables)
    gone = data.draw(st.sampled_from(keys))
    tenants = data.draw(st.lists(tenant_names, min_size=1, max_size=40))
    selector = consistent(weights)
    before = by_tenant(selector, keys, tenants)
    after = by_tenant(selector, [key for key in keys if key != gone], tenants)
    assert {t: key for t, key in after.items() if before[t] != gone} == {
        t: key for t, key in before.items() if key != gone
    }


@given(groups, st.integers(1, 9), st.integers(1, 50))
def test_a_weight_that_grows_only_draws_keys_to_its_candidate(
    keys: list[str], weight: int, more: int
) -> None:
    """No key moves between two candidates whose weights stayed the same."""
    tenants = [f"tenant-{number}" for number in range(200)]
    weights = dict.fromkeys(keys, weight)
    before = by_tenant(consistent(weights), keys, tenants)
    after = by_tenant(consistent({**weights, keys[0]: weight + more}), keys, tenants)
    assert {after[t] for t in tenants if after[t] != before[t]} <= {keys[0]}


@given(st.dictionaries(names, st.integers(1, 9), min_size=2, max_size=5))
@settings(max_examples=6)
@example({"a": 1, "b": 1})
@example({"a": 1, "b": 5})
def test_consistent_hash_honours_weights(weights: dict[str, int]) -> None:
    """Over 10,000 keys each candidate's share is that of its weight within 3 percentage points."""
    chosen = Counter(by_tenant(consistent(weights), weights, (f"tenant-{n}" for n in range(10_000))).values())
    total = sum(weights.values())
    assert all(abs(chosen[key] / 10_000 - weight / total) < 0.03 for key, weight in weights.items())


@given(groups, st.integers(1, 10**30))
def test_equal_weights_are_no_weights(keys: list[str], weight: int) -> None:
    """Writing the same weight to each candidate moves no key."""
    tenants = [f"tenant-{number}" for number in range(50)]
    weights = dict.fromkeys(keys, weight)
    assert by_tenant(consistent(weights), keys, tenants) == by_tenant(consistent(), keys, tenants)


PRINT_CHOICES = """
from coatcheck.model import SubmitOptions
from coatcheck.selector import SelectorContext, consistent_hash
from coatcheck.testing.selector_contract import StubCandidate

for weights in (None, {"a": 1, "b": 2, "c": 3}):
    selector = consistent_hash(lambda seen: seen.options.tenant, weights)
    chosen = (
        selector.select(
            SelectorContext(
                request=object(), options=SubmitOptions(tenant=f"t{n}"), candidates=map(StubCandidate, "abc")
            )
        ).key
        for n in range(40)
    )
    print("".join(chosen))
"""


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_consistent_hash_is_equal_in_every_process(seed: str) -> None:
    """Python's hash seed has no say, and no release may move keys: these choices are kept for ever."""
    run = subprocess.run(
        [sys.executable, "-c", PRINT_CHOICES],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout.split() == [
        "bbcaacacbcbbcabbabccbcbacababbbcbcbacccb",
        "cbcaacccbcbbcabbbbccbcbacababcbcccbccccb",
    ]


@given(st.dictionaries(names, st.integers(0, 5), min_size=1, max_size=6))
def test_least_active_takes_the_first_minimum_and_reads_each_count_once(counts: dict[str, int]) -> None:
    """Of the smallest counts the first by key wins, and no count is read again while it may be changing."""
    read: list[str] = []

    def count_of(key: str) -> int:
        read.append(key)
        return counts[key]

    chosen = selectors.least_active(count_of).select(context(counts)).key
    assert chosen == min(sorted(counts), key=counts.__getitem__)
    assert sorted(read) == sorted(counts)


@given(groups, st.lists(st.integers(0, 5), max_size=60))
def test_least_active_follows_a_live_mapping(keys: list[str], ends: list[int]) -> None:
    """With counts that rise at each choice and fall at each end, no choice is ever above another's count."""
    live = Counter(dict.fromkeys(keys, 0))
    selector = selectors.least_active(live)
    for end in ends:
        chosen = selector.select(context(keys)).key
        assert live[chosen] == min(live.values())
        live[chosen] += 1
        finished = keys[end % len(keys)]
        live[finished] = max(0, live[finished] - 1)
