"""The tables of a description, as they stand in ``[[handlers]]``: names, types, defaults, meanings.

They are read strictly here; what the texts in them say (templates, expressions, names of types) is checked
when a handler is made of them.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NewType, get_args

import attrs
from attrs import field, frozen
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
)
from cattrs.gen import make_dict_structure_fn

from coatcheck import codec
from coatcheck.codec.strict import Key, origin_of, strict
from coatcheck.codec.walk import a
from coatcheck.config import parse_duration
from coatcheck.descriptor.finder import word_of
from coatcheck.errors import CoatcheckError, ConfigError, UnknownNameError, ValidationError, closest
from coatcheck.http import BODY_CAP
from coatcheck.model import EMPTY
from coatcheck.policy import PollPolicy

if TYPE_CHECKING:
    from coatcheck.descriptor.handler import DescribedHandler

#: A text with placeholders, see ``template``.
Text = NewType("Text", str)
#: A JMESPath expression, see ``finder``.
Path = NewType("Path", str)
#: A vendor's word or code; written as a text, a whole number or a boolean.
Word = NewType("Word", str)
#: A value of any JSON type whose texts may have placeholders.
Json = NewType("Json", object)

Words = tuple[Word, ...]
Paths = Mapping[str, Path]
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@frozen(kw_only=True)
class CallTable:
    """What every call has: either ``path`` or ``url``, and what goes with it."""

    method: Method = "GET"
    #: Below ``base_url``; the values of placeholders are quoted.
    path: Text | None = None
    #: An absolute address, usually one that the vendor returned: ``"{params.poll_url}"``. Other hosts than
    #: that of ``base_url`` must be in ``allowed_hosts``, and get no credentials.
    url: Text | None = None
    headers: Mapping[str, Text] = EMPTY
    query: Mapping[str, Json] = EMPTY
    json: Json | None = None
    #: How long to wait for the reply; by default half of ``call_limit``, at most 60 s.
    timeout: timedelta | None = None
    #: The largest reply, in bytes.
    body_cap: int = BODY_CAP


@frozen(kw_only=True)
class SubmitTable(CallTable):
    """``[handlers.submit]``: the call that creates the job, and where its reply has the job's id."""

    method: Method = "POST"
    id: Path
    #: Name → place in the reply, for what later calls need beside the id.
    params: Paths = EMPTY
    #: Name → text with placeholders of the submit, for what later calls need of the request.
    keep: Mapping[str, Json] = EMPTY
    #: Where the reply has the job's state, if a submit may be done at once.
    status: Path | None = None


@frozen(kw_only=True)
class QueryTable(CallTable):
    """``[handlers.query]``: the call that looks at the job, and where its reply has what."""

    status: Path
    #: From 0 to 100, or up to ``total``.
    progress: Path | None = None
    #: What ``progress`` counts up to: a place in the reply, or a number in backticks.
    total: Path | None = None
    #: Seconds until the next query that the vendor asks for.
    query_after: Path | None = None
    #: Name → place in the reply, for what the next query needs instead of what was known so far.
    params: Paths = EMPTY


@frozen(kw_only=True)
class FetchTable(CallTable):
    """``[handlers.result.fetch]``: one more call for the result of a job that succeeded."""

    format: Literal["json", "text"] = "json"
    #: Whether ``url`` may lead to any public host, not to listed ones only; no credentials go with it, then.
    plain: bool = False
    body_cap: int = codec.CAPS["result"]


@frozen(kw_only=True)
class CancelTable(CallTable):
    """``[handlers.cancel]``: the call that asks the vendor to stop the job."""

    method: Method = "POST"
    #: Where the reply has a word for what will happen; all but ``done`` and ``refused`` mean that the vendor
    #: will stop the job. So does every 2xx without it.
    outcome: Path | None = None
    done: Words = ()
    refused: Words = ()
    message: Path | None = None
    #: HTTP statuses with which the vendor refuses.
    refused_status: tuple[int, ...] = ()


@frozen(kw_only=True)
class LookupTable(CallTable):
    """``[handlers.lookup]``: the call that asks for the job of an idempotency key."""

    #: Where the reply has the list of jobs; an empty one means that there is none.
    jobs: Path
    #: Inside one job of the list.
    id: Path
    #: Inside one job of the list: its idempotency key, where the vendor may list other jobs too.
    key: Path | None = None
    #: Inside one job of the list, with the names of ``submit.params``.
    params: Paths = EMPTY


@frozen(kw_only=True)
class WordTable:
    """``[handlers.words]``: the vendor's words for a job's state, in any case; all others mean "running"."""

    succeeded: Words
    failed: Words
    canceled: Words = ()
    submitted: Words = ()
    #: Known words for "running", so that nobody is warned of them.
    running: Words = ()


@frozen(kw_only=True)
class FailureTable:
    """``[handlers.failure]``: where a reply about a job that failed says why."""

    code: Path | None = None
    message: Path | None = None
    #: Codes after which submitting again may help.
    retryable: Words = ()


@frozen(kw_only=True)
class ResultTable:
    """``[handlers.result]``: what becomes of the reply about a job that succeeded."""

    #: The registered name of the result's type.
    type: str = "json.result"
    #: The value: what ``JsonResult.data`` holds, or the fields of another type. In the reply of ``fetch``, if
    #: there is one. By default all of it, or with a ``url`` and no ``fetch`` nothing.
    value: Path | None = None
    #: The vendor's link to the result, in the query's reply.
    url: Path | None = None
    #: How long the vendor keeps the result or its link.
    expires_after: timedelta | None = None
    fetch: FetchTable | None = None


@frozen(kw_only=True)
class ErrorTable:
    """``[handlers.errors]``: errors that the vendor puts into a 2xx reply, told by a code."""

    code: Path
    message: Path | None = None
    #: Codes that are no errors. With them, a reply without any code is an error; without, it is none.
    ok: Words = ()
    rejected: Words = ()
    throttled: Words = ()
    not_ready: Words = ()
    not_found: Words = ()
    failed: Words = ()
    #: Seconds to wait after "throttled" and "not ready".
    delay: Path | None = None


@frozen(kw_only=True)
class Descriptor:
    """A vendor operation described as data: one call to submit, one to query, both with JSON.

    ``Descriptor.of(table)`` reads it from a mapping as in ``coatcheck.toml``, ``handler()`` makes the
    handler: ``coatcheck.local(handlers=[Descriptor.of(table).handler()])``. Settings do both.
    """

    key: str
    base_url: Text
    submit: SubmitTable
    query: QueryTable
    words: WordTable
    #: The registered name of the request's type.
    request: str = "json.request"
    provider: str | None = None
    account: str = "default"
    #: Stands for ``{region}``, also in ``base_url``; a job is always asked about in the region of its submit.
    region: str | None = None
    resubmit: Literal["never", "idempotent"] = "never"
    #: Header → text with ``{secret}`` (or ``{secret.PART}``); goes to the origin of ``base_url`` only.
    auth: Mapping[str, Text] = EMPTY
    allowed_hosts: tuple[str, ...] = ()
    call_limit: timedelta = timedelta(seconds=120)
    lookup_delay: timedelta | None = None
    max_job_time: timedelta = timedelta(hours=1)
    not_found_limit: int = 3
    keep_params: Literal["ended", "accepted"] = "ended"
    poll: PollPolicy = field(factory=PollPolicy)
    failure: FailureTable = FailureTable()
    result: ResultTable = ResultTable()
    #: Unit → place in the reply.
    usage: Paths = EMPTY
    errors: ErrorTable | None = None
    cancel: CancelTable | None = None
    lookup: LookupTable | None = None

    @classmethod
    def of(cls, table: Mapping[str, Any], where: str = "$") -> "Descriptor":
        """Read a description from a mapping, as a TOML file holds it.

        Args:
            table: the description.
            where: what paths in messages begin with.

        Raises:
            ConfigError: a value has the wrong type or is not allowed, or a key is missing.
            UnknownNameError: a key has no such name; the message has the closest one.
        """
        try:
            return _CONVERTER.structure(table, cls)
        except (ClassValidationError, IterableValidationError, CoatcheckError) as error:
            raise _first(error, where) from None

    def handler(self) -> "DescribedHandler":
        """Return a handler that does what this says.

        Raises:
            ConfigError: a text in it is wrong, or a part is missing; the message begins with the key.
            UnknownNameError: a type, a placeholder or a function has no such name.
        """
        from coatcheck.descriptor.handler import DescribedHandler

        return DescribedHandler(self)


#: What to write where a key is missing.
_EXAMPLES = {
    "key": 'key = "vendor:operation"',
    "base_url": 'base_url = "https://api.vendor.example/v1"',
    "submit": 'a table [handlers.submit] with path = "/jobs" and id = "id"',
    "query": 'a table [handlers.query] with path = "/jobs/{external_task_id}" and status = "status"',
    "words": 'words = { succeeded = ["done"], failed = ["failed"] }',
    "id": 'id = "data.task_id", the place of the vendor\'s id for the job in the reply',
    "status": 'status = "data.state", the place of the job\'s state in the reply',
    "succeeded": 'succeeded = ["done"], the vendor\'s words for it',
    "failed": 'failed = ["failed"], the vendor\'s words for it',
    "jobs": 'jobs = "data.items", the place of the list of jobs in the reply',
    "code": 'code = "error.code", the place of the error code in the reply',
}


# How values are read. What a hook says begins with "it", which stands for the path.


def _refuse(expected: str, value: object) -> ValidationError:
    # The value is not shown: it may be a secret in the wrong place.
    return ValidationError(f"it must be {expected}, found {a(type(value))}")


def _text(value: Any, _: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _refuse("a text that is not blank", value)
    return value


def _words(value: Any, _: object) -> tuple[Word, ...]:
    words = [word_of(item) for item in _list(value)]
    if None in words:
        at = words.index(None)
        raise ValidationError(
            f"it[{at}] must be a text, a whole number or a boolean, found {a(type(value[at]))}"
        )
    return tuple(Word(word.casefold()) for word in words if word is not None)


def _json(value: Any, _: object) -> Any:
    return codec.check_plain(value, name="it")


def _whole(value: Any, _: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refuse("a whole number", value)
    return value


def _flag(value: Any, _: object) -> bool:
    if not isinstance(value, bool):
        raise _refuse("true or false", value)
    return value


def _number(value: Any, _: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refuse("a number", value)
    return value


def _duration(value: Any, _: object) -> timedelta:
    return parse_duration(value, "it")


def _choice(value: Any, literal: Any) -> Any:
    choices = get_args(literal)
    if not isinstance(value, str) or value not in choices:
        raise ValidationError(
            f"it must be one of {', '.join(map(repr, choices))}, found {value!r}"
            f"{closest(str(value), choices)}"
        )
    return value


def _list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise _refuse("a list", value)
    return value


def _table(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _refuse("a table", value)
    return value


def _class(cls: type) -> Callable[[Any, Any], Any]:
    read: Any = make_dict_structure_fn(cls, _CONVERTER, _cattrs_forbid_extra_keys=True)
    return lambda value, _: read(_table(value), cls)


def _poll(value: Any, _: object) -> PollPolicy:
    if isinstance(value, str):
        preset: PollPolicy = getattr(PollPolicy, _choice(value, Literal["exponential", "ramp"]))()
        return preset
    policy: PollPolicy = _class(PollPolicy)(value, PollPolicy)
    return policy


_CONVERTER = strict(
    {
        str: _text,
        Key: _text,
        Text: _text,
        Path: _text,
        Json: _json,
        int: _whole,
        bool: _flag,
        float: _number,
        timedelta: _duration,
    },
    in_list=lambda take, value: take(_list(value)),
    in_dict=lambda take, value: MappingProxyType(take(_table(value))),
)
_CONVERTER.register_structure_hook_factory(attrs.has, _class)
_CONVERTER.register_structure_hook_func(lambda kind: kind == Words, _words)
_CONVERTER.register_structure_hook_func(lambda kind: origin_of(kind) is Literal, _choice)
_CONVERTER.register_structure_hook(PollPolicy, _poll)


def _first(error: Exception, path: str) -> ConfigError:
    """Return the error to repair first: a misspelt key before the one that is then missing."""
    if isinstance(error, ForbiddenExtraKeysError):
        known = sorted(one.name for one in attrs.fields(error.cl))
        name = min(error.extra_fields)
        return UnknownNameError(
            f"unknown key {path}.{name}{closest(name, known)} (known: {', '.join(known)})",
            "key",
            name,
            tuple(known),
        )
    if isinstance(error, ClassValidationError | IterableValidationError):
        noted, others = error.group_exceptions()
        for other in others:
            if isinstance(other, ForbiddenExtraKeysError):
                return _first(other, path)
        if not noted:
            return _first(others[0], path)
        found, note = noted[0]
        step = f".{note.name}" if isinstance(note, AttributeValidationNote) else f"[{note.index!r}]"
        if isinstance(found, KeyError) and isinstance(note, AttributeValidationNote):
            return ConfigError(
                f"{path}{step} is missing; write {_EXAMPLES.get(note.name, f'{note.name} = …')}"
            )
        return _first(found, path + step)
    text = str(error)
    return ConfigError(path + text[2:] if text.startswith(("it ", "it[")) else f"{path}: {text}")
