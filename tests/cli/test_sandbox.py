"""``coatcheck sandbox`` as the installed program: it serves, says where, and ends at a signal."""

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import orjson

PROGRAM = [sys.executable, "-c", "from coatcheck.cli import main; main()"]
PLUGIN = """
from coatcheck import hookimpl
from tests.testing.test_sandbox_vendor import Clerk

coatcheck_api = 1


@hookimpl
def coatcheck_register_sandboxes(registry):
    registry.add_sandbox("clerk:job", Clerk)
"""


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start the command with a plugin installed."""
    info = folder / "site" / "clerk-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (folder / "site" / "clerk.py").write_text(PLUGIN, "utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: clerk\nVersion: 1.0\n", "utf-8")
    (info / "entry_points.txt").write_text("[coatcheck]\nclerk = clerk\n", "utf-8")
    root = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder / "site"), root))}
    return subprocess.Popen(
        [*PROGRAM, "sandbox", *arguments],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_serves_what_is_named_until_a_signal(tmp_path: Path) -> None:
    """What is printed is where the vendor answers, and Ctrl-C is a good end."""
    with start(tmp_path, "clerk:job", "--port", "0", "--json") as process:
        assert process.stdout is not None
        try:
            url = orjson.loads(process.stdout.readline())["environment"]["clerk:job"]["CLERK_URL"]
            root = url.removesuffix("/clerk-job")
            with urllib.request.urlopen(f"{root}/documents/a.pdf", timeout=10) as reply:
                assert reply.read().startswith(b"%PDF")
            with urllib.request.urlopen(root, timeout=10) as reply:
                assert "/clerk-job" in orjson.loads(reply.read())["paths"]
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0


def test_what_cannot_be_served_is_said(tmp_path: Path) -> None:
    """A misspelt handler or fault ends the command with the closest name."""
    for arguments, expected in (
        (("clerk:jop",), "did you mean 'clerk:job'"),
        (("--script", "polls=x"), "expected a number"),
    ):
        with start(tmp_path, *arguments, "--port", "0") as process:
            _, err = process.communicate(timeout=30)
        assert process.returncode == 2
        assert expected in err
