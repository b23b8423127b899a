"""Replies of vendors, read leniently: what is missing or of another kind is ``None`` and never an exception.

Only shapes are known here, no vendor and no meaning. Whoever reads a reply decides what must be there.
"""

from collections.abc import Mapping
from typing import Any

from coatcheck.errors import VendorError
from coatcheck.http.call import Reply


def members(reply: Reply) -> dict[str, Any]:
    """Return a reply's JSON object.

    Raises:
        VendorError: it is something else, so it says nothing about the job.
    """
    body = reply.json()
    if not isinstance(body, dict):
        raise VendorError(
            f"expected a JSON object from the vendor, found {reply.excerpt}; the reply is not used",
            code="unreadable_reply",
            http_status=reply.status,
        )
    return body


def members_if_any(reply: Reply) -> dict[str, Any]:
    """Return a refusal's JSON object, or an empty one: what stands before a vendor may have answered."""
    try:
        return members(reply)
    except VendorError:
        return {}


def within(value: Any, *path: str | int) -> Any:
    """Return what stands at a path of names and indexes; ``None`` where it ends early."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, Mapping) else None
        else:
            value = value[step] if isinstance(value, list) and -len(value) <= step < len(value) else None
    return value


def text_of(value: Any, *names: str) -> str | None:
    """Return the first non-blank text under one of the names of an object."""
    for name in names:
        found = within(value, name)
        if isinstance(found, str) and found.strip():
            return found
    return None


def id_of(value: Any, *names: str) -> str | None:
    """Return the first id under one of the names of an object: a non-blank text, or a whole number."""
    for name in names:
        found = within(value, name)
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        if isinstance(found, str) and found.strip():
            return found
    return None


def whole_of(value: Any, *path: str | int) -> int | None:
    """Return the whole number that stands at a path; ``None`` where there is none."""
    found = within(value, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def percent(done: int | None, total: int | None) -> float | None:
    """Return how far a job is, from 0 to 100; ``None`` where the vendor does not say."""
    if done is None or total is None or total <= 0:
        return None
    return min(100.0, max(0.0, 100.0 * done / total))


def error_of(body: Any) -> tuple[str | None, str]:
    """Return the code and the message of an error, in the shapes that vendors have.

    ``{"error": {"code", "type", "message"}}``, ``{"error": "text", "message"}``, ``{"code", "message"}``,
    ``{"error_code", "error_message"}``, ``{"detail": …}``; the code is ``None`` where there is none.
    """
    error = within(body, "error")
    inner = error if isinstance(error, Mapping) else body
    code = id_of(inner, "code", "type", "error_code") or id_of(body, "error_code", "code")
    message = (
        text_of(inner, "message", "error_message", "msg")
        or text_of(body, "error_message", "message", "error", "error_msg", "detail", "msg")
        or ""
    )
    return code, shortened(message)


def shortened(value: object, longest: int = 1000) -> str:
    """Return a vendor's text on one line, cut to a length that fits an error."""
    text = " ".join(str("" if value is None else value).split())
    return text if len(text) <= longest else text[: longest - 1] + "…"
