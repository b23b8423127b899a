"""Selectors that break one rule each, and contracts that hide a broken rule: the kit must catch them all."""

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from coatcheck.selector import Candidate, Selector, SelectorContext, round_robin
from coatcheck.testing.guard import Contract
from coatcheck.testing.selector_contract import SelectorContract, StubCandidate

GUARD = "test_no_rule_is_overridden_or_deleted"


class Kept(SelectorContract):
    """The contract of a selector that promises equal shares."""

    cycle: ClassVar = dict.fromkeys(SelectorContract.keys, 1)


def broken_rules(new: Callable[[], Selector]) -> set[str]:
    """Return the names of the contract's rules that a new selector fails, each with a fresh one."""
    return {
        name
        for name, rule in rules(Kept)
        if "selector" in inspect.signature(rule).parameters and fails(rule, new)
    }


def rules(contract: type[Contract]) -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield the rules as pytest would find them."""
    return (
        (name, rule)
        for name, rule in inspect.getmembers(contract, inspect.isfunction)
        if name.startswith("test_")
    )


def fails(rule: Callable[..., None], new: Callable[[], Selector]) -> bool:
    """Return whether a rule goes red for a new selector."""
    try:
        rule(Kept(), new())
    except Exception:  # noqa: BLE001  # any exception turns a test red
        return True
    return False


class Honest:
    """A correct round robin, for the others to break."""

    def __init__(self) -> None:
        self.inner = round_robin()

    def select(self, context: SelectorContext) -> Candidate:
        """Return the next candidate."""
        return self.inner.select(context)


class Nothing(Honest):
    """Returns None when it feels unsure."""

    def select(self, context: SelectorContext) -> Any:
        """Return nothing as soon as there is a choice."""
        return context.candidates[0] if len(context.candidates) == 1 else None


class Foreign(Honest):
    """Returns a handler that nobody offered."""

    def select(self, context: SelectorContext) -> Candidate:
        """Return a stranger."""
        return StubCandidate("stranger")


class Twin(Honest):
    """Returns another object with a candidate's key."""

    def select(self, context: SelectorContext) -> Candidate:
        """Return a copy."""
        return StubCandidate(super().select(context).key)


class Remembering(Honest):
    """Keeps the handlers of its first choice and goes on returning them."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, Candidate] = {}

    def select(self, context: SelectorContext) -> Candidate:
        """Return the object that had this key first."""
        chosen = super().select(context)
        return self.known.setdefault(chosen.key, chosen)


class Raising(Honest):
    """Cannot cope with a single candidate."""

    def select(self, context: SelectorContext) -> Candidate:
        """Look at the second candidate, which may not be there."""
        _ = context.candidates[1]
        return super().select(context)


class Spoiling(Honest):
    """Marks the request that it has seen."""

    def select(self, context: SelectorContext) -> Candidate:
        """Write into the request."""
        context.request.tags.append("seen")  # type: ignore[attr-defined]  # the contract's request has tags
        return super().select(context)


class Labelling(Honest):
    """Leaves a note in the options."""

    def select(self, context: SelectorContext) -> Candidate:
        """Write into the metadata."""
        context.options.metadata["labels"].append("seen")
        return super().select(context)


class Renaming(Honest):
    """Counts choices in the handlers' keys."""

    def select(self, context: SelectorContext) -> Candidate:
        """Change the key of the chosen candidate."""
        chosen = super().select(context)
        chosen.key += "!"  # type: ignore[misc]  # a candidate's key is read-only by contract, not by force
        return chosen


class Narrowing(Honest):
    """Takes the chosen candidate out of the context, for the next choice."""

    def select(self, context: SelectorContext) -> Candidate:
        """Replace the candidates by force."""
        chosen = super().select(context)
        object.__setattr__(context, "candidates", (chosen,))
        return chosen


class Sticking(Honest):
    """Promises turns and always takes the first."""

    def select(self, context: SelectorContext) -> Candidate:
        """Return the first candidate."""
        return context.candidates[0]


class Racing(Honest):
    """Loses a race once in each thread: what a round robin without a lock may do, but certain."""

    def __init__(self) -> None:
        super().__init__()
        self.met = {threading.get_ident()}

    def select(self, context: SelectorContext) -> Candidate:
        """Return the next candidate; at the first choice of another thread the one that all of them get."""
        me = threading.get_ident()
        if me in self.met:
            return super().select(context)
        self.met.add(me)
        return context.candidates[0]


class Entered(Honest):
    """Refuses to be called by two threads at once."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = threading.get_ident()

    def select(self, context: SelectorContext) -> Candidate:
        """Fail in any thread but the first."""
        if threading.get_ident() != self.owner:
            raise RuntimeError("not from this thread")
        return super().select(context)


ANSWER = "test_the_answer_is_one_of_the_candidates"
SINGLE = "test_the_only_candidate_is_chosen"
THIS = "test_the_answer_belongs_to_this_choice"
NOTHING_CHANGED = "test_a_choice_changes_nothing_in_its_context"
AT_ONCE = "test_many_threads_choose_at_once"
CYCLE = "test_a_promised_cycle_is_exact"
CYCLE_AT_ONCE = "test_a_promised_cycle_is_exact_under_threads"
ALL = {ANSWER, SINGLE, THIS, NOTHING_CHANGED, AT_ONCE, CYCLE, CYCLE_AT_ONCE}

BROKEN: dict[type[Selector], set[str]] = {
    Nothing: ALL - {SINGLE},
    Foreign: ALL,
    Twin: ALL,
    Remembering: {ANSWER, THIS, NOTHING_CHANGED, AT_ONCE, CYCLE, CYCLE_AT_ONCE},
    Raising: {ANSWER, SINGLE},
    Spoiling: {NOTHING_CHANGED},
    Labelling: {NOTHING_CHANGED},
    Renaming: {NOTHING_CHANGED, SINGLE, CYCLE, CYCLE_AT_ONCE},
    Narrowing: {NOTHING_CHANGED},
    Sticking: {CYCLE, CYCLE_AT_ONCE},
    Racing: {CYCLE_AT_ONCE},
    Entered: {AT_ONCE, CYCLE_AT_ONCE},
}


def test_the_contract_accepts_a_correct_selector() -> None:
    """A contract that is always red would catch everything and prove nothing."""
    assert broken_rules(Honest) == set()


@pytest.mark.parametrize("selector", BROKEN)
def test_the_contract_catches_a_broken_selector(selector: type[Selector]) -> None:
    """Each broken selector fails the rules that it breaks, and no others."""
    assert broken_rules(selector) == BROKEN[selector]


def test_every_rule_of_the_contract_is_broken_by_somebody() -> None:
    """A rule that no broken selector tests may be checking nothing."""
    assert {name for name, _ in rules(SelectorContract)} == set[str]().union({GUARD}, *BROKEN.values())


class Overriding(SelectorContract):
    """Replaces a rule by one that always holds."""

    def test_the_only_candidate_is_chosen(self, selector: Selector) -> None:
        """Hold always."""


class Deleting(SelectorContract):
    """Deletes a rule."""

    test_the_only_candidate_is_chosen = None  # type: ignore[assignment]  # the cheat that the guard looks for


class Mixin:
    """Weakens a contract from the side."""

    def test_the_only_candidate_is_chosen(self, selector: Selector) -> None:
        """Hold always."""


class Mixed(Mixin, SelectorContract):
    """Takes a rule from a mixin."""


class InBetween(Overriding):
    """Inherits an override."""


class Unexplained(SelectorContract):
    """Expects a failure without saying why."""

    @pytest.mark.xfail(reason=" ")
    def test_the_only_candidate_is_chosen(self, selector: Selector) -> None:
        """Hold always."""


class Sometimes(SelectorContract):
    """Expects a failure on a condition that is never true."""

    @pytest.mark.xfail(False, reason="never")  # noqa: FBT003  # the cheat that the guard looks for
    def test_the_only_candidate_is_chosen(self, selector: Selector) -> None:
        """Hold always."""


class Skipping(SelectorContract):
    """Skips a rule."""

    @pytest.mark.skip(reason="slow")
    def test_the_only_candidate_is_chosen(self, selector: Selector) -> None:
        """Hold always."""


@pytest.mark.parametrize(
    "contract", [Overriding, Deleting, Mixed, InBetween, Unexplained, Sometimes, Skipping]
)
def test_the_guard_catches_a_weakened_contract(contract: type[Contract]) -> None:
    """However a rule is taken away, the guard names it."""
    with pytest.raises(AssertionError, match=SINGLE):
        contract().test_no_rule_is_overridden_or_deleted()


def test_the_guard_misses_a_rule_that_was_deleted_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleting a rule from the contract itself, in a conftest for instance, is seen too."""
    monkeypatch.delattr(SelectorContract, SINGLE)
    with pytest.raises(AssertionError, match=SINGLE):
        Kept().test_no_rule_is_overridden_or_deleted()


def test_the_guard_itself_cannot_be_replaced() -> None:
    """Without this the first thing to override would be the guard."""
    with pytest.raises(TypeError, match="must keep test_no_rule_is_overridden_or_deleted"):
        type("Cheat", (SelectorContract,), {GUARD: print})


class Explained(SelectorContract):
    """Says openly which rule it does not keep, and adds a test of its own."""

    @pytest.mark.xfail(reason="the vendor's balancer needs two candidates")
    def test_the_only_candidate_is_chosen(self, selector: Selector) -> None:
        """Run the rule, expecting it to fail."""
        super().test_the_only_candidate_is_chosen(selector)

    def test_something_of_its_own(self) -> None:
        """Hold always."""


def test_the_guard_allows_what_the_report_shows() -> None:
    """An expected failure with a reason is not quiet, and further tests are welcome."""
    Explained().test_no_rule_is_overridden_or_deleted()
    Kept().test_no_rule_is_overridden_or_deleted()
