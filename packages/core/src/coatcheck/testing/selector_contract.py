"""The contract that every selector keeps, as pytest rules.

Subclass ``SelectorContract`` and give one fixture, ``selector``. Here are only rules that hold for any
selector; what a particular one promises beyond them (shares that are not exact, which candidate is best)
belongs into its own tests.
"""

import itertools
import operator
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ClassVar

import pytest
from attrs import define, field

from coatcheck.model import SubmitOptions
from coatcheck.selector import Candidate, Selector, SelectorContext
from coatcheck.testing.guard import Contract

_THREADS = 8
_CHOICES = 60


@define
class StubCandidate:
    """A candidate that has a key and nothing else."""

    key: str


@define
class StubRequest:
    """A request with something in it that a selector could spoil."""

    number: int
    tags: list[str] = field(factory=lambda: ["contract"])


class SelectorContract(Contract):
    """Rules for a selector; the subclass gives a fixture ``selector`` that returns a fresh one for each test.

    Override ``keys``, ``new_candidate`` and ``new_request`` when the selector knows only certain handlers or
    requests.
    """

    #: Keys of the candidates: at least three.
    keys: ClassVar[tuple[str, ...]] = ("contract:a", "contract:b", "contract:c")
    #: For a selector that promises exact shares: how often each of ``keys`` is chosen in one cycle. ``None``:
    #: it promises none.
    cycle: ClassVar[Mapping[str, int] | None] = None

    @pytest.fixture
    def selector(self) -> Selector:
        """Return the selector under test."""
        raise NotImplementedError("give the contract a fixture named selector that returns your selector")

    def new_candidate(self, key: str) -> Candidate:
        """Return a new candidate with this key."""
        return StubCandidate(key)

    def new_request(self, number: int) -> object:
        """Return a new request; equal numbers give equal requests."""
        return StubRequest(number)

    def new_context(self, number: int = 0, keys: tuple[str, ...] | None = None) -> SelectorContext:
        """Return a new context with new candidates."""
        return SelectorContext(
            request=self.new_request(number),
            options=SubmitOptions(tenant=f"tenant-{number}", metadata={"labels": [number]}),
            candidates=tuple(self.new_candidate(key) for key in (self.keys if keys is None else keys)),
        )

    def test_the_answer_is_one_of_the_candidates(self, selector: Selector) -> None:
        """Whatever the set of candidates, in any order of sets, the answer is one of this set."""
        sets = [s for size in range(1, len(self.keys) + 1) for s in itertools.combinations(self.keys, size)]
        for number in range(_CHOICES):
            for keys in sets:
                _ask(selector, self.new_context(number, keys))

    def test_the_only_candidate_is_chosen(self, selector: Selector) -> None:
        """With one candidate there is nothing to choose, and no error either."""
        for number, key in enumerate(self.keys):
            assert _ask(selector, self.new_context(number, (key,))) == key

    def test_the_answer_belongs_to_this_choice(self, selector: Selector) -> None:
        """A handler registered anew is another object: no candidate of an earlier choice comes back."""
        earlier = [self.new_context(number) for number in range(_CHOICES)]
        for context in earlier:
            _ask(selector, context)
        for number in range(_CHOICES):
            _ask(selector, self.new_context(number))

    def test_a_choice_changes_nothing_in_its_context(self, selector: Selector) -> None:
        """Choosing is reading: the request, the options and the candidates are as they were."""
        for number in range(_CHOICES):
            context = self.new_context(number)
            parts, keys = (context.request, context.options, context.candidates), context.keys
            before = repr(parts[:2])
            _ask(selector, context)
            after = (context.request, context.options, context.candidates)
            assert all(map(operator.is_, after, parts)), "a part of the context was replaced"
            assert repr(after[:2]) == before, "the request or the options were changed"
            assert context.keys == keys, "the key of a candidate was changed"

    def test_many_threads_choose_at_once(self, selector: Selector) -> None:
        """Submissions come from many threads: none of them sees an error or a foreign answer."""
        chosen = self._choose_in_threads(selector, _CHOICES)
        assert sum(chosen.values()) == _THREADS * _CHOICES

    def test_a_promised_cycle_is_exact(self, selector: Selector) -> None:
        """Exact shares are exact in each cycle, not only on average."""
        cycle = self._promised_cycle()
        for number in range(3):
            chosen = Counter(_ask(selector, self.new_context(number)) for _ in range(cycle.total()))
            assert chosen == cycle, f"expected {dict(cycle)} in cycle {number + 1}, found {dict(chosen)}"

    def test_a_promised_cycle_is_exact_under_threads(self, selector: Selector) -> None:
        """No turn is lost or given twice when threads choose at once."""
        cycle = self._promised_cycle()
        rounds = max(1, _CHOICES // cycle.total())
        chosen = self._choose_in_threads(selector, rounds * cycle.total())
        expected = Counter({key: share * rounds * _THREADS for key, share in cycle.items()})
        assert chosen == expected, f"expected {dict(expected)}, found {dict(chosen)}"

    def _promised_cycle(self) -> Counter[str]:
        if self.cycle is None:
            pytest.skip("this selector promises no exact shares (cycle = None)")
        return Counter(self.cycle)

    def _choose_in_threads(self, selector: Selector, choices: int) -> Counter[str]:
        """Let each thread make ``choices`` choices, all starting together, and count the keys."""
        start = threading.Barrier(_THREADS)

        def work(_: int) -> list[str]:
            start.wait(timeout=30)
            return [_ask(selector, self.new_context(number)) for number in range(choices)]

        with _quick_switches(), ThreadPoolExecutor(_THREADS) as pool:
            return Counter(itertools.chain.from_iterable(pool.map(work, range(_THREADS))))


def _ask(selector: Selector, context: SelectorContext) -> str:
    """Return the key that the selector itself gives, after the check that the manager makes of it."""
    answer = selector.select(context)
    assert any(answer is candidate for candidate in context.candidates), (
        f"select must return an element of context.candidates ({', '.join(context.keys)}), found {answer!r}"
    )
    return answer.key


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Let the interpreter switch threads as often as it can, so that races show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
