"""Runs every code block of one page, in order, in the working folder; a script of ``test_code_blocks``.

What a block is and what becomes of it:

- ``python`` is executed; all of a page share their names.
- ``console`` is run by bash, each line after ``$ ``; what follows must be what is printed. A command that
  fails must be followed by ``$ echo $?``, one that ends with ``&`` goes on until the end of the page.
  Installing is left out: it was done; but for a package that the page wrote, which is installed in place.
- ``toml`` must be settings that ``Config`` takes, or an excerpt of a pyproject.toml.
- ``text`` after a ``python`` block must be what that printed. ``…`` stands for anything.
- A block with a ``:caption:`` is a file and is written, not run.
"""

import contextlib
import importlib
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
import traceback
import zipfile
from pathlib import Path
from typing import Any

from attrs import frozen

_BLOCK = re.compile(r"^(`{3,}|:{3,})(\S*) *(\S*)\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)
_CAPTION = re.compile(r":caption: *(\S+)\n+")
_INSTALLS = ("pip install ", "python -m pip install ")
_IN_PLACE = re.compile(r"(?:python -m )?pip install (?:-e|--editable) [\"']?([^\s\"'\[]+)")
#: Languages that show something and are checked elsewhere or cannot be run.
_SHOWN = {"{eval-rst}", "{toctree}", "text"}


@frozen
class Block:
    """One code block of a page."""

    language: str
    text: str
    line: int
    #: The file that it is, if it is one.
    file: str | None = None


def blocks_of(page: str) -> list[Block]:
    """Return a page's blocks."""
    found = []
    for match in _BLOCK.finditer(page):
        language, argument, text = match[2], match[3], match[4]
        caption = _CAPTION.match(text)
        if language == "{code-block}":
            language = argument
            text = text[caption.end() :] if caption else text
        line = page.count("\n", 0, match.end() - len(match[0])) + 2
        found.append(Block(language, text, line, caption[1] if caption else None))
    return found


def matches(expected: str, printed: str) -> bool:
    """Whether what was printed is what the page shows; ``…`` stands for anything, many spaces for one."""
    wanted, seen = (
        "\n".join(" ".join(line.split()) for line in text.strip().splitlines())
        for text in (expected, printed)
    )
    return (
        re.fullmatch(".*?".join(re.escape(part) for part in wanted.split("…")), seen, re.DOTALL) is not None
    )


def check(expected: str, printed: str, where: str) -> None:
    """Fail with both texts."""
    if not matches(expected, printed):
        sys.exit(f"{where}: the page shows\n{expected}\nbut this was printed\n{printed}")


class Shell:
    """One bash for a page, so that variables and background jobs last."""

    def __init__(self) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._status = 0

    def run(self, command: str) -> tuple[str, int]:
        """Run one command and return what it printed and its exit code."""
        bash = self._bash
        assert bash.stdin is not None
        assert bash.stdout is not None
        bash.stdin.write(f"(exit {self._status}); {command}\n_status=$?\necho; echo '<<<' $_status\n")
        bash.stdin.flush()
        lines: list[str] = []
        for line in bash.stdout:
            if line.startswith("<<< "):
                self._status = int(line.split()[1])
                return "".join(lines).removesuffix("\n"), self._status
            lines.append(line)
        sys.exit(f"the shell ended in {command!r}: {''.join(lines)}")

    def close(self) -> None:
        """End background jobs as a terminal would, and the shell."""
        for pid in self.run("jobs -p")[0].split():
            os.kill(int(pid), signal.SIGTERM)
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write("wait\n")
        self._bash.stdin.close()
        rest = self._bash.stdout.read()
        self._bash.stdout.close()
        self._bash.wait(30)
        if "Traceback" in rest:
            sys.exit(f"a background job printed: {rest}")


def console(block: Block, shell: Shell, where: str) -> None:
    """Run the commands of a console block and compare what they print."""
    commands: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif commands and commands[-1][0].endswith("\\"):
            commands[-1] = (f"{commands[-1][0][:-1]}{line.strip()}", [])
        else:
            commands[-1][1].append(line)
    for number, (command, expected) in enumerate(commands):
        if found := _IN_PLACE.match(command):
            install_in_place(Path(found[1]), shell)
        if command.startswith(_INSTALLS):
            continue
        printed, status = shell.run(command if command.endswith("&") else f"{command} 2>&1")
        is_asked = number + 1 < len(commands) and commands[number + 1][0] == "echo $?"
        if status and not is_asked:
            sys.exit(f"{where}: {command!r} ended with {status}: {printed}")
        if command.endswith("&"):
            continue
        check("\n".join(expected), printed, f"{where}: {command}")


def install_in_place(folder: Path, shell: Shell) -> None:
    """Install a package as pip would, by its own build backend, for all later commands of the shell.

    It is kept out of the environment of the tests, and no index is asked for what it needs.
    """
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    backend = importlib.import_module(project["build-system"]["build-backend"])
    target = Path(tempfile.mkdtemp(dir=os.environ["HOME"]))
    with contextlib.chdir(folder):
        wheel = backend.build_editable(str(target))
    with zipfile.ZipFile(target / wheel) as file:
        file.extractall(target)
    # A .pth file is read in the environment's own folders only.
    linked = [line for file in target.glob("*.pth") for line in file.read_text("utf-8").splitlines()]
    shell.run(f"export PYTHONPATH={os.pathsep.join([str(target), *linked])}")


def run(path: Path, only: str | None) -> None:
    """Run all blocks of a page, or those of one language."""
    shell = Shell()
    try:
        blocks = blocks_of(path.read_text("utf-8"))
        run_blocks(path, [block for block in blocks if only in (None, block.language)], shell)
    finally:
        shell.close()


def run_blocks(path: Path, blocks: list[Block], shell: Shell) -> None:
    """Run blocks one after the other."""
    names: dict[str, Any] = {"__name__": "page"}
    sys.path.insert(0, "")  # as for somebody who types this
    printed = ""
    for before, block in zip([None, *blocks], blocks, strict=False):
        where = f"{path.name}:{block.line}"
        if block.file is not None:
            file = Path(block.file)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text, "utf-8")
        if block.language == "python" and block.file is None:
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile("\n" * (block.line - 1) + block.text, str(path), "exec"), names)
            printed = out.getvalue()
        elif block.language == "text" and before is not None and before.language == "python":
            check(block.text, printed, where)
        elif block.language == "console":
            console(block, shell, where)
        elif block.language == "toml":
            check_settings(block)
        elif block.language not in _SHOWN and block.file is None:
            sys.exit(f"{where}: nobody runs {block.language!r} blocks")


def check_settings(block: Block) -> None:
    """Load settings as a process would; an excerpt of a pyproject.toml only has to be TOML."""
    from coatcheck import Config

    if "project" not in tomllib.loads(block.text):
        file = Path(block.file or "checked.toml")
        file.write_text(block.text, "utf-8")
        Config.load(file, {})


if __name__ == "__main__":
    try:
        run(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
    except Exception:  # noqa: BLE001  # whatever a block raises is told with its line on the page
        traceback.print_exc()
        sys.exit(1)
