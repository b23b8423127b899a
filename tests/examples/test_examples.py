"""The runnable scripts in ``examples/``: each is run as a reader would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
#: What each script prints, as a pattern.
PRINTED = {
    "first_task.py": r"boiled for 1 s, asked \d+ times",
    "own_handler.py": r"HI 2 submits, 1 job",
    "web_and_worker.py": r"HELLO FROM THE WEB",
}
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))


def test_every_script_is_run() -> None:
    """A new example is added to this file, not forgotten by it."""
    assert sorted(PRINTED) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    """An example runs in an empty folder, without settings or warnings, and leaves nothing behind."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith("COATCHECK_")}
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, FOLDER / name],
        cwd=work,
        env=ours | {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(PRINTED[name], done.stdout.strip()), done.stdout + done.stderr
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_short(name: str) -> None:
    """An example of 60 lines or more shows more than one thing."""
    assert len((FOLDER / name).read_text("utf-8").splitlines()) < 60
