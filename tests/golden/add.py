"""Write the golden files that are missing; never touches one that exists. See README.md."""

import json
from pathlib import Path
from typing import Any

from tests.golden import shipped
from tests.golden.samples import FOLDER, tasks, to_file

from coatcheck.codec import FORMAT


def main() -> None:
    """Write the missing files of the current format, and those of the types of our providers."""
    for name, (task, request) in tasks().items():
        _write(FOLDER / f"format-{FORMAT}" / f"{name}.json", to_file(task, request))
    for name, value in shipped.values().items():
        _write(FOLDER / "values" / f"{name}.json", shipped.to_file(value))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        print(f"kept     {path}")  # noqa: T201  # a script
        return
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"written  {path}")  # noqa: T201  # a script


if __name__ == "__main__":
    main()
