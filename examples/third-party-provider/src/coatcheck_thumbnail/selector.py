"""A selector of our own: where several handlers accept a request, the one that is preferred gets it."""

from collections.abc import Iterable

from attrs import field, frozen

from coatcheck import SelectorError
from coatcheck.selector import Candidate, SelectorContext


def _keys(keys: Iterable[str]) -> tuple[str, ...]:
    if isinstance(keys, str):
        raise SelectorError(f"keys must be a list of handler keys, found {keys!r}; write [{keys!r}]")
    return tuple(keys)


@frozen
class Prefer:
    """Chooses the first of ``keys`` that is a candidate; where none is, the first candidate by key."""

    keys: tuple[str, ...] = field(converter=_keys)

    def select(self, context: SelectorContext) -> Candidate:
        """Return the preferred candidate."""
        candidates = {candidate.key: candidate for candidate in context.candidates}
        return next((candidates[key] for key in self.keys if key in candidates), context.candidates[0])
