"""The installed program: real processes, signals, pipes and a terminal."""

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "from coatcheck.cli import main; main()"]

PLUGIN = """
from coatcheck import QueryParams, QueryResult, SubmitResult, TaskHandler, hookimpl
from tests.core.manager_house import Job

coatcheck_api = 1


class Slow(TaskHandler[Job]):
    key = "slow:job"

    def submit(self, params, context):
        return SubmitResult.running(QueryParams("job-1", name=params.name))

    def query(self, params, context):
        if params["name"] == "endless" or context.query_count < 1:
            return QueryResult.running(50, provider_status="[red]BUSY")
        return QueryResult.succeeded("the result")


@hookimpl
def coatcheck_register_handlers(registry):
    registry.add_handler(Slow())
"""


@frozen
class Place:
    """A folder with a store, and an environment in which a plugin is installed."""

    folder: Path
    environ: dict[str, str]

    def install(self, name: str, code: str) -> None:
        """Install a package with one plugin module, as pip would leave it."""
        site = self.folder / "site"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(textwrap.dedent(code), "utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
        (info / "entry_points.txt").write_text(f"[coatcheck]\n{name} = {name}\n", "utf-8")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start the program."""
        return subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run the program to its end."""
        return subprocess.run(
            [*PROGRAM, *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return a place where the plugin is installed and the others are not loaded."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("COATCHECK_")}
    environ |= {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)]),
        "COATCHECK_STORE": f"sqlite:///{tmp_path}/tasks.db",
        "COATCHECK_PLUGINS_DISABLED": "ocr,redis,video",
    }
    made = Place(tmp_path, environ)
    made.install("slowplugin", PLUGIN)
    return made


@pytest.fixture
def worker(place: Place) -> Iterator["subprocess.Popen[str]"]:
    """Yield a running worker; it is stopped as an operator would."""
    process = place.start("worker", "--grace", "2")
    assert process.stderr is not None
    assert "started" in process.stderr.readline()
    yield process
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "stopped after" in err
    assert out == ""


def test_submit_here_work_there_wait_elsewhere(place: Place, worker: object) -> None:
    """Three processes that share nothing but the store (F30)."""
    task_id = place.run("submit", "test.manager.job", "name=x").stdout.strip()
    waited = place.run("wait", task_id, "--timeout", "30")
    assert (waited.returncode, waited.stdout) == (0, "the result\n")
    done = place.run("submit", "test.manager.job", "name=y", "--wait", "30")
    assert (done.returncode, done.stdout) == (0, "the result\n")
    assert "running 50 % ([red]BUSY)" in done.stderr


def test_interrupted_wait_leaves_the_task(place: Place, worker: object) -> None:
    """Ctrl-C ends the waiting, not the task."""
    process = place.start("submit", "test.manager.job", "name=endless", "--wait", "1h")
    assert process.stderr is not None
    while "running" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "what was stored goes on" in err
    assert "Traceback" not in err
    assert "running" in place.run("list").stdout


def test_terminal_shows_a_live_line_and_then_only_the_result(place: Place, worker: object) -> None:
    """On a terminal the progress line is redrawn, and gone at the end."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "submit", "test.manager.job", "--wait", "30"],
        cwd=place.folder,
        env=place.environ | {"TERM": "xterm", "COLUMNS": "120"},
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=follower,
    )
    os.close(follower)
    assert process.stdout is not None
    out = process.stdout.read()
    process.stdout.close()
    assert process.wait(30) == 0
    shown = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    assert out == b"the result\n"
    assert b"running 50 % ([red]BUSY)" in shown


def test_reader_that_has_seen_enough_is_no_error(place: Place) -> None:
    """``coatcheck list | head -1`` ends quietly."""
    for _ in range(3):
        place.run("submit", "test.manager.job")
    process = place.start("list")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(30) == 0


def test_broken_plugins_leave_the_program_up_and_are_listed(place: Place) -> None:
    """Each fault is shown with its package and cause, and strict mode refuses to start (F84)."""
    place.install("importer", "import nothing_of_this_name")
    place.install("exiter", "raise SystemExit(3)")
    place.install("halfway", PLUGIN.replace("slow:job", "half:job") + "    raise RuntimeError('half way')\n")
    listed = place.run("plugins")
    assert listed.returncode == 0
    for word in ("nothing_of_this_name", "SystemExit", "half way"):
        assert word in listed.stdout
    assert "broken: exiter, halfway, importer" in listed.stderr
    keys = place.run("handlers", "--json").stdout
    assert "slow:job" in keys
    assert "half:job" not in keys
    place.environ["COATCHECK_PLUGINS_STRICT"] = "1"
    refused = place.run("stats")
    assert refused.returncode == 2
    assert "3 plugin(s) could not be loaded" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_worker_ends_cleanly_on_the_second_signal(place: Place) -> None:
    """An impatient operator gets an end at once, and no traceback."""
    process = place.start("worker", "--grace", "60")
    assert process.stderr is not None
    assert "started" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert time.monotonic() - began < 10
    assert "Traceback" not in err
