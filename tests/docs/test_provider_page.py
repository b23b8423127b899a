"""The tutorial about providers and the example that it is taken from say the same."""

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial/write-a-provider.md"
EXAMPLE = ROOT / "examples/third-party-provider"


def blocks() -> list[Any]:
    """Return the page's blocks as the one who runs them sees them."""
    spec = importlib.util.spec_from_file_location("run_page", Path(__file__).with_name("run_page.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[Any] = module.blocks_of(PAGE.read_text("utf-8"))
    return found


def lines(text: str) -> list[str]:
    """Return the lines that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def test_files_of_the_page_are_the_examples_with_lines_left_out() -> None:
    """Whoever goes from the page to the example finds what they have written, and more."""
    files = [block for block in blocks() if block.file is not None]
    assert {block.file for block in files} >= {"pyproject.toml", "tests/test_handler_contract.py"}
    for block in files:
        rest = iter(lines((EXAMPLE / block.file).read_text("utf-8")))
        for line in lines(block.text):
            assert line in rest, f"{block.file} of the example has no such line, or not there: {line}"
