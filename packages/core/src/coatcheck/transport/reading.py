"""What came back: bodies up to their cap, and errors that say whether the vendor can have seen the call."""

import re
import tempfile
import time
from asyncio import CancelledError
from collections.abc import Callable
from traceback import walk_tb
from typing import IO
from urllib.parse import urlsplit

from coatcheck.errors import CoatcheckError, MaybeSentError, NotSentError, VendorError
from coatcheck.http import Call
from coatcheck.http.call import IN_MEMORY

_CHUNK = 256 * 1024
_ADDRESS = re.compile(r"(\w+://)(?:[^/\s@]*@)?([^\s?'\"]*)(?:\?[^\s'\"]*)?")
#: How much of a client's own words is told, in characters.
_REASON = 200


class Body:
    """Collects a reply's body, in memory or in a file; a larger or endless one is an error, whatever it says.

    Args:
        call: what is answered.
        status: of the reply.
        until: when the reply must have ended, by the monotonic clock.
    """

    def __init__(self, call: Call, status: int, until: float) -> None:
        self._call = call
        self._status = status
        self._until = until
        self._left = call.body_cap
        self._content = b""
        self._file: IO[bytes] | None = None
        if call.spool:
            self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115  # closed by the step

    @property
    def wanted(self) -> int:
        """How many bytes may come next: one more than the cap allows, so that it is seen."""
        return min(self._left + 1, _CHUNK)

    def add(self, chunk: bytes) -> None:
        """Take the next piece.

        Raises:
            VendorError: the body is over the cap.
            MaybeSentError: the time is over.
        """
        self._left -= len(chunk)
        if self._left < 0:
            raise VendorError(
                f"the reply to {self._call!r} is larger than {self._call.body_cap} bytes; "
                "raise the call's body_cap if it may be",
                code="body_too_large",
                http_status=self._status,
            )
        if time.monotonic() > self._until:
            raise MaybeSentError(
                f"the reply to {self._call!r} did not end within {self._call.timeout}", code="timeout"
            )
        if self._file is not None:
            self._file.write(chunk)
        else:
            self._content = self._content + chunk if self._content else chunk

    def done(self) -> tuple[bytes, IO[bytes] | None]:
        """Return the body, or the file that holds it."""
        if self._file is not None:
            self._file.seek(0)
        return self._content, self._file

    def drop(self) -> None:
        """Close the file of a body that will not be read."""
        if self._file is not None:
            self._file.close()


def read_all(
    read1: Callable[[int], bytes], call: Call, status: int, until: float
) -> tuple[bytes, IO[bytes] | None]:
    """Read a body to its end with a function that returns what there is, up to so many bytes."""
    body = Body(call, status, until)
    try:
        # Piece by piece: a reply that trickles must meet the deadline between two bytes.
        while chunk := read1(body.wanted):
            body.add(chunk)
    except BaseException:
        body.drop()
        raise
    return body.done()


def not_sent(error: BaseException, call: Call) -> CoatcheckError:
    """Return the error for a call that met no connection."""
    parts = urlsplit(call.url)
    return NotSentError(
        f"could not connect to {parts.scheme}://{parts.hostname} for {call!r} ({_reason(error)}); "
        "nothing was sent"
    )


def maybe_sent(error: BaseException, call: Call) -> CoatcheckError:
    """Return the error for a call that met a connection and got no whole reply."""
    code = "timeout" if any(isinstance(found, TimeoutError) for found in chain(error)) else "connection_lost"
    return MaybeSentError(
        f"{call!r} got no whole reply ({_reason(error)}); the vendor may have seen it", code=code
    )


def is_inside(error: BaseException, function: str, owner: type) -> bool:
    """Whether an error, or one behind it, went through a method of an object: where clients do not say so."""
    return any(
        frame.f_code.co_name == function and isinstance(frame.f_locals.get("self"), owner)
        for found in chain(error)
        for frame, _ in walk_tb(found.__traceback__)
    )


def chain(error: BaseException) -> list[BaseException]:
    """Return the error and those behind it, the first cause last."""
    found: list[BaseException] = []
    behind: BaseException | None = error
    while behind is not None and not any(behind is known for known in found):
        found.append(behind)
        behind = behind.__cause__ or behind.__context__
    return found


def _reason(error: BaseException) -> str:
    found = chain(error)
    # That something was cancelled inside a client is how it does its timeouts, not why.
    root = next((one for one in reversed(found) if not isinstance(one, CancelledError)), error)
    # Clients quote whole addresses: those of proxies with their passwords, those of vendors with tokens.
    text = _ADDRESS.sub(r"\1\2", str(root))
    return f"{type(root).__name__}: {text if len(text) <= _REASON else text[:_REASON] + '…'}"
