"""Transports without a network: scripted replies, and an app of the sandbox called in this process.

Nothing here opens a socket or sleeps; both record the calls as they would have gone out, signed.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import attrs

from coatcheck import codec
from coatcheck.errors import MaybeSentError
from coatcheck.http import Call, FromUrl, Part, Reply
from coatcheck.model import EMPTY, Account
from coatcheck.sandbox import App, Request
from coatcheck.transport import encode_body, full_url

#: What a scripted call comes to: a reply, or the exception that the transport raises.
Outcome = Reply | Exception


def reply(value: Any = None, status: int = 200, *, headers: Mapping[str, str] = EMPTY) -> Reply:
    """Return a reply whose body is ``value``: bytes and text as they are, everything else as JSON."""
    if isinstance(value, bytes | str):
        return Reply(status, value.encode() if isinstance(value, str) else value, headers)
    return Reply(status, codec.dumps(value), {"Content-Type": "application/json", **headers})


class ScriptedTransport:
    """Answers calls with what a test wrote down.

    Args:
        script: outcomes in their order (one more call than outcomes is an ``AssertionError``), or a function
            that answers every call.
    """

    def __init__(self, script: Iterable[Outcome] | Callable[[Call], Outcome]) -> None:
        self._answer = script if callable(script) else None
        self._left = [] if callable(script) else list(script)
        self._lock = threading.Lock()
        #: Every call as it went out, signed.
        self.calls: list[Call] = []

    def perform(self, call: Call, account: Account) -> Reply:
        """Return the next reply, or raise the next exception."""
        signed = call.sign(call) if call.sign is not None else call
        with self._lock:
            self.calls.append(_kept(signed))
            if self._answer is None and not self._left:
                raise AssertionError(f"expected no further call, found {signed!r}; script an outcome for it")
            outcome = self._left.pop(0) if self._answer is None else None
        if self._answer is not None:
            outcome = self._answer(signed)
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome

    def close(self) -> None:
        """Do nothing: there is nothing open."""


def _kept(call: Call) -> Call:
    """Return a call whose body can still be read when its files are closed."""
    if call.multipart is not None:
        parts = {
            name: [_in_memory(part) for part in ([given] if isinstance(given, Part | FromUrl) else given)]
            for name, given in call.multipart.items()
        }
        return call.evolve(multipart=parts)
    if call.body is not None and not isinstance(call.body, bytes):
        return call.evolve(body=_read(call.body))
    return call


def _in_memory(part: Part | FromUrl) -> Part | FromUrl:
    if isinstance(part, FromUrl) or isinstance(part.content, bytes | str):
        return part
    return attrs.evolve(part, content=_read(part.content))


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def answered_by(app: App) -> Callable[[Call], Outcome]:
    """Return a script that lets an app answer without a socket; delays are left out, faults are not."""

    def answer(call: Call) -> Outcome:
        answered = app(request_of(call))
        if answered.fault in ("reset", "truncate", "hang"):
            return MaybeSentError(f"{call!r} got no whole reply ({answered.fault})", code=answered.fault)
        return Reply(answered.status, answered.body, answered.headers)

    return answer


def request_of(call: Call) -> Request:
    """Return what a server would see of a call."""
    body, content_type = encode_body(call)
    parts = urlsplit(full_url(call))
    headers = {} if content_type is None else {"content-type": content_type}
    headers.update({name.lower(): value for name, value in call.headers.items()})
    return Request(call.method, unquote(parts.path), dict(parse_qsl(parts.query)), headers, body or b"")
