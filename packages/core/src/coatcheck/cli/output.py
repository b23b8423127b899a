"""How commands print: people get text whose control characters are escaped, programs get JSON.

Vendor texts, task names and plugin names reach the terminal only through here. Nothing here reads settings or
calls a store.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import attrs
import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coatcheck import codec
from coatcheck.model import Task

#: Whatever moves a cursor, colours, rings, or turns the direction of reading; line breaks and tabs apart.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u2028-\u202e\u2066-\u2069]")
_BREAKS = re.compile(r"[\n\t]")
#: Where output is no terminal, tables are not folded: a program or ``grep`` reads them.
_WIDE = 10_000


def plain(value: object, *, lines: bool = False) -> str:
    r"""Return ``value`` as a text that is safe to print on a terminal.

    Args:
        value: anything; control characters become visible escapes like ``\x1b``.
        lines: whether line breaks and tabs may stay.
    """
    text = _CONTROL.sub(_escape, str(value))
    return text if lines else _BREAKS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def jsonable(value: Any) -> Any:
    """Return ``value`` in JSON's own types: instants as ISO 8601, durations in seconds."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return value.value if isinstance(value.value, str) else value.name.lower()
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Task):
        return _task(value)
    if attrs.has(type(value)):
        return {a.name: jsonable(getattr(value, a.name)) for a in attrs.fields(type(value))}
    if isinstance(value, Mapping):
        return {str(jsonable(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        items = sorted(value) if isinstance(value, set | frozenset) else value
        return [jsonable(item) for item in items]
    return str(value)


def _task(task: Task) -> dict[str, Any]:
    hidden = {"traits", "unknown_fields"}
    data = {a.name: jsonable(getattr(task, a.name)) for a in attrs.fields(type(task)) if a.name not in hidden}
    data["external_task_id"] = task.external_task_id
    return data


def write_json(value: Any, *, err: bool = False) -> None:
    """Print one line of JSON; what could drive a terminal is escaped, which changes nothing for a program."""
    text = codec.dumps(jsonable(value)).decode()
    click.echo(re.sub(_CONTROL, lambda match: f"\\u{ord(match[0]):04x}", text), err=err)


def console(*, stderr: bool = False) -> Console:
    """Return a console that interprets nothing in the texts that it is given."""
    stream = sys.stderr if stderr else sys.stdout
    is_terminal = stream.isatty()
    return Console(
        file=stream,
        markup=False,
        highlight=False,
        emoji=False,
        width=None if is_terminal else _WIDE,
        force_terminal=is_terminal,
    )


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table without frames, one row a line where the output is no terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        # The first column is what people copy: it is never folded.
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else plain(cell)) for cell in row))
    out = console()
    if out.is_terminal:
        out.print(table)
    else:
        with out.capture() as captured:
            out.print(table)
        click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def write_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line; values of ``None`` or a blank text are left out."""
    shown = [
        (name, value) for name, value in fields if value is not None and value != ""
    ]  # 0 and False are shown
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name.ljust(width)}  {plain(_readable(value))}")


def _readable(value: object) -> object:
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, timedelta):
        return duration(value)
    if isinstance(value, Mapping):
        return codec.dumps(jsonable(value)).decode()
    return value


def write_value(value: Any) -> None:
    """Print a result: by its class's own ``__str__`` where it has one, else as JSON."""
    has_text = any("__str__" in vars(cls) for cls in type(value).__mro__[:-1])
    if isinstance(value, str) or (attrs.has(type(value)) and has_text):
        click.echo(plain(value, lines=True))
    else:
        write_json(value)


def instant(value: datetime | None) -> str:
    """Return a time as people read it, in UTC."""
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S} UTC"


def duration(value: timedelta | None) -> str:
    """Return a duration in its two largest units, like ``1h30m``."""
    if value is None:
        return ""
    seconds = value.total_seconds()
    if seconds < 10:
        return f"{seconds:.3g}s"
    rest = round(seconds)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2])
