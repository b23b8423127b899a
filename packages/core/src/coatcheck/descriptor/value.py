"""The request and the result of handlers that are described without types of their own: plain JSON.

Both are registered for ever, like all types that tasks may hold. What is in them is between the submitter,
the description and the vendor; nothing here looks inside.
"""

from typing import Any

from attrs import frozen

from coatcheck import codec


@codec.persistent("json.request")
@frozen
class JsonRequest:
    """A request of plain JSON values: ``JsonRequest({"url": "https://…", "language": "en"})``."""

    data: dict[str, Any]


@codec.persistent("json.result")
@frozen
class JsonResult:
    """A result of plain JSON, the vendor's link to it, or both."""

    #: What the description found in the vendor's reply.
    data: Any = None
    #: Where the vendor keeps the result, if the description names the place.
    url: str | None = None
