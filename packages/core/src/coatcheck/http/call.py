"""What a conversation with a vendor is made of: calls to make, replies to read, and what they hold.

Only data and how it is read; nothing here decides what a reply means, and nothing does I/O.
"""

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import IO, Any
from urllib.parse import quote

from attrs import field, frozen

from coatcheck import codec
from coatcheck.errors import HandlerError, VendorError
from coatcheck.model import EMPTY
from coatcheck.policy import LONGEST_ASKED

#: The default cap on a reply's body, in bytes.
BODY_CAP = 2 * 1024 * 1024
#: The default cap on what a ``FromUrl`` downloads, in bytes.
DOWNLOAD_CAP = 100 * 1024 * 1024
#: How much of a downloaded body is kept in memory, in bytes; the rest goes to a temporary file.
IN_MEMORY = 1024 * 1024

_EXCERPT = 300
_PLAIN_SEGMENT = re.compile(r"[A-Za-z0-9_.~-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def lowered(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return headers with their names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def _statuses(accept: Iterable[int]) -> tuple[int, ...]:
    return tuple(accept)


@frozen(kw_only=True)
class Part:
    """One part of a multipart body.

    Args:
        content: bytes, text, or a binary file that can seek; it is sent from its beginning and stays open.
        filename: the name that the vendor sees.
        content_type: as it is; none by default.
    """

    content: bytes | str | IO[bytes] = field(repr=False)
    filename: str | None = None
    content_type: str | None = None


@frozen
class FromUrl:
    """A part of a multipart body that is fetched from a URL when the call is made.

    For vendors that take no URL themselves. The fetch carries no credentials, goes to public hosts only, and
    ends before the call begins: when it fails, nothing was sent. Give the handler a ``call_limit`` that
    leaves room for both.

    Args:
        url: where the content is.
        filename: the name that the vendor sees; by default the last part of the URL's path.
        content_type: by default what the host says, else ``application/octet-stream``.
        cap: the largest content, in bytes (default 100 MiB); more is refused, and so is nothing at all.
        timeout: how long the fetch may take.
    """

    url: str = field(repr=False)
    filename: str | None = field(default=None, kw_only=True)
    content_type: str | None = field(default=None, kw_only=True)
    cap: int = field(default=DOWNLOAD_CAP, kw_only=True)
    timeout: timedelta = field(default=timedelta(minutes=5), kw_only=True)


#: What a name of a multipart body stands for; a sequence gives the name several times.
Parts = Part | FromUrl | Sequence[Part | FromUrl]


@frozen(repr=False, slots=False)
class Call:
    """One HTTP call, described and not made. Its ``repr`` shows no header, no query and no body.

    At most one of ``json``, ``form``, ``multipart`` and ``body`` may be given.

    Args:
        method: the HTTP method.
        url: a path below the handler's ``base_url``, or an absolute URL.
        headers: without credentials: those are added by the handler's ``sign``.
        query: added to the URL; a list gives its name several times; ``None`` is left out.
        json: the body as a JSON value.
        form: the body as form fields; a list gives its name several times.
        multipart: the body as named parts.
        body: the body as it is: bytes, or a binary file that can seek.
        timeout: how long to wait for the reply; for the connection at most 10 s of it.
        body_cap: the largest reply body, in bytes (default 2 MiB); a larger one is an error.
        accept: statuses beside 2xx that the ``read_*`` method sees; all others follow the reply table.
        plain: whether the URL comes from a request or a vendor: then it may lead to any public host, and no
            credentials go with it, wherever it leads.
        spool: whether the reply's body goes into a temporary file (``Reply.file``) instead of memory; the
            file is closed when the step ends.
        creates: whether the call creates the job; set by ``steps``.
        sign: adds credentials last, in the transport; set by ``steps``.
        guarded: whether the transport refuses every address that is not public; set by ``steps``.

    Raises:
        HandlerError: more than one body was given.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default=EMPTY, kw_only=True)
    query: Mapping[str, Any] = field(default=EMPTY, kw_only=True)
    json: Any = field(default=None, kw_only=True)
    form: Mapping[str, str | Sequence[str]] | None = field(default=None, kw_only=True)
    multipart: Mapping[str, Parts] | None = field(default=None, kw_only=True)
    body: bytes | IO[bytes] | None = field(default=None, kw_only=True)
    timeout: timedelta = field(default=timedelta(seconds=60), kw_only=True)
    body_cap: int = field(default=BODY_CAP, kw_only=True)
    accept: tuple[int, ...] = field(default=(), converter=_statuses, kw_only=True)
    plain: bool = field(default=False, kw_only=True)
    spool: bool = field(default=False, kw_only=True)
    creates: bool = field(default=False, kw_only=True)
    sign: "Callable[[Call], Call] | None" = field(default=None, kw_only=True, eq=False)
    guarded: bool = field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        bodies = (self.json is None) + (self.form is None) + (self.multipart is None) + (self.body is None)
        if bodies < 3:
            raise HandlerError(
                f"{self!r} must have at most one of json, form, multipart and body; drop the others"
            )

    def with_headers(self, **headers: str) -> "Call":
        """Return a copy with more headers; ``_`` in a name becomes ``-``: ``with_headers(X_Api_Key=…)``."""
        added = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.evolve(headers={**self.headers, **added})

    def with_query(self, **query: Any) -> "Call":
        """Return a copy with more query parameters."""
        return self.evolve(query={**self.query, **query})

    def evolve(self, **changes: Any) -> "Call":
        """Return a copy with some fields changed; ``attrs.evolve`` is too slow for what each step does."""
        clone = object.__new__(type(self))
        clone.__dict__.update(self.__dict__, **changes)
        return clone

    def __repr__(self) -> str:
        return f"<Call {self.method} {self.url.partition('?')[0]}>"


@frozen
class Reply:
    """What a vendor answered: the status, the headers (names in lower case) and the body.

    ``file`` holds the body instead, from its beginning, where the call asked for it with ``spool``.
    """

    status: int
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default=EMPTY, converter=lowered, repr=False)
    file: IO[bytes] | None = field(default=None, repr=False, kw_only=True)

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx: only such a reply is evidence of a job's state."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as text; bytes that are no UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")

    def header(self, name: str) -> str | None:
        """Return one header, or ``None``."""
        return self.headers.get(name.lower())

    def json(self) -> Any:
        """Return the body as a JSON value.

        Raises:
            VendorError: the body is not JSON (an error page, a cut-off reply, nothing at all).
        """
        try:
            return codec.loads(self.body)
        except ValueError:
            raise VendorError(
                f"expected JSON from the vendor, found {self.excerpt}; the reply is not used",
                code="unreadable_reply",
                http_status=self.status,
            ) from None

    @property
    def excerpt(self) -> str:
        """The beginning of the body on one line, for error messages."""
        if self.file is not None:
            return "a file"
        if not self.body:
            return "an empty body"
        text = _CONTROL.sub(" ", self.body[: 4 * _EXCERPT].decode("utf-8", "replace")).strip()
        return repr(text if len(text) <= _EXCERPT else text[:_EXCERPT] + "…")

    def retry_after(self, now: datetime) -> timedelta | None:
        """Return how long the vendor asks to wait: ``Retry-After`` in seconds or as a date, from 0 to 1 hour.

        Args:
            now: the time that a date is counted from, unless the reply carries its own ``Date``.
        """
        asked = (self.header("retry-after") or "").strip()
        if not asked:
            return None
        try:
            delay = timedelta(seconds=float(asked))
        except OverflowError:
            return LONGEST_ASKED
        except ValueError:
            until = _http_date(asked)
            if until is None:
                return None
            # The vendor's own clock, where it shows it: ours may differ by minutes.
            delay = until - (_http_date(self.header("date") or "") or now)
        return min(max(delay, timedelta()), LONGEST_ASKED)

    def as_file(self) -> IO[bytes]:
        """Return the body as a file at its beginning, whether it was spooled or not."""
        if self.file is None:
            return io.BytesIO(self.body)
        self.file.seek(0)
        return self.file


def _http_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


@frozen
class Follow:
    """One more reading call in the same step: a second fetch, the next page, the file of a result.

    Args:
        call: the call; it must not create or change anything at the vendor. A cancel alone may look at the
            job first and then follow with the call that stops it. ``plain=True`` for a link that may lead
            to another host.
        read: reads its reply into what the step's own reader may return, or into a further ``Follow``; the
            result counts only when all were read.
    """

    call: Call
    read: Callable[[Reply], Any]


def path(*segments: str) -> str:
    """Return a URL path of quoted segments: ``path("jobs", job_id)``, whatever the vendor's id holds.

    Raises:
        HandlerError: a segment is blank, ``.`` or ``..``, which would lead somewhere else.
    """
    whole = ""
    for segment in segments:
        if segment in ("", ".", ".."):
            raise HandlerError(
                f"a segment of a URL path must be a name, found {segment!r}; check the vendor's id"
            )
        whole += "/" + (segment if _PLAIN_SEGMENT.fullmatch(segment) else quote(segment, safe=""))
    return whole
