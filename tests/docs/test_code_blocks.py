"""Every code block of the documentation runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("run_page.py")
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"])
#: Pages that read documents on this machine.
NEED_ENGINE = {"first-task.md", "index.md", "README.md"}
NEED_REDIS = {"run-on-many-machines.md"}


def has_engine() -> bool:
    """Whether the OCR engine is installed here."""
    try:
        import rapidocr  # noqa: F401  # only whether it is there
    except ImportError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_blocks_of_a_page_run(page: Path, tmp_path: Path, missing: object) -> None:
    """What a page shows is what happens, block after block in an empty folder (with fresh settings)."""
    if page.name in NEED_ENGINE and not has_engine():
        assert callable(missing)
        missing("the OCR engine: pip install 'coatcheck-ocr[local]'")
    if page.name in NEED_REDIS and shutil.which("redis-server") is None:
        assert callable(missing)
        missing("redis-server: apt-get install redis-server")
    # The README's commands run the demo and the gate: in tests of their own, and by whoever reads this.
    only = ["python"] if page.name == "README.md" else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COATCHECK_")}
    environment |= {
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "COLUMNS": "200",
    }
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER), str(page), *only],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
