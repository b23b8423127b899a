"""``HttpHandler``: a vendor operation written as calls to describe and replies to read, without any I/O."""

from abc import abstractmethod
from collections.abc import Generator
from typing import Any, ClassVar, Generic

from coatcheck.errors import ConfigError
from coatcheck.handler import P, TaskHandler
from coatcheck.http.call import Call, Follow, Reply
from coatcheck.http.run import run
from coatcheck.http.talk import FOLLOWS, steps
from coatcheck.http.tokens import Token, TokenCache
from coatcheck.model import (
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


class HttpHandler(TaskHandler[P], Generic[P]):
    """A handler that describes calls and reads replies; it does no I/O itself.

    Subclasses set ``base_url`` and define ``submit_call``, ``read_submit``, ``query_call``, ``read_query``.
    Two pairs more are capabilities, there when a subclass defines them, with the arguments of these four:
    ``cancel_call(params, context) -> Call | CancelResult`` with ``read_cancel(reply, params, context)`` like
    a query, ``lookup_call(params, context) -> Call | LookupResult`` with ``read_lookup(reply, params,
    context)`` like a submit. A third is ``read_callback(callback, context) -> CallbackNote``; where a
    signature's public keys have to be fetched first it returns a ``Follow``.

    Replies that are not 2xx never reach a ``read_*`` method, unless the call has their status in ``accept``.
    They follow the reply table: 429, 425, and 503 with ``Retry-After``, are throttles; on submit any other
    4xx is a refusal, and 408, 3xx and 5xx leave the outcome unknown. Redirects are followed by GET and HEAD
    only, at most 5 times, never from https to http, and without credentials once another origin is reached.

    A vendor that wants a short-lived token instead of the credentials has a ``token_call`` and ``read_token``
    too; ``account.secret("token")`` then returns the account's token, in ``sign`` and everywhere else.
    """

    #: Where the vendor is, like ``"https://api.vendor.example/v1"``. Credentials go to this origin only.
    base_url: str
    #: Other hosts that calls may go to, without credentials: ``"files.vendor.example"``, or
    #: ``".vendor.example"`` for all below it. These must lead to public addresses; a whole origin, like
    #: ``"http://10.0.0.7:9000"``, may lead anywhere.
    allowed_hosts: tuple[str, ...] = ()
    #: Where ``token_call`` goes, if not to ``base_url``; the credentials may go there too.
    token_base_url: str = ""
    #: How many calls one step may ``Follow``. A handler may raise it where its vendor gives long results page
    #: by page; ``call_limit`` must then leave time for them.
    follow_limit: int = FOLLOWS
    #: Whether the class has a ``token_call`` of its own.
    has_tokens: ClassVar[bool] = False

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        for call, read in (("cancel_call", "read_cancel"), ("lookup_call", "read_lookup")):
            if hasattr(cls, call) != hasattr(cls, read):
                raise ConfigError(
                    f"{cls.__name__} must define both {call} and {read}, or neither; found only one of them"
                )
        cls.has_tokens = cls.token_call is not HttpHandler.token_call

    def sign(self, call: Call, account: Account) -> Call:
        """Return the call with credentials; called last, in the transport, for the handler's own origin only.

        The default adds none; the usual one is
        ``return call.with_headers(Authorization=f"Bearer {account.secret()}")``.
        """
        return call

    def token_call(self, account: Account, last: Token | None) -> Call | Token | None:
        """Describe the call that gets a token for the account's credentials; those it adds itself.

        The token is kept in memory until shortly before it expires, until one of the parts of the account
        that were looked up here is rotated, or until the vendor refuses it: with 401, or with whatever makes
        a ``read_*`` method raise an error with ``code="token_refused"`` (on submit a ``NotSentError``). When
        no token can be got, nothing was sent.

        Args:
            account: whose token.
            last: the one before, good or not; its ``extra`` may hold what a refresh needs.

        Returns:
            A ``Token`` itself where it is made without a call; ``None`` where this account needs none.
        """
        return None

    def read_token(self, reply: Reply, account: Account) -> Token | Follow:
        """Read the token out of the reply to ``token_call``; a ``Follow`` where that takes another call."""
        raise NotImplementedError(f"{type(self).__name__} must define read_token beside its token_call")

    @property
    def tokens(self) -> TokenCache:
        """The tokens that are kept."""
        cache: TokenCache = self.__dict__.setdefault("_tokens", TokenCache())
        return cache

    def prepare_calls(self, params: P, context: SubmitContext) -> Generator[Call, Reply, P | None]:
        """Make calls before the submit that create nothing billable; each ``yield`` gives its checked reply.

        What it returns takes the place of the params in ``submit_call`` and ``read_submit``; ``None`` keeps
        them. A failure that would leave a submit's outcome unknown means here that nothing was sent. A link
        that the vendor made, such as a signed place for an upload, is called with ``plain=True``.
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

    @classmethod
    def conversation(cls, method: str) -> Step | None:
        """Return which conversation a method holds: ``None`` where a subclass does it in its own way.

        Args:
            method: "submit", "query", "cancel" or "lookup".
        """
        return Step(method) if getattr(cls, method) is getattr(HttpHandler, method) else None

    @property
    def has_cancel(self) -> bool:
        """Whether there is a ``cancel_call``, or a ``cancel`` of the subclass's own."""
        return hasattr(self, "cancel_call") or type(self).cancel is not HttpHandler.cancel

    @property
    def has_lookup(self) -> bool:
        """Whether there is a ``lookup_call``, or a ``lookup`` of the subclass's own."""
        return hasattr(self, "lookup_call") or type(self).lookup is not HttpHandler.lookup
