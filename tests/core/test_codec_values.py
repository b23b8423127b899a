"""Typed values: what is written comes back, what cannot be restored is raw, and nothing runs code."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, NewType, TypeVar

import attrs
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from coatcheck import codec
from coatcheck.codec import (
    RawValue,
    decode_value,
    encode_value,
    persistent,
    registered_types,
    request_digest,
    unregister,
    upcast,
)
from coatcheck.errors import (
    ConfigError,
    DuplicateNameError,
    NotPersistableError,
    PayloadTooLargeError,
    StoreError,
    UnknownNameError,
    ValidationError,
)

CAP = 1_000_000


class Mode(StrEnum):
    """Stored by its text."""

    FAST = "fast"
    GOOD = "good"


class Level(IntEnum):
    """Stored by its number."""

    LOW = 1
    HIGH = 2


Name = NewType("Name", str)


@persistent("values.page")
@frozen
class Page:
    """A nested type."""

    url: str
    size: tuple[int, int] = (1, 1)


@persistent("values.wide_page")
@frozen
class WidePage(Page):
    """A subclass with a registration of its own."""

    fold: bool = False


@persistent("values.request", version=3)
@frozen(kw_only=True)
class Request:
    """One field of every kind."""

    pages: list[Page]
    mode: Mode = Mode.FAST
    level: Level = Level.LOW
    kind: Literal["a", "b", 3] | None = None
    when: datetime | None = None
    patience: timedelta = timedelta(minutes=1)
    weight: int | float = 1
    name: Annotated[Name, "remark"] = Name("")
    extra: Mapping[str, Any] = attrs.field(factory=dict)
    inner: "Request | None" = None
    notes: tuple[str, ...] = ()
    either: Page | list[str] | None = None


@persistent("values.table")
@frozen
class Table:
    """Dicts inside dicts."""

    cells: dict[str, dict[str, str]]


@upcast("values.request", from_version=1)
def split_url(data: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had one page, by its URL."""
    data["pages"] = [
        {"type": "values.page", "version": 1, "data": {"url": data.pop("url")}},
    ]
    return data


@upcast("values.request", from_version=2)
def rename_mode(data: dict[str, Any]) -> dict[str, Any]:
    """Version 2 called the modes otherwise."""
    if "mode" in data:
        data["mode"] = {"quick": "fast"}.get(data["mode"], data["mode"])
    return data


@pytest.fixture
def fresh_types() -> Iterator[None]:
    """Take types that a test registers off the allow-list again."""
    before = set(registered_types())
    yield
    for name in set(registered_types()) - before:
        unregister(name)


def envelope(name: str, version: object, data: object) -> bytes:
    """Return what would be stored."""
    return codec.dumps({"type": name, "version": version, "data": data})


def decoded(data: object, version: int = 3, name: str = "values.request") -> Any:
    """Return what a value with these data is restored to."""
    return decode_value(envelope(name, version, data))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
instants = st.datetimes(
    min_value=datetime(1900, 1, 1),  # noqa: DTZ001  # Hypothesis wants naive bounds
    max_value=datetime(2200, 1, 1),  # noqa: DTZ001  # the same
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(-timedelta(hours=8))]),
)
durations = st.timedeltas(-timedelta(days=3650), timedelta(days=3650))
pages = st.builds(Page, st.text(max_size=20), st.tuples(st.integers(0, 9), st.integers(0, 9)))
requests = st.builds(
    Request,
    pages=st.lists(pages | st.builds(WidePage, st.text(max_size=5), fold=st.booleans()), max_size=3),
    mode=st.sampled_from(Mode),
    level=st.sampled_from(Level),
    kind=st.sampled_from(["a", "b", 3, None]),
    when=st.none() | instants,
    patience=durations,
    weight=st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    name=st.text(max_size=5),
    extra=st.dictionaries(st.text(max_size=5), json_values, max_size=3),
    inner=st.none() | st.builds(Request, pages=st.lists(pages, max_size=1)),
    notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    either=st.none() | pages | st.lists(st.text(max_size=5), max_size=2),
)


@given(requests)
def test_a_registered_value_comes_back_equal_and_of_the_same_type(request_: Request) -> None:
    """Writing and reading is the identity, subclasses, enums and the kind of a number included."""
    back = decode_value(encode_value(request_, field="params", cap=CAP))
    assert back == request_
    assert [type(page) for page in back.pages] == [type(page) for page in request_.pages]
    assert (type(back.mode), type(back.level), type(back.weight)) == (Mode, Level, type(request_.weight))
    assert back.when is None or back.when.tzinfo is UTC


@given(json_values)
def test_plain_json_comes_back_equal(value: object) -> None:
    """A result need not have a class: plain JSON is stored under the name "json"."""
    assert decode_value(encode_value(value, field="result", cap=CAP)) == value


def containers(item: Any, values: st.SearchStrategy[Any]) -> list[tuple[Any, st.SearchStrategy[Any]]]:
    """Return the annotations that hold an item, each with its values."""
    few = st.lists(values, max_size=3)
    return [
        (list[item], few),
        (Sequence[item], few),
        (tuple[item, ...], few.map(tuple)),
        (tuple[item, int], st.tuples(values, st.integers(0, 9))),
        (dict[str, item], st.dictionaries(st.text(max_size=3), values, max_size=3)),
        (item | None, st.none() | values),
    ]


@given(st.data())
def test_any_supported_annotation_round_trips(data: st.DataObject) -> None:
    """Every combination of the supported kinds of fields is written and read back equal."""
    leaves: list[tuple[Any, st.SearchStrategy[Any]]] = [
        (str, st.text(max_size=5)),
        (int, st.integers(-(2**63), 2**63 - 1)),
        (float, st.floats(allow_nan=False, allow_infinity=False)),
        (bool, st.booleans()),
        (datetime, instants),
        (timedelta, durations),
        (Mode, st.sampled_from(Mode)),
        (Level, st.sampled_from(Level)),
        (Literal["x", 1, True], st.sampled_from(["x", 1, True])),
        (Any, json_values),
        (list, st.lists(json_values, max_size=2)),
        (tuple, st.lists(json_values, max_size=2).map(tuple)),
        (dict, st.dictionaries(st.text(max_size=3), json_values, max_size=2)),
        (Page, pages),
        (Page | WidePage, pages | st.builds(WidePage, st.text(max_size=5))),
        (str | int | bool, st.text(max_size=5) | st.integers(0, 9) | st.booleans()),
    ]

    def wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return inner.flatmap(lambda pair: st.sampled_from(containers(*pair)))

    annotation, values = data.draw(st.recursive(st.sampled_from(leaves), wider, max_leaves=3))
    cls = attrs.make_class("Made", {"held": attrs.field(type=annotation)}, frozen=True)
    persistent("values.made")(cls)
    try:
        made = cls(data.draw(values))
        assert decode_value(encode_value(made, field="params", cap=CAP)) == made
    finally:
        unregister("values.made")


def test_the_envelope_is_json_that_a_person_can_read() -> None:
    """Stored bytes name the type and version, and enums, times and durations are written plainly."""
    value = Request(pages=[Page("u")], when=datetime(2026, 1, 2, tzinfo=UTC), mode=Mode.GOOD)
    written = codec.loads(encode_value(value, field="params", cap=CAP))
    assert (written["type"], written["version"]) == ("values.request", 3)
    data = written["data"]
    assert data["pages"] == [{"type": "values.page", "version": 1, "data": {"url": "u", "size": [1, 1]}}]
    assert (data["mode"], data["patience"], data["when"]) == ("good", 60.0, "2026-01-02T00:00:00+00:00")


def test_other_names_for_a_type_mean_that_type(fresh_types: None) -> None:
    """NewType, Annotated and, since Python 3.12, ``type X = …`` are looked through."""
    names: dict[str, Any] = {"Alias": Annotated[Name, "remark"]}
    if sys.version_info >= (3, 12):
        exec("type Alias = str", names)  # 3.11 could not read it
    cls = persistent("values.named")(attrs.make_class("Named", {"held": attrs.field(type=names["Alias"])}))
    assert decoded({"held": "x"}, version=1, name="values.named") == cls("x")
    assert isinstance(decoded({"held": 1}, version=1, name="values.named"), RawValue)


def test_instants_are_read_in_utc_whoever_wrote_them() -> None:
    """The offset of the writer is not kept; the instant is."""
    back = decoded({"pages": [], "when": "2026-01-01T08:00:00+08:00"})
    assert back.when == datetime(2026, 1, 1, tzinfo=UTC)
    assert back.when.tzinfo is UTC


# Older, newer and broken data.


@given(st.data())
def test_missing_fields_take_defaults_and_extra_ones_are_passed_over(data: st.DataObject) -> None:
    """A shape of another time loads: fields with a default may be missing, unknown ones may be there."""
    request_ = data.draw(requests)
    stored = codec.loads(encode_value(request_, field="params", cap=CAP))["data"]
    optional = [field for field in attrs.fields(Request) if field.name != "pages"]
    dropped = data.draw(st.sets(st.sampled_from([field.name for field in optional])))
    kept = {name: value for name, value in stored.items() if name not in dropped}
    extra = data.draw(st.dictionaries(st.text(max_size=5).map("new_{}".format), json_values, max_size=3))
    back = decoded({**kept, **extra})
    blank = Request(pages=[])
    expected = attrs.evolve(request_, **{name: getattr(blank, name) for name in dropped})
    assert back == expected


def test_old_versions_go_through_the_whole_chain_of_upcasters() -> None:
    """Version 1 becomes version 2 and then 3; each upcaster sees what the one before it made."""
    assert decoded({"url": "u", "mode": "quick"}, version=1) == Request(pages=[Page("u")], mode=Mode.FAST)
    pages_data = [{"type": "values.page", "version": 1, "data": {"url": "u"}}]
    assert decoded({"pages": pages_data, "mode": "quick"}, version=2) == Request(pages=[Page("u")])


def test_a_version_without_upcaster_passes_its_data_on(fresh_types: None) -> None:
    """Raising a version for a new field with a default needs no upcaster."""

    @persistent("values.grown", version=4)
    @frozen
    class Grown:
        old: int
        new: int = 7

    assert decoded({"old": 1}, version=1, name="values.grown") == Grown(1, 7)


def test_a_nested_type_has_a_version_of_its_own(fresh_types: None) -> None:
    """A page of version 1 inside a document of the current version goes through the page's upcaster."""

    @persistent("values.leaf", version=2)
    @frozen
    class Leaf:
        text: str

    @upcast("values.leaf")
    def rename(data: dict[str, Any]) -> dict[str, Any]:
        return {"text": data["txt"]}

    @persistent("values.tree")
    @frozen
    class Tree:
        leaves: list[Leaf]

    old = {"type": "values.leaf", "version": 1, "data": {"txt": "t"}}
    assert decoded({"leaves": [old]}, version=1, name="values.tree") == Tree([Leaf("t")])


@pytest.mark.parametrize(
    ("name", "version", "data", "problem"),
    [
        ("values.nobody", 1, {"a": 1}, "no type 'values.nobody' is registered"),
        ("json", 2, {"a": 1}, "no type 'json' is registered"),
        (
            "values.request",
            4,
            {"pages": []},
            "$: version 4 of 'values.request', of which versions 1 to 3 are known",
        ),
        ("values.request", 0, {"pages": []}, "version 0 of"),
        ("values.request", -(10**15), {"pages": []}, "versions 1 to 3 are known"),
        ("values.request", 3, {}, "$.pages: nothing"),
        ("values.request", 3, [], "list where dict"),
        ("values.request", 3, {"pages": ["u"]}, "$.pages[0]"),
        ("values.request", 3, {"pages": [], "mode": "unheard"}, "$.mode: a value that is not allowed"),
        ("values.request", 3, {"pages": [], "kind": 4}, "$.kind"),
        ("values.request", 3, {"pages": [], "kind": True}, "$.kind"),
        ("values.request", 3, {"pages": [], "when": "2026-01-01T00:00:00"}, "$.when: a naive datetime"),
        ("values.request", 3, {"pages": [], "when": "tomorrow"}, "$.when"),
        ("values.request", 3, {"pages": [], "notes": "abc"}, "$.notes: str where list"),
        ("values.request", 3, {"pages": [], "weight": "3"}, "$.weight"),
        ("values.request", 3, {"pages": [], "weight": True}, "$.weight"),
        ("values.request", 3, {"pages": [], "patience": 1e300}, "$.patience"),
        ("values.request", 3, {"pages": [], "extra": []}, "$.extra: list where dict"),
        ("values.request", 3, {"pages": [], "either": 3}, "$.either: an int where "),
        ("values.page", 1, {"url": "u", "size": [1]}, "$.size: a list of 1 where 2 are expected"),
        ("values.page", 1, {"url": "u", "size": [1, "2"]}, "$.size[1]: str where int"),
        ("values.page", 1, {"url": "u", "size": 12}, "$.size: int where list"),
        ("values.table", 1, {"cells": {"a": {"b": 1}}}, "$.cells['a']['b']"),
        ("values.request", 1, {"no": "url"}, "its own code refuses (KeyError)"),
        (
            "values.request",
            3,
            {"pages": [{"type": "values.page", "version": 2, "data": {}}]},
            "$.pages[0]: version 2 of 'values.page', of which",
        ),
        (
            "values.request",
            3,
            {"pages": [{"type": "values.request", "version": 3, "data": {"pages": []}}]},
            "$.pages[0]: a Request where Page is expected",
        ),
    ],
)
def test_what_cannot_be_restored_is_raw(name: str, version: int, data: object, problem: str) -> None:
    """Unknown types, newer versions and data that do not fit become a RawValue that says why."""
    value = decode_value(envelope(name, version, data))
    assert isinstance(value, RawValue)
    assert (value.type, value.version, value.data) == (name, version, data)
    assert problem in value.problem


def test_a_value_inside_many_unions_is_read_once(fresh_types: None) -> None:
    """A member of a union that is not meant reads nothing of it: that would double at every level."""
    reads = 0

    def count(value: int) -> int:
        nonlocal reads
        reads += 1
        return value

    @persistent("values.nested")
    @frozen
    class Nested:
        depth: int = attrs.field(converter=count)
        inner: "Page | Nested | None" = None

    value = None
    for depth in range(30):
        value = Nested(depth, value)
    data = encode_value(value, field="params", cap=CAP)
    reads = 0
    assert decode_value(data) == value
    assert reads == 30


def test_a_class_that_refuses_stored_values_makes_them_raw(fresh_types: None) -> None:
    """A validator that became stricter does not stop whoever lists tasks, and its text is not repeated."""

    @persistent("values.strict")
    @frozen
    class Strict:
        secret: str = attrs.field(validator=attrs.validators.max_len(3))

    value = decode_value(envelope("values.strict", 1, {"secret": "hunter2"}))
    assert isinstance(value, RawValue)
    assert "its own code refuses (ValueError)" in value.problem
    assert "hunter2" not in value.problem + repr(value)


@given(st.binary() | json_values.map(codec.dumps))
def test_bytes_that_are_no_envelope_are_a_store_error(data: bytes) -> None:
    """Whatever lies in the store, reading it gives a value or a StoreError and nothing else."""
    with contextlib.suppress(StoreError):
        decode_value(data)


names = st.sampled_from(
    ["values.request", "values.page", "json", "os.system", "builtins.eval", "attrs.frozen"]
)


@given(
    st.recursive(
        json_values,
        lambda inner: st.builds(
            lambda name, version, data: {"type": name, "version": version, "data": data},
            names | st.text(max_size=5),
            st.integers(-1, 4) | json_values,
            st.dictionaries(st.sampled_from(["pages", "url", "size", "extra", "inner"]), inner, max_size=3)
            | st.lists(inner, max_size=2)
            | inner,
        ),
        max_leaves=8,
    ).map(codec.dumps)
)
def test_stored_data_can_neither_import_nor_call_anything(data: bytes) -> None:
    """Only registered classes are made of stored data, whatever names they hold; no module is imported."""
    modules = set(sys.modules)
    try:
        value = decode_value(data)
    except StoreError:
        value = None
    assert set(sys.modules) == modules
    allowed = (Request, WidePage, Page, RawValue, dict, list, str, int, float, bool, type(None))
    assert type(value) in allowed


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "coatcheck.model.Task", "subprocess:Popen", "!!python/object"]
)
def test_a_type_name_that_is_an_import_path_means_nothing(name: str) -> None:
    """Names are looked up in the allow-list and nowhere else."""
    value = decode_value(envelope(name, 1, ["true"]))
    assert isinstance(value, RawValue)


# Caps and digests.


def test_a_payload_over_its_cap_is_refused_whole_and_one_at_the_cap_is_stored() -> None:
    """The cap is exact, and the message says how much there was and what to do."""
    size = len(encode_value("x" * 100, field="params", cap=CAP))
    assert len(encode_value("x" * 100, field="params", cap=size)) == size
    with pytest.raises(PayloadTooLargeError) as caught:
        encode_value("x" * 100, field="params", cap=size - 1)
    assert (caught.value.field, caught.value.size, caught.value.limit) == ("params", size, size - 1)
    assert "upload" in str(caught.value)


@given(requests)
def test_equal_requests_have_equal_digests_and_others_differ(request_: Request) -> None:
    """A digest depends on what is requested, not on how it was spelt or in which order keys came."""
    again = decode_value(encode_value(request_, field="params", cap=CAP))
    turned = attrs.evolve(again, extra=dict(reversed(again.extra.items())))
    assert request_digest(turned) == request_digest(request_)
    assert len(request_digest(request_)) == 32
    other = attrs.evolve(request_, notes=(*request_.notes, "one more"))
    assert request_digest(other) != request_digest(request_)


def test_a_field_equal_to_its_default_leaves_the_digest_alone(fresh_types: None) -> None:
    """A new field with a default, a raised version or a default written out make no other request."""

    def make(version: int, fields: dict[str, Any]) -> Any:
        unregister("values.dated")
        return persistent("values.dated", version)(attrs.make_class("Dated", fields, frozen=True))

    before = request_digest(make(1, {"url": attrs.field(type=str)})("u"))
    fields = {
        "url": attrs.field(type=str),
        "tags": attrs.field(type=list[str], factory=list),
        "copy": attrs.field(type=str, default=attrs.Factory(lambda self: self.url, takes_self=True)),
    }
    later = make(2, fields)
    assert request_digest(later("u")) == request_digest(later("u", [], "u")) == before
    assert request_digest(later("u", ["t"])) != before
    assert request_digest(later("u", [], "v")) != before


def test_requests_of_two_types_with_equal_fields_have_different_digests() -> None:
    """The type's name is part of the digest."""
    assert request_digest(Page("u")) != request_digest(WidePage("u"))


def test_a_whole_number_and_a_float_in_a_float_field_are_the_same_request(fresh_types: None) -> None:
    """1 and 1.0 are equal to the class, so they are to the digest."""

    @persistent("values.number")
    @frozen
    class Number:
        value: float

    assert request_digest(Number(1)) == request_digest(Number(1.0))


# Registration.


class Plain:
    """Not an attrs class."""


@frozen
class Unregistered:
    """An attrs class without a name."""

    value: int


@pytest.mark.parametrize(
    ("annotation", "where", "fix"),
    [
        (bytes, "found bytes", "URL or id"),
        (list[bytes], "found bytes", "URL or id"),
        (dict[str, list[bytearray]], "found bytearray", "URL or id"),
        (tuple[int, memoryview], "found memoryview", "URL or id"),
        (bytes | None, "found bytes", "URL or id"),
        (dict[int, str], "found dict[int, str]", "use dict[str"),
        (set[str], "found set", "use JSON scalars"),
        (object | Page, "look the same in JSON", "one registered class"),
        (str | datetime, "look the same in JSON", "one registered class"),
        (float | timedelta, "look the same in JSON", "one registered class"),
        (list[int] | tuple[str, ...], "look the same in JSON", "one registered class"),
        (Page | dict[str, Any], "look the same in JSON", "one registered class"),
        (Unregistered, "unregistered type", "@persistent("),
        (list[Unregistered], "unregistered type", "@persistent("),
        (Plain, "found Plain", "registered classes"),
        (Literal[b"x"], "found typing.Literal[b'x']", "or an enum"),
        (complex, "found complex", "use JSON scalars"),
        (TypeVar("T"), "found ~T", "annotate it with a type"),
        ([int], "found [<class 'int'>]", "annotate it with a type"),
        (None, "no annotation", "annotate it"),
    ],
)
def test_a_field_that_cannot_be_stored_is_refused_at_registration(
    annotation: Any, where: str, fix: str
) -> None:
    """The message has the field's path and the fix, and the type is not left on the allow-list."""
    cls = attrs.make_class("Bad", {"held": attrs.field(type=annotation)})
    with pytest.raises(ConfigError) as caught:
        persistent("values.bad")(cls)
    assert str(caught.value).startswith("Bad.held cannot be stored: found ")
    assert where in str(caught.value)
    assert fix in str(caught.value)
    assert "values.bad" not in registered_types()
    assert not codec.is_persistent(cls)


def test_only_attrs_classes_are_registered_and_the_order_of_decorators_is_explained() -> None:
    """The decorator under @frozen sees no attrs class yet, which is the usual slip."""
    with pytest.raises(ConfigError, match=r"write it above @attrs\.frozen"):

        @frozen
        @persistent("values.upside_down")
        class UpsideDown:
            value: int

    with pytest.raises(ConfigError, match="needs an attrs class"):
        persistent("values.plain")(Plain)


def test_a_subclass_of_a_registered_class_is_not_registered(fresh_types: None) -> None:
    """Being stored is a promise of each class by itself."""

    @frozen
    class Child(Page):
        more: int = 0

    assert not codec.is_persistent(Child)
    with pytest.raises(NotPersistableError, match="unregistered type"):
        encode_value(Child("u"), field="params", cap=CAP)
    with pytest.raises(ConfigError, match="needs an attrs class"):

        @persistent("values.bare_child")
        class BareChild(Page):
            pass


def test_two_classes_cannot_share_a_name() -> None:
    """A stored name means one class; both are named."""
    with pytest.raises(DuplicateNameError) as caught:
        persistent("values.page")(attrs.make_class("Other", {}))
    assert "Page" in str(caught.value)
    assert "Other" in str(caught.value)
    assert registered_types()["values.page"] is Page


def test_a_class_has_one_name() -> None:
    """Otherwise the same request would have two digests."""
    with pytest.raises(ConfigError, match=r"already, as 'values\.page'"):
        persistent("values.second_name")(Page)


def test_defining_a_class_again_replaces_it(fresh_types: None) -> None:
    """A notebook cell may be run twice; what was stored comes back as the newest class."""

    def define() -> Any:
        @persistent("values.cell")
        @frozen
        class Cell:
            value: int

        return Cell

    first, second = define(), define()
    assert registered_types()["values.cell"] is second
    assert not codec.is_persistent(first)
    assert decode_value(envelope("values.cell", 1, {"value": 1})) == second(1)


def test_the_name_of_plain_json_is_taken() -> None:
    """A class called "json" would make plain values ambiguous."""
    with pytest.raises(ConfigError, match="stands for plain JSON"):
        persistent("json")


@pytest.mark.parametrize(
    ("name", "version"), [("", 1), (" ", 1), ("a\nb", 1), (3, 1), ("a", 0), ("a", True), ("a", "1")]
)
def test_bad_names_and_versions_are_refused(name: Any, version: Any) -> None:
    """Names are printable texts, versions whole numbers from 1."""
    with pytest.raises(ValidationError, match="must be"):
        persistent(name, version)


def test_names_in_annotations_may_be_defined_later(fresh_types: None) -> None:
    """Two classes may hold each other; a name that never appears is a ConfigError that says which."""

    @persistent("values.lost")
    @frozen
    class Lost:
        other: "Nowhere"  # type: ignore[name-defined]  # noqa: F821  # nobody defines it

    with pytest.raises(ConfigError, match="Nowhere"):
        codec.check_type(Lost)
    with pytest.raises(ConfigError, match="Nowhere"):
        encode_value(Lost(1), field="params", cap=CAP)
    assert isinstance(decode_value(envelope("values.lost", 1, {"other": 1})), RawValue)


def test_check_type_shows_the_decorator() -> None:
    """Handlers of unregistered types are told what to write."""
    with pytest.raises(ConfigError, match=r'@persistent\(".*\.unregistered"\) above its @attrs.frozen'):
        codec.check_type(Unregistered)
    with pytest.raises(ConfigError, match="make it an attrs class and write @persistent"):
        codec.check_type(Plain)
    codec.check_type(Page)


def test_upcasters_need_a_known_type_an_older_version_and_no_rival() -> None:
    """A slip in an upcaster's name or version is found at import and not years later."""
    with pytest.raises(UnknownNameError, match=r"did you mean 'values\.request'"):
        upcast("values.requst")
    with pytest.raises(ConfigError, match="version=4"):
        upcast("values.request", from_version=3)
    with pytest.raises(DuplicateNameError, match="from version 1"):
        upcast("values.request", from_version=1)(lambda data: data)


def test_type_name_is_the_registered_one() -> None:
    """The name is what records hold; an unregistered class has none."""
    assert codec.type_name(Page) == "values.page"
    with pytest.raises(NotPersistableError, match="is not registered"):
        codec.type_name(Plain)


def test_fields_that_the_class_computes_are_not_stored(fresh_types: None) -> None:
    """A field with init=False is made by the class itself, so it is neither written nor read."""

    @persistent("values.computed")
    @frozen
    class Computed:
        _first: int
        twice: int = attrs.field(
            init=False, default=attrs.Factory(lambda self: self._first * 2, takes_self=True)
        )

    data = encode_value(Computed(2), field="params", cap=CAP)
    assert codec.loads(data)["data"] == {"_first": 2}
    assert decode_value(data) == Computed(2)


def test_read_only_mappings_are_plain_values() -> None:
    """Options and params hand out read-only mappings; they are stored like dicts."""
    value = MappingProxyType({"a": MappingProxyType({"b": [1]})})
    assert codec.loads(codec.dumps(value)) == {"a": {"b": [1]}}
    assert decode_value(encode_value(value, field="result", cap=CAP)) == {"a": {"b": [1]}}
