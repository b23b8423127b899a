"""The conversation of one step as a generator: it yields calls, takes replies and returns the result.

Redirects, downloads and tokens are calls like any other here, so that every transport treats them alike.
Nothing in here does I/O, sleeps or retries.
"""

import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar, cast
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit

import attrs

from coatcheck.accounts import mask_error, masked
from coatcheck.errors import (
    ConfigError,
    HandlerError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    UnsafeUrlError,
    VendorError,
)
from coatcheck.http.address import (
    UNSAFE_IN_URL,
    Trust,
    check_host,
    host_of,
    origin_of,
    split_base,
    trust,
)
from coatcheck.http.call import Call, Follow, FromUrl, Part, Parts, Reply
from coatcheck.http.callback import Callback, CallbackNote, check_callback, refused
from coatcheck.http.table import check
from coatcheck.http.tokens import Token, TokenCache
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

if TYPE_CHECKING:
    from coatcheck.http.handler import HttpHandler

#: Further reading calls that one step may make, unless the handler says more.
FOLLOWS = 50
#: Redirects that one reading call may take.
REDIRECTS = 5
#: What an account's token is called, as a part of the account.
TOKEN = "token"  # noqa: S105  # a name, not a token
#: The code of an error that says that the vendor refused the token: it is not used again.
TOKEN_REFUSED = "token_refused"  # noqa: S105  # a code, not a token

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_READING = frozenset({"GET", "HEAD"})
#: Headers that may follow a redirect to another origin; any other might hold a credential.
_HARMLESS = frozenset({"accept", "accept-language", "if-modified-since", "if-none-match", "range"})
#: What ``quote`` leaves alone in a whole URL.
_IN_URL = "%/:=&?~#+!$,;'@()*[]"
_NOT_IN_A_NAME = re.compile(r'[\x00-\x1f\x7f"\\/]+')

#: Of each step that creates nothing: the handler's methods that describe and read, and what they may return.
_ASKING: Mapping[Step, tuple[str, str, type]] = {
    Step.QUERY: ("query_call", "read_query", QueryResult),
    Step.CANCEL: ("cancel_call", "read_cancel", CancelResult),
    Step.LOOKUP: ("lookup_call", "read_lookup", LookupResult),
}

R = TypeVar("R")


def steps(handler: "HttpHandler[Any]", kind: Step, params: Any, context: Any) -> Generator[Call, Reply, Any]:
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
        if kind is not Step.LOOKUP:
            talk.find_client(params)
        return (yield from talk.ask(params))
    except Exception as error:
        if isinstance(error, HandlerError) and error.code == TOKEN_REFUSED:
            talk.drop_token()
        if talk.secrets:
            mask_error(error, talk.secrets)
        raise
    finally:
        for file in talk.files:
            file.close()


def callback_steps(
    handler: "HttpHandler[Any]", callback: Callback, context: QueryContext
) -> Generator[Call, Reply, CallbackNote]:
    """Let a handler read what the vendor sent by itself; it may ``Follow`` calls that fetch public keys.

    Args:
        handler: whose ``read_callback`` is used.
        callback: what arrived.
        context: the context of a query of the task that the callback came for.

    Raises:
        CallbackRefusedError: it is not the vendor's, too old, or cannot be read.
        HandlerError: a call failed, so nobody knows.
        ConfigError: a secret is missing.
    """
    talk = _Talk(handler, Step.QUERY, context)
    try:
        return (yield from talk.callback(callback))
    except Exception as error:
        if talk.secrets:
            mask_error(error, talk.secrets)
        raise
    finally:
        for file in talk.files:
            file.close()


class _Talk:
    """One step's conversation, and the secrets that were looked up in it."""

    # Of the class, because most conversations never set them.
    #: Spooled bodies; closed when the step ends.
    files: tuple[IO[bytes], ...] = ()
    _token: Token | None = None
    _token_key = ("", "")
    _is_token_old = False
    #: The parts that a token is being made of.
    _parts: dict[str, str] | None = None

    def __init__(
        self, handler: "HttpHandler[Any]", kind: Step, context: SubmitContext | QueryContext
    ) -> None:
        self.handler = handler
        self.kind = kind
        self._is_submit = kind in (Step.SUBMIT, Step.RESUBMIT)
        self._given = self.account = context.account
        self._tokens: TokenCache | None = handler.tokens if handler.has_tokens else None
        self.context: Any = context
        seen = self._given.handed_out
        #: Every secret that was looked up in this step.
        self.secrets: list[str] = [] if seen is None else seen
        if seen is None or self._tokens is not None:
            self.account = Account(self._given.name, self._secret, self.secrets)
            self.context = attrs.evolve(context, account=self.account)

    def _secret(self, part: str) -> str:
        if part == TOKEN and self._tokens is not None:
            if self._token is None:
                raise HandlerError(
                    f"{self.handler.key}: there is no token for account {self._given.name!r}; "
                    "ask for it only where token_call does not return None",
                    code="no_token",
                )
            return self._token.value
        secret = self._given.secret(part)
        if self._given.handed_out is None:
            self.secrets.append(secret)
        if self._parts is not None:
            self._parts[part] = secret
        return secret

    def find_client(self, params: QueryParams) -> None:
        """Let the handler say who asks about the job."""
        client = self._describe("query_client", params)
        if client is not self.handler:
            if not hasattr(client, "query_call"):
                _refuse(client, "an HttpHandler", "query_client")
            self.handler = client

    # The steps.

    def submit(self, params: Any) -> Generator[Call, Reply, SubmitResult]:
        handler, context = self.handler, self.context
        with self._nothing_sent():
            if self._tokens is not None:
                yield from self._get_token(self._tokens)
            prepared = yield from self._prepare(params)
            params = params if prepared is None else prepared
            call = handler.submit_call(params, context)
            if isinstance(call, SubmitResult):
                return call
            call = self._outgoing(call, creates=True)
            if call.multipart is not None:
                call = yield from self._filled(call)
        try:
            reply = yield call
        except (ConfigError, UnsafeUrlError):
            # Signing and finding the address come before sending.
            with self._nothing_sent():
                raise
        self._check(reply, call)
        return _expect(self._read("read_submit", reply, params), SubmitResult, "read_submit")

    def ask(self, params: Any) -> Generator[Call, Reply, Any]:
        """Query, cancel or look up: make one call, and further ones as long as the reader wants them."""
        describe, read, expected = _ASKING[self.kind]
        if self._tokens is not None:
            yield from self._get_token(self._tokens)
        call = self._describe(describe, params)
        if isinstance(call, expected):
            return call
        reply = yield from self._perform(call, absence=self.kind is not Step.LOOKUP)
        answer = self._read(read, reply, params)
        if isinstance(answer, Follow):
            answer = yield from self._follow(answer)
        return _expect(answer, expected, read)

    def callback(self, callback: Callback) -> Generator[Call, Reply, CallbackNote]:
        """Read a callback."""
        check_callback(callback)
        try:
            answer = cast("Any", self.handler).read_callback(callback, self.context)
        except (HandlerError, ConfigError):
            raise
        except Exception as error:
            raise refused(error) from error
        if isinstance(answer, Follow):
            answer = yield from self._follow(answer)
        return _expect(answer, CallbackNote, "read_callback")

    def _follow(self, answer: Any) -> Generator[Call, Reply, Any]:
        followed, limit = 0, self.handler.follow_limit
        while isinstance(answer, Follow):
            followed += 1
            if followed > limit:
                raise HandlerError(
                    f"{self.handler.key}: one step may follow at most {limit} calls; keep a cursor in "
                    "next_query_params and go on in the next query, or raise follow_limit",
                    code="too_many_follows",
                )
            # A missing page says nothing about the job.
            reply = yield from self._perform(answer.call, absence=False)
            try:
                answer = answer.read(reply)
            except HandlerError:
                raise
            except Exception as error:
                raise self._unreadable("the reader of a Follow", reply, error) from error
        return answer

    def _prepare(self, params: Any) -> Generator[Call, Reply, Any]:
        preparation = self.handler.prepare_calls(params, self.context)
        try:
            call = next(preparation)
            while True:
                try:
                    reply = yield from self._perform(call)
                except Exception as error:  # noqa: BLE001  # the handler may know another way
                    call = preparation.throw(error)
                else:
                    call = preparation.send(reply)
        except StopIteration as done:
            return done.value

    # Tokens.

    def _get_token(self, tokens: TokenCache) -> Generator[Call, Reply, None]:
        """Take the account's token from those that are kept, or get one."""
        handler, now = self.handler, self.context.now
        if not handler.has_tokens:
            return
        key = self._token_key = (handler.token_base_url or handler.base_url, self._given.name)
        kept = tokens.get(key)
        is_good = kept is not None and kept.is_good(now, self._secret)
        if kept is not None and is_good:
            self._use(kept.token, is_old=True)
            if not kept.is_my_turn(now):
                return
        self._parts = {}
        try:
            found = yield from self._new_token(None if kept is None else kept.token)
            parts = self._parts
        except Exception:
            if is_good:
                return  # the old one still holds
            raise
        finally:
            self._parts = None
        if found is not None:
            self._use(found, is_old=False)
            tokens.put(key, found, parts, now)

    def _new_token(self, last: Token | None) -> Generator[Call, Reply, Token | None]:
        handler = self.handler
        answer: Any = handler.token_call(self.account, last)
        base = handler.token_base_url or None
        followed = 0
        while isinstance(answer, Call | Follow):
            followed += 1
            if followed > FOLLOWS:
                raise HandlerError(f"{handler.key}: a token takes too many calls", code="too_many_follows")
            call = answer.call if isinstance(answer, Follow) else answer
            call = self._outgoing(call, base=base, is_signed=False)
            reply = yield call
            check(reply, call, creating=self._is_submit, now=self.context.now, absence=False)
            try:
                answer = (
                    answer.read(reply)
                    if isinstance(answer, Follow)
                    else handler.read_token(reply, self.account)
                )
            except HandlerError:
                raise
            except Exception as error:
                raise self._unreadable("read_token", reply, error) from error
        if not isinstance(answer, Token) and (followed or answer is not None):
            _refuse(answer, "a Token", "read_token")
        return answer

    def _use(self, token: Token, *, is_old: bool) -> None:
        self._token, self._is_token_old = token, is_old
        for secret in (token.value, *token.extra.values()):
            self.account.hide(secret)

    def drop_token(self) -> None:
        """Use the token of this step no more."""
        if self._tokens is not None and self._token is not None:
            self._tokens.drop(self._token_key, self._token.value)

    # Calls.

    def _perform(self, call: Any, *, absence: bool = True) -> Generator[Call, Reply, Reply]:
        """Make one call that creates nothing, and return its reply if it is for the handler to read."""
        call = self._outgoing(call)
        if call.multipart is not None:
            call = yield from self._filled(call)
        reply = yield call
        if reply.file is not None:
            self.files += (reply.file,)
        if reply.status in _REDIRECTS and reply.status not in call.accept and call.method in _READING:
            reply, call, absence = yield from self._redirected(reply, call, absence)
        self._check(reply, call, absence=absence)
        return reply

    def _redirected(
        self,
        reply: Reply,
        call: Call,
        absence: bool,  # noqa: FBT001  # passed on
    ) -> Generator[Call, Reply, tuple[Reply, Call, bool]]:
        """Go where a reading call is sent; credentials never go along to another origin."""
        for _ in range(REDIRECTS):
            place = reply.header("location")
            if reply.status not in _REDIRECTS or not place:
                break
            before = origin_of(call.url)
            url = urldefrag(urljoin(call.url, quote(place.encode("latin-1", "replace"), safe=_IN_URL))).url
            origin = origin_of(url)
            if before.startswith("https:") and not origin.startswith("https:"):
                raise UnsafeUrlError(
                    f"{call!r} was redirected from https to {origin}; what comes from there may be anybody's"
                )
            moved = call.evolve(url=url, query=EMPTY)
            if origin != before:
                kept = {name: value for name, value in call.headers.items() if name.lower() in _HARMLESS}
                moved = moved.evolve(headers=kept, plain=True)
                absence = False
            call = self._outgoing(moved)
            reply = yield call
            if reply.file is not None:
                self.files += (reply.file,)
        return reply, call, absence

    def _check(self, reply: Reply, call: Call, *, absence: bool = True) -> None:
        if not reply.is_success:
            check(
                reply,
                call,
                creating=self._is_submit,
                now=self.context.now,
                absence=absence,
                is_token_old=self._is_token_old and call.sign is not None,
            )

    def _filled(self, call: Call) -> Generator[Call, Reply, Call]:
        """Fetch what stands as a ``FromUrl`` in the call."""
        parts: dict[str, Parts] = {}
        for name, given in (call.multipart or {}).items():
            several = [given] if isinstance(given, Part | FromUrl) else list(given)
            for number, part in enumerate(several):
                if isinstance(part, FromUrl):
                    several[number] = yield from self._fetch(part)
            parts[name] = several
        return call.evolve(multipart=parts)

    def _fetch(self, source: FromUrl) -> Generator[Call, Reply, Part]:
        call = Call("GET", source.url, plain=True, spool=True, body_cap=source.cap, timeout=source.timeout)
        try:
            reply = yield from self._perform(call, absence=False)
        except VendorError as error:
            if error.code == "body_too_large":
                raise RejectedError(
                    f"{call!r} holds more than {source.cap} bytes; submit a smaller file",
                    code="source_too_large",
                ) from error
            raise
        file = reply.as_file()
        if not file.read(1):
            raise RejectedError(f"{call!r} is empty; there is nothing to submit", code="source_empty")
        kind = source.content_type or reply.header("content-type") or "application/octet-stream"
        return Part(content=file, filename=source.filename or _name_in(source.url), content_type=kind)

    def _outgoing(
        self, call: Call, *, creates: bool = False, base: str | None = None, is_signed: bool = True
    ) -> Call:
        """Complete a call's URL and let it be signed, or refuse where it leads.

        Args:
            call: the handler's.
            creates: whether it creates the job.
            base: another base URL than the handler's, which credentials may go to as well.
            is_signed: whether the handler's own calls are signed.
        """
        if not isinstance(call, Call):
            raise HandlerError(
                f"{self.handler.key}: expected a Call, found {type(call).__name__}; return Call(method, url)"
            )
        base, origin = _base(self.handler, base)
        url = call.url
        if UNSAFE_IN_URL.search(url):
            raise UnsafeUrlError(
                f"a URL may hold no spaces, control characters or backslashes, found {call!r}; quote it"
            )
        found = Trust.OWN
        if url.startswith("/") and not url.startswith("//"):
            url = base + url
        else:
            target = origin_of(url)
            found = trust(target, origin, self.handler.allowed_hosts)
            if found is not Trust.OWN or call.plain:
                self._check_foreign(call, target, origin, found)
        return call.evolve(
            url=url,
            creates=creates,
            sign=self._sign if found is Trust.OWN and is_signed and not call.plain else None,
            guarded=found in (Trust.PUBLIC, Trust.UNKNOWN),
        )

    def _sign(self, call: Call) -> Call:
        return self.handler.sign(call, self.account)

    def _check_foreign(self, call: Call, target: str, own: str, found: Trust) -> None:
        if not call.plain and (
            found is Trust.UNKNOWN
            or (found is Trust.PUBLIC and own.startswith("https:") and not target.startswith("https:"))
        ):
            raise UnsafeUrlError(
                f"{self.handler.key}: calls go to {own} and to allowed_hosts {self.handler.allowed_hosts!r}, "
                f"found {target}; list the host if the vendor documents it"
            )
        if found in (Trust.PUBLIC, Trust.UNKNOWN):
            check_host(host_of(target))
        sent = str((call.url, dict(call.headers), dict(call.query), call.json, call.form))
        if masked(sent, self.secrets) != sent:
            raise UnsafeUrlError(
                f"{self.handler.key}: credentials go to {own} only, found them in a call to {target}; "
                "leave them to sign()"
            )

    # What goes wrong.

    def _describe(self, name: str, params: Any) -> Any:
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


def _expect(answer: Any, expected: type[R], name: str) -> R:
    if not isinstance(answer, expected):
        _refuse(answer, f"a {expected.__name__}", name)
    return answer


def _refuse(answer: object, expected: str, name: str) -> NoReturn:
    raise HandlerError(
        f"{name} must return {expected}, found {type(answer).__name__}; return one of its results"
    )


def _base(handler: "HttpHandler[Any]", other: str | None) -> tuple[str, str]:
    """Return the base URL of a call without a trailing slash, and its origin."""
    try:
        return split_base(getattr(handler, "base_url", "") if other is None else other)
    except UnsafeUrlError as error:
        raise ConfigError(
            f"{handler.key}: base_url must be an absolute http or https URL without user, query or fragment, "
            f"found {error.message}"
        ) from None


def _name_in(url: str) -> str:
    """Return the last part of a URL's path as a file name."""
    return _NOT_IN_A_NAME.sub("_", unquote(urlsplit(url).path.rpartition("/")[2])).strip() or "file"
