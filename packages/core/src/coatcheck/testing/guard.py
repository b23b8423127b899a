"""The guard of the contract tests: an inherited rule cannot be weakened without anybody seeing it.

Here lives the base class of all contracts, and nothing about what any of them checks. It needs pytest only to
be run.
"""

import inspect
from typing import Any, ClassVar

_GUARD = "test_no_rule_is_overridden_or_deleted"


def _rules(namespace: dict[str, Any]) -> dict[str, object]:
    return {name: value for name, value in namespace.items() if name.startswith("test_") and callable(value)}


class Contract:
    """Base of the contracts that third parties subclass; every ``test_*`` method in a contract is a rule.

    A subclass may add tests and fill in fixtures. It may replace a rule only by one marked
    ``@pytest.mark.xfail(reason="…")``, without a condition, so that the report shows what the implementation
    does not keep.

    Raises:
        TypeError: a subclass replaces the guard itself.
    """

    #: The rules as each class declared them, kept apart so that one deleted later is missed.
    _declared: ClassVar[dict[str, object]] = {}

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls._declared = _rules(dict(vars(cls)))
        if inspect.getattr_static(cls, _GUARD) is not vars(Contract)[_GUARD]:
            raise TypeError(
                f"{cls.__qualname__} must keep {_GUARD}, found another; "
                "remove it, and mark the rules that cannot be kept with pytest.mark.xfail and a reason"
            )

    def test_no_rule_is_overridden_or_deleted(self) -> None:
        """A contract counts only when all of its rules run, or are seen to be missing."""
        weakened = weakened_rules(type(self))
        assert not weakened, (
            f"{type(self).__qualname__} must run every inherited rule, found these overridden or deleted: "
            f"{', '.join(weakened)}; "
            "remove the override, or mark it @pytest.mark.xfail(reason=...) without a condition"
        )


def weakened_rules(contract: type) -> list[str]:
    """Return the sorted names of the rules that ``contract`` inherits but does not run as declared."""
    weakened = set()
    for base in contract.__mro__[1:]:
        for name, declared in vars(base).get("_declared", {}).items():
            found = inspect.getattr_static(contract, name, None)
            if found is not declared and not _is_declared_xfail(found):
                weakened.add(name)
    return sorted(weakened)


def _is_declared_xfail(found: object) -> bool:
    """Whether pytest will run ``found`` and always report it as an expected failure, with a reason."""
    marks = getattr(found, "pytestmark", []) if inspect.isfunction(found) else []
    return any(
        mark.name == "xfail"
        # A condition that is false would let the override pass as an ordinary test.
        and not mark.args
        and "condition" not in mark.kwargs
        and str(mark.kwargs.get("reason") or "").strip()
        for mark in marks
    )
