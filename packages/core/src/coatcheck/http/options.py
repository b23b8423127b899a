"""``VendorOptions``: a vendor's own options as a typed, strict class, and the fields of such classes.

What a request carries is a plain mapping, so that it can be stored; the class of its vendor checks it before
that and names the closest option. Nothing here knows a vendor.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import attrs
from attrs import field, frozen

from coatcheck.errors import UnknownNameError, ValidationError

_WIRE = "wire"


def _copied(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValidationError(f"extra must be a mapping of the vendor's own fields, found {value!r}", "extra")
    return dict(value)


@frozen(kw_only=True, eq=False)
class VendorOptions(Mapping[str, Any]):
    """Base of the options of one vendor; all are optional and left out of the call unless they are given.

    It is a mapping of those that are given: ``Request(…, options=GiteeOptions(is_ocr=True))`` is the same as
    ``options={"is_ocr": True}``. Subclasses are frozen, too, and made of ``switch``, ``whole``, ``number``,
    ``text``, ``choice`` and ``words``.

    Raises:
        ValidationError: a value is not allowed.
    """

    #: Fields for the vendor that this version does not know, sent as they are; the handler's own win.
    extra: Mapping[str, Any] = field(factory=dict, converter=_copied)

    @classmethod
    def of(cls, options: Mapping[str, Any], handler_key: str) -> Self:
        """Read the options of a request.

        Raises:
            UnknownNameError: no option has that name.
            ValidationError: a value is not allowed.
        """
        known = [attribute.name for attribute in attrs.fields(cls)]
        for name in options:
            if name not in known:
                hint = "What is newer than this version goes into extra={…}."
                raise UnknownNameError.of(f"option of {handler_key}", name, known, hint)
        return cls(**options)

    def wire(self) -> dict[str, Any]:
        """Return what is given under the vendor's own names, over ``extra``."""
        named = {
            attribute.metadata.get(_WIRE) or attribute.name: getattr(self, attribute.name)
            for attribute in attrs.fields(type(self))
            if attribute.name in self and attribute.name != "extra"
        }
        return {**self.extra, **named}

    def __getitem__(self, name: str) -> Any:
        if name not in list(self):
            raise KeyError(name)
        value = getattr(self, name)
        return list(value) if isinstance(value, tuple) else value

    def __iter__(self) -> Iterator[str]:
        for attribute in attrs.fields(type(self)):
            value = getattr(self, attribute.name)
            if value is not None and (attribute.name != "extra" or value):
                yield attribute.name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def switch(wire: str | None = None) -> Any:
    """Return a field for true or false.

    Args:
        wire: the vendor's name for it, where ours is another.
    """
    return _field("True or False", lambda value: isinstance(value, bool), wire)


def whole(low: int, high: int, wire: str | None = None) -> Any:
    """Return a field for a whole number from ``low`` to ``high``."""
    return _field(
        f"a whole number from {low} to {high}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
        wire,
    )


def number(low: float, high: float, wire: str | None = None) -> Any:
    """Return a field for a number from ``low`` to ``high``."""
    return _field(
        f"a number from {low} to {high}",
        lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high,
        wire,
    )


def text(longest: int = 10_000, wire: str | None = None) -> Any:
    """Return a field for a text of at most ``longest`` characters, and not a blank one."""
    return _field(
        f"a text of 1 to {longest} characters",
        lambda value: isinstance(value, str) and bool(value.strip()) and len(value) <= longest,
        wire,
    )


def choice(*allowed: str, wire: str | None = None) -> Any:
    """Return a field for one of some words."""
    return _field(f"one of {', '.join(map(repr, allowed))}", lambda value: value in allowed, wire)


def words(*allowed: str, wire: str | None = None) -> Any:
    """Return a field for a tuple of texts; ``allowed`` names the ones that there are, none allows all."""
    return _field(
        f"a tuple of texts out of {', '.join(map(repr, allowed))}" if allowed else "a tuple of texts",
        lambda value: (
            isinstance(value, tuple)
            and all(isinstance(one, str) and one and (not allowed or one in allowed) for one in value)
        ),
        wire,
        converter=lambda value: tuple(value) if isinstance(value, list) else value,
    )


def _field(
    expected: str,
    is_allowed: Callable[[Any], bool],
    wire: str | None,
    converter: Callable[[Any], Any] | None = None,
) -> Any:
    def check(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value is not None and not is_allowed(value):
            raise ValidationError(f"{attribute.name} must be {expected}, found {value!r}", attribute.name)

    return field(default=None, validator=check, converter=converter, metadata={_WIRE: wire})
