"""A task's record: the fields that lie beside the store's hot columns, as one JSON object."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import attrs
import orjson
from attrs import frozen
from cattrs import Converter
from cattrs.gen import make_dict_structure_fn

from coatcheck.codec.shape import (
    READER,
    read_dict,
    read_flag,
    read_instant,
    read_list,
    read_number,
    read_text,
    read_whole,
    unfrozen,
)
from coatcheck.codec.value import CAPS, check_plain, decode_value
from coatcheck.codec.walk import Refused, a
from coatcheck.errors import CoatcheckError, NewerRecordError, NotPersistableError, StoreError
from coatcheck.model import (
    EMPTY,
    Failure,
    HandlerTraits,
    Observation,
    QueryParams,
    Task,
    TaskStatus,
    Verdict,
)
from coatcheck.store import Row, Stored

#: The newest record format that this version reads, and the only one that it writes.
FORMAT = 1

#: Record format → what turns a record of that format into one of the next. Entries are never removed: format
#: 1 stays readable for ever (G7).
UPCASTERS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def cut(text: str, cap: int = CAPS["error"]) -> str:
    """Return ``text`` as it may be stored: valid Unicode, at most ``cap`` bytes, marked where it was cut."""
    if len(text) <= cap and text.isascii():
        return text
    data = text.encode(errors="replace")
    if len(data) <= cap:
        return data.decode()
    return data[: cap - 16].decode(errors="ignore") + " … (cut)"


@frozen
class Extra:
    """Unknown fields inside a known one; they go with the value that they were read with."""

    value: Any
    fields: dict[str, Any]

    def belongs_to(self, value: Any) -> bool:
        """Whether ``value`` is still about the same thing."""
        if isinstance(value, QueryParams) and isinstance(self.value, QueryParams):
            return value.external_task_id == self.value.external_task_id
        return bool(value == self.value)


# Fields: how they are written and read.


def _nested(cls: type) -> Callable[[dict[str, Any]], Any]:
    # Without paths: the message names the field of the record, and a list of tasks reads many of them.
    return make_dict_structure_fn(cls, READER, _cattrs_detailed_validation=False)


_make_traits, _read_failure = map(_nested, (HandlerTraits, Failure))
_plain = Converter()
_plain.register_unstructure_hook(timedelta, timedelta.total_seconds)
# All tasks of a handler have the same ones, and they are read and written at every step.
_write_traits = lru_cache(maxsize=256)(_plain.get_unstructure_hook(HandlerTraits))


def _read_traits(data: dict[str, Any]) -> HandlerTraits:
    try:
        return _same_traits(tuple(data), tuple(data.values()))
    except TypeError:  # a list, in a field of a newer version
        traits: HandlerTraits = _make_traits(data)
        return traits


@lru_cache(maxsize=256)
def _same_traits(names: tuple[str, ...], values: tuple[Any, ...]) -> HandlerTraits:
    traits: HandlerTraits = _make_traits(dict(zip(names, values, strict=True)))
    return traits


def _text(value: Any, path: str, cap: int = CAPS["error"]) -> str:
    """Return a text of a handler or a vendor as it may be stored.

    What is no text (a vendor's word may be a number) is refused: nobody could read the record again.
    """
    if not isinstance(value, str):
        found = type(value).__name__
        raise NotPersistableError(f"{path} must be a text, found {a(type(value))}; write str(…)", path, found)
    return cut(value, cap)


def _write_provider_status(word: Any) -> str:
    return _text(word, "provider_status")


def _write_failure(failure: Failure) -> dict[str, Any]:
    return {
        "code": _text(failure.code, "error.code", 200),
        "message": _text(failure.message, "error.message"),
        "phase": failure.phase,
        "retryable": failure.retryable,
    }


def _write_query_params(params: QueryParams) -> dict[str, Any]:
    return {"external_task_id": params.external_task_id, "provider_params": dict(params.provider_params)}


def _read_query_params(data: dict[str, Any]) -> QueryParams:
    return QueryParams(data["external_task_id"], **data.get("provider_params", {}))


def _write_observation(seen: Observation) -> dict[str, Any]:
    return {
        "status": seen.status,
        "progress": seen.progress,
        "provider_status": None
        if seen.provider_status is None
        else _write_provider_status(seen.provider_status),
        "at": seen.at,
    }


def _read_observation(data: dict[str, Any]) -> Observation:
    progress, word = data.get("progress"), data.get("provider_status")
    return Observation(
        TaskStatus(read_text(data["status"])),
        None if progress is None else _read_progress(progress),
        None if word is None else read_text(word),
        read_instant(data["at"]),
    )


def _read_progress(data: Any) -> float:
    return float(read_number(data))


def _write_resources(resources: Any) -> list[list[str]]:
    return [[_text(part, "resources", 1024) for part in pair] for pair in resources]


def _read_resources(data: Any) -> tuple[tuple[str, str], ...]:
    return tuple([(read_text(kind), read_text(name)) for kind, name in read_list(data)])


def _write_notes(notes: tuple[str, ...]) -> list[str]:
    return [_text(note, "notes", 1024) for note in notes]


def _read_notes(data: Any) -> tuple[str, ...]:
    return tuple([read_text(note) for note in read_list(data)])


def _read_mapping(data: Any) -> Mapping[str, Any]:
    return MappingProxyType(read_dict(data))


@frozen
class Column:
    """How one field of a record is written and read; a field that has its default is left out."""

    default: Any
    read: Callable[[Any], Any]
    #: ``None``: it is its own JSON.
    write: Callable[[Any], Any] | None = None
    #: What it holds, where that has fields of its own.
    nested: type | None = None


#: Every field of a task that is neither a hot column nor a payload. The defaults are those of ``Task``, mean
#: "nothing" and may never change, because records leave them out; traits have defaults with a meaning, so
#: they are always written.
COLUMNS: Mapping[str, Column] = {
    "request_type": Column("", read_text),
    "idempotency_key": Column("", read_text),
    "metadata": Column(EMPTY, _read_mapping, dict),
    "cancel_on_deadline": Column(default=False, read=read_flag),
    "traits": Column(None, _read_traits, _write_traits, HandlerTraits),
    "verdict": Column(None, Verdict),
    "submitted_at": Column(None, read_instant),
    "query_params": Column(None, _read_query_params, _write_query_params, QueryParams),
    "progress": Column(None, _read_progress),
    "provider_status": Column(None, read_text, _write_provider_status),
    "last_observation": Column(None, _read_observation, _write_observation, Observation),
    "result_expires_at": Column(None, read_instant),
    "result_gone": Column(default=False, read=read_flag),
    "error": Column(None, _read_failure, _write_failure, Failure),
    "usage": Column(None, _read_mapping, dict),
    "resources": Column((), _read_resources, _write_resources),
    "submit_attempts": Column(0, read_whole),
    "not_sent_count": Column(0, read_whole),
    "query_count": Column(0, read_whole),
    "consecutive_errors": Column(0, read_whole),
    "not_found_count": Column(0, read_whole),
    "lookup_misses": Column(0, read_whole),
    "cancel_tries": Column(0, read_whole),
    "notes": Column((), _read_notes, _write_notes),
}

# The same, flat: these are walked at every step.
_WRITERS = tuple((name, column.default, column.write) for name, column in COLUMNS.items())
_READERS = {
    name: (column.read, None if column.nested is None else frozenset(attrs.fields_dict(column.nested)))
    for name, column in COLUMNS.items()
}
_DEFAULTS = {one.name: one.default for one in attrs.fields(Task) if one.name not in attrs.fields_dict(Row)}


def encode_record(task: Task) -> bytes:
    """Return the record of ``task`` in ``FORMAT``: all that is neither a hot column nor params nor result.

    Fields of a newer version, which ``decode_task`` kept in ``unknown_fields``, are written back (G7). Texts
    that come from vendors are cut to their caps.

    Raises:
        NotPersistableError: metadata or provider params are no JSON values, or a vendor's word is no text.
    """
    held = task.__dict__
    unknown = task.unknown_fields
    out = {name: value for name, value in unknown.items() if value.__class__ is not Extra} if unknown else {}
    for name, default, write in _WRITERS:
        value = held[name]
        if value is not default and (default is None or value != default):
            out[name] = value if write is None else write(value)
    for name, extra in unknown.items():
        if extra.__class__ is Extra and name in out and extra.belongs_to(held[name]):
            out[name] = {**extra.fields, **out[name]}
    try:
        return orjson.dumps(out, default=unfrozen)
    except TypeError as error:
        check_plain(task.metadata, name="metadata")
        check_plain(task.query_params and task.query_params.provider_params, name="query_params")
        check_plain(task.usage, name="usage")
        raise NotPersistableError(f"the record of task {task.id} cannot be written: {error}") from error


def decode_task(stored: Stored, *, with_result: bool = True) -> Task:
    """Return the task of a stored row.

    Fields that are missing (an older version wrote the record) take their defaults; fields that are unknown
    are kept in ``Task.unknown_fields``.

    Args:
        stored: what the store gave out.
        with_result: whether to restore the result, where the store loaded it; it is a ``RawValue`` where its
            type is
            not known here.

    Raises:
        NewerRecordError: a newer version wrote the record.
        StoreError: the record cannot be read.
    """
    row = stored.row
    if stored.format > FORMAT:
        raise NewerRecordError(
            f"task {row.id} has record format {stored.format}, this version reads up to {FORMAT}; "
            "upgrade it here",
            row.id,
            stored.format,
            FORMAT,
        )
    task: Task = object.__new__(Task)
    held = task.__dict__
    held.update(_DEFAULTS)
    held.update(row.__dict__)
    unknown: dict[str, Any] = {}
    name = ""
    try:
        record = orjson.loads(stored.record)
        for older in range(stored.format, FORMAT):
            record = UPCASTERS[older](record)
        for name, value in record.items():
            reader = _READERS.get(name)
            if reader is None:
                unknown[name] = value
                continue
            read, names = reader
            held[name] = read(value)
            if names is not None and not names.issuperset(value):
                extra = {key: item for key, item in value.items() if key not in names}
                unknown[name] = Extra(held[name], extra)
    except (
        Refused,
        CoatcheckError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        OverflowError,
    ) as error:
        where = f" at {name!r}" if name else ""
        raise StoreError(
            f"task {row.id} has a record that is not of its format {stored.format}{where} "
            f"({type(error).__name__}); was it changed by hand?"
        ) from error
    if unknown:
        held["unknown_fields"] = MappingProxyType(unknown)
    if with_result and stored.result is not None:
        held["result"] = decode_value(stored.result)
    return task


def decode_params(stored: Stored) -> Any:
    """Return the request of a stored task, or a ``RawValue`` where its type is not known here.

    Raises:
        StoreError: the params were not loaded, or dropped when they were not needed any more, or are no
            envelope.
    """
    if stored.params is None:
        raise StoreError(f"task {stored.row.id} has no params here: not loaded, or dropped after its end")
    return decode_value(stored.params)
