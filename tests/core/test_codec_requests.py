"""What may be asked for: what another machine could not restore is refused, at any depth, with the fix."""

import asyncio
import decimal
import io
import json
import pathlib
import socket
import tempfile
import threading
from collections import namedtuple
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import attrs
import pytest
import requests
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from coatcheck import codec
from coatcheck.codec import check_plain, check_request, persistent
from coatcheck.errors import NotPersistableError, PayloadTooLargeError

EAST = timezone(timedelta(hours=8))
WRONG: Any = 3
NOTHING: Any = None
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001  # that is what is refused


@persistent("requests.page")
@frozen
class Page:
    """A nested type whose field takes any JSON."""

    image: Any
    title: str = ""


@frozen
class BarePage(Page):
    """A subclass without a name of its own."""


class Mode(StrEnum):
    """An enum inside a request."""

    FAST = "fast"


@persistent("requests.scan")
@frozen
class Scan:
    """A request."""

    pages: list[Page] = attrs.field(factory=list)
    extra: dict[str, Any] = attrs.field(factory=dict)
    at: datetime | None = None
    count: int = 1
    weight: float = 1.0
    mode: Mode = Mode.FAST
    patience: timedelta = timedelta(0)
    size: tuple[int, int] = (1, 1)
    is_draft: bool = False


@frozen
class Unregistered:
    """An attrs class without a name."""

    secret: str = "hunter2"


class Closing:
    """Stands for clients of all kinds."""

    def close(self) -> None:
        """Do nothing."""


Pair = namedtuple("Pair", "a b")  # noqa: PYI024  # the plain kind, whose names JSON would lose


@pytest.fixture
def things(tmp_path: pathlib.Path) -> Iterator[dict[str, object]]:
    """Values that only this process has."""
    path = tmp_path / "scan.png"
    path.write_bytes(b"png")
    loop = asyncio.new_event_loop()
    with (
        path.open("rb") as handle,
        path.open() as text_handle,
        tempfile.TemporaryFile() as temporary,
        tempfile.SpooledTemporaryFile() as spooled,
        socket.socket() as connection,
        requests.Session() as session,
    ):
        yield {
            "handle": handle,
            "text_handle": text_handle,
            "temporary": temporary,
            "spooled": spooled,
            "bytes_io": io.BytesIO(b"x"),
            "string_io": io.StringIO("x"),
            "socket": connection,
            "session": session,
            "path": path,
            "pure_path": pathlib.PurePosixPath("a"),
            "loop": loop,
        }
    loop.close()


@pytest.mark.parametrize(
    ("name", "found", "fix"),
    [
        ("handle", "an open file or stream (BufferedReader)", "upload it first"),
        ("text_handle", "an open file or stream (TextIOWrapper)", "upload it first"),
        ("temporary", "an open file or stream", "upload it first"),
        ("spooled", "an open file or stream", "upload it first"),
        ("bytes_io", "an open file or stream (BytesIO)", "upload it first"),
        ("string_io", "an open file or stream (StringIO)", "upload it first"),
        ("socket", "a client or connection (socket)", "leave it to the handler"),
        ("session", "a client or connection (Session)", "leave it to the handler"),
        ("loop", "a client or connection", "leave it to the handler"),
        ("path", "the path of a local file (PosixPath)", "upload it first"),
        ("pure_path", "the path of a local file (PurePosixPath)", "upload it first"),
    ],
)
@pytest.mark.parametrize("place", ["field", "list", "dict", "top"])
def test_things_of_this_process_are_refused_at_any_depth(
    things: dict[str, object], name: str, found: str, fix: str, place: str
) -> None:
    """Files, streams, paths and clients are refused wherever they hide, with the path and the fix."""
    thing = things[name]
    path, request = {
        "field": ("request.pages[1].image", Scan([Page("u"), Page(thing)])),
        "list": ("request.pages[0].image[2][0]", Scan([Page(["u", "v", (thing,)])])),
        "dict": ("request.extra['a'][0]['b c']", Scan(extra={"a": [{"b c": thing}]})),
        "top": ("request", thing),
    }[place]
    with pytest.raises(NotPersistableError) as caught:
        check_request(request, local_files=False)
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path} holds {found}")
    assert fix in str(caught.value)


@pytest.mark.parametrize(
    ("value", "found", "fix"),
    [
        (b"x", "binary data (bytes)", "upload it first"),
        (bytearray(b"x"), "binary data (bytearray)", "upload it first"),
        (memoryview(b"x"), "binary data (memoryview)", "upload it first"),
        (json, "code (a module)", "pass data"),
        (len, "code (a builtin_function_or_method)", "pass data"),
        (lambda: None, "code (a function)", "pass data"),
        (io.StringIO().getvalue, "code (a builtin_function_or_method)", "pass data"),
        (Page, "the class Page", "have you forgotten the ()"),
        (Unregistered(), "an instance of the unregistered type", "@persistent("),
        (Page("u"), "a Page inside plain data", "annotate the field with Page"),
        (Closing(), "a client or connection (Closing)", "leave it to the handler"),
        (threading.Lock(), "a client or connection (lock)", "leave it to the handler"),
        (NAIVE, "a naive datetime", "datetime.now(UTC)"),
        (datetime(2026, 1, 1, tzinfo=UTC), "an instance of datetime.datetime", "pass data"),
        (date(2026, 1, 1), "an instance of datetime.date", "pass data"),
        (decimal.Decimal(1), "an instance of decimal.Decimal", "pass data"),
        (float("nan"), "a number that is not finite", "use None"),
        (float("-inf"), "a number that is not finite", "use None"),
        (2**63, "a whole number of more than 64 bits", "as a text"),
        (-(2**63) - 1, "a whole number of more than 64 bits", "as a text"),
        ({1: 2}, "a dict key of type int", "use texts as keys"),
        ({b"k": 2}, "a dict key of type bytes", "use texts as keys"),
        ({"a"}, "an instance of builtins.set", "pass data"),
        (iter([1]), "an instance of builtins.list_iterator", "pass data"),
        ((x for x in [1]), "a client or connection (generator)", "pass data"),
        (Pair(1, 2), "an instance of", "pass data"),
        ("\ud800", "a text that is not Unicode", "errors='replace'"),
        ({"\ud800": 1}, "a text that is not Unicode", "errors='replace'"),
        (object(), "an instance of builtins.object", "pass data"),
        (1j, "an instance of builtins.complex", "pass data"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isascii() else "",
)
def test_values_that_json_cannot_hold_are_refused(value: object, found: str, fix: str) -> None:
    """In plain fields of requests and in metadata and provider params alike."""
    with pytest.raises(NotPersistableError) as caught:
        check_request(Scan(extra={"k": value}), local_files=False)
    assert found in str(caught.value)
    assert fix in str(caught.value)
    assert caught.value.path.startswith("request.extra['k']")
    with pytest.raises(NotPersistableError) as caught:
        check_plain({"k": [value]}, name="metadata")
    assert caught.value.path.startswith("metadata['k'][0]")
    assert caught.value.found == found or found in caught.value.found


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"pages": [Page("u"), "v"]}, "request.pages[1]", "a str where a Page is expected"),
        ({"pages": "v"}, "request.pages", "a str where a list or tuple is expected"),
        ({"pages": {"a": 1}}, "request.pages", "a dict where a list or tuple is expected"),
        ({"pages": [Scan()]}, "request.pages[0]", "a Scan where a Page is expected"),
        ({"pages": [Page("u", WRONG)]}, "request.pages[0].title", "an int where a text is expected"),
        ({"pages": [Page("u", NOTHING)]}, "request.pages[0].title", "a NoneType where a text is expected"),
        ({"extra": [1]}, "request.extra", "a list where a dict is expected"),
        ({"at": "2026-01-01"}, "request.at", "a str where an aware datetime is expected"),
        ({"at": NAIVE}, "request.at", "a naive datetime"),
        ({"at": datetime(1, 1, 1, tzinfo=EAST)}, "request.at", "a datetime that UTC does not have"),
        ({"mode": "fast"}, "request.mode", "a str where a Mode is expected"),
        ({"mode": b"fast"}, "request.mode", "binary data"),
        ({"patience": 3}, "request.patience", "an int where a timedelta is expected"),
        ({"size": (1,)}, "request.size", "a tuple of 1 where 2 are expected"),
        ({"size": "12"}, "request.size", "a str where a list or tuple is expected"),
        ({"size": (1, "2")}, "request.size[1]", "a str where a whole number is expected"),
        ({"is_draft": 1}, "request.is_draft", "an int where True or False is expected"),
        ({"pages": [BarePage("u")]}, "request.pages[0]", "the unregistered type"),
        ({"count": "3"}, "request.count", "a str where a whole number is expected"),
        ({"count": True}, "request.count", "a bool where a whole number is expected"),
        ({"count": 1.5}, "request.count", "a float where a whole number is expected"),
        ({"weight": float("inf")}, "request.weight", "a number that is not finite"),
        ({"weight": 10**400}, "request.weight", "more than 64 bits"),
        ({"weight": b"1"}, "request.weight", "binary data"),
    ],
)
def test_a_value_that_its_own_field_does_not_allow_is_refused(
    changes: dict[str, Any], path: str, message: str
) -> None:
    """Attrs does not check annotations, so the walk does: a worker could not read the request back."""
    with pytest.raises(NotPersistableError) as caught:
        check_request(Scan(**changes), local_files=False)
    assert caught.value.path == path
    assert message in str(caught.value)


def test_what_contains_itself_is_refused() -> None:
    """A cycle is found by its depth; neither the stack nor the memory is used up."""
    ring: list[Any] = []
    ring.append(ring)
    loop: dict[str, Any] = {}
    loop["self"] = {"again": loop}
    for value in (ring, loop):
        with pytest.raises(NotPersistableError, match="deeper than 64 levels"):
            check_request(Scan(extra={"k": value}), local_files=False)
        with pytest.raises(NotPersistableError, match="deeper than 64 levels"):
            check_plain(value, name="metadata")


@given(st.integers(1, 80))
def test_nesting_is_allowed_up_to_64_levels(depth: int) -> None:
    """The bound is exact, and siblings do not add up."""
    value: Any = 1
    for _ in range(depth):
        value = [value, [1], [1]]
    if depth < 64:
        assert check_plain(value, name="metadata") == value
    elif depth > 64:
        with pytest.raises(NotPersistableError, match="make it flatter"):
            check_plain(value, name="metadata")


def test_no_message_shows_a_value() -> None:
    """A refused value may be a secret: messages say what it is and where (G8)."""
    wrong_type: Any = "hunter2"
    for value in (Scan(extra={"k": Unregistered()}), Scan(extra={"k": b"hunter2"}), Scan(count=wrong_type)):
        with pytest.raises(NotPersistableError) as caught:
            check_request(value, local_files=False)
        assert "hunter2" not in str(caught.value) + repr(caught.value)


@pytest.mark.parametrize(
    "value", [{"url": "u"}, "https://vendor.example/a.png", None, 3, ["u"], Unregistered()]
)
def test_a_request_is_an_instance_of_a_registered_class(value: object) -> None:
    """A dict or a URL in place of a request is refused with what to pass."""
    with pytest.raises(NotPersistableError, match="@persistent"):
        check_request(value, local_files=False)


# Texts that name files of this machine.


@pytest.fixture
def scan_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A file in the home and working folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a scan.png"
    path.write_bytes(b"png")
    return path


@pytest.mark.parametrize("text", ["{path}", "~/a scan.png", "./a scan.png", "../{folder}/a scan.png"])
def test_a_text_that_is_the_path_of_a_file_here_is_refused(scan_file: pathlib.Path, text: str) -> None:
    """Another machine has another disk; with local_files the message shows the form that is allowed."""
    text = text.format(path=scan_file, folder=scan_file.parent.name)
    with pytest.raises(
        NotPersistableError, match=r"request\.pages\[0\]\.image holds the path of a local file.*upload"
    ):
        check_request(Scan([Page(text)]), local_files=False)
    with pytest.raises(NotPersistableError, match="write it as a file:// URL"):
        check_request(Scan([Page(text)]), local_files=True)


@pytest.mark.parametrize(
    "text",
    [
        "a scan.png",
        "/imagine a cat",
        "/v1/models",
        "./nothing here",
        "~",
        "/",
        "/tmp",
        "/nul\0byte",
        "/" + "x" * 10_000,
        "https://vendor.example/etc/passwd",
        "data:image/png;base64,AAAA",
        "file: a report",
        "profile://x",
    ],
)
def test_other_texts_are_texts(scan_file: pathlib.Path, text: str) -> None:
    """Prompts, names, folders and URLs that merely look like paths are stored."""
    check_request(Scan([Page(text, text)], {"k": text}), local_files=False)
    check_request(Scan([Page(text, text)], {"k": text}), local_files=True)


@pytest.mark.parametrize("form", ["file://{}", "FILE://{}", "file:{}", " file://{}", "file://localhost{}"])
def test_file_urls_need_a_handler_for_local_files(scan_file: pathlib.Path, form: str) -> None:
    """A readable file is accepted by such a handler only."""
    url = form.format(scan_file.as_uri().removeprefix("file://"))
    check_request(Scan([Page(url)]), local_files=True)
    with pytest.raises(NotPersistableError, match="the URL of a local file"):
        check_request(Scan([Page(url)]), local_files=False)


@pytest.mark.parametrize(
    "url",
    [
        "file:///no/such/file",
        "file:///",
        "file://other-host/etc/hosts",
        "file:///tmp",
        "file:///nul%00byte",
        "file://[bad/x",
    ],
)
def test_file_urls_must_be_readable_files(url: str) -> None:
    """A handler for local files is given no folder, no missing file and no other host's file."""
    with pytest.raises(NotPersistableError, match="cannot be read here"):
        check_request(Scan([Page(url)]), local_files=True)


def test_an_unreadable_file_is_refused(scan_file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions are looked at before the task is stored, not in the worker."""
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(NotPersistableError, match="check its name and its permissions"):
        check_request(Scan([Page(scan_file.as_uri())]), local_files=True)


# Plain values.


def test_a_checked_plain_value_is_a_copy_of_dicts_and_lists() -> None:
    """Read-only mappings and tuples become what JSON gives back; the original may change afterwards."""
    inner = {"b": [1]}
    original = MappingProxyType[str, Any]({"a": MappingProxyType(inner), "t": (1, (2,))})
    copy = check_plain(original, name="metadata")
    assert copy == {"a": {"b": [1]}, "t": [1, [2]]}
    assert (type(copy), type(copy["a"]), type(copy["t"])) == (dict, dict, list)
    inner["b"].append(2)
    assert copy["a"] == {"b": [1]}


def test_the_cap_of_a_plain_value_counts_its_bytes() -> None:
    """Bytes count, not characters, and the cap itself is allowed."""
    assert check_plain("é" * 3, name="metadata", cap=8) == "é" * 3
    with pytest.raises(PayloadTooLargeError) as caught:
        check_plain("é" * 3, name="metadata", cap=7)
    assert (caught.value.field, caught.value.size, caught.value.limit) == ("metadata", 8, 7)


def test_the_caps_are_those_of_the_design() -> None:
    """256 KiB of params, 16 of metadata and query params, 8 MiB of result, 8 KiB of error text."""
    kib = 1024
    assert dict(codec.CAPS) == {
        "params": 256 * kib,
        "metadata": 16 * kib,
        "query_params": 16 * kib,
        "result": 8 * kib * kib,
        "error": 8 * kib,
    }
