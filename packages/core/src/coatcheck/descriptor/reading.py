"""How replies are read beyond a state: errors in them, results, and what a cancel or a lookup comes to.

Each class is one table of a description, compiled; what is wrong in it comes to light when it is made.
Nothing here knows which job it is about.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import attrs

from coatcheck import codec
from coatcheck.codec.allowed import by_class
from coatcheck.codec.shape import fields_of
from coatcheck.descriptor.finder import Finder, finders, optional, seconds_of, word_of
from coatcheck.descriptor.plan import CallPlan
from coatcheck.descriptor.tables import CancelTable, Descriptor, ErrorTable, LookupTable, ResultTable
from coatcheck.descriptor.template import Scope
from coatcheck.descriptor.value import JsonResult
from coatcheck.errors import (
    ConfigError,
    JobNotFoundError,
    NotReadyError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    VendorError,
    closest,
)
from coatcheck.model import CancelResult


def classes_of(table: object, names: Iterable[str], where: str) -> dict[str, str]:
    """Return which class each word stands for.

    Args:
        table: has a list of words per class.
        names: the classes.
        where: where the table stands, for messages.

    Raises:
        ConfigError: a word is in two lists.
    """
    classes: dict[str, str] = {}
    for name in names:
        for word in getattr(table, name):
            if classes.setdefault(word, name) != name:
                raise ConfigError(
                    f"{where}: {word!r} is listed as {classes[word]} and as {name}; keep one of them"
                )
    return classes


class Envelope:
    """Errors inside 2xx replies.

    Raises:
        ConfigError: an expression is wrong, or a code is in two lists.
    """

    _CLASSES = ("ok", "rejected", "throttled", "not_ready", "not_found", "failed")

    def __init__(self, table: ErrorTable, where: str) -> None:
        self._code = Finder(table.code, f"{where}.code")
        self._message = optional(table.message, f"{where}.message")
        self._delay = optional(table.delay, f"{where}.delay")
        self._classes = classes_of(table, self._CLASSES, where)
        self._has_ok = bool(table.ok)

    def check(self, body: Any) -> tuple[str, str] | None:
        """Return code and message of a job that failed; ``None`` if the reply is no error.

        Raises:
            HandlerError: the reply is an error of another class; a code in no list is a ``VendorError``,
                which leaves the outcome of a submit unknown.
        """
        code = word_of(self._code.find(body))
        if code is None:
            if self._has_ok:
                raise self._code.missing()
            return None
        kind = self._classes.get(code.casefold())
        if kind == "ok":
            return None
        told = self._message.glimpse(body) if self._message else None
        message = (
            f"the vendor answered with error {code}: {told}" if told else f"the vendor answered with {code}"
        )
        delay = seconds_of(self._delay.glimpse(body)) if self._delay else None
        match kind:
            case "failed":
                return code, str(told or message)
            case "rejected":
                raise RejectedError(message, code=code)
            case "throttled":
                raise ThrottledError(message, delay=delay)
            case "not_ready":
                raise NotReadyError(message, delay=delay)
            case "not_found":
                raise JobNotFoundError(message)
            case _:
                raise VendorError(f"{message}; the code is in no list of {self._code.where}", code=code)


class ResultReader:
    """Results, in the reply to a query or behind one more call.

    Raises:
        ConfigError: an expression or the call is wrong, or the type's fields are not those of the value.
    """

    def __init__(self, descriptor: Descriptor, result_type: type, scope: Scope) -> None:
        table, where = descriptor.result, f"{descriptor.key}: result"
        self._type = result_type
        self._name = table.type
        self._url = optional(table.url, f"{where}.url")
        text: str | None = table.value
        if text is None and (table.url is None or table.fetch is not None):
            text = "@"
        self._value = optional(text, f"{where}.value")
        self.fetch: CallPlan | None = None
        self.is_text = table.fetch is not None and table.fetch.format == "text"
        #: A file at an address of its own is no reply of the API.
        self.has_envelope = table.fetch is not None and table.fetch.path is not None
        if table.fetch is not None:
            names = {**scope.names, "url": False} if table.url is not None else scope.names
            limit = descriptor.call_limit
            self.fetch = CallPlan(table.fetch, Scope(names, scope.hints), f"{where}.fetch", limit)
            if table.fetch.plain and table.fetch.url is None:
                raise ConfigError(f"{where}.fetch.plain is for a url that the vendor returned; drop it")
            if not self.fetch.uses("external_task_id", "params", "url"):
                raise ConfigError(
                    f"{where}.fetch must say which result is meant: write {{url}} (the place of the link is "
                    "result.url), {external_task_id} or {params.…} into it"
                )
        if self._type is not JsonResult:
            self._check_fields(table, where)

    def _check_fields(self, table: ResultTable, where: str) -> None:
        """Refuse field names that the type does not have, as far as the expression shows them."""
        fields = {one.name: one for one in fields_of(by_class[self._type])}
        if self._value is None:
            raise ConfigError(
                f"{where}.value is missing; write value = {{…}} with the fields of {table.type}"
            )
        keys = self._value.keys
        if keys is None:
            return
        for name in keys:
            if name not in fields:
                raise UnknownNameError(
                    f"{where}.value: {table.type} has no field {name!r}{closest(name, fields)} (known: "
                    f"{', '.join(fields)})",
                    "field",
                    name,
                    tuple(sorted(fields)),
                )
        for name, one in fields.items():
            if one.default is attrs.NOTHING and name not in keys:
                raise ConfigError(
                    f"{where}.value must have the field {name!r} of {table.type}; add {name}: …"
                )

    def at_once(self, body: Any) -> Any:
        """Return the result that the reply to a submit holds already, or ``None``: a query may see it."""
        if self.fetch is not None:
            return None
        try:
            return self.make(body, self.link(body))
        except VendorError:
            return None

    def link(self, body: Any) -> str | None:
        """Return the vendor's link to the result, where the description names its place."""
        if self._url is None:
            return None
        found = self._url.require(body)
        if not isinstance(found, str) or not found.strip():
            raise self._url.missing()
        return found

    def make(self, source: Any, url: str | None) -> Any:
        """Return the result.

        Raises:
            VendorError: the reply has no value, or one that does not fit the type.
        """
        value = self._value.require(source) if self._value is not None else None
        if self._type is JsonResult:
            return JsonResult(value, url)
        entry = by_class[self._type]
        envelope = {"type": entry.name, "version": entry.version, "data": value}
        made = codec.decode_value(codec.dumps(envelope))
        if isinstance(made, codec.RawValue):
            raise VendorError(
                f"the vendor's result is no {self._name}: {made.problem}", code="unreadable_reply"
            )
        return made


class CancelReader:
    """The call and the answers of a cancel.

    Raises:
        ConfigError: an expression or the call is wrong, or words and their place do not go together.
    """

    def __init__(self, table: CancelTable, scope: Scope, key: str, limit: timedelta) -> None:
        where = f"{key}: cancel"
        self.plan = CallPlan(table, scope, where, limit)
        self.outcome = optional(table.outcome, f"{where}.outcome")
        self._message = optional(table.message, f"{where}.message")
        self._outcomes = classes_of(table, ("done", "refused"), where)
        if self.outcome is None and self._outcomes:
            raise ConfigError(f"{where} needs outcome, the place of the words that done and refused list")
        if self.outcome is not None and not self._outcomes:
            raise ConfigError(f"{where}.outcome needs words: write done = […], refused = […], or both")
        self.refused_status = table.refused_status
        for status in self.refused_status:
            if not 400 <= status <= 499:
                raise ConfigError(f"{where}.refused_status may list 400 to 499, found {status}")

    def read(self, body: Any) -> CancelResult:
        """Return what the vendor will do."""
        if self.outcome is None:
            return CancelResult.accepted()
        word = word_of(self.outcome.find(body))
        if word is None:
            raise self.outcome.missing()
        match self._outcomes.get(word.casefold()):
            case "done":
                return CancelResult.done()
            case "refused":
                told = self._message.glimpse(body) if self._message else None
                return CancelResult.refused(str(told or f"the vendor says {word!r}"))
        return CancelResult.accepted()


class LookupReader:
    """The call and the answers of a lookup.

    Raises:
        ConfigError: an expression or the call is wrong, or jobs that are found could not be queried.
    """

    def __init__(self, descriptor: Descriptor, table: LookupTable, scope: Scope) -> None:
        where = f"{descriptor.key}: lookup"
        self.plan = CallPlan(table, scope, where, descriptor.call_limit)
        self.id = Finder(table.id, f"{where}.id")
        self.params = finders(table.params, f"{where}.params")
        self._jobs = Finder(table.jobs, f"{where}.jobs")
        self._key = optional(table.key, f"{where}.key")
        missing = sorted(set(descriptor.submit.params) - set(table.params))
        unknown = sorted(set(table.params) - set(descriptor.submit.params))
        if missing or unknown:
            raise ConfigError(
                f"{where}.params must have the names of submit.params, so that a job that is found can be "
                f"queried: add {', '.join(missing) or 'none'}, drop {', '.join(unknown) or 'none'}"
            )
        if not self.plan.uses("idempotency_key") and self._key is None:
            raise ConfigError(
                f"{where} must ask for our key: write {{idempotency_key}} into its path, query, headers or "
                "json, or name the place of the key in each job with key"
            )

    def job(self, body: Any, key: str) -> Any:
        """Return the job that has the key, or ``None``.

        Raises:
            VendorError: the reply has no list of jobs, or several without a key to tell them apart.
        """
        jobs = self._jobs.find(body)
        if not isinstance(jobs, list):
            raise self._jobs.missing()
        if self._key is not None:
            keys = [word_of(self._key.find(job)) for job in jobs]
            if jobs and not any(keys):
                raise self._key.missing()
            jobs = [job for job, found in zip(jobs, keys, strict=True) if found == key]
        if len(jobs) > 1:
            raise VendorError(
                f"{self._jobs.where} found {len(jobs)} jobs for one key; write key, the place of the key in "
                "a job",
                code="ambiguous_lookup",
            )
        return jobs[0] if jobs else None
