"""The selectors one by one: the contract, what each refuses, and the door that the manager calls."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, ClassVar

import pytest

from coatcheck import selector as selectors
from coatcheck.errors import AmbiguousHandlerError, NoHandlerError, SelectorError
from coatcheck.model import SubmitOptions
from coatcheck.selector import Candidate, Selector, SelectorContext, choose
from coatcheck.testing.selector_contract import SelectorContract, StubCandidate, StubRequest

KEYS = SelectorContract.keys


def context(*keys: str, **options: Any) -> SelectorContext:
    """Return a context with these candidates."""
    return SelectorContext(
        request=StubRequest(1), options=SubmitOptions(**options), candidates=tuple(map(StubCandidate, keys))
    )


def tenant(seen: SelectorContext) -> str:
    """Return the key that the consistent hash of these tests goes by."""
    return seen.options.tenant


def sequence(selector: Selector, *keys: str, choices: int) -> str:
    """Return the last letters of the chosen keys."""
    return "".join(selector.select(context(*keys)).key[-1] for _ in range(choices))


class TestRoundRobin(SelectorContract):
    """The contract, with equal shares in each cycle."""

    cycle: ClassVar = dict.fromkeys(KEYS, 1)

    @pytest.fixture
    def selector(self) -> Selector:
        """Return a round robin."""
        return selectors.round_robin()


class TestWeighted(SelectorContract):
    """The contract, with shares by weight in each cycle."""

    cycle: ClassVar = dict(zip(KEYS, (5, 1, 2), strict=True))

    @pytest.fixture
    def selector(self) -> Selector:
        """Return a selector whose table also names another group."""
        return selectors.weighted({**self.cycle, "elsewhere": 7})


class TestRandom(SelectorContract):
    """The contract, with draws of the operating system."""

    @pytest.fixture
    def selector(self) -> Selector:
        """Return a random selector."""
        return selectors.random()


class TestConsistentHash(SelectorContract):
    """The contract, with one key per tenant."""

    @pytest.fixture
    def selector(self) -> Selector:
        """Return a consistent hash without weights."""
        return selectors.consistent_hash(tenant)


class TestLeastActive(SelectorContract):
    """The contract, with counts of a live mapping."""

    @pytest.fixture
    def selector(self) -> Selector:
        """Return a selector by active tasks, of which there are none."""
        return selectors.least_active(Counter())


FIVE: dict[str, Callable[[], Selector]] = {
    "round_robin": selectors.round_robin,
    "random": lambda: selectors.random(Random(60)),
    "weighted": lambda: selectors.weighted(dict.fromkeys("ab", 1)),
    "consistent_hash": lambda: selectors.consistent_hash(tenant),
    "least_active": lambda: selectors.least_active(Counter()),
}
every_selector = pytest.mark.parametrize("new", FIVE.values(), ids=FIVE.keys())


def test_a_context_sorts_its_candidates_and_freezes_them() -> None:
    """Every process sees the same candidates in the same order, whatever order they were registered in."""
    given = [StubCandidate("b"), StubCandidate("a")]
    made = SelectorContext(request=StubRequest(1), candidates=given)
    given.clear()
    assert made.keys == ("a", "b")
    assert isinstance(made.candidates, tuple)


def test_a_context_refuses_two_candidates_with_one_key() -> None:
    """A key names one handler, or a choice could not be stored."""
    with pytest.raises(SelectorError, match=r"found 'a' twice"):
        context("a", "b", "a")


def test_without_a_candidate_there_is_no_context() -> None:
    """No selector ever has to answer for an empty set (F60): the request is refused before."""
    with pytest.raises(NoHandlerError, match=r"StubRequest, found none") as caught:
        context()
    assert caught.value.request_type.endswith("StubRequest")


def test_the_options_of_a_context_are_a_snapshot() -> None:
    """A selector that writes into the options, however deep, does not reach the task's."""
    options = SubmitOptions(metadata={"labels": ["x"]})
    seen = SelectorContext(request=StubRequest(1), options=options, candidates=(StubCandidate("a"),))
    seen.options.metadata["labels"].append("y")
    object.__setattr__(seen.options, "tenant", "other")
    assert options == SubmitOptions(metadata={"labels": ["x"]})


def test_several_candidates_without_a_selector_are_ambiguous() -> None:
    """Nothing is chosen by accident: the caller learns which keys there are."""
    with pytest.raises(AmbiguousHandlerError, match=r"found 2: a, b; pass handler_key") as caught:
        choose(None, context("b", "a"))
    assert caught.value.keys == ("a", "b")


class Scripted:
    """A selector that answers what the test says."""

    def __init__(self, answer: Callable[[SelectorContext], Any]) -> None:
        self.answer = answer

    def select(self, context: SelectorContext) -> Candidate:
        """Return the scripted answer."""
        answer: Candidate = self.answer(context)
        return answer


def test_a_single_candidate_is_chosen_without_asking() -> None:
    """A broken or missing selector does not matter where there is nothing to choose."""
    only = context("a")
    assert choose(None, only) is only.candidates[0]
    assert choose(Scripted(lambda _: 1 / 0), only) is only.candidates[0]


def test_choose_returns_what_the_selector_chose() -> None:
    """The answer is the candidate itself, so that the manager can use it as the handler."""
    seen = context("a", "b")
    assert choose(Scripted(lambda seen: seen.candidates[1]), seen) is seen.candidates[1]


@pytest.mark.parametrize(
    "answer", [None, "a", StubCandidate("z"), StubCandidate("a")], ids=["none", "key", "foreign", "twin"]
)
def test_choose_refuses_what_is_not_a_candidate(answer: object) -> None:
    """Nothing, a key, a foreign handler and a twin of a candidate are refused."""
    with pytest.raises(SelectorError, match=r"one of its candidates \(a, b\), found"):
        choose(Scripted(lambda _: answer), context("a", "b"))


def test_choose_says_which_selector_failed() -> None:
    """The error of a third party's selector names it and keeps the cause."""
    with pytest.raises(
        SelectorError, match=r"Scripted.* failed to choose among a, b: ZeroDivisionError"
    ) as caught:
        choose(Scripted(lambda _: 1 / 0), context("a", "b"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_choose_passes_errors_of_coatcheck_on() -> None:
    """An error that already says what to do is not wrapped into another."""
    with pytest.raises(SelectorError, match=r"^every candidate needs a weight"):
        choose(selectors.weighted({"a": 1}), context("a", "b"))


@every_selector
def test_eight_threads_draw_fair_shares_without_an_error(new: Callable[[], Selector]) -> None:
    """F60: two equal candidates, 8 threads, 10,000 draws each: no error, and shares within 3 percent."""
    selector, live = new(), Counter[str]()
    seen = [context("a", "b", tenant=f"t{number}") for number in range(10_000)]
    if selector_counts := isinstance(selector, selectors._LeastActive):
        selector = selectors.least_active(live)

    def work(_: int) -> Counter[str]:
        chosen: Counter[str] = Counter()
        for one in seen:
            key = choose(selector, one).key
            chosen[key] += 1
            if selector_counts:
                live[key] += 1
        return chosen

    with ThreadPoolExecutor(8) as pool:
        chosen = sum(pool.map(work, range(8)), Counter[str]())
    assert chosen.total() == 80_000
    assert abs(chosen["a"] / 80_000 - 0.5) < 0.03


def test_round_robin_keeps_a_sequence_per_candidate_set() -> None:
    """Requests of one type do not take the turns of another."""
    selector = selectors.round_robin()
    assert sequence(selector, "a", "b", "c", choices=2) == "ab"
    assert sequence(selector, "a", "b", choices=3) == "aba"
    assert sequence(selector, "c", "b", "a", choices=2) == "ca"


def test_weighted_keeps_a_cycle_per_candidate_set() -> None:
    """Another set neither advances nor resets a cycle."""
    selector = selectors.weighted({"a": 2, "b": 1, "c": 4})
    assert sequence(selector, "a", "b", choices=1) == "a"
    assert sequence(selector, "b", "c", choices=3) == "ccb"
    assert sequence(selector, "a", "b", choices=2) == "ba"
    assert sequence(selector, "b", "c", choices=2) == "cc"


def test_weighted_interleaves() -> None:
    """The heavy candidate does not get its turns in one block; all weights 1 rotate (F60)."""
    assert sequence(selectors.weighted({"a": 5, "b": 1, "c": 1}), "a", "b", "c", choices=14) == "aabacaa" * 2
    assert sequence(selectors.weighted({"a": 1, "b": 1}), "a", "b", choices=4) == "abab"


def test_weighted_copies_its_table() -> None:
    """A table that changes later does not break a running cycle."""
    table = {"a": 1, "b": 1}
    selector = selectors.weighted(table)
    table.clear()
    assert sequence(selector, "a", "b", choices=2) == "ab"


@pytest.mark.parametrize("weight", [0, -1, True, 1.0, 1e12, "5", None], ids=repr)
@pytest.mark.parametrize("new", [selectors.weighted, lambda table: selectors.consistent_hash(tenant, table)])
def test_a_weight_that_is_not_a_positive_whole_number_is_refused_at_once(
    new: Callable[[dict[str, Any]], Selector], weight: object
) -> None:
    """Zero means neither "last resort" nor "never" (F60, F52): the error says how to get either."""
    with pytest.raises(
        SelectorError, match=r"weight of 'b' must be a whole number from 1, found .*pause its provider"
    ):
        new({"a": 5, "b": weight})


@pytest.mark.parametrize("table", [{}, None, [("a", 1)], 3], ids=repr)
def test_a_table_of_weights_that_is_none_is_refused(table: Any) -> None:
    """An empty table is a slip, not a rule."""
    with pytest.raises(SelectorError, match=r"weights must be a mapping"):
        selectors.weighted(table)


@pytest.mark.parametrize("key", ["", "  ", 7, None], ids=repr)
def test_weights_are_named_by_handler_keys(key: Any) -> None:
    """A weight for no handler is a slip."""
    with pytest.raises(SelectorError, match="must be named by handler keys"):
        selectors.weighted({key: 1})


@pytest.mark.parametrize("new", [selectors.weighted, lambda table: selectors.consistent_hash(tenant, table)])
def test_a_candidate_without_weight_is_an_error(new: Callable[[dict[str, int]], Selector]) -> None:
    """A new handler gets its share by a decision, not by silence, and a misspelt key shows."""
    with pytest.raises(SelectorError, match=r"none for ocr:acme .*did you mean 'ocr:acmee'"):
        new({"ocr:acmee": 2, "z": 1}).select(context("ocr:acme", "z", tenant="t"))


def test_sequences_are_bounded_in_memory() -> None:
    """Endless new candidate sets do not grow a process; the set used least recently starts over."""
    selector = selectors.round_robin()
    assert isinstance(selector, selectors._Turns)
    assert sequence(selector, "a", "b", choices=1) == "a"
    for number in range(selectors.REMEMBERED_SETS - 1):
        selector.select(context("a", f"x{number}"))
    assert sequence(selector, "a", "b", choices=1) == "b"
    for number in range(selectors.REMEMBERED_SETS):
        selector.select(context("a", f"y{number}"))
    assert len(selector._sets) == selectors.REMEMBERED_SETS
    assert sequence(selector, "a", "b", choices=1) == "a"


def test_random_takes_only_a_source_of_draws() -> None:
    """A seed in place of a source is refused at construction, with the fix."""
    with pytest.raises(SelectorError, match=r"found 7; pass random.Random\(seed\)"):
        selectors.random(7)  # type: ignore[arg-type]  # the slip that the test is about


@pytest.mark.parametrize("key", ["", " \t", None, 5], ids=repr)
def test_consistent_hash_refuses_blank_keys(key: Any) -> None:
    """A missing key would send everything to one handler."""
    with pytest.raises(SelectorError, match=r"text that is not blank, found"):
        selectors.consistent_hash(lambda _: key).select(context("a", "b"))


def test_consistent_hash_wants_a_function() -> None:
    """A field name in place of a function is refused at construction."""
    with pytest.raises(SelectorError, match=r"key_of must be a function of the context, found 'tenant'"):
        selectors.consistent_hash("tenant")  # type: ignore[arg-type]  # the slip that the test is about


def test_consistent_hash_takes_any_text_and_any_weight() -> None:
    """Lone surrogates and weights beyond a float's range are unusual, not errors."""

    def key_of(seen: SelectorContext) -> str:
        return str(seen.options.metadata["url"])

    selector = selectors.consistent_hash(key_of, {"a": 1, "b": 10**400})
    found = [context("a", "b", metadata={"url": f"\ud800{number}"}) for number in range(50)]
    chosen = {selector.select(seen).key for seen in found}
    assert chosen == {"b"}


@pytest.mark.parametrize("count", [-1, 1.0, True, "1", None], ids=repr)
def test_least_active_refuses_what_is_not_a_count(count: Any) -> None:
    """A negative count means that the counting is broken: it must not draw all traffic."""
    with pytest.raises(SelectorError, match=r"count of 'b' must be a whole number from 0"):
        selectors.least_active({"a": 1, "b": count}).select(context("a", "b"))


def test_least_active_misses_a_count() -> None:
    """A candidate that nobody counts is not taken for idle."""
    with pytest.raises(SelectorError, match=r"none for 'b'; add it, or use a collections.Counter"):
        selectors.least_active({"a": 1}).select(context("a", "b"))


def test_least_active_wants_a_source_of_counts() -> None:
    """A plain value in place of a source is refused at construction."""
    with pytest.raises(SelectorError, match=r"counts must be a function or a mapping"):
        selectors.least_active(3)  # type: ignore[arg-type]  # the slip that the test is about


FORK = """
import os, signal, sys, threading
from coatcheck.selector import SelectorContext, round_robin
from coatcheck.testing.selector_contract import StubCandidate

sys.setswitchinterval(1e-6)
selector = round_robin()
seen = SelectorContext(request=object(), candidates=(StubCandidate("a"), StubCandidate("b")))
stop = False

def work():
    while not stop:
        selector.select(seen)

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(100):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs must not outlive the test
        selector.select(seen)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop = True
for thread in threads:
    thread.join()
print("done")
"""


def test_a_forked_process_can_choose() -> None:
    """A fork while a thread is choosing leaves a child that does not wait for that thread (F70)."""
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "done\n"
