"""Records: what is written comes back, what is unknown is kept, what is newer or broken is said to be so."""

import contextlib
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from coatcheck import codec
from coatcheck.codec import RawValue, cut, decode_params, decode_task, encode_record, encode_value, persistent
from coatcheck.codec import record as records
from coatcheck.errors import NewerRecordError, NotPersistableError, StoreError
from coatcheck.model import (
    CancelFlag,
    Failure,
    HandlerTraits,
    Observation,
    Phase,
    QueryParams,
    Step,
    Task,
    TaskStatus,
    Verdict,
)
from coatcheck.store import Row, Stored

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROW = {field.name for field in attrs.fields(Row)}
FIELDS = {field.name for field in attrs.fields(Task)}


@persistent("records.result")
@frozen
class Result:
    """A result of a registered type."""

    text: str


instants = st.datetimes(NOW.replace(tzinfo=None, year=1971), timezones=st.just(UTC))
durations = st.timedeltas(timedelta(), timedelta(days=3650))
texts = st.text(max_size=10)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
mappings = st.dictionaries(texts, json_values, max_size=3).map(MappingProxyType)
counts = st.integers(0, 2**40)
progress = st.none() | st.floats(0, 100)
query_params = st.builds(
    lambda task_id, params: QueryParams(task_id, **params),
    texts.filter(str.strip),
    st.dictionaries(texts, json_values, max_size=3),
)
tasks = st.builds(
    Task,
    id=texts,
    status=st.sampled_from(TaskStatus),
    version=counts,
    generation=counts,
    verdict=st.none() | st.sampled_from(Verdict),
    handler_key=texts,
    provider_key=texts,
    account=texts,
    tenant=texts,
    priority=st.integers(-1000, 1000),
    request_type=texts,
    idempotency_key=texts,
    dedupe_key=st.none() | texts,
    metadata=mappings,
    cancel_on_deadline=st.booleans(),
    traits=st.builds(
        HandlerTraits,
        resubmit=st.sampled_from(["never", "idempotent"]),
        has_lookup=st.booleans(),
        has_cancel=st.booleans(),
        lookup_delay=durations,
        max_job_time=durations,
        not_found_limit=st.integers(1, 10),
        keep_params=st.sampled_from(["ended", "accepted"]),
    ),
    deadline=durations,
    queue_deadline=st.none() | durations,
    stall_limit=st.none() | durations,
    created_at=instants,
    scheduled_at=instants,
    deadline_at=instants,
    queue_deadline_at=st.none() | instants,
    stall_at=st.none() | instants,
    due_at=st.none() | instants,
    updated_at=instants,
    submitted_at=st.none() | instants,
    finished_at=st.none() | instants,
    next_step=st.none() | st.sampled_from(Step),
    cancel=st.sampled_from(CancelFlag),
    is_leased=st.booleans(),
    claims=counts,
    query_params=st.none() | query_params,
    progress=progress,
    provider_status=st.none() | texts,
    last_observation=st.none()
    | st.builds(Observation, st.sampled_from(TaskStatus), progress, st.none() | texts, instants),
    result_expires_at=st.none() | instants,
    result_gone=st.booleans(),
    error=st.none() | st.builds(Failure, texts, texts, st.sampled_from(Phase), st.booleans()),
    usage=st.none() | st.dictionaries(texts, counts, max_size=2).map(MappingProxyType),
    resources=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    submit_attempts=counts,
    not_sent_count=counts,
    query_count=counts,
    consecutive_errors=counts,
    not_found_count=counts,
    lookup_misses=counts,
    cancel_tries=counts,
    notes=st.lists(texts, max_size=3).map(tuple),
)


def a_task(**changes: Any) -> Task:
    """A running task; whatever is not given has a plain value."""
    values: dict[str, Any] = {
        "id": "t1",
        "status": TaskStatus.RUNNING,
        "handler_key": "ocr:x",
        "provider_key": "ocr:x",
        "account": "default",
        "created_at": NOW,
        "scheduled_at": NOW,
        "deadline_at": NOW,
        "updated_at": NOW,
    }
    return Task(**{**values, **changes})


def stored(
    task: Task, record: bytes | None = None, *, format: int = codec.FORMAT, **payloads: bytes
) -> Stored:
    """What a store would give out for a task."""
    row = Row(**{name: getattr(task, name) for name in ROW})
    return Stored(
        row=row, format=format, record=encode_record(task) if record is None else record, **payloads
    )


def rewritten(task: Task, changes: dict[str, Any]) -> Task:
    """The task as it is read from a record with some keys changed."""
    record = codec.loads(encode_record(task))
    return decode_task(stored(task, codec.dumps({**record, **changes})))


@given(tasks)
def test_a_task_comes_back_equal(task: Task) -> None:
    """Row and record together are the whole task."""
    back = decode_task(stored(task))
    assert back == task
    kinds = [{name: type(value) for name, value in vars(one).items()} for one in (back, task)]
    assert kinds[0] == kinds[1]


def test_every_field_of_a_task_is_in_the_row_or_in_the_record() -> None:
    """A new field of Task needs a place on disk, or a reason here why it has none."""
    derived = {"result", "is_replay", "unknown_fields"}
    assert set(records.COLUMNS) == FIELDS - ROW - derived
    assert ROW <= FIELDS


def test_left_out_defaults_are_those_of_the_model() -> None:
    """A field is left out where it has the model's default, which may never change."""
    for name, column in records.COLUMNS.items():
        default = attrs.fields_dict(Task)[name].default
        assert column.default == (None if name == "traits" else default), name
    assert set(codec.loads(encode_record(a_task()))) == {"traits"}


def test_a_record_is_readable_json() -> None:
    """A person can read a record; it repeats nothing of the row."""
    task = a_task(
        query_params=QueryParams("job-1", region="r"),
        submitted_at=NOW,
        error=Failure("call_timeout", "too slow", Phase.QUERY, retryable=True),
    )
    record = codec.loads(encode_record(task))
    assert record["query_params"] == {"external_task_id": "job-1", "provider_params": {"region": "r"}}
    assert record["submitted_at"] == "2026-03-01T12:00:00+00:00"
    assert record["error"] == {
        "code": "call_timeout",
        "message": "too slow",
        "phase": "query",
        "retryable": True,
    }
    assert record["traits"]["lookup_delay"] == 120.0
    assert not ROW & record.keys()


# Older and newer records.


@given(tasks, st.data())
def test_missing_fields_take_their_defaults(task: Task, data: st.DataObject) -> None:
    """A record of an older version has fewer fields, nested ones too."""
    record = codec.loads(encode_record(task))
    dropped = data.draw(st.sets(st.sampled_from(sorted(records.COLUMNS))))
    back = decode_task(stored(task, codec.dumps({k: v for k, v in record.items() if k not in dropped})))
    defaults = {name: attrs.fields_dict(Task)[name].default for name in dropped}
    assert back == task.evolve(**defaults)


def test_missing_fields_inside_traits_failures_and_observations_take_their_defaults() -> None:
    """Nested objects of an older version have fewer fields as well."""
    back = rewritten(
        a_task(),
        {
            "traits": {"has_cancel": True},
            "error": {"code": "c", "message": "m", "phase": "query"},
            "query_params": {"external_task_id": "job-1"},
            "last_observation": {"status": "running", "at": "2026-03-01T12:00:00Z"},
        },
    )
    assert back.traits == HandlerTraits(has_cancel=True)
    assert back.error == Failure("c", "m", Phase.QUERY)
    assert back.query_params == QueryParams("job-1")
    assert back.last_observation == Observation(TaskStatus.RUNNING, None, None, NOW)


unknown = st.dictionaries(
    texts.map("new_{}".format)
    | st.sampled_from(["result", "params", "status", "is_replay", "unknown_fields"]),
    json_values,
    min_size=1,
    max_size=3,
)


@given(tasks, unknown, unknown, unknown, st.integers(0, 9))
def test_unknown_fields_survive_a_rewrite(
    task: Task,
    outer: dict[str, Any],
    in_traits: dict[str, Any],
    in_params: dict[str, Any],
    queries: int,
) -> None:
    """What a newer version wrote is written back by an older one, nested fields too (G7)."""
    record = {**codec.loads(encode_record(task)), **outer}
    record["traits"] = {**in_traits, **record["traits"]}
    if "query_params" in record:
        record["query_params"] = {**in_params, **record["query_params"]}
    read = decode_task(stored(task, codec.dumps(record)))
    assert (
        read.evolve(unknown_fields=task.unknown_fields) == task
    )  # and nothing of it is taken for a known field
    moved = read.evolve(query_count=queries, progress=None, status=TaskStatus.RUNNING)
    again = codec.loads(encode_record(moved))
    for name, value in outer.items():
        assert again[name] == value
    assert again["traits"] == record["traits"]
    assert again.get("query_params") == record.get("query_params")
    assert decode_task(stored(moved)) == moved


def test_unknown_fields_inside_a_value_go_with_that_value() -> None:
    """Facts about the old error are not told of a new one; those about the job stay while it is the same."""
    record = {
        "error": {"code": "c", "message": "m", "phase": "query", "retryable": False, "new": 1},
        "query_params": {"external_task_id": "job-1", "provider_params": {"cursor": 1}, "new": 2},
    }
    task = rewritten(a_task(), record)
    kept = codec.loads(encode_record(task))
    assert (kept["error"]["new"], kept["query_params"]["new"]) == (1, 2)
    moved = task.evolve(error=Failure("d", "n", Phase.QUERY), query_params=QueryParams("job-1", cursor=2))
    again = codec.loads(encode_record(moved))
    assert "new" not in again["error"]
    assert again["query_params"] == {"external_task_id": "job-1", "provider_params": {"cursor": 2}, "new": 2}
    other = codec.loads(encode_record(task.evolve(error=None, query_params=QueryParams("job-2"))))
    assert "error" not in other
    assert "new" not in other["query_params"]


@given(st.integers(codec.FORMAT + 1, 10**6), st.binary())
def test_a_newer_format_is_refused_without_looking_at_the_record(format: int, record: bytes) -> None:
    """The row's format number decides; the error says what to do."""
    with pytest.raises(NewerRecordError, match="upgrade") as caught:
        decode_task(stored(a_task(), record, format=format))
    assert (caught.value.task_id, caught.value.found, caught.value.readable) == ("t1", format, codec.FORMAT)


def test_older_formats_go_through_the_whole_chain_of_upcasters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Format 1 stays readable when there is a format 3: each upcaster leads one format on."""
    monkeypatch.setattr(records, "FORMAT", 3)
    monkeypatch.setitem(records.UPCASTERS, 1, lambda record: {"query_count": record.pop("queries"), **record})
    monkeypatch.setitem(
        records.UPCASTERS, 2, lambda record: {**record, "query_count": record["query_count"] + 1}
    )
    record = codec.dumps({"queries": 4, "new": 1})
    assert decode_task(stored(a_task(), record, format=1)) == a_task(query_count=5, unknown_fields={"new": 1})
    assert decode_task(stored(a_task(), codec.dumps({"query_count": 4}), format=2)).query_count == 5
    assert decode_task(stored(a_task(), codec.dumps({"query_count": 4}), format=3)).query_count == 4


def test_there_is_an_upcaster_for_every_older_format() -> None:
    """Entries of the table are never removed."""
    assert set(records.UPCASTERS) == set(range(1, codec.FORMAT))


# Broken records.


@given(st.binary() | json_values.map(codec.dumps))
def test_a_record_that_is_none_is_a_store_error(record: bytes) -> None:
    """Whatever lies in a row, reading it gives a task or a StoreError."""
    with contextlib.suppress(StoreError):
        assert decode_task(stored(a_task(), record)).id == "t1"


@given(tasks, st.sampled_from(sorted(records.COLUMNS)), json_values)
def test_a_broken_field_is_a_store_error_and_nothing_else(task: Task, name: str, value: object) -> None:
    """One bad row never spoils a list."""
    with contextlib.suppress(StoreError):
        assert encode_record(rewritten(task, {name: value}))  # what is accepted can be written again


@pytest.mark.parametrize(
    "change",
    [
        {"query_count": "3"},
        {"query_count": True},
        {"query_count": 1.0},
        {"cancel_on_deadline": 1},
        {"verdict": "judge"},
        {"progress": "half"},
        {"submitted_at": "2026-01-01T00:00:00"},
        {"submitted_at": 5},
        {"metadata": []},
        {"query_params": {"external_task_id": " "}},
        {"query_params": {"external_task_id": 5}},
        {"query_params": {"external_task_id": "a", "provider_params": []}},
        {"error": {"code": "c"}},
        {"error": {"code": "c", "message": "m", "phase": "elsewhere"}},
        {"traits": {"resubmit": "always"}},
        {"traits": {"resubmit": []}},
        {"traits": {"lookup_delay": 1e300}},
        {"traits": None},
        {"resources": [["a"]]},
        {"resources": [["a", 1]]},
        {"notes": "abc"},
        {"last_observation": {"status": "running"}},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_kind_is_named(change: dict[str, Any]) -> None:
    """Nothing is coerced, a text is no number and a number no flag; the message names the field."""
    with pytest.raises(StoreError, match=repr(next(iter(change)))):
        rewritten(a_task(), change)


def test_a_record_cannot_overrule_the_row() -> None:
    """The store owns the hot columns; a record that has them too keeps them as unknown fields."""
    task = rewritten(a_task(), {"status": "succeeded", "version": 99, "is_replay": True, "result": {"a": 1}})
    assert (task.status, task.version, task.is_replay, task.result) == (TaskStatus.RUNNING, 0, False, None)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"metadata": {"a": [b"x"]}}, "metadata['a'][0]"),
        ({"query_params": QueryParams("j", when=object())}, "query_params['when']"),
        ({"query_params": QueryParams("j", a={1: 2})}, "query_params['a'][1]"),
    ],
)
def test_what_is_no_json_in_metadata_or_params_is_refused_with_its_path(
    changes: dict[str, Any], path: str
) -> None:
    """A handler's slip is told with the place where it lies."""
    with pytest.raises(NotPersistableError) as caught:
        encode_record(a_task(**changes))
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"provider_status": 3}, "provider_status"),
        ({"error": Failure(400, "m", Phase.QUERY)}, "error.code"),  # type: ignore[arg-type]  # a vendor's number
        ({"error": Failure("c", None, Phase.QUERY)}, "error.message"),  # type: ignore[arg-type]  # a missing text
        ({"resources": (("file", 5),)}, "resources"),
        ({"notes": (b"x",)}, "notes"),
        ({"last_observation": Observation(TaskStatus.RUNNING, None, b"", NOW)}, "provider_status"),  # type: ignore[arg-type]  # bytes
    ],
)
def test_what_should_be_a_text_is_refused_before_it_makes_a_record_unreadable(
    changes: dict[str, Any], path: str
) -> None:
    """A vendor's word may be a number; a record that cannot be read again is never written."""
    with pytest.raises(NotPersistableError, match=r"must be a text, found .*; write str") as caught:
        encode_record(a_task(**changes))
    assert caught.value.path == path


def test_anything_else_that_is_no_json_is_refused_with_the_task() -> None:
    """A slip elsewhere in a record is told as what it is."""
    wrong: Any = object()
    with pytest.raises(NotPersistableError, match="record of task t1 cannot be written"):
        encode_record(a_task(idempotency_key=wrong))


# Texts from vendors.


@given(st.text(st.characters(), max_size=40), st.integers(20, 60))
def test_a_cut_text_is_valid_and_within_its_cap(text: str, cap: int) -> None:
    """Cutting never splits a character, a short text stays as it is, and lone surrogates never reach JSON."""
    result = cut(text, cap)
    assert len(result.encode()) <= cap
    clean = text.encode(errors="replace").decode()
    assert result == clean if len(clean.encode()) <= cap else result.endswith(" … (cut)")


def test_huge_vendor_texts_are_cut_before_they_are_stored() -> None:
    """An error page of 50 MB does not go into a row (F94); the ends of the record stay readable."""
    huge = "é\ud800" * 100_000
    task = a_task(
        error=Failure(huge, huge, Phase.QUERY),
        provider_status=huge,
        notes=(huge,) * 10,
        last_observation=Observation(TaskStatus.RUNNING, None, huge, NOW),
    )
    record = encode_record(task)
    assert len(record) < 3 * codec.CAPS["error"] + 10 * 1024 + 2000
    back = decode_task(stored(task, record))
    assert back.error is not None
    assert back.error.message.endswith(" … (cut)")
    assert len(back.error.message.encode()) <= codec.CAPS["error"]
    assert len(back.error.code.encode()) <= 200


# Payloads.


def test_the_result_is_restored_where_it_was_loaded_and_wanted() -> None:
    """Lists load no results, and a caller may leave one alone."""
    result = encode_value(Result("t"), field="result", cap=1000)
    assert decode_task(stored(a_task(), result=result)).result == Result("t")
    assert decode_task(stored(a_task(), result=result), with_result=False).result is None
    assert decode_task(stored(a_task())).result is None


def test_a_result_of_an_unknown_type_is_raw_and_spoils_nothing() -> None:
    """A process without the plugin still lists the task."""
    result = codec.dumps({"type": "records.other", "version": 1, "data": {"a": 1}})
    task = decode_task(stored(a_task(), result=result))
    assert isinstance(task.result, RawValue)
    assert (task.result.type, task.result.data) == ("records.other", {"a": 1})


def test_params_are_restored_or_said_to_be_gone() -> None:
    """Params that were dropped at the end are not confused with empty ones."""
    params = encode_value(Result("t"), field="params", cap=1000)
    assert decode_params(stored(a_task(), params=params)) == Result("t")
    with pytest.raises(StoreError, match="t1 has no params"):
        decode_params(stored(a_task()))
