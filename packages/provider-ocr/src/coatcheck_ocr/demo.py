"""``coatcheck demo``: documents in, markdown out, by real tasks in a store of its own.

Put together from ``coatcheck.local()``, the handler ``ocr:local`` and the samples; nothing about tasks or
recognition is decided here. All that a run writes lies in one new folder, which stays for a look afterwards.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from coatcheck import Task
from coatcheck.cli.app import ENDED_BADLY
from coatcheck.cli.demo import command_for, count, interruptible, new_store, start_demo, store_url, watch
from coatcheck.cli.output import plain, write_json
from coatcheck.embedded import local
from coatcheck.manager import error_of
from coatcheck_ocr.local.handler import LocalOcrHandler
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.samples import Sample, load_samples


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
    app = start_demo("demo", "coatcheck submit ocr.request", is_json=is_json)
    documents = [_own(path) for path in files] or [_shipped(sample) for sample in load_samples()]
    for document in documents:
        LocalOcrHandler().validate(document.request)
    store = new_store()
    began = time.monotonic()
    with interruptible(store):
        tasks = _work(documents, store, is_quiet=app.is_json)
    report = [_Reading(document, task) for document, task in zip(documents, tasks, strict=True)]
    if app.is_json:
        write_json({"store": store_url(store), "documents": [reading.as_json() for reading in report]})
    else:
        _print(report, store, time.monotonic() - began)
    if not all(reading.is_good for reading in report):
        raise click.exceptions.Exit(ENDED_BADLY)


def _own(path: Path) -> Document:
    return Document(path.name, OcrRequest(url=path.absolute().as_uri()))


def _shipped(sample: Sample) -> Document:
    return Document(f"{sample.path.name} ({sample.title})", sample.request, sample)


def _work(documents: Sequence[Document], store: Path, *, is_quiet: bool) -> list[Task]:
    """Run one task per document to its end."""
    handler = LocalOcrHandler(store.parent / "spool")
    with local(store, handlers=[handler], plugins=False) as house:
        ids = [house.submit(document.request).id for document in documents]
        return watch(house, ids, [document.name for document in documents], is_quiet=is_quiet)


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
    lines = [f"\n{count(len(report), 'document')}, {count(pages, 'page')} read in {seconds:.0f} s"]
    if failed:
        lines.append(f"{count(failed, 'document')} could not be read")
    expected = sum(reading.expected for reading in report)
    missing = sum(len(reading.missing) for reading in report)
    if expected:
        lines.append(f"{expected - missing} of {expected} expected words found")
    click.secho("; ".join(lines), bold=True)
    click.echo(f"The tasks are kept in {store}; this lists them:\n  {command_for(store, 'list')}")
