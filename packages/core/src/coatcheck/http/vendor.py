"""``VendorHandler``: what all vendors with jobs have in common; one of them adds paths, words and shapes.

Here are the meaning of status words and error codes, what a task keeps for its later queries, where a vendor
is, and the way from a reply to the result of a step. No vendor and no kind of work is known here, and nothing
does I/O.
"""

import copy
import logging
import os
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from attrs import field, frozen

from coatcheck.accounts import masked
from coatcheck.errors import (
    HandlerError,
    JobNotFoundError,
    NotSentError,
    RejectedError,
    ThrottledError,
    ValidationError,
    VendorError,
)
from coatcheck.http.call import Call, Follow, Reply
from coatcheck.http.handler import HttpHandler
from coatcheck.http.options import VendorOptions
from coatcheck.http.read import error_of, members_if_any, shortened
from coatcheck.http.table import ACCOUNT_REFUSED
from coatcheck.model import (
    EMPTY,
    Account,
    CancelResult,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
    TaskStatus,
)
from coatcheck.policy import PollPolicy

_log = logging.getLogger(__name__)

SUBMITTED = TaskStatus.SUBMITTED
RUNNING = TaskStatus.RUNNING
SUCCEEDED = TaskStatus.SUCCEEDED
FAILED = TaskStatus.FAILED
CANCELED = TaskStatus.CANCELED

#: Statuses of a refused submit that say in their body what is wrong, at many vendors.
REFUSALS = (400, 403, 404)

#: A vendor that makes up words is not allowed to fill the memory.
_WARNED_CAP = 1000
_warned: set[tuple[str, str]] = set()
_NO_WORDS = "the vendor says that the job failed"
_warned_lock = threading.Lock()


class Trouble(Enum):
    """What a vendor's error code comes to, where it arrives in a reply with 2xx."""

    #: Too many calls or jobs: the gate closes for a while, nothing is counted.
    BUSY = "busy"
    #: Not this time, and for certain nothing was created: a submit is sent again, a query is repeated.
    AGAIN = "again"
    #: Nobody knows what happened: a submit ends unknown, a query is repeated.
    UNSURE = "unsure"
    #: The key or the balance is refused: like HTTP 401.
    ACCOUNT = "account"
    #: The job is not there: like HTTP 404.
    MISSING = "missing"
    #: The vendor will not do it: the task fails.
    FINAL = "final"
    #: The same, but a new job may go well.
    FINAL_RETRYABLE = "final_retryable"


#: Troubles that pass, so that a job which failed for one may go well another time.
_LATER = frozenset({Trouble.BUSY, Trouble.AGAIN, Trouble.UNSURE, Trouble.FINAL_RETRYABLE})


class VendorRequest(Protocol):
    """What a request must have to be read by a ``VendorHandler``."""

    @property
    def model(self) -> str | None:
        """The vendor's model; its default if ``None``."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The vendor's own extras, checked by the handler's ``options_type``."""


@frozen(kw_only=True)
class VendorJob:
    """What one reply says about a job, in our words and with the vendor's own beside them.

    A kind of work adds what its jobs give: subclass it with fields of their own.
    """

    status: TaskStatus
    #: The vendor's id for the job; only the reply to a submit needs it.
    id: str | None = None
    #: The vendor's word for the status, as it stands in the reply.
    word: str | None = None
    #: From 0 to 100.
    progress: float | None = None
    #: Why it failed.
    code: str = "failed"
    message: str = ""
    retryable: bool = False
    #: What a later query needs beside the id: kept with the task, so JSON values and no secrets.
    params: Mapping[str, Any] = field(factory=dict)
    #: The earliest next query that the vendor asked for.
    query_after: timedelta | None = None
    #: How long the vendor keeps the result, where this reply says so.
    expires_after: timedelta | None = None

    @property
    def usage(self) -> Mapping[str, int]:
        """What the vendor counts, like ``{"page": 3}``; a subclass may make it a field."""
        return EMPTY


Q = TypeVar("Q", bound=VendorRequest)
J = TypeVar("J", bound=VendorJob)


class VendorHandler(HttpHandler[Q], Generic[Q, J]):
    """Base of handlers for vendors with jobs, of whatever work; a subclass defines five methods.

    These are ``submit_call``, ``query_call``, ``read_submitted``, ``read_job``, and ``finish``, which a kind
    of work defines once for all of its vendors. To add a region or a batch API to a vendor, derive from its
    handler and override ``create_query_params`` and ``query_client``.

    Args:
        base_url: where the vendor is; by default the variable ``COATCHECK_<KEY>_URL`` (``ocr:gitee`` →
            ``COATCHECK_OCR_GITEE_URL``), the vendor's own customary variable, or its public address.
        key: the handler's key, to register a second one for another address.
        account: its default account.
        poll: the pace of its queries.
        earlier_base_urls: addresses that jobs of earlier days may have been submitted to: they are asked
            there, with the same account. Jobs of any other address are not asked anywhere.
    """

    #: The class of the vendor's own options.
    options_type: ClassVar[type[VendorOptions]] = VendorOptions
    #: The class of what ``read_submitted`` and ``read_job`` return; ``judge`` makes failed ones.
    job_type: type[J]
    #: The vendor's status words in lower case → our status. Any other word is "running".
    states: ClassVar[Mapping[str, TaskStatus]] = {}
    #: The vendor's error codes, as text, where they come with 2xx.
    troubles: ClassVar[Mapping[str, Trouble]] = {}
    #: Customary variables that hold the vendor's address.
    base_url_env: ClassVar[tuple[str, ...]] = ()
    #: The model that is named to the vendor where the request names none.
    default_model: ClassVar[str | None] = None
    #: Schemes of URLs in requests that the vendor reads, or that this handler reads for it.
    schemes: ClassVar[tuple[str, ...]] = ("http", "https")
    #: How long the vendor keeps a result, where it says so.
    result_life: ClassVar[timedelta | None] = None
    base_url = ""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        key: str | None = None,
        account: str | None = None,
        poll: PollPolicy | None = None,
        earlier_base_urls: Iterable[str] = (),
    ) -> None:
        self.key = key or type(self).key
        self.account = account or type(self).account
        self.poll = poll or type(self).poll
        variables = (
            f"COATCHECK_{self.key.upper().replace(':', '_').replace('-', '_')}_URL",
            *self.base_url_env,
        )
        found = (value for name in variables if (value := os.environ.get(name)))
        self.base_url = (base_url or next(found, type(self).base_url)).rstrip("/")
        self.earlier_base_urls = tuple(url.rstrip("/") for url in earlier_base_urls)
        self._url_variables = variables

    # What a vendor defines.

    @abstractmethod
    def read_submitted(self, reply: Reply, request: Q) -> J:
        """Read the reply to the submit; raise, or ``judge`` a code, where it is no job."""

    @abstractmethod
    def read_job(self, reply: Reply, params: QueryParams) -> J | Follow:
        """Read the reply to the query; a ``Follow`` that ends in ``answer`` where more has to be read."""

    @abstractmethod
    def finish(self, job: J, *, at_once: bool = False) -> QueryResult | Follow:
        """Return what a job that succeeded comes to: usually ``succeeded(job, …)``.

        Args:
            job: the job.
            at_once: whether the reply to the submit said so; a ``Follow`` then leaves the rest to a query.
        """

    # What a regional or batch vendor overrides.

    def create_query_params(self, response: J, request: Q) -> QueryParams:
        """Return all that later queries need of an accepted submit; kept with the task, no secrets.

        By default the job's id, ``response.params``, and the address that the job was submitted to.

        Raises:
            HandlerError: the reply holds no id, so the outcome of the submit is unknown.
        """
        return QueryParams(response.id or "", **{"base_url": self.base_url, **response.params})

    def query_client(self, params: QueryParams, context: QueryContext) -> "VendorHandler[Q, J]":
        """Return who asks about a job: this handler, or one like it at the job's own address.

        Raises:
            HandlerError: the job was submitted to an address that is not among ours any more; the credentials
                are not sent there.
        """
        place = params.get("base_url", self.base_url)
        if place == self.base_url:
            return self
        if place not in self.earlier_base_urls:
            raise HandlerError(
                f"{self.key}: the job was submitted to {place}, and this handler is for {self.base_url}; "
                "pass earlier_base_urls=(…,) to ask there with the same account",
                code="other_address",
            )
        return self.at(place)

    def at(self, base_url: str) -> Self:
        """Return a handler like this one at another address."""
        client = copy.copy(self)
        client.base_url = base_url.rstrip("/")
        return client

    # Requests.

    def validate(self, params: Q) -> None:
        """Refuse what the vendor could not read.

        Raises:
            ValidationError: an option's value is not right, or there is no address.
            UnknownNameError: no option has that name.
        """
        if not self.base_url:
            raise ValidationError(
                f"{self.key} must know the address of the service, found none; "
                f"set {' or '.join(reversed(self._url_variables))}",
                "handler_key",
            )
        self.options(params)

    def check_url(self, url: str, name: str) -> None:
        """Refuse a URL that the vendor does not read.

        Args:
            url: the URL.
            name: the field of the request that it stands in.

        Raises:
            ValidationError: its scheme is none of ``schemes``.
        """
        scheme = urlsplit(url).scheme.lower()
        if scheme not in self.schemes:
            raise ValidationError(
                f"{self.key} reads {' and '.join(self.schemes)} URLs, found {scheme}: in {name}; upload the "
                "file first and submit its URL",
                name,
            )

    def options(self, request: Q) -> VendorOptions:
        """Return the request's options, checked; see ``options_type``."""
        return self.options_type.of(request.options, self.key)

    def fields(self, request: Q, **own: Any) -> dict[str, Any]:
        """Return what to tell the vendor: the request's options under its names, our own fields over them.

        Args:
            own: what the handler itself says; ``None`` is left out.
        """
        said = self.options(request).wire()
        said.update((name, value) for name, value in own.items() if value is not None)
        return said

    def model(self, request: Q) -> str | None:
        """Return the model to name: the request's, else the default."""
        return request.model or self.default_model

    def sign(self, call: Call, account: Account) -> Call:
        """Add the account's secret as a bearer token."""
        return call.with_headers(Authorization=f"Bearer {account.secret()}")

    # Words and codes.

    def read_stopped(self, word: object) -> CancelResult:
        """Return what a cancel came to that was answered with the job's status."""
        match self.status_of(word):
            case TaskStatus.CANCELED:
                return CancelResult.done()
            case TaskStatus.SUCCEEDED | TaskStatus.FAILED:
                return CancelResult.refused("the job has ended already")
            case _:
                return CancelResult.accepted()

    def status_of(self, word: object) -> TaskStatus:
        """Return what a vendor's status word means; an unknown one is "running".

        Raises:
            VendorError: there is no word at all, so the reply says nothing about the job.
        """
        if isinstance(word, bool) or not isinstance(word, str | int) or word == "":
            raise VendorError(
                f"{self.key}: expected a status from the vendor, found {word!r}; the reply is not used",
                code="unreadable_reply",
            )
        return self._known(str(word)) or RUNNING

    def _known(self, word: str) -> TaskStatus | None:
        return self.states.get(word.strip().lower())

    def _heed(self, job: J, account: Account) -> None:
        """Warn once of a word that nobody knows, without what the vendor may have repeated in it."""
        if job.status is RUNNING and job.word and self._known(job.word) is None:
            _warn(self.key, masked(job.word, account.handed_out or ()))

    def trouble_of(self, code: str) -> Trouble | None:
        """Return what an error code means, by default as in ``troubles``; ``None`` where nobody knows it."""
        return self.troubles.get(code)

    def judge(self, code: object, message: object, *, creating: bool, delay: timedelta | None = None) -> J:
        """Raise or return what an error code means that came with 2xx; see ``trouble_of``.

        A code that nobody knows refuses a submit and leaves a query to be repeated.

        Args:
            code: the vendor's code.
            message: the vendor's words.
            creating: whether it answers a submit.
            delay: how long the vendor asks to wait.

        Returns:
            The failed job, for codes that end one.
        """
        text = f"{self.key}: the vendor answered {code}: {shortened(message)}"
        unknown = Trouble.FINAL if creating else Trouble.AGAIN
        trouble = self.trouble_of(str(code)) or unknown
        name = str(code)
        match trouble:
            case Trouble.BUSY:
                raise ThrottledError(text, delay=delay)
            case Trouble.AGAIN if creating:
                raise NotSentError(text, code=name)
            case Trouble.ACCOUNT if creating:
                raise RejectedError(text, code="account_refused", gate_delay=ACCOUNT_REFUSED)
            case Trouble.ACCOUNT:
                raise VendorError(text, code="account_refused", gate_delay=ACCOUNT_REFUSED)
            case Trouble.MISSING if not creating:
                raise JobNotFoundError(text)
            case Trouble.FINAL | Trouble.FINAL_RETRYABLE | Trouble.MISSING if creating:
                raise RejectedError(text, code=name, retryable=trouble is Trouble.FINAL_RETRYABLE)
            case Trouble.FINAL | Trouble.FINAL_RETRYABLE:
                return self.job_type(
                    status=FAILED,
                    code=name,
                    message=shortened(message),
                    retryable=trouble is Trouble.FINAL_RETRYABLE,
                )
        raise VendorError(text, code=name)

    def refused(self, reply: Reply) -> J:
        """Raise or return what the refusal of a submit means, by the code in its body: see ``judge``.

        For submits that ``accept`` the ``REFUSALS`` of a vendor that says why.
        """
        code, message = error_of(members_if_any(reply))
        return self.judge(code or f"http_{reply.status}", message or reply.excerpt, creating=True)

    def is_retryable(self, code: str) -> bool:
        """Whether another job may go well where one failed with this code."""
        return self.trouble_of(code) in _LATER

    # The common course.

    def read_submit(self, reply: Reply, params: Q, context: SubmitContext) -> SubmitResult:
        """Read the reply to the submit, by ``read_submitted``."""
        job = self.read_submitted(reply, params)
        self._heed(job, context.account)
        if job.status is FAILED:
            return SubmitResult.failed(
                job.code or "failed",
                job.message or _NO_WORDS,
                retryable=job.retryable,
                usage=dict(job.usage) or None,
                provider_status=job.word,
            )
        if job.status is SUCCEEDED:
            answer = self.finish(job, at_once=True)
            if isinstance(answer, QueryResult) and answer.status is SUCCEEDED:
                return SubmitResult.succeeded(
                    answer.result,
                    query_params=self.create_query_params(job, params) if job.id else None,
                    usage=answer.usage,
                    expires_after=answer.expires_after,
                    provider_status=job.word,
                )
        query_params = self.create_query_params(job, params)
        if job.status is SUBMITTED:
            return SubmitResult.submitted(query_params, provider_status=job.word, query_after=job.query_after)
        return SubmitResult.running(
            query_params, job.progress, provider_status=job.word, query_after=job.query_after
        )

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Read the reply to the query, by ``read_job``."""
        job = self.read_job(reply, params)
        if isinstance(job, Follow):
            return job
        self._heed(job, context.account)
        return self.answer(job)

    def answer(self, job: J) -> QueryResult | Follow:
        """Return what a query that saw ``job`` comes to; the downloads of its result follow."""
        match job.status:
            case TaskStatus.FAILED:
                return QueryResult.failed(
                    job.code or "failed",
                    job.message or _NO_WORDS,
                    job.retryable,
                    provider_status=job.word,
                    usage=dict(job.usage) or None,
                )
            case TaskStatus.CANCELED:
                return QueryResult.canceled(provider_status=job.word, usage=dict(job.usage) or None)
            case TaskStatus.SUBMITTED:
                return QueryResult.submitted(provider_status=job.word, query_after=job.query_after)
            case TaskStatus.SUCCEEDED:
                return self.finish(job)
        return QueryResult.running(job.progress, provider_status=job.word, query_after=job.query_after)

    def succeeded(self, job: J, result: object) -> QueryResult:
        """Return the success of a job: its result, usage, and how long the vendor keeps it."""
        return QueryResult.succeeded(
            result,
            usage=dict(job.usage) or None,
            expires_after=job.expires_after or self.result_life,
            provider_status=job.word,
        )


def _warn(handler_key: str, word: str) -> None:
    with _warned_lock:
        if (handler_key, word) in _warned or len(_warned) >= _WARNED_CAP:
            return
        _warned.add((handler_key, word))
    _log.warning("%s: unknown status %r of the vendor counts as running", handler_key, shortened(word, 100))
