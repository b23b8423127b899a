"""``HttpHandler``: a vendor operation written as calls to describe and replies to read.

``steps`` is the whole conversation of one step as a generator: it yields calls, takes replies, applies the
    reply table and returns the result. Nothing here does I/O, sleeps or retries; a transport performs the
    calls.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Generic, NoReturn, TypeVar
from urllib.parse import quote, urlsplit

import attrs
from attrs import field, frozen

from coatcheck import codec
from coatcheck.errors import (
    CoatcheckError,
    ConfigError,
    HandlerError,
    JobNotFoundError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    UnsafeUrlError,
    VendorError,
)
from coatcheck.handler import P, TaskHandler
from coatcheck.model import (
    EMPTY,
    Account,
    CancelResult,
    LookupResult,
    QueryContext,
    QueryParams,
    QueryResult,
    Step,
    SubmitContext,
    SubmitResult,
)
from coatcheck.policy import LONGEST_ASKED

#: Further reading calls that one query may make.
FOLLOWS = 50
#: How long an account's gate stays shut after the vendor refused its key or its balance.
ACCOUNT_REFUSED = timedelta(seconds=60)
#: The default cap on a reply's body, in bytes.
BODY_CAP = 2 * 1024 * 1024

_EXCERPT = 300
_UNSAFE_IN_URL = re.compile(r"[\x00-\x20\x7f\\]")
_PLAIN_SEGMENT = re.compile(r"[A-Za-z0-9_.~-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
#: Shorter texts are no secrets worth hiding, and masking them would make messages unreadable.
_SHORTEST_SECRET = 4

R = TypeVar("R")
Context = SubmitContext | QueryContext


def _lowered(headers: Mapping[str, str]) -> Mapping[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _statuses(accept: Iterable[int]) -> tuple[int, ...]:
    return tuple(accept)


@frozen(kw_only=True)
class Part:
    """One part of a multipart body."""

    content: bytes | str = field(repr=False)
    filename: str | None = None
    content_type: str | None = None


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
        form: the body as form fields.
        multipart: the body as named parts.
        body: the body as it is.
        timeout: how long to wait for the reply; for the connection at most 10 s of it.
        body_cap: the largest reply body, in bytes (default 2 MiB); a larger one is an error.
        accept: statuses beside 2xx that the ``read_*`` method sees; all others follow the reply table.
        creates: whether the call creates the job; set by ``steps``.
        sign: adds credentials last, in the transport; set by ``steps``.

    Raises:
        HandlerError: more than one body was given.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default=EMPTY, kw_only=True)
    query: Mapping[str, Any] = field(default=EMPTY, kw_only=True)
    json: Any = field(default=None, kw_only=True)
    form: Mapping[str, str] | None = field(default=None, kw_only=True)
    multipart: Mapping[str, Part] | None = field(default=None, kw_only=True)
    body: bytes | None = field(default=None, kw_only=True)
    timeout: timedelta = field(default=timedelta(seconds=60), kw_only=True)
    body_cap: int = field(default=BODY_CAP, kw_only=True)
    accept: tuple[int, ...] = field(default=(), converter=_statuses, kw_only=True)
    creates: bool = field(default=False, kw_only=True)
    sign: "Callable[[Call], Call] | None" = field(default=None, kw_only=True, eq=False)

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
    """What a vendor answered: the status, the headers (names in lower case) and the body."""

    status: int
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default=EMPTY, converter=_lowered, repr=False)

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


def _http_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except ValueError:
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


@frozen
class Follow:
    """One more reading call in the same query step: a second fetch, the next page.

    Args:
        call: the call; it must not create or change anything at the vendor.
        read: reads its reply into a result, or into a further ``Follow``; the result counts only when all
            were read.
    """

    call: Call
    read: "Callable[[Reply], QueryResult | Follow]"


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


class HttpHandler(TaskHandler[P], Generic[P]):
    """A handler that describes calls and reads replies; it does no I/O itself.

    Subclasses set ``base_url`` and define ``submit_call``, ``read_submit``, ``query_call``, ``read_query``.
    Two pairs more are capabilities, there when a subclass defines them, with the arguments of these four:
    ``cancel_call(params, context) -> Call | CancelResult`` with ``read_cancel(reply, params, context)`` like
    a query, ``lookup_call(params, context) -> Call | LookupResult`` with ``read_lookup(reply, params,
    context)`` like a submit.

    Replies that are not 2xx never reach a ``read_*`` method, unless the call has their status in ``accept``.
    They follow the reply table: 429, 425, and 503 with ``Retry-After``, are throttles; on submit any other
    4xx is a refusal, and 408, 3xx and 5xx leave the outcome unknown.
    """

    #: Where the vendor is, like ``"https://api.vendor.example/v1"``. Credentials go to this origin only.
    base_url: str
    #: Other hosts that calls may go to, without credentials: ``"files.vendor.example"``, or
    #: ``".vendor.example"`` for all below it.
    allowed_hosts: tuple[str, ...] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for call, read in (("cancel_call", "read_cancel"), ("lookup_call", "read_lookup")):
            if hasattr(cls, call) != hasattr(cls, read):
                raise ConfigError(
                    f"{cls.__name__} must define both {call} and {read}, or neither; found only one of them"
                )

    def sign(self, call: Call, account: Account) -> Call:
        """Return the call with credentials; called last, in the transport, for the handler's own origin only.

        The default adds none; the usual one is
        ``return call.with_headers(Authorization=f"Bearer {account.secret()}")``.
        """
        return call

    def prepare_calls(self, params: P, context: SubmitContext) -> Generator[Call, Reply, P | None]:
        """Make calls before the submit that create nothing billable; each ``yield`` gives its checked reply.

        What it returns takes the place of the params in ``submit_call`` and ``read_submit``; ``None`` keeps
        them. A failure that would leave a submit's outcome unknown means here that nothing was sent.
        """
        return None
        yield  # makes this a generator

    @abstractmethod
    def submit_call(self, params: P, context: SubmitContext) -> Call | SubmitResult:
        """Describe the call that creates the job; a result instead means that no call is needed."""

    @abstractmethod
    def read_submit(self, reply: Reply, params: P, context: SubmitContext) -> SubmitResult:
        """Read the reply to the submit.

        Any exception but those that say what happened leaves the outcome unknown.
        """

    @abstractmethod
    def query_call(self, params: QueryParams, context: QueryContext) -> Call | QueryResult:
        """Describe the call that looks at the job."""

    @abstractmethod
    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Read the reply to the query; words that the handler does not know are "still running"."""

    def query_client(self, params: QueryParams, context: QueryContext) -> "HttpHandler[P]":
        """Return who asks about the job, and cancels it: this handler, or one like it for another region.

        Its ``base_url``, ``allowed_hosts`` and ``sign`` hold for the whole step. A region that the submit put
        into ``params`` is found again after any restart.
        """
        return self

    def submit(self, params: P, context: SubmitContext) -> SubmitResult:
        """Create the job over ``context.transport``."""
        result: SubmitResult = run(steps(self, Step.SUBMIT, params, context), context)
        return result

    def query(self, params: QueryParams, context: QueryContext) -> QueryResult:
        """Look at the job over ``context.transport``."""
        result: QueryResult = run(steps(self, Step.QUERY, params, context), context)
        return result

    def cancel(self, params: QueryParams, context: QueryContext) -> CancelResult:
        """Ask the vendor to stop the job, over ``context.transport``; there with a ``cancel_call``."""
        result: CancelResult = run(steps(self, Step.CANCEL, params, context), context)
        return result

    def lookup(self, params: P, context: SubmitContext) -> LookupResult:
        """Ask the vendor for the job of the idempotency key; there with a ``lookup_call``."""
        result: LookupResult = run(steps(self, Step.LOOKUP, params, context), context)
        return result

    @property
    def has_cancel(self) -> bool:
        """Whether there is a ``cancel_call``, or a ``cancel`` of the subclass's own."""
        return hasattr(self, "cancel_call") or type(self).cancel is not HttpHandler.cancel

    @property
    def has_lookup(self) -> bool:
        """Whether there is a ``lookup_call``, or a ``lookup`` of the subclass's own."""
        return hasattr(self, "lookup_call") or type(self).lookup is not HttpHandler.lookup


def run(conversation: Generator[Call, Reply, R], context: Context) -> R:
    """Drive a conversation over ``context.transport`` and return its result."""
    transport = context.transport
    if transport is None:
        raise ConfigError(
            "an HttpHandler needs context.transport, found None; pass transport= to the worker or the context"
        )
    try:
        call = next(conversation)
        while True:
            try:
                reply = transport.perform(call, context.account)
            except Exception as error:  # noqa: BLE001  # the conversation raises it, or what it means
                call = conversation.throw(error)
            else:
                call = conversation.send(reply)
    except StopIteration as done:
        result: R = done.value
        return result


def steps(handler: HttpHandler[Any], kind: Step, params: Any, context: Any) -> Generator[Call, Reply, Any]:
    """Hold the conversation of one step: yield each call, take its reply, return the result.

    What the transport raises instead of a reply is thrown into the generator.

    Args:
        handler: whose calls and readers are used.
        kind: which step; ``RESUBMIT`` is a ``SUBMIT`` with the same key.
        params: the request for submit and lookup, the query params for query and cancel.
        context: the context of the step.

    Raises:
        HandlerError: what the reply table or the handler says; other exceptions of a reader become
            ``VendorError``. No message holds a secret that the step looked up.
        ConfigError: a secret is missing, or ``base_url`` is wrong; nothing was sent. On submit only an
            account that is not configured here comes out like this; the rest is ``NotSentError``.
    """
    talk = _Talk(handler, kind, context)
    try:
        if kind in (Step.SUBMIT, Step.RESUBMIT):
            return (yield from talk.submit(params))
        if kind in (Step.QUERY, Step.CANCEL):
            client = talk.describe("query_client", params)
            if not isinstance(client, HttpHandler):
                _refuse_answer(client, HttpHandler, "query_client")
            talk.handler = client
        if kind is Step.QUERY:
            return (yield from talk.query(params))
        return (yield from talk.ask(params))
    except Exception as error:
        if talk.secrets:
            _mask_error(error, talk.secrets)
        raise


class _Talk:
    """One step's conversation, and the secrets that were looked up in it."""

    def __init__(self, handler: HttpHandler[Any], kind: Step, context: Context) -> None:
        self.handler = handler
        self.kind = kind
        self.secrets: set[str] = set()
        self._lookup = context.account.secret
        self.account = Account(context.account.name, self._secret)
        self.context: Any = attrs.evolve(context, account=self.account)

    def _secret(self, part: str) -> str:
        secret = self._lookup(part)
        self.secrets.add(secret)
        return secret

    def submit(self, params: Any) -> Generator[Call, Reply, SubmitResult]:
        handler, context = self.handler, self.context
        with self._nothing_sent():
            if type(handler).prepare_calls is not HttpHandler.prepare_calls:
                prepared = yield from self._prepare(params)
                params = params if prepared is None else prepared
            call = handler.submit_call(params, context)
            if not isinstance(call, SubmitResult):
                call = self._outgoing(call, creates=True)
        if isinstance(call, SubmitResult):
            return call
        try:
            reply = yield call
        except ConfigError:
            # Signing comes before sending.
            with self._nothing_sent():
                raise
        _check(reply, call, creating=True, now=context.now)
        return _expect(self._read("read_submit", reply, params), SubmitResult, "read_submit")

    def _prepare(self, params: Any) -> Generator[Call, Reply, Any]:
        preparation = self.handler.prepare_calls(params, self.context)
        try:
            call = next(preparation)
            while True:
                call = self._outgoing(call)
                try:
                    reply = yield call
                    _check(reply, call, creating=True, now=self.context.now)
                except Exception as error:  # noqa: BLE001  # the handler may know another way
                    call = preparation.throw(error)
                else:
                    call = preparation.send(reply)
        except StopIteration as done:
            return done.value

    def query(self, params: QueryParams) -> Generator[Call, Reply, QueryResult]:
        handler, context = self.handler, self.context
        call = self.describe("query_call", params)
        if isinstance(call, QueryResult):
            return call
        call = self._outgoing(call)
        reply = yield call
        _check(reply, call, creating=False, now=context.now)
        answer = self._read("read_query", reply, params)
        followed = 0
        while isinstance(answer, Follow):
            followed += 1
            if followed > FOLLOWS:
                raise HandlerError(
                    f"{handler.key}: one query may follow at most {FOLLOWS} calls; keep a cursor in "
                    "next_query_params and go on in the next query",
                    code="too_many_follows",
                )
            call = self._outgoing(answer.call)
            reply = yield call
            # A missing page says nothing about the job.
            _check(reply, call, creating=False, now=context.now, absence=False)
            try:
                answer = answer.read(reply)
            except HandlerError:
                raise
            except Exception as error:
                raise self._unreadable("the reader of a Follow", reply, error) from error
        return _expect(answer, QueryResult, "read_query")

    def ask(self, params: Any) -> Generator[Call, Reply, Any]:
        """Cancel or look up: one call, one answer."""
        answer_type: type
        name, answer_type = ("cancel", CancelResult) if self.kind is Step.CANCEL else ("lookup", LookupResult)
        call = self.describe(f"{name}_call", params)
        if isinstance(call, answer_type):
            return call
        call = self._outgoing(call)
        reply = yield call
        _check(reply, call, creating=False, now=self.context.now, absence=self.kind is not Step.LOOKUP)
        return _expect(self._read(f"read_{name}", reply, params), answer_type, f"read_{name}")

    def describe(self, name: str, params: Any) -> Any:
        """Let the handler describe a reading call; a bug in it is an error of the step like any other."""
        try:
            return getattr(self.handler, name)(params, self.context)
        except (HandlerError, ConfigError):
            raise
        except Exception as error:
            raise HandlerError(
                f"{self.handler.key}: {name} failed with {type(error).__name__}: {error}", code="bad_call"
            ) from error

    def _read(self, name: str, reply: Reply, params: Any) -> Any:
        """Let the handler read a reply; one that it did not expect is an error of the vendor's."""
        try:
            return getattr(self.handler, name)(reply, params, self.context)
        except HandlerError:
            raise
        except Exception as error:
            raise self._unreadable(name, reply, error) from error

    def _unreadable(self, name: str, reply: Reply, error: Exception) -> VendorError:
        """Return the error for a bug in a reader, or for a missing secret: the call was sent all the same."""
        return VendorError(
            f"{self.handler.key}: {name} failed with {type(error).__name__}: {error} on a reply with "
            f"{reply.status}: {reply.excerpt}",
            code="unreadable_reply",
            http_status=reply.status,
        )

    @contextmanager
    def _nothing_sent(self) -> Iterator[None]:
        """Before the submit's own call everything that goes wrong means "not sent", unless it says more."""
        try:
            yield
        except (NotSentError, RejectedError, ThrottledError):
            raise
        except UnsafeUrlError as error:
            # It will lead there next time too.
            raise RejectedError(error.message, code=error.code) from error
        except HandlerError as error:
            raise NotSentError(f"nothing was submitted: {error.message}", code=error.code) from error
        except Exception as error:
            if isinstance(error, UnknownNameError) and error.kind == "account" and not self.secrets:
                # Another worker may have the account: the step is given back, not tried again here.
                raise
            raise NotSentError(
                f"{self.handler.key}: the submit could not be described ({type(error).__name__}: {error}); "
                "nothing was sent",
                code="bad_call",
            ) from error

    def _outgoing(self, call: Call, *, creates: bool = False) -> Call:
        """Complete a call's URL and let it be signed, or refuse where it leads."""
        if not isinstance(call, Call):
            raise HandlerError(
                f"{self.handler.key}: expected a Call, found {type(call).__name__}; return Call(method, url)"
            )
        base, origin = _base(self.handler)
        url = call.url
        if _UNSAFE_IN_URL.search(url):
            raise UnsafeUrlError(
                f"a URL may hold no spaces, control characters or backslashes, found {call!r}; quote it"
            )
        if url.startswith("/") and not url.startswith("//"):
            url, is_own = base + url, True
        else:
            is_own = _origin(url) == origin
            if not is_own:
                self._check_foreign(call, origin)
        return call.evolve(url=url, creates=creates, sign=self._sign if is_own else None)

    def _sign(self, call: Call) -> Call:
        return self.handler.sign(call, self.account)

    def _check_foreign(self, call: Call, own: str) -> None:
        parts = urlsplit(call.url)
        host = parts.hostname or ""
        allowed = any(
            host == name or (name.startswith(".") and host.endswith(name))
            for name in self.handler.allowed_hosts
        )
        if not allowed or (own.startswith("https:") and parts.scheme != "https"):
            raise UnsafeUrlError(
                f"{self.handler.key}: calls go to {own} and to allowed_hosts {self.handler.allowed_hosts!r}, "
                f"found {parts.scheme}://{host}; list the host if the vendor documents it"
            )
        sent = str((call.url, dict(call.headers), dict(call.query), call.json, call.form))
        if any(secret in sent for secret in self.secrets if len(secret) >= _SHORTEST_SECRET):
            raise UnsafeUrlError(
                f"{self.handler.key}: credentials go to {own} only, found them in a call to {host}; "
                "leave them to sign()"
            )


def _check(reply: Reply, call: Call, *, creating: bool, now: datetime, absence: bool = True) -> None:
    """Apply the reply table to whatever is no evidence.

    Args:
        reply: what the vendor answered.
        call: what it answered to.
        creating: whether the column for submits holds.
        now: the store's time, for dates in ``Retry-After``.
        absence: whether 404 and 410 say that the job is not there; a lookup, whose miss leads to a new job,
            must not take that from an address that may simply be wrong.
    """
    status = reply.status
    if reply.is_success or status in call.accept:
        return
    what = f"{call!r} was answered with {status}: {reply.excerpt}"
    if status in (429, 425) or (status == 503 and reply.retry_after(now) is not None):
        raise ThrottledError(f"{what}; the vendor asks for patience", delay=reply.retry_after(now))
    if status in (401, 402):
        advice = "check the account's credentials and balance"
        if creating:
            raise RejectedError(f"{what}; {advice}", code="account_refused", gate_delay=ACCOUNT_REFUSED)
        raise VendorError(
            f"{what}; {advice}", code="account_refused", http_status=status, gate_delay=ACCOUNT_REFUSED
        )
    if creating and 400 <= status < 500 and status != 408:
        raise RejectedError(f"{what}; the vendor refused the request")
    if not creating and absence and status in (404, 410):
        raise JobNotFoundError(f"{what}; the vendor does not know the job")
    raise VendorError(f"{what}; expected 2xx", code=f"http_{status}", http_status=status)


def _expect(answer: Any, expected: type[R], name: str) -> R:
    if not isinstance(answer, expected):
        _refuse_answer(answer, expected, name)
    return answer


def _refuse_answer(answer: object, expected: type, name: str) -> NoReturn:
    raise HandlerError(
        f"{name} must return a {expected.__name__}, found {type(answer).__name__}; return one of its results"
    )


def _base(handler: HttpHandler[Any]) -> tuple[str, str]:
    """Return the handler's base URL without a trailing slash, and its origin."""
    base = getattr(handler, "base_url", "")
    try:
        return _split_base(base)
    except UnsafeUrlError as error:
        raise ConfigError(
            f"{handler.key}: base_url must be an absolute http or https URL without user, query or fragment, "
            f"found {error.message}"
        ) from None


@lru_cache(maxsize=256)
def _split_base(base: str) -> tuple[str, str]:
    if _UNSAFE_IN_URL.search(base) or "?" in base or "#" in base:
        raise UnsafeUrlError(base.partition("?")[0])
    return base.rstrip("/"), _origin(base)


def _origin(url: str) -> str:
    """Return ``scheme://host:port`` of an absolute URL.

    Raises:
        UnsafeUrlError: not an http or https URL, or one that names a user.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise UnsafeUrlError(
            f"{parts.scheme or 'no scheme'}://{parts.hostname or 'no host'}; "
            "write http(s)://host without a user"
        )
    return f"{parts.scheme}://{parts.hostname}:{port or (443 if parts.scheme == 'https' else 80)}"


def _masked(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
    return text


def _mask_error(error: BaseException, secrets: set[str]) -> None:
    """Take secrets out of an exception and of those behind it, in place: tracebacks print them all."""
    seen: list[BaseException] = []
    behind: list[BaseException | None] = [error]
    while behind:
        found = behind.pop()
        if found is None or any(found is other for other in seen):
            continue
        seen.append(found)
        behind += [found.__cause__, found.__context__]
        found.args = tuple(_masked(arg, secrets) if isinstance(arg, str) else arg for arg in found.args)
        if isinstance(found, CoatcheckError):
            found.message = _masked(found.message, secrets)
