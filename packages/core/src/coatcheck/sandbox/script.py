"""``Script``: how one job of a local vendor goes and what goes wrong on the way, as data.

Faults are words; what each does to an answer is decided here, once for all vendors. What an error looks like
in a vendor's own shape is not known here.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal
from urllib.parse import unquote

import attrs
from attrs import field, frozen

from coatcheck.errors import UnknownNameError, ValidationError
from coatcheck.sandbox.server import Answer

#: The kinds of calls that faults are scripted for; "result" is the download of a job's file.
CALLS = ("submit", "query", "cancel", "lookup", "result")

#: Faults of a reply whose call was carried out all the same; a status instead means that it was not. ``!``
#: turns this round.
_CARRIED_OUT = frozenset({"ok", "reset", "hang", "truncate", "drop", "html", "empty", "garbage", "slow"})
_ERROR_PAGE = b"<html><head><title>502</title></head><body>The last known state was: succeeded</body></html>"
#: A suffix begins with a letter: ``0.5`` at the end of a script is none.
_NAMED = re.compile(r"~(?P<script>[^~/]*?)(?:\.[A-Za-z]\w{0,7})?$")


def _words(value: Iterable[str]) -> tuple[str, ...]:
    return tuple(value)


def _progress(value: Iterable[float | None] | None) -> tuple[float | None, ...] | None:
    return None if value is None else tuple(value)


@frozen(kw_only=True)
class Script:
    """How one job goes, and what goes wrong on the way.

    A fault is a word: a status (``"429"``, ``"503:2"`` with ``Retry-After: 2``), ``"busy"`` (the vendor's own
    way of saying that it is full), ``"reset"``, ``"hang"``, ``"truncate"``, ``"drop"`` (closes the idle
    connection), ``"html"`` (an error page with 200), ``"empty"`` (``{}``), ``"garbage"`` (no JSON),
    ``"slow:0.5"``, or ``"ok"``. After a status or "busy" the call was not carried out, after any other fault
    it was; ``!`` turns this round: ``"500!"`` creates the job, ``"reset!"`` does not. Each call of a job
    takes the next fault of its list; after the last all is well.

    Raises:
        ValidationError: a fault or a value that nobody knows.
    """

    #: Queries answered "queued" before the job runs.
    queued: int = 0
    #: Queries answered "running" before the job ends.
    polls: int = 1
    #: How long the job takes at least, in seconds.
    seconds: float = 0.0
    end: Literal["succeeded", "failed", "canceled", "never"] = "succeeded"
    #: The submit's reply is the end already.
    at_once: bool = False
    #: Words for the running polls, in place of "running".
    words: tuple[str, ...] = field(default=(), converter=_words)
    #: Progress of the running polls; counted from the polls if not given.
    progress: tuple[float | None, ...] | None = field(default=None, converter=_progress)
    #: Seconds until the next query that running polls ask for.
    poll_after: float | None = None
    #: What a cancel comes to.
    cancel: Literal["done", "accepted", "refused"] = "done"
    #: Seconds before every answer.
    latency: float = 0.0
    #: How long a link to a result works, in seconds; ``None`` for ever. Each look gives a new one.
    link_life: float | None = None
    on_submit: tuple[str, ...] = field(default=(), converter=_words)
    on_query: tuple[str, ...] = field(default=(), converter=_words)
    on_cancel: tuple[str, ...] = field(default=(), converter=_words)
    on_lookup: tuple[str, ...] = field(default=(), converter=_words)
    on_result: tuple[str, ...] = field(default=(), converter=_words)

    def __attrs_post_init__(self) -> None:
        for name, allowed in (
            ("end", ("succeeded", "failed", "canceled", "never")),
            ("cancel", ("done", "accepted", "refused")),
        ):
            if getattr(self, name) not in allowed:
                raise ValidationError(f"{name} must be one of {allowed}, found {getattr(self, name)!r}", name)
        for call in CALLS:
            for word in getattr(self, f"on_{call}"):
                Fault.of(word)

    @classmethod
    def of(cls, values: Mapping[str, Any], base: "Script | None" = None) -> "Script":
        """Return ``base`` (or the default script) with some values changed.

        Raises:
            UnknownNameError: no value has that name.
        """
        known = [attribute.name for attribute in attrs.fields(cls)]
        for name in values:
            if name not in known:
                raise UnknownNameError.of("script value", name, known)
        return attrs.evolve(base or cls(), **values)

    @classmethod
    def named(cls, name: str, base: "Script | None" = None) -> "Script":
        """Return the script that a document's name or URL holds between ``~`` and its suffix.

        ``"invoice~polls=3,end=failed,on_query=429:2+html.pdf"`` changes three values of ``base``; several
        faults or words are joined by ``+``. A name without ``~`` changes nothing.

        Raises:
            UnknownNameError: no value has that name.
            ValidationError: a value is not allowed, or not written like ``name=value``.
        """
        found = _NAMED.search(unquote(name.partition("?")[0]))
        if found is None or not found["script"]:
            return base or cls()
        values = {}
        for pair in found["script"].split(","):
            key, is_given, text = pair.partition("=")
            if not is_given:
                raise ValidationError(
                    f"a script in a name must be written like polls=3,end=failed, found {pair!r}", "script"
                )
            values[key] = _READERS.get(key, str)(text)
        return cls.of(values, base)


def _number(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def value(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise ValidationError(f"expected a number in the script, found {text!r}", "script") from None

    return value


def _list(text: str) -> list[str]:
    return text.split("+")


_READERS: Mapping[str, Callable[[str], Any]] = {
    "queued": _number(int),
    "polls": _number(int),
    "seconds": _number(float),
    "latency": _number(float),
    "link_life": _number(float),
    "poll_after": _number(float),
    "progress": lambda text: [_number(float)(part) for part in _list(text)],
    "at_once": lambda text: text in ("1", "true", "yes"),
    "words": _list,
    **{f"on_{call}": _list for call in CALLS},
}


@frozen
class Fault:
    """One fault, read from its word."""

    word: str
    number: float | None
    is_carried_out: bool

    @classmethod
    def of(cls, text: str) -> "Fault":
        """Read a fault; see ``Script``.

        Raises:
            ValidationError: nobody knows that word.
        """
        word, _, number = text.removesuffix("!").partition(":")
        is_status = word.isdigit() and 200 <= int(word) <= 599
        if not is_status and word not in _CARRIED_OUT and word != "busy":
            raise ValidationError(
                f"a fault must be a status or one of {', '.join(sorted({*_CARRIED_OUT, 'busy'}))}, "
                f"found {text!r}",
                "fault",
            )
        is_carried_out = (word in _CARRIED_OUT) != text.endswith("!")
        return cls(word, float(number) if number else None, is_carried_out)


#: All is well.
OK = Fault("ok", None, is_carried_out=True)


def _refuse(status: int, headers: Mapping[str, str]) -> Answer:
    return Answer.json({"error": {"code": f"status_{status}"}}, status, headers=headers)


def _full() -> Answer:
    return Answer.json({"error": {"code": "too_many_jobs"}}, 429)


def spoil(
    answer: Answer | None,
    fault: Fault,
    *,
    refuse: Callable[[int, Mapping[str, str]], Answer] = _refuse,
    full: Callable[[], Answer] = _full,
) -> Answer:
    """Return what the fault leaves of an answer.

    Args:
        answer: the whole answer; ``None`` if the call was not carried out.
        fault: what goes wrong.
        refuse: the vendor's shape of an error with a status and headers.
        full: the vendor's way of saying that it has too many jobs.
    """
    whole = answer or Answer.json({"error": {"code": "not_carried_out"}}, 500)
    match fault.word:
        case "ok":
            return whole
        case "reset" | "hang" | "truncate" | "drop" as word:
            return attrs.evolve(whole, fault=word)
        case "slow":
            return attrs.evolve(whole, delay=fault.number or 0.0)
        case "html":
            return Answer(200, _ERROR_PAGE, headers={"Content-Type": "text/html"})
        case "empty":
            return Answer.json({})
        case "garbage":
            return Answer(200, b'{"id": "job-', headers={"Content-Type": "application/json"})
        case "busy":
            return full()
    status = int(fault.word)
    headers = {} if fault.number is None else {"Retry-After": f"{fault.number:g}"}
    if status >= 500:
        return Answer(status, _ERROR_PAGE, headers={"Content-Type": "text/html", **headers})
    if 300 <= status < 400:
        headers["Location"] = "/elsewhere"
    return refuse(status, headers)
