"""What the demos of providers share: a store of their own, a live line per task, and the way back to both.

A demo shows real tasks: it submits to ``coatcheck.local()`` over a new file, which stays. What is submitted,
and what its results are, only the provider knows.
"""

import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from coatcheck.cli.app import INTERRUPTED, App, find_app
from coatcheck.cli.output import console, plain
from coatcheck.cli.progress import describe
from coatcheck.embedded import Local
from coatcheck.errors import CoatcheckError, ValidationError
from coatcheck.model import Task, TaskStatus

#: How long news of one task may be late because another one is looked at.
LOOK = timedelta(seconds=0.1)

#: Shows the state of the task with this index.
Show = Callable[[int, Task], None]


def start_demo(name: str, instead: str, *, is_json: bool) -> App:
    """Return the running app, or refuse a store that the user named: sample tasks are not for real ones.

    Args:
        name: the demo's command.
        instead: the command that works in a store of the user's choice.
        is_json: whether the command itself was asked for JSON.

    Raises:
        ValidationError: an option names a store, a namespace or the like.
    """
    app = find_app()
    app.is_json = app.is_json or is_json
    if app.overrides:
        raise ValidationError(
            f"coatcheck {name} makes a store of its own, found --{next(iter(app.overrides))}; "
            f"to use another one: {instead}",
            "store",
        )
    return app


def new_store() -> Path:
    """Return where the demo's store is to be, in a new folder that stays."""
    return Path(tempfile.mkdtemp(prefix="coatcheck-demo-")) / "tasks.db"


@contextmanager
def interruptible(store: Path) -> Iterator[None]:
    """Let Ctrl-C in the block end the command, with a word on how its tasks go on."""
    try:
        yield
    except KeyboardInterrupt:
        how = command_for(store, "worker")
        click.echo(f"interrupted; what has not ended goes on with:\n  {how}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None


def watch(house: Local, ids: Sequence[str], names: Sequence[str], *, is_quiet: bool) -> list[Task]:
    """Show every change that can be seen until all tasks have ended, and return them with their results.

    Args:
        house: runs them.
        ids: of the tasks.
        names: what they are called, in the same order; made safe to print here.
        is_quiet: whether nothing is shown.

    Raises:
        CoatcheckError: the worker inside does not move any more.
    """
    display: AbstractContextManager[Show] = _nowhere() if is_quiet else _display(names)
    with display as show:
        _follow(house, ids, show)
    return [house.manager.get(task_id) for task_id in ids]


def store_url(store: Path) -> str:
    """Return the URL of the demo's store."""
    return f"sqlite:///{store}"


def command_for(store: Path, name: str) -> str:
    """Return a command line for the store that can be pasted into the same shell."""
    program = Path(sys.argv[0])
    if program.name != "coatcheck":
        program = Path("coatcheck")
    elif program.is_relative_to(Path.cwd()):
        # The program of a virtual environment that may be active in this process only, as under nox.
        program = program.relative_to(Path.cwd())
    else:
        program = Path(program.name)
    return f"COATCHECK_STORE={shlex.quote(store_url(store))} {shlex.quote(str(program))} {name}"


def count(number: int, noun: str) -> str:
    """Return a number and a noun, in the plural where it takes one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _follow(house: Local, ids: Sequence[str], show: Show) -> None:
    shown: dict[str, str] = {}
    while True:
        waiting: Task | None = None
        for index, task_id in enumerate(ids):
            task = house.manager.get(task_id, with_result=False)
            if shown.get(task_id) != (state := describe(task)):
                shown[task_id] = state
                show(index, task)
            if waiting is None and not task.status.is_end:
                waiting = task
        if waiting is None:
            return
        if not house.worker.health().is_alive:
            raise CoatcheckError("the worker of the demo stopped before its tasks; its log says why")
        house.store.wait_for_change(waiting.id, waiting.version, LOOK)


@contextmanager
def _nowhere() -> Iterator[Show]:
    yield lambda _index, _task: None


@contextmanager
def _display(names: Sequence[str]) -> Iterator[Show]:
    """Show one live line per task on a terminal, and one line per change elsewhere; on standard error."""
    names = [plain(name) for name in names]
    out = console(stderr=True)
    if not out.is_terminal:
        yield lambda index, task: click.echo(f"{names[index]}: {describe(task)}", err=True)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        # The one column that gives way: an error may be longer than the line.
        TextColumn("{task.fields[state]}", markup=False, table_column=Column(ratio=1, no_wrap=True)),
    )
    with Progress(*columns, console=out, expand=True) as lines:
        rows = [lines.add_task(name, total=100, state="") for name in names]

        def show(index: int, task: Task) -> None:
            done = 100 if task.status is TaskStatus.SUCCEEDED else task.progress or 0
            lines.update(rows[index], completed=done, state=describe(task))
            if task.status.is_end:
                lines.stop_task(rows[index])

        yield show
