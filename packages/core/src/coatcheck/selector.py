"""Selectors: how one handler is chosen when several accept the same type of request.

Here live the context that a selector sees, the five built-in selectors and ``choose``, the one door to all of
them. A selector knows nothing of stores, limits or pauses: a paused provider stays a candidate and its tasks
wait. The choice is stored with the task, so nothing here runs again for it.
"""

import hashlib
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from random import Random, SystemRandom
from typing import Any, Protocol

import attrs
from attrs import field, frozen

from coatcheck.errors import AmbiguousHandlerError, CoatcheckError, NoHandlerError, SelectorError, closest
from coatcheck.model import SubmitOptions

#: How many candidate sets ``round_robin`` and ``weighted`` remember; beyond it the set that was used least
#: recently starts over.
REMEMBERED_SETS = 1024

# One lock for the sequences of all selectors. A fork waits for it, so that a child never inherits it locked
# by a thread that it does not have: without this, submitting from a forked web process could hang for good.
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Candidate(Protocol):
    """What a selector may rely on in a candidate; handlers have it."""

    @property
    def key(self) -> str:
        """The handler's stable, unique key."""
        ...


def _candidates(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates as a tuple sorted by key; two with one key are refused."""
    ordered = tuple(sorted(candidates, key=lambda candidate: candidate.key))
    for left, right in pairwise(ordered):
        if left.key == right.key:
            raise SelectorError(
                f"candidates must have unique keys, found {left.key!r} twice; register each handler once"
            )
    return ordered


def _snapshot(options: SubmitOptions) -> SubmitOptions:
    """Return a copy that shares nothing that can be changed: making options copies their metadata deeply."""
    return attrs.evolve(options)


@frozen(kw_only=True)
class SelectorContext:
    """What a selector sees of one submission.

    Raises:
        NoHandlerError: there is no candidate.
        SelectorError: two candidates have the same key.
    """

    #: The request itself; a selector must leave it as it is.
    request: object
    #: A snapshot: changing it, or anything inside it, changes nothing.
    options: SubmitOptions = field(factory=SubmitOptions, converter=_snapshot)
    #: At least one handler that accepts exactly this type of request; unique and sorted by key.
    candidates: tuple[Candidate, ...] = field(converter=_candidates)

    def __attrs_post_init__(self) -> None:
        if not self.candidates:
            raise NoHandlerError(
                f"expected a handler for {self.request_type}, found none; "
                "install or register one that takes this type",
                self.request_type,
            )

    @property
    def keys(self) -> tuple[str, ...]:
        """The candidates' keys, sorted."""
        return tuple(candidate.key for candidate in self.candidates)

    @property
    def request_type(self) -> str:
        """The request's type as people write it, for messages."""
        kind = type(self.request)
        return f"{kind.__module__}.{kind.__qualname__}"


class Selector(Protocol):
    """Chooses one of several handlers; called by many threads at once."""

    def select(self, context: SelectorContext) -> Candidate:
        """Return one of ``context.candidates``, the object itself, and change nothing in the context."""
        ...


def choose(selector: Selector | None, context: SelectorContext) -> Candidate:
    """Return the candidate that is to take the request.

    A single candidate is returned without asking the selector. Otherwise the selector is asked once, which
    may use up a turn of its sequence; so this is not to be repeated for the same submission.

    Raises:
        AmbiguousHandlerError: there are several candidates and no selector.
        SelectorError: the selector failed, or returned something that is not a candidate.
    """
    if len(context.candidates) == 1:
        return context.candidates[0]
    listed = ", ".join(context.keys)
    if selector is None:
        raise AmbiguousHandlerError(
            f"expected one handler for {context.request_type}, found {len(context.keys)}: {listed}; "
            "pass handler_key=… with one of them, or give the manager a selector",
            context.request_type,
            context.keys,
        )
    try:
        chosen = selector.select(context)
    except CoatcheckError:
        raise
    except Exception as error:
        raise SelectorError(
            f"{selector!r} failed to choose among {listed}: {type(error).__name__}: {error}; "
            "repair it, or pass handler_key=…"
        ) from error
    # By identity: a handler that only shares its key with a candidate is another handler.
    if not any(chosen is candidate for candidate in context.candidates):
        raise SelectorError(
            f"{selector!r} must return one of its candidates ({listed}), found {chosen!r}; "
            "return an element of context.candidates"
        )
    return chosen


def _table(weights: Mapping[str, int]) -> dict[str, int]:
    """Return a private copy of a table of weights, or refuse it."""
    if not isinstance(weights, Mapping) or not weights:
        raise SelectorError(
            f"weights must be a mapping of handler keys to whole numbers, found {weights!r}; "
            "give at least one, like {'acme:ocr': 3}"
        )
    for key, weight in weights.items():
        if not isinstance(key, str) or not key.strip():
            raise SelectorError(
                f"weights must be named by handler keys, found {key!r}; use the key of a handler"
            )
        if type(weight) is not int or weight < 1:
            raise SelectorError(
                f"the weight of {key!r} must be a whole number from 1, found {weight!r}; "
                "to keep a handler from being chosen, unregister it; "
                "to hold its tasks back, pause its provider"
            )
    return dict(weights)


def _weights_of(keys: tuple[str, ...], table: dict[str, int] | None) -> list[int]:
    """Return the candidates' weights, 1 for each when there is no table."""
    if table is None:
        return [1] * len(keys)
    missing = [key for key in keys if key not in table]
    if missing:
        raise SelectorError(
            f"every candidate needs a weight, found none for {', '.join(missing)} "
            f"(weights: {', '.join(sorted(table))}{closest(missing[0], table)}); add it to the weights"
        )
    return [table[key] for key in keys]


@frozen(eq=False)
class _Turns:
    _table: dict[str, int] | None
    _sets: OrderedDict[tuple[str, ...], list[int]] = field(factory=OrderedDict, init=False, repr=False)

    def select(self, context: SelectorContext) -> Candidate:
        keys = context.keys
        weights = _weights_of(keys, self._table)
        with _lock:
            credit = self._sets.setdefault(keys, [0] * len(keys))
            self._sets.move_to_end(keys)
            if len(self._sets) > REMEMBERED_SETS:
                self._sets.popitem(last=False)
            # Everybody earns its weight and the richest pays for the turn. After each cycle all credits are
            # zero again, which makes the shares exact; that the richest goes next spreads them.
            for index, weight in enumerate(weights):
                credit[index] += weight
            richest = credit.index(max(credit))
            credit[richest] -= sum(weights)
        return context.candidates[richest]


def round_robin() -> Selector:
    """Return a selector that lets the candidates take turns in the order of their keys.

    Each candidate set has a sequence of its own, in this process; ``REMEMBERED_SETS`` of them are kept.
    """
    return _Turns(None)


def weighted(weights: Mapping[str, int]) -> Selector:
    """Return a selector that shares the choices out by weight, exactly and smoothly.

    A cycle has as many choices as the candidates' weights add up to, and each candidate gets exactly its
    weight of them. Inside a cycle nobody is ever a whole turn ahead of its share and, with up to ten
    candidates, nobody two turns behind: 5, 1, 1 gives *a a b a c a a*. Each candidate set has a cycle of its
    own, in this process; ``REMEMBERED_SETS`` of them are kept.

    Args:
        weights: Handler key to a whole number from 1. It is copied, and may name handlers that are no
            candidates now.

    Raises:
        SelectorError: the table is empty or a weight is not a positive whole number; at a choice, a candidate
            has no weight.
    """
    return _Turns(_table(weights))


@frozen(eq=False)
class _Random:
    _rng: Random = field(repr=False)

    def select(self, context: SelectorContext) -> Candidate:
        return context.candidates[self._rng.randrange(len(context.candidates))]


def random(rng: Random | None = None) -> Selector:
    """Return a selector that gives every candidate the same chance at each choice.

    Args:
        rng: Where the draws come from, for instance ``random.Random(7)`` for draws that repeat; it must be
            safe to share between threads, as that class is. By default the operating system's source, which
            forked processes do not share.

    Raises:
        SelectorError: ``rng`` is not a ``random.Random``.
    """
    if not isinstance(rng, Random | None):
        raise SelectorError(f"rng must be a random.Random or None, found {rng!r}; pass random.Random(seed)")
    return _Random(SystemRandom() if rng is None else rng)


@frozen(eq=False)
class _ConsistentHash:
    _key_of: Callable[[SelectorContext], str]
    _table: dict[str, int] | None

    def select(self, context: SelectorContext) -> Candidate:
        key = self._key_of(context)
        if not isinstance(key, str) or not key.strip():
            raise SelectorError(
                f"key_of must return a text that is not blank, found {key!r} for a {context.request_type}; "
                "take it from a field that is always set, or pass handler_key=… for this request"
            )
        keys = context.keys
        weights = _weights_of(keys, self._table)
        scores = [_score(key, name, weight) for name, weight in zip(keys, weights, strict=True)]
        return context.candidates[scores.index(max(scores))]


def _score(key: str, candidate: str, weight: int) -> tuple[float, int]:
    """Return the weighted rendezvous score of a candidate for a key: it depends on these three alone.

    With u uniform in (0, 1), the largest ``weight / -log(u)`` belongs to a candidate with a chance in
    proportion to its weight. Its logarithm is compared instead, so that no weight is too large for a float;
    the hash itself decides between equal scores.
    """
    # The length in front keeps ("ab", "c") and ("a", "bc") apart.
    text = f"{len(key)}:{key}{candidate}".encode(errors="surrogatepass")
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    # 52 bits and a half: with more, a float would round the largest values up to 1, whose logarithm is zero.
    uniform = ((number >> 12) + 0.5) / 2**52
    return math.log(weight) - math.log(-math.log(uniform)), number


def consistent_hash(
    key_of: Callable[[SelectorContext], str], weights: Mapping[str, int] | None = None
) -> Selector:
    """Return a selector that sends equal keys to the same handler, in every process and after every restart.

    It is rendezvous hashing: a candidate that goes away moves only the keys that it had, a new one takes only
    its share, and a weight that grows only draws keys to its candidate. It keeps no state.

    Args:
        key_of: Reads the key from the context, for instance ``lambda context: context.options.tenant``; never
            a blank text.
        weights: Handler key to a whole number from 1, as in ``weighted``; ``None`` gives all the same share.

    Raises:
        SelectorError: ``key_of`` cannot be called or ``weights`` are wrong; at a choice, the key is blank or
            not a text, or a candidate has no weight.
    """
    if not callable(key_of):
        raise SelectorError(
            f"key_of must be a function of the context, found {key_of!r}; pass for instance "
            "lambda context: context.options.tenant"
        )
    return _ConsistentHash(key_of, None if weights is None else _table(weights))


@frozen(eq=False)
class _LeastActive:
    _count_of: Callable[[str], Any]

    def select(self, context: SelectorContext) -> Candidate:
        counts = [self._count(key) for key in context.keys]
        return context.candidates[counts.index(min(counts))]

    def _count(self, key: str) -> int:
        try:
            count = self._count_of(key)
        except KeyError as error:
            raise SelectorError(
                f"every candidate needs a count, found none for {key!r}; add it, or use a collections.Counter"
            ) from error
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise SelectorError(
                f"the count of {key!r} must be a whole number from 0, found {count!r}; "
                "repair the source of counts"
            )
        return count


def least_active(counts: Callable[[str], int] | Mapping[str, int]) -> Selector:
    """Return a selector that chooses the candidate with the smallest count; of equal ones, the first by key.

    Args:
        counts: A function from handler key to a whole number from 0, or a live mapping. Each candidate's
            count is read exactly once per choice; the function is called by many threads at once.

    Raises:
        SelectorError: ``counts`` is neither; at a choice, a count is missing, negative or not a whole number.
    """
    if isinstance(counts, Mapping):
        return _LeastActive(counts.__getitem__)
    if not callable(counts):
        raise SelectorError(
            f"counts must be a function or a mapping of handler keys to whole numbers, found {counts!r}; "
            "pass for instance a collections.Counter"
        )
    return _LeastActive(counts)
