"""``coatcheck demo``: what it prints, what it checks, and how it ends."""

import importlib.util
import io
import os
import re
import signal
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from coatcheck import QueryParams, SubmitResult, Task, TaskHandler, TaskStatus, codec
from coatcheck.cli import main
from coatcheck.config import Config
from coatcheck.manager import Manager
from coatcheck.model import QueryContext, QueryResult, SubmitContext
from coatcheck_ocr.model import OcrPage, OcrRequest, OcrResponse
from coatcheck_ocr.samples import Sample, load_samples

PROGRAM = Path(sysconfig.get_path("scripts"), "coatcheck")


class Canned(TaskHandler[OcrRequest]):
    """Answers at once, in place of ``ocr:local``."""

    key = "ocr:local"
    local_files = True
    #: What it reads in every document; ``None``: nothing can be read.
    text: ClassVar[str | None] = None

    def __init__(self, spool: Path | None = None) -> None:
        """Take the place of the real one's spool, and use none."""

    def submit(self, params: OcrRequest, context: SubmitContext) -> SubmitResult:
        """End the task."""
        if self.text is None:
            return SubmitResult.failed("broken_document", "\x1b[2J is no PNG")
        page = OcrPage(number=1, markdown=self.text)
        return SubmitResult.succeeded(OcrResponse(markdown=self.text, pages=(page,)))

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Never asked for."""
        raise AssertionError(params)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where demos of this test put what they keep."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def canned(monkeypatch: pytest.MonkeyPatch) -> type[Canned]:
    """The demo reads nothing: it is given what this handler says."""
    monkeypatch.setattr("coatcheck_ocr.demo.LocalOcrHandler", Canned)
    monkeypatch.setattr(Canned, "text", "all of it")
    return Canned


def demo(*arguments: str | Path) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["demo", *map(str, arguments)])


def tasks_of(folder: Path) -> list[Task]:
    """Return the tasks of the only demo that ran, oldest first."""
    (found,) = folder.glob("coatcheck-demo-*")
    with Manager.from_config(Config.load(environ={}, store=f"sqlite:///{found}/tasks.db")) as manager:
        return list(reversed(manager.list().items))


@pytest.mark.slow
def test_a_demo_reads_every_sample(temporary: Path) -> None:
    """The first command of a new user shows real text of real documents, and how to look at its tasks."""
    done = subprocess.run([PROGRAM, "demo"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    samples = load_samples()
    parts = re.split(r"^=== (.*) \(.*\) ===$", done.stdout, flags=re.MULTILINE)
    shown = dict(zip(parts[1::2], parts[2::2], strict=True))
    for sample in samples:
        assert sample.missing_from(shown[sample.path.name]) == []
        assert f"all {len(sample.words)} expected words are there" in shown[sample.path.name]
        assert f"{sample.path.name} ({sample.title}): succeeded" in done.stderr.splitlines()
    (command,) = re.findall(r"^  (COATCHECK_STORE=\S+ coatcheck list)$", done.stdout, re.MULTILINE)
    path = f"{PROGRAM.parent}:{os.environ['PATH']}"
    listed = subprocess.run(
        command, shell=True, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    )
    assert listed.stdout.count("succeeded") == len(samples)
    (folder,) = temporary.glob("coatcheck-demo-*")
    assert len((folder / "spool" / "jobs.log").read_text().splitlines()) == len(samples)


def test_a_demo_reads_the_files_that_are_named(canned: type[Canned], tmp_path: Path) -> None:
    """Whoever names files wants to see those, and nothing is known of what stands in them."""
    for name in ("one.png", "two words.png"):
        (tmp_path / name).touch()

    done = demo("one.png", "two words.png")

    assert done.exit_code == 0
    assert re.findall(r"^=== (.*) ===$", done.stdout, re.MULTILINE) == ["one.png", "two words.png"]
    assert "2 documents, 2 pages read" in done.stdout
    assert "expected" not in done.stdout


def test_missing_words_are_listed_and_end_the_demo_badly(
    canned: type[Canned], monkeypatch: pytest.MonkeyPatch, sample: Sample
) -> None:
    """A demo that read something else than the samples show does not look like a success."""
    words = attrs.evolve(sample, words=("all", "of", "nothing", "it", "all"))
    monkeypatch.setattr("coatcheck_ocr.demo.load_samples", lambda: [words])

    done = demo()

    assert done.exit_code == 1
    assert "expected words that are missing: nothing, all" in done.stdout.splitlines()
    assert "; 3 of 5 expected words found" in done.stdout


def test_a_document_that_cannot_be_read_ends_the_demo_badly(
    canned: type[Canned], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The reason is printed, without what it could do to a terminal."""
    monkeypatch.setattr(canned, "text", None)
    (tmp_path / "one.png").touch()

    done = demo("one.png")

    assert done.exit_code == 1
    assert r"broken_document: \x1b[2J is no PNG" in done.stdout
    assert "1 document could not be read" in done.stdout


def test_what_is_recognised_cannot_drive_the_terminal(
    canned: type[Canned], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Text and file names come from outside; only line breaks and tabs of the text stay."""
    monkeypatch.setattr(canned, "text", "one\n\ttwo\x1b[2Jthree")
    (tmp_path / "a\x1b[2Jb\nc.png").touch()

    done = demo("a\x1b[2Jb\nc.png")

    assert "one\n\ttwo\\x1b[2Jthree" in done.stdout
    assert r"=== a\x1b[2Jb\nc.png ===" in done.stdout
    assert "\x1b" not in done.output


def test_programs_get_json(canned: type[Canned], temporary: Path, sample: Sample) -> None:
    """One line of JSON says all that people are told, and the exit code is the same."""
    done = demo("--json")

    found: dict[str, Any] = codec.loads(done.stdout)
    assert done.exit_code == 1
    assert done.stderr == ""
    (folder,) = temporary.iterdir()
    assert found["store"] == f"sqlite:///{folder}/tasks.db"
    assert len(found["documents"]) == len(load_samples())
    first = found["documents"][0]
    task = tasks_of(temporary)[0]
    assert task.status is TaskStatus.SUCCEEDED
    assert first == {
        "task_id": task.id,
        "name": f"{sample.path.name} ({sample.title})",
        "url": sample.path.as_uri(),
        "status": "succeeded",
        "error": None,
        "pages": 1,
        "markdown": "all of it",
        "expected": len(sample.words),
        "missing": list(sample.words),
    }


def test_a_terminal_shows_one_live_line_per_document(
    canned: type[Canned], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Lines move in place; an error that is longer than its line is cut, and never wraps."""
    monkeypatch.setattr(canned, "text", None)
    screen = io.StringIO()
    out = Console(file=screen, force_terminal=True, width=70, markup=False, emoji=False)
    monkeypatch.setattr("coatcheck.cli.demo.console", lambda **_: out)
    for name in ("[red]one.png", "two.png"):
        (tmp_path / name).touch()

    demo("[red]one.png", "two.png")

    last = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.getvalue().rpartition("\x1b[1A")[2]).split("\n")
    assert [line.split()[0] for line in last if line] == ["[red]one.png", "two.png"]
    assert all("failed" in line and line.rstrip().endswith("…") for line in last if line)


def test_a_missing_engine_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    """Without the extra nothing is begun, and the line can be pasted."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rapidocr" else find(name))

    done = demo()

    assert done.exit_code == 2
    assert done.output.splitlines() == [
        "Error: ocr:local needs its engine, found none; run: pip install 'coatcheck-ocr[local]'"
    ]
    assert list(temporary.iterdir()) == []


def test_a_demo_never_touches_another_store(tmp_path: Path, temporary: Path) -> None:
    """Sample tasks do not belong between real ones, so a store that is named is refused, not ignored."""
    done = CliRunner().invoke(main, ["--store", f"sqlite:///{tmp_path}/mine.db", "demo"])

    assert done.exit_code == 2
    assert "makes a store of its own, found --store" in done.output
    assert sorted(tmp_path.iterdir()) == [temporary]
    assert list(temporary.iterdir()) == []


def test_an_interrupted_demo_keeps_its_tasks(temporary: Path, sample: Sample) -> None:
    """Ctrl-C ends the worker, not the tasks: the demo says how they go on."""
    with subprocess.Popen(
        [PROGRAM, "demo", sample.path, sample.path, sample.path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(sample.path.name)
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=60)

    assert process.returncode == 130
    assert printed == ""
    assert "Traceback" not in said
    (folder,) = temporary.glob("coatcheck-demo-*")
    assert said.splitlines()[-2:] == [
        "interrupted; what has not ended goes on with:",
        f"  COATCHECK_STORE=sqlite:///{folder}/tasks.db coatcheck worker",
    ]
    tasks = tasks_of(temporary)
    assert len(tasks) == 3
    assert not any(task.is_leased or task.status.is_end for task in tasks)


@pytest.fixture
def sample() -> Sample:
    """Any document."""
    return load_samples()[0]
