"""Texts with placeholders, like ``"/jobs/{external_task_id}"``, checked once and filled at each call.

Names are checked against a ``Scope`` when a template is made, so a misspelt one fails at start. Nothing here
knows what a call is.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from string import Formatter
from typing import Any, Final
from urllib.parse import quote

from attrs import field, frozen

from coatcheck.errors import ConfigError, UnknownNameError, ValidationError, closest
from coatcheck.model import EMPTY

#: Returns what the path of a placeholder (``("request", "data", "url")``) stands for, or ``ABSENT``.
Resolve = Callable[[tuple[str, ...]], Any]


class _Absent:
    """The type of ``ABSENT``."""

    def __repr__(self) -> str:
        return "ABSENT"


#: Stands for a value that is not there; an optional placeholder with it takes its entry away.
ABSENT: Final = _Absent()

_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


@frozen
class Scope:
    """What placeholders may name in one place.

    Args:
        names: the known ones; true where more may follow (``request.data`` → ``request.data.url``).
        hints: by first word, why such a placeholder is not known here, for messages.
    """

    names: Mapping[str, bool]
    hints: Mapping[str, str] = EMPTY

    def check(self, name: str, where: str) -> None:
        """Refuse a name that is not known here.

        Raises:
            UnknownNameError: with the closest name.
        """
        for known, is_open in self.names.items():
            if name == known or (is_open and name.startswith(f"{known}.")):
                return
        listed = ", ".join(f"{{{known}}}" for known in self.names) or "none"
        hint = self.hints.get(name.partition(".")[0], "")
        text = f"{where}: unknown placeholder {{{name}}}{closest(name, self.names)} (known here: {listed})"
        raise UnknownNameError(
            f"{text}. {hint}" if hint else text, "placeholder", name, tuple(sorted(self.names))
        )


@frozen
class Hole:
    """One placeholder; ``?`` after its name makes it optional."""

    name: str
    is_optional: bool
    path: tuple[str, ...] = field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "path", tuple(self.name.split(".")))

    def value(self, resolve: Resolve, where: str) -> Any:
        """Return what the placeholder stands for; ``ABSENT`` only if it is optional.

        Raises:
            ValidationError: the value is missing.
        """
        found = resolve(self.path)
        if self.is_optional:
            return ABSENT if found is None else found
        if found is ABSENT:
            raise ValidationError(
                f"{where} needs {self.name}, which is missing; give it, or write {{{self.name}?}} to leave "
                "its entry out",
                self.name,
            )
        return found

    def text(self, resolve: Resolve, where: str) -> str | _Absent:
        """Return the value as a text; ``ABSENT`` only if it is optional.

        Raises:
            ValidationError: the value is missing, or neither a text nor a number nor a boolean.
        """
        found = self.value(resolve, where)
        if isinstance(found, str | _Absent):
            return found
        if isinstance(found, bool):
            return "true" if found else "false"
        if isinstance(found, int | float):
            return str(found)
        raise ValidationError(
            f"{where}: {self.name} must be a text, a number or a boolean there, found a "
            f"{type(found).__name__}",
            self.name,
        )


@frozen
class Template:
    """A text with placeholders; ``{{`` and ``}}`` are braces."""

    where: str
    pieces: tuple[str | Hole, ...]

    @classmethod
    def of(cls, text: str, scope: Scope, where: str) -> "Template":
        """Read and check a text.

        Raises:
            ConfigError: the braces do not match, or hold something else than a name.
            UnknownNameError: no placeholder has that name here.
        """
        pieces: list[str | Hole] = []
        try:
            for literal, name, spec, conversion in Formatter().parse(text):
                if literal:
                    pieces.append(literal)
                if name is not None:
                    pieces.append(_hole(name, spec, conversion, scope, where))
        except ValueError as error:
            raise ConfigError(
                f"{where}: braces hold placeholders, like {{task_id}}, and {text!r} cannot be read "
                f"({error}); write {{{{ and }}}} for braces themselves"
            ) from None
        return cls(where, tuple(pieces))

    @property
    def holes(self) -> Iterator[Hole]:
        """The placeholders."""
        return (piece for piece in self.pieces if isinstance(piece, Hole))

    @property
    def whole(self) -> Hole | None:
        """The placeholder that the text consists of, if it is one and nothing else."""
        return self.pieces[0] if len(self.pieces) == 1 and isinstance(self.pieces[0], Hole) else None

    def value(self, resolve: Resolve) -> Any:
        """Fill the template: a value of any JSON type if it is one placeholder, else a text.

        Raises:
            ValidationError: a value is missing or does not fit.
        """
        return self.text(resolve) if self.whole is None else self.whole.value(resolve, self.where)

    def text(self, resolve: Resolve, *, quoted: bool = False) -> str | _Absent:
        """Fill the template to a text; ``ABSENT`` if an optional value is.

        Args:
            resolve: what the placeholders stand for.
            quoted: quote each value as one segment of a URL's path, and refuse blank ones.

        Raises:
            ValidationError: a value is missing or does not fit.
        """
        filled = ""
        for piece in self.pieces:
            if isinstance(piece, str):
                filled += piece
                continue
            found = piece.text(resolve, self.where)
            if isinstance(found, _Absent):
                return found
            if quoted and not found.strip():
                raise ValidationError(
                    f"{self.where}: {piece.name} is blank, which leads elsewhere", piece.name
                )
            filled += quote(found, safe="") if quoted else found
        return filled


def _hole(name: str, spec: str | None, conversion: str | None, scope: Scope, where: str) -> Hole:
    plain = name.removesuffix("?")
    if spec or conversion or not _NAME.fullmatch(plain):
        raise ConfigError(
            f"{where}: a placeholder is a name with dots, like {{request.data.url}} or "
            f"{{request.data.url?}}, found {name!r}"
        )
    scope.check(plain, where)
    return Hole(plain, name != plain)


#: A JSON value whose texts are templates.
Tree = Any


def tree_of(value: Any, scope: Scope, where: str) -> Tree:
    """Turn the texts in a JSON value into templates; keys stay as they are.

    Raises:
        ConfigError: a text cannot be read; see ``Template.of``.
    """
    if isinstance(value, str):
        return Template.of(value, scope, where)
    if isinstance(value, Mapping):
        return {key: tree_of(item, scope, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [tree_of(item, scope, f"{where}[{index}]") for index, item in enumerate(value)]
    return value


def templates_in(tree: Tree) -> Iterator[Template]:
    """Yield every template of a tree."""
    if isinstance(tree, Template):
        yield tree
    elif isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from templates_in(item)


def fill(tree: Tree, resolve: Resolve) -> Any:
    """Fill all templates of a tree; entries whose value is absent are left out.

    Raises:
        ValidationError: a value is missing or does not fit.
    """
    if isinstance(tree, Template):
        return tree.value(resolve)
    if isinstance(tree, dict):
        items = {key: fill(item, resolve) for key, item in tree.items()}
        return {key: item for key, item in items.items() if item is not ABSENT}
    if isinstance(tree, list):
        return [item for item in (fill(item, resolve) for item in tree) if item is not ABSENT]
    return tree


def resolver(values: Mapping[str, Any]) -> Resolve:
    """Return what looks placeholders up in nested mappings."""

    def resolve(path: tuple[str, ...]) -> Any:
        found: Any = values
        for part in path:
            if not isinstance(found, Mapping) or part not in found:
                return ABSENT
            found = found[part]
        return found

    return resolve
