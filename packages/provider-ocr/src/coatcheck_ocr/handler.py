"""``OcrHandler``: what all OCR vendors over HTTP have in common; a vendor adds its paths, words and shapes.

Here are the checks of a request, the meaning of status words and error codes, what a task keeps for its later
queries, and the way from a finished job to a response. No vendor is known here and nothing does I/O.
"""

import copy
import logging
import os
import re
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit

from attrs import field, frozen

from coatcheck import codec
from coatcheck.accounts import masked
from coatcheck.errors import (
    HandlerError,
    JobNotFoundError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import ACCOUNT_REFUSED, Call, Follow, FromUrl, HttpHandler, Part, Reply
from coatcheck.model import (
    Account,
    CancelResult,
    Failure,
    Phase,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
    TaskStatus,
)
from coatcheck.policy import PollPolicy
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.options import OcrOptions
from coatcheck_ocr.results import OcrOutput, Publish, resolve

_log = logging.getLogger(__name__)

SUBMITTED = TaskStatus.SUBMITTED
RUNNING = TaskStatus.RUNNING
SUCCEEDED = TaskStatus.SUCCEEDED
FAILED = TaskStatus.FAILED
CANCELED = TaskStatus.CANCELED

#: How long a document may take from its URL to us, where it is sent on.
FETCH_TIME = timedelta(seconds=240)

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
#: A vendor that makes up words is not allowed to fill the memory.
_WARNED_CAP = 1000
_warned: set[tuple[str, str]] = set()
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


@frozen(kw_only=True)
class OcrJob:
    """What one reply says about a job, in our words and with the vendor's own beside them."""

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
    #: What it gives, once it succeeded.
    output: OcrOutput = field(factory=OcrOutput)
    #: What a later query needs beside the id: kept with the task, so JSON values and no secrets.
    params: Mapping[str, Any] = field(factory=dict)
    #: The earliest next query that the vendor asked for.
    query_after: timedelta | None = None


class OcrHandler(HttpHandler[OcrRequest]):
    """Base of the OCR vendors; a subclass sets the attributes below and defines four methods.

    These are ``submit_call``, ``query_call``, ``read_submitted`` and ``read_job``. To add a region or a batch
    API to a vendor, derive from its handler and override ``create_query_params`` and ``query_client``.

    Args:
        base_url: where the vendor is; by default the variable ``COATCHECK_<KEY>_URL`` (``ocr:gitee`` →
            ``COATCHECK_OCR_GITEE_URL``), the vendor's own customary variable, or its public address.
        key: the handler's key, to register a second one for another address.
        account: its default account.
        poll: the pace of its queries.
        earlier_base_urls: addresses that jobs of earlier days may have been submitted to: they are asked
            there, with the same account. Jobs of any other address are not asked anywhere.
        publish: keeps images somewhere and returns their URLs; by default their links stay.
    """

    #: The class of the vendor's own options.
    options_type: ClassVar[type[OcrOptions]] = OcrOptions
    #: The vendor's status words in lower case → our status. Any other word is "running".
    states: ClassVar[Mapping[str, TaskStatus]] = {}
    #: The vendor's error codes, as text, where they come with 2xx.
    troubles: ClassVar[Mapping[str, Trouble]] = {}
    #: Customary variables that hold the vendor's address.
    base_url_env: ClassVar[tuple[str, ...]] = ()
    #: The model that is named to the vendor where the request names none.
    default_model: ClassVar[str | None] = None
    #: Schemes of document URLs that the vendor reads, or that this handler reads for it.
    schemes: ClassVar[tuple[str, ...]] = ("http", "https")
    #: Whether ``OcrRequest.pages`` can be said to the vendor.
    takes_pages: ClassVar[bool] = False
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
        publish: Publish | None = None,
    ) -> None:
        self.key = key or type(self).key
        self.account = account or type(self).account
        self.poll = poll or type(self).poll
        self.publish = publish
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
    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the reply to the submit; raise, or ``judge`` a code, where it is no job."""

    @abstractmethod
    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query; a ``Follow`` that ends in ``answer`` where more has to be read."""

    # What a regional or batch vendor overrides.

    def create_query_params(self, response: OcrJob, request: OcrRequest) -> QueryParams:
        """Return all that later queries need of an accepted submit; kept with the task, no secrets.

        By default the job's id, ``response.params``, and the address that the job was submitted to.

        Raises:
            HandlerError: the reply holds no id, so the outcome of the submit is unknown.
        """
        return QueryParams(response.id or "", **{"base_url": self.base_url, **response.params})

    def query_client(self, params: QueryParams, context: QueryContext) -> "OcrHandler":
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

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the vendor could not read.

        Raises:
            ValidationError: the URL, the pages or an option's value is not right, or there is no address.
            UnknownNameError: no option has that name.
        """
        if not self.base_url:
            raise ValidationError(
                f"{self.key} must know the address of the service, found none; "
                f"set {' or '.join(reversed(self._url_variables))}",
                "handler_key",
            )
        scheme = urlsplit(params.url).scheme.lower()
        if scheme not in self.schemes:
            raise ValidationError(
                f"{self.key} reads {' and '.join(self.schemes)} URLs, found {scheme}:; upload the document "
                "first and submit its URL",
                "url",
            )
        if params.pages is not None and not self.takes_pages:
            raise ValidationError(
                f"{self.key} cannot choose pages; leave pages out, found {params.pages!r}", "pages"
            )
        self.options(params)

    def options(self, request: OcrRequest) -> OcrOptions:
        """Return the request's options, checked; see ``options_type``."""
        return self.options_type.of(request.options, self.key)

    def fields(self, request: OcrRequest, **own: Any) -> dict[str, Any]:
        """Return what to tell the vendor: the request's options under its names, our own fields over them.

        Args:
            own: what the handler itself says; ``None`` is left out.
        """
        said = self.options(request).wire()
        said.update((name, value) for name, value in own.items() if value is not None)
        return said

    def model(self, request: OcrRequest) -> str | None:
        """Return the model to name: the request's, else the default."""
        return request.model or self.default_model

    def page_range(self, request: OcrRequest) -> tuple[int, int] | None:
        """Return the first and the last page, for vendors that read one range; ``None`` for all pages.

        Raises:
            ValidationError: the pages are more than one range.
        """
        if request.pages is None:
            return None
        match = _RANGE.fullmatch(request.pages)
        if match is None:
            raise ValidationError(
                f'{self.key} reads one range: pages must be like "2-5", found {request.pages!r}', "pages"
            )
        return int(match[1]), int(match[2] or match[1])

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

    def _heed(self, job: OcrJob, account: Account) -> None:
        """Warn once of a word that nobody knows, without what the vendor may have repeated in it."""
        if job.status is RUNNING and job.word and self._known(job.word) is None:
            _warn(self.key, masked(job.word, account.handed_out or ()))

    def judge(
        self, code: object, message: object, *, creating: bool, delay: timedelta | None = None
    ) -> OcrJob:
        """Raise or return what an error code means that came with 2xx; see ``troubles``.

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
        trouble = self.troubles.get(str(code), unknown)
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
                return OcrJob(
                    status=FAILED,
                    code=name,
                    message=shortened(message),
                    retryable=trouble is Trouble.FINAL_RETRYABLE,
                )
        raise VendorError(text, code=name)

    # The common course.

    def read_submit(self, reply: Reply, params: OcrRequest, context: SubmitContext) -> SubmitResult:
        """Read the reply to the submit, by ``read_submitted``."""
        job = self.read_submitted(reply, params)
        self._heed(job, context.account)
        if job.status is FAILED:
            return SubmitResult(
                status=FAILED,
                error=Failure(job.code, job.message, Phase.SUBMIT, job.retryable),
                provider_status=job.word,
            )
        if job.status is SUCCEEDED and not job.output.needs_download:
            answer = resolve(job.output, lambda response: self._succeeded(job, response))
            if isinstance(answer, QueryResult) and answer.status is SUCCEEDED:
                return SubmitResult.succeeded(
                    answer.result,
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

    def answer(self, job: OcrJob) -> QueryResult | Follow:
        """Return what a query that saw ``job`` comes to; the downloads of its result follow."""
        match job.status:
            case TaskStatus.FAILED:
                return QueryResult.failed(
                    job.code or "failed",
                    job.message or "the vendor says that the job failed",
                    job.retryable,
                    provider_status=job.word,
                    usage=dict(job.output.usage) or None,
                )
            case TaskStatus.CANCELED:
                return QueryResult.canceled(provider_status=job.word)
            case TaskStatus.SUBMITTED:
                return QueryResult.submitted(provider_status=job.word, query_after=job.query_after)
            case TaskStatus.SUCCEEDED:
                return resolve(job.output, lambda response: self._succeeded(job, response), self.publish)
        return QueryResult.running(job.progress, provider_status=job.word, query_after=job.query_after)

    def _succeeded(self, job: OcrJob, response: OcrResponse) -> QueryResult:
        return QueryResult.succeeded(
            response,
            usage=dict(response.usage) or None,
            expires_after=self.result_life,
            provider_status=job.word,
        )


def _warn(handler_key: str, word: str) -> None:
    with _warned_lock:
        if (handler_key, word) in _warned or len(_warned) >= _WARNED_CAP:
            return
        _warned.add((handler_key, word))
    _log.warning("%s: unknown status %r of the vendor counts as running", handler_key, shortened(word, 100))


# Accounts that need not be whole.


def part_of(account: Account, part: str) -> str | None:
    """Return a part that an account may lack; ``None`` where it does."""
    try:
        return account.secret(part) or None
    except UnknownNameError:
        return None


def key_of(account: Account) -> str | None:
    """Return the key for a server that may need none; ``None`` where nothing at all is configured.

    Raises:
        UnknownNameError: the account is there, and its key is missing or cannot be read.
    """
    try:
        return account.secret()
    except UnknownNameError as error:
        if error.name in error.known:
            raise
        return None


# Describing calls.


def suffixed_name(request: OcrRequest) -> str:
    """Return the document's name with a suffix, which tells servers its kind, where it or its URL has one."""
    name = request.name
    return name if PurePosixPath(name).suffix else name + PurePosixPath(urlsplit(request.url).path).suffix


def document_part(request: OcrRequest, filename: str, **more: Any) -> FromUrl:
    """Return the document as a part of a body, for vendors that look at its name and not at its type.

    Args:
        request: whose document.
        filename: the name that the vendor sees.
        more: as in ``FromUrl``.
    """
    return FromUrl(
        request.url, filename=filename, content_type="application/octet-stream", timeout=FETCH_TIME, **more
    )


def form_parts(value: Any) -> Part | list[Part]:
    """Return a value as multipart bodies carry it: a list as a repeated part, an object as JSON."""
    if isinstance(value, list | tuple):
        return [Part(content=form_text(one)) for one in value]
    return Part(content=codec.dumps(value) if isinstance(value, Mapping) else form_text(value))


# Reading replies, leniently.


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


def form_text(value: Any) -> str:
    """Return a value as form fields and multipart parts carry it: ``true`` and ``false`` for booleans."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
