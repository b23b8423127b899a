"""Records that released versions wrote are read by this one, for ever (G7)."""

from pathlib import Path
from typing import Any

import pytest
from tests.golden import add, shipped
from tests.golden.samples import FOLDER, from_file, picture, tasks, to_file

from coatcheck import codec

FILES = sorted(FOLDER.glob("format-*/*.json"))
VALUES = sorted(FOLDER.glob("values/*.json"))


def read(path: Path) -> Any:
    """Return the content of a golden file."""
    return codec.loads(path.read_bytes())


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_golden_record_means_what_it_meant(path: Path) -> None:
    """Every field that the writing version knew is read as it was meant, request and result included."""
    content = read(path)
    stored = from_file(content)
    assert _compared(picture(codec.decode_task(stored)), content["task"]) == content["task"]
    assert _compared(picture(codec.decode_params(stored)), content["request"]) == content["request"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_golden_record_survives_a_rewrite(path: Path) -> None:
    """A worker of this version that moves the task loses nothing of what the file says."""
    content = read(path)
    task = codec.decode_task(from_file(content))
    again = codec.decode_task(from_file({**content, "format": codec.FORMAT, "record": _written(task)}))
    assert again == task
    if content["format"] == codec.FORMAT:
        assert _compared(_written(task), content["record"]) == content["record"]


def _written(task: Any) -> Any:
    return codec.loads(codec.encode_record(task))


def _compared(found: Any, expected: Any) -> Any:
    """Leave out fields that are younger than the file."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return {name: _compared(value, expected[name]) for name, value in found.items() if name in expected}
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [_compared(*pair) for pair in zip(found, expected, strict=True)]
    return found


def test_every_format_has_golden_records() -> None:
    """No folder of a released format is ever removed, and the samples of the current one are all there."""
    assert {path.parent.name for path in FILES} >= {
        f"format-{number}" for number in range(1, codec.FORMAT + 1)
    }
    current = {path.stem for path in FILES if path.parent.name == f"format-{codec.FORMAT}"}
    assert current >= tasks().keys()


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_a_golden_value_of_a_provider_means_what_it_meant(path: Path) -> None:
    """Requests and responses of our providers are read by every later version, and rewritten whole."""
    content = read(path)
    value = codec.decode_value(codec.dumps(content["envelope"]))
    assert _compared(picture(value), content["value"]) == content["value"]
    assert (
        _compared(shipped.to_file(value)["envelope"]["data"], content["envelope"]["data"])
        == content["envelope"]["data"]
    )


def test_every_type_of_a_provider_has_a_golden_value() -> None:
    """A type that a provider package stores as a request or a response has its file."""
    assert {path.stem for path in VALUES} >= shipped.values().keys()


def test_the_script_adds_what_is_missing_and_never_rewrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A golden file that could be written again would prove nothing."""
    monkeypatch.setattr(add, "FOLDER", tmp_path)
    old = tmp_path / f"format-{codec.FORMAT}" / "running.json"
    old.parent.mkdir()
    old.write_text("as it was")
    add.main()
    assert old.read_text() == "as it was"
    task, request = tasks()["pending"]
    assert read(old.with_name("pending.json")) == codec.loads(codec.dumps(to_file(task, request)))
