"""``coatcheck demo``: documents in, markdown out, by real tasks in a store of its own.

Put together from ``coatcheck.local()``, the handler ``ocr:local`` and the samples; nothing about tasks or
recognition is decided here. All that a run writes lies in one new folder, which stays for a look afterwards.
"""

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from attrs import frozen
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

from coatcheck import CoatcheckError, Task, TaskStatus, ValidationError
from coatcheck.cli.app import ENDED_BADLY, INTERRUPTED, find_app
from coatcheck.cli.output import console, plain, write_json
from coatcheck.cli.progress import describe
from coatcheck.embedded import Local, local
from coatcheck.manager import error_of
from coatcheck_ocr.local.handler import LocalOcrHandler
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.samples import Sample, load_samples

#: How long news of one document may be late because another one is looked at.
LOOK = timedelta(seconds=0.1)

#: Shows the state of the document with this index.
Show = Callable[[int, Task], None]


@frozen
class Document:
    """What the demo reads: a sample, or a file of the user's."""

    name: str
    request: OcrRequest
    sample: Sample | None = None

    def missing_from(self, text: str) -> list[str]:
        """Return the words that ``text`` lacks; nothing is known of what stands in a user's file."""
        return [] if self.sample is None else self.sample.missing_from(text)


def run(files: Sequence[Path], *, is_json: bool) -> None:
    """Read ``files``, or the samples where there are none, and end the command with its exit code.

    Raises:
        ValidationError: the engine is not installed, or a file cannot be read; nothing was made.
    """
    app = find_app()
    app.is_json = app.is_json or is_json
    if app.overrides:
        raise ValidationError(
            f"coatcheck demo makes a store of its own, found --{next(iter(app.overrides))}; "
            "to read documents into another one, use coatcheck submit ocr.request",
            "store",
        )
    documents = [_own(path) for path in files] or [_shipped(sample) for sample in load_samples()]
    for document in documents:
        LocalOcrHandler().validate(document.request)
    store = Path(tempfile.mkdtemp(prefix="coatcheck-demo-")) / "tasks.db"
    began = time.monotonic()
    try:
        tasks = _work(documents, store, _nowhere() if app.is_json else _display(documents))
    except KeyboardInterrupt:
        how = _command(store, "worker")
        click.echo(f"interrupted; what has not ended goes on with:\n  {how}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    report = [_Reading(document, task) for document, task in zip(documents, tasks, strict=True)]
    if app.is_json:
        write_json({"store": _url(store), "documents": [reading.as_json() for reading in report]})
    else:
        _print(report, store, time.monotonic() - began)
    if not all(reading.is_good for reading in report):
        raise click.exceptions.Exit(ENDED_BADLY)


def _own(path: Path) -> Document:
    return Document(path.name, OcrRequest(url=path.absolute().as_uri()))


def _shipped(sample: Sample) -> Document:
    return Document(f"{sample.path.name} ({sample.title})", sample.request, sample)


# While it runs.


def _work(documents: Sequence[Document], store: Path, display: AbstractContextManager[Show]) -> list[Task]:
    """Run one task per document to its end."""
    handler = LocalOcrHandler(store.parent / "spool")
    with local(store, handlers=[handler], plugins=False) as house:
        ids = [house.submit(document.request).id for document in documents]
        with display as show:
            _follow(house, ids, show)
        return [house.manager.get(task_id) for task_id in ids]


def _follow(house: Local, ids: Sequence[str], show: Show) -> None:
    """Show every change that can be seen until all tasks have ended.

    Raises:
        CoatcheckError: the worker inside does not move any more.
    """
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
def _display(documents: Sequence[Document]) -> Iterator[Show]:
    """Show one live line per document on a terminal, and one line per change elsewhere; on standard error."""
    names = [plain(document.name) for document in documents]
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


# Afterwards.


@frozen
class _Reading:
    """What became of a document."""

    document: Document
    task: Task

    @property
    def response(self) -> OcrResponse | None:
        result = self.task.result
        return result if isinstance(result, OcrResponse) else None

    @property
    def missing(self) -> list[str]:
        return self.document.missing_from(self.response.markdown if self.response else "")

    @property
    def expected(self) -> int:
        return len(self.document.sample.words) if self.document.sample else 0

    @property
    def is_good(self) -> bool:
        return self.response is not None and not self.missing

    def as_json(self) -> dict[str, Any]:
        """Return what programs get."""
        response = self.response
        return {
            "name": self.document.name,
            "url": self.document.request.url,
            "task_id": self.task.id,
            "status": self.task.status,
            "error": self.task.error,
            "pages": len(response.pages) if response else None,
            "markdown": response.markdown if response else None,
            "expected": self.expected,
            "missing": self.missing,
        }


def _print(report: Sequence[_Reading], store: Path, seconds: float) -> None:
    """Print every reading, what was found of what was expected, and where all of it lies."""
    for reading in report:
        click.secho(f"\n=== {plain(reading.document.name)} ===\n", bold=True)
        if reading.response is None:
            click.secho(plain(error_of(reading.task)), fg="red")
            continue
        click.echo(plain(reading.response.markdown, lines=True))
        if reading.missing:
            click.secho(f"\nexpected words that are missing: {', '.join(reading.missing)}", fg="red")
        elif reading.expected:
            click.secho(f"\nall {reading.expected} expected words are there, in reading order", fg="green")
    pages = sum(len(reading.response.pages) for reading in report if reading.response)
    failed = sum(reading.response is None for reading in report)
    lines = [f"\n{_count(len(report), 'document')}, {_count(pages, 'page')} read in {seconds:.0f} s"]
    if failed:
        lines.append(f"{_count(failed, 'document')} could not be read")
    expected = sum(reading.expected for reading in report)
    missing = sum(len(reading.missing) for reading in report)
    if expected:
        lines.append(f"{expected - missing} of {expected} expected words found")
    click.secho("; ".join(lines), bold=True)
    click.echo(f"The tasks are kept in {store}; this lists them:\n  {_command(store, 'list')}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _url(store: Path) -> str:
    return f"sqlite:///{store}"


def _command(store: Path, name: str) -> str:
    """Return a command line for the store that can be pasted into the same shell."""
    program = Path(sys.argv[0])
    if program.name != "coatcheck":
        program = Path("coatcheck")
    elif program.is_relative_to(Path.cwd()):
        # The program of a virtual environment that may be active in this process only, as under nox.
        program = program.relative_to(Path.cwd())
    else:
        program = Path(program.name)
    return f"COATCHECK_STORE={shlex.quote(_url(store))} {shlex.quote(str(program))} {name}"
