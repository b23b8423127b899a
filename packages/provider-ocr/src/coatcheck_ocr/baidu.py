"""``ocr:baidu``: document parsing of Baidu AI Cloud at aip.baidubce.com, all families of its endpoints.

From the agents-flex adapter (AF), the vendor's pages (DOC) and clients of third parties (3P). ``(1)`` marks
what one weaker source says, ``(?)`` what is not sure:

- The path decides the model, its name is never sent (AF): ``paddle-vl-parser`` (AF), ``unlimited-ocr-parser``
    (DOC: beta, markdown only) and ``parser`` (DOC), with ``/task`` to submit and ``/task/query`` to ask.
- A key that begins with ``bce-v3/`` is a bearer token; any other is an access token and goes into the query
    (AF, DOC). POST ``/oauth/2.0/token`` with ``client_id`` and ``client_secret`` in the query gives one for
    30 days (DOC); its failure ``{"error", "error_description"}`` (1).
- Both calls are POST with form fields, booleans as ``true`` and ``false``; ``file_url`` of at most 1024
    bytes, ``file_name`` with its true suffix (AF, DOC). ``angle_adjust`` is on by default (1).
- Reply ``{"log_id", "error_code": 0, "error_msg", "result": {"task_id"}}``; query ``result.status``,
    ``task_error``, ``markdown_url``, ``parse_result_url`` (AF, DOC); "running" for "processing" was seen.
- Links hold for 30 days (DOC). ``pages`` of the parsed result are what is billed; the reply counts nothing.
- Errors come with HTTP 200 and an ``error_code`` that is not 0 (DOC). What an unknown task is answered with
    is not known (?): a bad parameter of a query, which has only this one, is taken for it.
- 2 submits and 10 queries a second (DOC). No cancel, no idempotency key.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

import attrs
from attrs import frozen

from coatcheck.accounts import part_of
from coatcheck.errors import (
    HandlerError,
    NotSentError,
    RejectedError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import ACCOUNT_REFUSED, Call, Follow, Reply, Token, path
from coatcheck.http.form import form_text
from coatcheck.http.options import switch, text
from coatcheck.http.read import error_of, id_of, members, shortened, text_of, whole_of, within
from coatcheck.http.vendor import FAILED, RUNNING, SUBMITTED, SUCCEEDED, Trouble
from coatcheck.model import (
    Account,
    Limit,
    QueryContext,
    QueryParams,
    QueryResult,
    Rate,
    Side,
    SubmitContext,
    SubmitResult,
    TaskStatus,
)
from coatcheck.policy import PollPolicy
from coatcheck_ocr.handler import OcrHandler, OcrJob
from coatcheck_ocr.model import OcrPage, OcrRequest, OcrResource
from coatcheck_ocr.options import OcrOptions
from coatcheck_ocr.results import OcrOutput, download

#: Model → family of endpoints.
FAMILIES: Mapping[str, str] = {
    "PaddleOCR-VL": "paddle-vl-parser",
    "PaddleOCR-VL-1.6-0.9B": "paddle-vl-parser",
    "Unlimited-OCR": "unlimited-ocr-parser",
    "parser": "parser",
}
DEFAULT_MODEL = "PaddleOCR-VL"
#: The longest URL that the vendor takes, in bytes.
LONGEST_URL = 1024
#: The largest parsed result whose pages are read, in bytes; a larger one stays a link.
PAGES_CAP = 16 * 1024 * 1024

_BEARER = "bce-v3/"
_SUFFIX = re.compile(r"(?<=.)\.[A-Za-z0-9]{1,11}$")
_BUSY_DELAY = timedelta(seconds=1)
#: The token is bad, invalid, expired.
_TOKEN_CODES = ("100", "110", "111")


@frozen(kw_only=True, eq=False)
class BaiduOptions(OcrOptions):
    """What ``OcrRequest.options`` may hold for ``ocr:baidu``."""

    #: Whether charts are read.
    analysis_chart: bool | None = switch()
    #: Whether tables are joined over pages.
    merge_tables: bool | None = switch()
    #: Whether the levels of headings are made out anew.
    relevel_titles: bool | None = switch()
    #: Whether seals are read.
    recognize_seal: bool | None = switch()
    #: Whether the boxes of lines and spans are in the parsed result.
    return_span_boxes: bool | None = switch()
    #: Whether pages are turned upright; the vendor's default is true.
    angle_adjust: bool | None = switch()
    #: These three are accepted and have no effect on PaddleOCR-VL.
    recognize_formula: bool | None = switch()
    parse_image_layout: bool | None = switch()
    language_type: str | None = text(50)


class BaiduHandler(OcrHandler):
    """Reads documents at Baidu; takes http and https URLs that the vendor can reach.

    The account's ``secret`` is a key that begins with ``bce-v3/``, or an access token; with a ``secret_key``
    beside it, it is the API key of an application, and both are exchanged for an access token.
    """

    key = "ocr:baidu"
    account = "baidu"
    account_env: Mapping[str, tuple[str, ...]] = {
        "secret": ("BAIDU_OCR_API_KEY", "BAIDU_OCR_ACCESS_TOKEN", "QIANFAN_API_KEY"),
        "secret_key": ("BAIDU_OCR_SECRET_KEY",),
    }
    base_url = "https://aip.baidubce.com"
    options_type = BaiduOptions
    default_model = DEFAULT_MODEL
    poll = PollPolicy.exponential(timedelta(seconds=5))
    result_life = timedelta(days=30)
    default_limits = (
        Limit(account="baidu", side=Side.SUBMIT, rate=Rate(2)),
        Limit(account="baidu", side=Side.QUERY, rate=Rate(10)),
    )
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "pending": SUBMITTED,
        "processing": RUNNING,
        "running": RUNNING,
        "success": SUCCEEDED,
        "failed": FAILED,
    }
    troubles: ClassVar[Mapping[str, Trouble]] = {
        # After "unknown" and "internal" nobody knows whether there is a job.
        "1": Trouble.UNSURE,
        "282000": Trouble.UNSURE,
        "2": Trouble.AGAIN,
        "4": Trouble.BUSY,
        "18": Trouble.BUSY,
        # No permission, wrong signature; the day's quota, the whole quota.
        "6": Trouble.ACCOUNT,
        "14": Trouble.ACCOUNT,
        "17": Trouble.ACCOUNT,
        "19": Trouble.ACCOUNT,
        **dict.fromkeys(_TOKEN_CODES, Trouble.ACCOUNT),
        # A query has no parameter but the task.
        "216100": Trouble.MISSING,
        "216101": Trouble.MISSING,
        "282003": Trouble.MISSING,
        "216200": Trouble.FINAL,
        "216201": Trouble.FINAL,
        "216202": Trouble.FINAL,
        "282810": Trouble.FINAL_RETRYABLE,
    }

    # The account.

    def sign(self, call: Call, account: Account) -> Call:
        """Add the key as a bearer token, or the access token to the query."""
        secret = account.secret()
        if secret.startswith(_BEARER):
            return call.with_headers(Authorization=f"Bearer {secret}")
        return call.with_query(access_token=account.secret("token") if _is_pair(account) else secret)

    def token_call(self, account: Account, last: Token | None) -> Call | Token | None:
        """Describe the exchange of an API key and its secret key; ``None`` where the account has no pair."""
        if not _is_pair(account):
            return None
        query = {
            "grant_type": "client_credentials",
            "client_id": account.secret(),
            "client_secret": account.secret("secret_key"),
        }
        return Call("POST", "/oauth/2.0/token", query=query)

    def read_token(self, reply: Reply, account: Account) -> Token | Follow:
        """Read the access token."""
        body = members(reply)
        token, seconds = text_of(body, "access_token"), body.get("expires_in")
        if token is None:
            code, message = text_of(body, "error"), text_of(body, "error_description")
            if code is None:
                raise VendorError(
                    f"{self.key}: expected an access token, found {sorted(body)}", code="unreadable_reply"
                )
            raise RejectedError(
                f"{self.key}: the vendor gives no access token ({code}: {shortened(message)}); check the API "
                "key and the secret key",
                code="account_refused",
                gate_delay=ACCOUNT_REFUSED,
            )
        return Token(token, timedelta(seconds=seconds) if isinstance(seconds, int) and seconds > 0 else None)

    def read_submit(self, reply: Reply, params: OcrRequest, context: SubmitContext) -> SubmitResult:
        """Read the reply to the submit; a token that is refused is given up."""
        self._check_token(reply, context.account, NotSentError)
        return super().read_submit(reply, params, context)

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Read the reply to the query; a token that is refused is given up."""
        self._check_token(reply, context.account, VendorError)
        return super().read_query(reply, params, context)

    def _check_token(self, reply: Reply, account: Account, kind: type[HandlerError]) -> None:
        code, message = _trouble(members(reply))
        if code in _TOKEN_CODES and _is_pair(account):
            raise kind(
                f"{self.key}: the vendor answered {code}: {message}; the token is given up, the next call "
                "gets a new one",
                code="token_refused",
            )

    # Requests.

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the vendor could not read; see ``OcrHandler.validate``.

        Raises:
            UnknownNameError: no family of endpoints has the model.
        """
        super().validate(params)
        if params.model is not None and params.model not in FAMILIES:
            raise UnknownNameError.of(f"model of {self.key}", params.model, FAMILIES)
        size = len(params.url.encode())
        if size > LONGEST_URL:
            raise ValidationError(
                f"{self.key} takes URLs of at most {LONGEST_URL} bytes, found {size}; use a shorter link",
                "url",
            )
        if _file_name(params) is None:
            raise ValidationError(
                f"{self.key} tells the kind of a document by the suffix of its name, found "
                f'{params.name!r}; set file_name="….pdf"',
                "file_name",
            )

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        said = self.fields(params, file_url=params.url, file_name=_file_name(params))
        return Call(
            "POST", _place(_family(params)), form={name: form_text(value) for name, value in said.items()}
        )

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the reply to the submit."""
        body = members(reply)
        job = self._refusal(body, creating=True)
        if job is not None:
            return job
        return OcrJob(
            status=SUBMITTED,
            id=id_of(body.get("result"), "task_id"),
            params={"family": _family(request)},
        )

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        family = params.get("family", FAMILIES[DEFAULT_MODEL])
        return Call("POST", f"{_place(family)}/query", form={"task_id": params.external_task_id})

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query; the parsed result, whose pages are counted, comes before the text."""
        body = members(reply)
        refused = self._refusal(body, creating=False)
        if refused is not None:
            return refused
        result = body.get("result")
        word = within(result, "status")
        status = self.status_of(word)
        if status is FAILED:
            error = within(result, "task_error")
            code, message = (None, error) if isinstance(error, str) else error_of(error)
            return OcrJob(status=FAILED, word=word, code=code or "failed", message=shortened(message))
        if status is not SUCCEEDED:
            return OcrJob(status=status, word=word)
        resources = tuple(
            OcrResource(type=kind, url=url)
            for kind, name in (("markdown", "markdown_url"), ("json", "parse_result_url"))
            if (url := text_of(result, name)) is not None
        )
        output = OcrOutput(resources=resources, metadata={"log_id": body.get("log_id")})
        parsed = output.first("json")
        if parsed is None:
            return OcrJob(status=SUCCEEDED, word=word, output=output)
        # It only adds the pages: where it is gone, the text may still be there.
        return Follow(
            download(parsed.url, spool=True),
            lambda reply: self.answer(
                OcrJob(
                    status=SUCCEEDED,
                    word=word,
                    output=_with_pages(output, reply) if reply.is_success else output,
                )
            ),
        )

    def _refusal(self, body: dict[str, Any], *, creating: bool) -> OcrJob | None:
        code, message = _trouble(body)
        if code is None:
            return None
        return self.judge(code, message, creating=creating, delay=_BUSY_DELAY if code == "18" else None)


def _is_pair(account: Account) -> bool:
    """Whether the account's secret is an API key that has to be exchanged, together with its secret key."""
    return not account.secret().startswith(_BEARER) and part_of(account, "secret_key") is not None


def _trouble(body: dict[str, Any]) -> tuple[str | None, str]:
    code = id_of(body, "error_code")
    return (None, "") if code in (None, "0") else (code, shortened(body.get("error_msg")))


def _family(request: OcrRequest) -> str:
    return FAMILIES[request.model or DEFAULT_MODEL]


def _place(family: str) -> str:
    return path("rest", "2.0", "brain", "online", "v2", family, "task")


def _file_name(request: OcrRequest) -> str | None:
    """Return a name with a suffix; ``None`` where neither the name nor the URL has one."""
    in_url = unquote(urlsplit(request.url).path).rpartition("/")[2]
    name = request.file_name or in_url
    if _SUFFIX.search(name):
        return name
    suffix = _SUFFIX.search(in_url)
    return f"{name}{suffix[0]}" if suffix else None


def _with_pages(output: OcrOutput, reply: Reply) -> OcrOutput:
    """Return what the job gives with the pages of its parsed result, if that is of bearable size."""
    with reply.as_file() as file:
        content = file.read(PAGES_CAP + 1)
    if len(content) > PAGES_CAP:
        return output
    found = within(Reply(reply.status, content).json(), "pages")
    if not isinstance(found, list):
        return output
    pages = tuple(
        OcrPage(
            # Numbered by their order: what page_num counts from is not known.
            number=number,
            markdown=text_of(page, "text") or "",
            width=whole_of(page, "meta", "page_width"),
            height=whole_of(page, "meta", "page_height"),
        )
        for number, page in enumerate(found, start=1)
    )
    return attrs.evolve(output, pages=pages, usage={"page": len(pages)})
