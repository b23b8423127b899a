"""Write the golden files that are missing; never touches one that exists. See README.md."""

import json

from tests.golden.samples import FOLDER, tasks, to_file

from coatcheck.codec import FORMAT


def main() -> None:
    """Write the missing files of the current format."""
    folder = FOLDER / f"format-{FORMAT}"
    folder.mkdir(exist_ok=True)
    for name, (task, request) in tasks().items():
        path = folder / f"{name}.json"
        if path.exists():
            print(f"kept     {path}")  # noqa: T201  # a script
            continue
        path.write_text(json.dumps(to_file(task, request), indent=1, ensure_ascii=False) + "\n")
        print(f"written  {path}")  # noqa: T201  # a script


if __name__ == "__main__":
    main()
