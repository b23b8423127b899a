"""Places in a vendor's reply, written in JMESPath, compiled once; and how what is found there is read.

Replies are read leniently: a number may be a text, and what makes no sense is nothing. Nothing here decides
what a word or a number means for a job.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions

from coatcheck.errors import ConfigError, UnknownNameError, VendorError, closest
from coatcheck.policy import LONGEST_ASKED

#: Up to here every whole number is a float of its own.
_EXACT = 2**53
_FUNCTIONS: Mapping[str, Mapping[str, Any]] = Functions.FUNCTION_TABLE


class Finder:
    """One place in a reply.

    Args:
        text: the JMESPath expression.
        where: where it stands, for messages.

    Raises:
        ConfigError: it is no JMESPath, or calls a function with too few or too many arguments.
        UnknownNameError: it calls a function that JMESPath does not have.
    """

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        try:
            self._expression = jmespath.compile(text)
        except JMESPathError as error:
            reason = " ".join(str(error).partition(", for expression")[0].split())
            raise ConfigError(
                f"{where} must be a JMESPath expression like 'data.task.id', found {text!r} ({reason}); put "
                "names with other signs than letters, digits and _ into double quotes"
            ) from None
        for node in self._nodes(self._expression.parsed):
            if node["type"] == "function_expression":
                self._check_function(node["value"], len(node["children"]))

    def __repr__(self) -> str:
        return f"<Finder {self.text!r}>"

    @property
    def keys(self) -> tuple[str, ...] | None:
        """The keys of the object that the expression builds, ``{text: output.text}``, if it builds one."""
        parsed = self._expression.parsed
        if parsed["type"] != "multi_select_dict":
            return None
        return tuple(child["value"] for child in parsed["children"])

    def find(self, body: Any) -> Any:
        """Return what is at the place, or ``None``.

        Raises:
            VendorError: a function of the expression cannot work with what the reply holds.
        """
        try:
            return self._expression.search(body)
        except JMESPathError as error:
            raise VendorError(
                f"{self.where} = {self.text!r} cannot be read from the reply ({error})",
                code="unreadable_reply",
            ) from None

    def glimpse(self, body: Any) -> Any:
        """Return what is at the place, or ``None`` whatever is wrong there: for what may be missing."""
        try:
            return self._expression.search(body)
        except JMESPathError:
            return None

    def require(self, body: Any) -> Any:
        """Return what is at the place.

        Raises:
            VendorError: there is nothing.
        """
        found = self.find(body)
        if found is None:
            raise self.missing()
        return found

    def missing(self) -> VendorError:
        """Return the error for a reply that has nothing usable at the place."""
        return VendorError(
            f"the reply has nothing usable at {self.text!r} ({self.where}); correct the expression if the "
            "vendor's replies look otherwise",
            code="unreadable_reply",
        )

    def _check_function(self, name: str, given: int) -> None:
        if name not in _FUNCTIONS:
            raise UnknownNameError(
                f"{self.where}: JMESPath has no function {name!r}{closest(name, _FUNCTIONS)} (known: "
                f"{', '.join(sorted(_FUNCTIONS))})",
                "function",
                name,
                tuple(sorted(_FUNCTIONS)),
            )
        signature = _FUNCTIONS[name]["signature"]
        is_variadic = bool(signature) and signature[-1].get("variadic", False)
        if given < len(signature) or (given > len(signature) and not is_variadic):
            least = "at least " if is_variadic else ""
            raise ConfigError(
                f"{self.where}: {name}() takes {least}{len(signature)} arguments, found {given} in "
                f"{self.text!r}"
            )

    def _nodes(self, node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        yield node
        for child in node["children"]:
            yield from self._nodes(child)


def optional(text: str | None, where: str) -> Finder | None:
    """Compile an expression that may be left out."""
    return None if text is None else Finder(text, where)


def finders(paths: Mapping[str, str], where: str) -> dict[str, Finder]:
    """Compile a table of expressions."""
    return {name: Finder(text, f"{where}.{name}") for name, text in paths.items()}


def word_of(value: Any) -> str | None:
    """Return a text, a whole number or a boolean as the text that people write for it; else ``None``."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # A whole number of more than 64 bits arrives as a float that is another number.
        return str(int(value)) if value.is_integer() and abs(value) <= _EXACT else None
    if isinstance(value, int):
        return str(value)
    return value.strip() or None if isinstance(value, str) else None


def number_of(value: Any) -> float | None:
    """Return a number, or the number that a text like ``"45"`` or ``"45 %"`` holds; else ``None``."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value.strip().removesuffix("%"))
        except ValueError:
            return None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def seconds_of(value: Any) -> timedelta | None:
    """Return a delay of so many seconds, from 0 to 1 hour; else ``None``."""
    number = number_of(value)
    return None if number is None else timedelta(seconds=min(max(number, 0.0), LONGEST_ASKED.total_seconds()))


def whole_of(value: Any) -> int | None:
    """Return a whole number of 0 or more, also from ``12.0`` and ``"12"``; else ``None``."""
    number = number_of(value)
    return int(number) if number is not None and number.is_integer() and 0 <= number <= _EXACT else None
