"""What a vendor sends by itself: callbacks, and the addresses that they are asked to come to.

A callback is a hint to look at the job now and never evidence of its state: only a query's reply is. Here are
what arrived, what a handler makes of it, and what all vendors' signatures have in common; the signatures of
single vendors stand beside their handlers. Nothing here does I/O.
"""

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from attrs import field, frozen

from coatcheck import codec
from coatcheck.errors import CallbackRefusedError, UnsafeUrlError, ValidationError
from coatcheck.http.address import UNSAFE_IN_URL, origin_of
from coatcheck.http.call import BODY_CAP, lowered
from coatcheck.model import EMPTY, check_aware

#: How far the time of a signature may lie from the time of arrival, to either side.
TOLERANCE = timedelta(minutes=5)
#: What stands for the task's id in a callback URL.
TASK_ID = "{task_id}"


def _bytes(body: object) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise ValidationError(
        f"a callback's body must be the raw bytes as they arrived, found a {type(body).__name__}; "
        "signatures are over bytes: pass request.get_data(), await request.body() or request.body",
        "body",
    )


@frozen
class Callback:
    """What arrived at the application's own address, as it arrived.

    Args:
        body: the raw bytes of the body; a parsed one cannot be verified.
        headers: in any spelling of upper and lower case.
        query: the parameters of the URL.
        received_at: when it arrived, by the store's clock; what a signature's time is compared with.

    Raises:
        ValidationError: the body is not bytes, or the time is naive.
    """

    body: bytes = field(converter=_bytes, repr=False)
    headers: Mapping[str, str] = field(default=EMPTY, converter=lowered, repr=False)
    query: Mapping[str, str] = field(default=EMPTY, kw_only=True, repr=False)
    received_at: datetime = field(kw_only=True)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "received_at", check_aware(self.received_at, "received_at"))

    def header(self, name: str) -> str | None:
        """Return one header, or ``None``."""
        return self.headers.get(name.lower())

    def required(self, name: str) -> str:
        """Return one header that a signature needs.

        Raises:
            CallbackRefusedError: it is missing or blank.
        """
        found = self.header(name)
        if not found:
            raise CallbackRefusedError(
                f"expected a signed callback with the header {name}, found none; only the vendor's own "
                "callbacks are read",
                code="unsigned",
            )
        return found

    def json(self) -> Any:
        """Return the body as a JSON value.

        Raises:
            CallbackRefusedError: it is none.
        """
        try:
            return codec.loads(self.body)
        except ValueError:
            raise CallbackRefusedError(
                f"expected JSON in a callback, found {len(self.body)} bytes that are none; it is not used",
                code="unreadable",
            ) from None

    def note(self, *path: str) -> "CallbackNote":
        """Return the note with the job's id, which stands at a path of names in the JSON body.

        For a callback without a signature this is all that there is to read: ``callback.note("data",
        "task_id")``.

        Raises:
            CallbackRefusedError: the body is no JSON, or holds no id there.
        """
        found = self.json()
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return CallbackNote(found)

    def check_time(self, name: str, *, tolerance: timedelta = TOLERANCE) -> str:
        """Return the header that says when the callback was signed, in seconds since the epoch.

        Raises:
            CallbackRefusedError: it is missing, no number, or too far from ``received_at``.
        """
        text = self.required(name)
        try:
            signed_at = datetime.fromtimestamp(int(text) if text.isascii() and text.isdigit() else -1, UTC)
            apart = abs(self.received_at - signed_at)
        except (ValueError, OverflowError, OSError):
            apart = timedelta.max
        if apart > tolerance:
            raise CallbackRefusedError(
                f"expected a callback signed within {tolerance.total_seconds():.0f} s of its arrival, "
                f"found {name} {text[:40]!r}; it is an old one, or one of the two clocks is wrong",
                code="stale",
            )
        return text


@frozen
class CallbackNote:
    """What a handler read out of a callback: which job it is about, and nothing of the job's state.

    Raises:
        CallbackRefusedError: the id is not a text, or blank.
    """

    external_task_id: str

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.external_task_id, str) or not self.external_task_id.strip():
            raise CallbackRefusedError(
                f"expected the id of a job in a callback, found {self.external_task_id!r}; it is not used",
                code="unreadable",
            )


def check_callback(callback: Callback) -> None:
    """Refuse what no vendor sends, before anybody reads it.

    Raises:
        CallbackRefusedError: the body is larger than that of any reply to a query.
    """
    if len(callback.body) > BODY_CAP:
        raise CallbackRefusedError(
            f"expected a callback of at most {BODY_CAP} bytes, found {len(callback.body)}; it is not used",
            code="too_large",
        )


def refused(error: Exception) -> CallbackRefusedError:
    """Return the error for a callback that broke its reader: anybody may have sent it."""
    return CallbackRefusedError(
        f"expected a callback of the vendor's, found one that cannot be read ({type(error).__name__}); "
        "it is not used",
        code="unreadable",
    )


def check_callback_url(url: object, name: str = "callback_url") -> None:
    """Refuse an address that a vendor could not call, or that would give something away.

    Args:
        url: like ``https://app.example/callbacks/{task_id}``; it is stored with the request, so it may hold
            no secret.
        name: the option that it stands in.

    Raises:
        ValidationError: with what was expected and what was found.
    """
    problem = f"a {type(url).__name__}"
    if isinstance(url, str):
        bare = url.replace(TASK_ID, "0")
        try:
            origin_of(bare)
        except UnsafeUrlError:
            problem = "no http or https URL, or one with a user or a password"
        else:
            if not (UNSAFE_IN_URL.search(bare) or set("{}#") & set(bare)):
                return
            problem = "one with another placeholder, a fragment or unquoted characters"
    raise ValidationError(
        f"{name} must be a URL like https://app.example/callbacks/{TASK_ID}, found {problem}", name
    )


def callback_url(given: str | None, key: str, task_id: str) -> str | None:
    """Return the address that a vendor is asked to call for one task, or ``None`` where there is none.

    Args:
        given: what the request's own option says, with ``{task_id}`` in it; by default the variable
            ``COATCHECK_<KEY>_CALLBACK_URL`` (``video:fal`` → ``COATCHECK_VIDEO_FAL_CALLBACK_URL``).
        key: the handler's key.
        task_id: the context's.

    Raises:
        ValidationError: it is no URL that a vendor could call.
    """
    variable = f"COATCHECK_{key.upper().replace(':', '_').replace('-', '_')}_CALLBACK_URL"
    url = given or os.environ.get(variable)
    if not url:
        return None
    check_callback_url(url, "callback_url" if given else variable)
    return url.replace(TASK_ID, quote(task_id, safe=""))
