"""Writes the parts of pages that come from the code: tables and help texts between two marks.

``python docs/generate.py`` rewrites them in place; a test compares them, so that they cannot go stale. The
marks are comments: ``<!-- generated: NAME -->`` and ``<!-- end -->``.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from coatcheck import errors, lifecycle
from coatcheck.cli import BUILT_IN, main

DOCS = Path(__file__).parent
_EVERYWHERE = re.compile(r"  (-h, )?--(json|store|namespace|config|help) ")
_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def first_sentence(thing: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def lifecycle_table() -> str:
    """Return the life cycle, one line per rule."""
    return table(
        ("from", "event", "to"),
        [(", ".join(rule.states), f"`{rule.event.__name__}`", rule.to) for rule in lifecycle.RULES],
    )


def lifecycle_events() -> str:
    """Return what each event of the life cycle means."""
    return table(
        ("event", "what happened"),
        [(f"`{event.__name__}`", first_sentence(event).replace("``", "`")) for event in lifecycle.EVENTS],
    )


def error_tree() -> str:
    """Return the tree of errors, indented."""

    def below(cls: type[Exception], depth: int) -> str:
        own = [child for child in cls.__subclasses__() if child.__module__ == errors.__name__]
        return f"{'    ' * depth}{cls.__name__}\n" + "".join(below(child, depth + 1) for child in own)

    return f"```text\n{below(errors.CoatcheckError, 0)}```\n"


def commands() -> str:
    """Return the help of every command that core has, without the options that all have."""
    return "\n".join(_help(main, click.Context(main, info_name="coatcheck")))


def _help(command: click.Command, context: click.Context) -> list[str]:
    parts = []
    if command is not main:
        context.terminal_width = 100
        lines = [line for line in command.get_help(context).splitlines() if not _EVERYWHERE.match(line)]
        text = "\n".join(lines).strip().replace("\nOptions:\n\n", "\n").removesuffix("\n\nOptions:")
        parts.append(f"## {context.command_path}\n\n```text\n{text}\n```\n")
    if isinstance(command, click.Group):
        for name in sorted(BUILT_IN if command is main else command.commands):
            found = command.get_command(context, name)
            assert found is not None
            parts += _help(found, click.Context(found, info_name=name, parent=context))
    return parts


PARTS: Mapping[str, Callable[[], str]] = {
    "lifecycle-table": lifecycle_table,
    "lifecycle-events": lifecycle_events,
    "error-tree": error_tree,
    "commands": commands,
}


def fresh(text: str) -> str:
    """Return a page's text with all its generated parts made anew."""
    return _PART.sub(lambda found: f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}", text)


if __name__ == "__main__":
    for page in sorted(DOCS.rglob("*.md")):
        old = page.read_text("utf-8")
        new = fresh(old)
        if new != old:
            page.write_text(new, "utf-8")
            sys.stdout.write(f"{page.relative_to(DOCS)} rewritten\n")
