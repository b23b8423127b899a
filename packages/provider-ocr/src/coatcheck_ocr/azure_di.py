"""``ocr:azure-di``: Azure AI Document Intelligence, API version 2024-11-30, at the endpoint of a resource.

From azure-ai-documentintelligence 1.0.2 and azure-core (SDK); ``(1)`` marks what is general knowledge only,
``(?)`` what is not sure:

- Submit: POST ``{endpoint}/documentintelligence/documentModels/{model}:analyze``; ``api-version`` and options
    in the query, lists joined by commas; a JSON body ``{"urlSource"}`` (SDK). Key in the header
    ``Ocp-Apim-Subscription-Key``, or a bearer token of Entra ID.
- Reply 202 with an empty body; the address to ask at in the header ``Operation-Location``, the job's id its
    last part (SDK). Whether a gateway puts its own address there (?).
- Query: GET that address; ``status``, ``error``, ``analyzeResult``. Statuses in mixed case; "skipped" is a
    failure.
- Result inline: ``content`` is markdown where ``contentFormat`` says so, which only the layout model does;
    ``pages[].spans`` count code points with ``stringIndexType=unicodeCodePoint`` (SDK). Searchable PDF and
    figures below the same address, with the key, if ``output`` asked for them. Kept for 24 hours (1).
- Errors ``{"error": {"code", "message", "innererror": {"code", "message"}}}``. 429 with ``Retry-After`` in
    seconds, or ``retry-after-ms`` or ``x-ms-retry-after-ms`` in milliseconds (SDK).
- Tier S0: 15 submits a second (1), 500 MB, 2000 pages; F0: 1 a second, 4 MB, the first 2 pages (1). No
    cancel, no idempotency key.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import unquote, urljoin, urlsplit

from attrs import frozen

from coatcheck.accounts import part_of
from coatcheck.errors import ThrottledError, UnknownNameError, ValidationError
from coatcheck.http import Call, Follow, Reply, path
from coatcheck.http.options import choice, text, words
from coatcheck.http.read import error_of, members, text_of, within
from coatcheck.http.vendor import CANCELED, FAILED, RUNNING, SUBMITTED, SUCCEEDED
from coatcheck.model import (
    Account,
    QueryContext,
    QueryParams,
    QueryResult,
    SubmitContext,
    SubmitResult,
    TaskStatus,
)
from coatcheck.policy import LONGEST_ASKED, PollPolicy
from coatcheck_ocr.handler import OcrHandler, OcrJob
from coatcheck_ocr.model import OcrPage, OcrRequest, OcrResource
from coatcheck_ocr.options import OcrOptions
from coatcheck_ocr.results import OcrOutput

API_VERSION = "2024-11-30"
#: The only model that gives markdown.
LAYOUT = "prebuilt-layout"
#: The largest result that is read, in bytes; it comes inline, with the place of every word.
RESULT_CAP = 64 * 1024 * 1024

_PRODUCT = "/documentintelligence/"


@frozen(kw_only=True, eq=False)
class AzureOptions(OcrOptions):
    """What ``OcrRequest.options`` may hold for ``ocr:azure-di``; ``extra`` is for the query of the submit."""

    #: The language to expect, like "en-US".
    locale: str | None = text(35)
    #: What is to be found beside the text.
    features: tuple[str, ...] | None = words(
        "ocrHighResolution", "languages", "barcodes", "formulas", "keyValuePairs", "styleFont", "queryFields"
    )
    #: Names of the fields to look for, with the feature "queryFields".
    query_fields: tuple[str, ...] | None = words(wire="queryFields")
    #: Markdown is there with the layout model only, and is its default here.
    output_content_format: str | None = choice("text", "markdown", wire="outputContentFormat")
    #: Files to be made: a PDF with its text, the pictures of figures. Fetching them takes the account's key.
    output: tuple[str, ...] | None = words("pdf", "figures")


class AzureHandler(OcrHandler):
    """Reads documents at a resource of Azure; takes http and https URLs that Azure can reach.

    A job is asked about at the address that the submit was answered with, on the origin of the handler.
    """

    key = "ocr:azure-di"
    account = "azure-di"
    account_env: Mapping[str, tuple[str, ...]] = {"secret": ("DOCUMENTINTELLIGENCE_API_KEY",)}
    base_url_env = ("DOCUMENTINTELLIGENCE_ENDPOINT",)
    options_type = AzureOptions
    default_model = LAYOUT
    takes_pages = True
    poll = PollPolicy.exponential(timedelta(seconds=3))
    result_life = timedelta(hours=24)
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "notstarted": SUBMITTED,
        "running": RUNNING,
        "succeeded": SUCCEEDED,
        "failed": FAILED,
        "skipped": FAILED,
        "canceled": CANCELED,
    }

    def sign(self, call: Call, account: Account) -> Call:
        """Add the account's ``secret`` as a key; without one, its ``entra_token`` as a bearer token."""
        try:
            return call.with_headers(Ocp_Apim_Subscription_Key=account.secret())
        except UnknownNameError:
            token = part_of(account, "entra_token")
            if token is None:
                raise
        return call.with_headers(Authorization=f"Bearer {token}")

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the vendor could not read; see ``OcrHandler.validate``."""
        super().validate(params)
        model = params.model or LAYOUT
        is_markdown = self.options(params).get("output_content_format") == "markdown"
        if is_markdown and model.startswith("prebuilt-") and model != LAYOUT:
            raise ValidationError(
                f'{self.key}: {model} gives no markdown; use {LAYOUT}, or output_content_format="text"',
                "output_content_format",
            )

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        said = self.fields(
            params,
            **{
                "api-version": API_VERSION,
                "pages": params.pages,
                # Spans then count what Python counts.
                "stringIndexType": "unicodeCodePoint",
            },
        )
        model = params.model or LAYOUT
        if model == LAYOUT:
            said.setdefault("outputContentFormat", "markdown")
        query = {
            name: ",".join(value) if isinstance(value, list | tuple) else value
            for name, value in said.items()
        }
        body = {"urlSource": params.url}
        return Call("POST", f"{_place(model)}:analyze", query=query, json=body, accept=(429,))

    def read_submit(self, reply: Reply, params: OcrRequest, context: SubmitContext) -> SubmitResult:
        """Read the reply to the submit."""
        self._check_patience(reply, context.now)
        return super().read_submit(reply, params, context)

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read where the job is asked about; the reply has no body."""
        place = reply.header("operation-location")
        url = None if place is None else self._at_home(place)
        if url is None:
            return OcrJob(status=SUBMITTED)
        facts = {"url": url, "model": request.model or LAYOUT}
        output = self.options(request).get("output")
        return OcrJob(
            status=SUBMITTED,
            id=unquote(urlsplit(url).path.rpartition("/")[2]) or None,
            params=facts if output is None else {**facts, "output": output},
            query_after=_asked(reply),
        )

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query, at the address that the submit was answered with."""
        url = params.get("url")
        if url is not None:
            return Call("GET", url, body_cap=RESULT_CAP, accept=(429,))
        place = _place(params.get("model", LAYOUT)) + path("analyzeResults", params.external_task_id)
        return Call("GET", place, query={"api-version": API_VERSION}, body_cap=RESULT_CAP, accept=(429,))

    def read_query(self, reply: Reply, params: QueryParams, context: QueryContext) -> QueryResult | Follow:
        """Read the reply to the query."""
        self._check_patience(reply, context.now)
        return super().read_query(reply, params, context)

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query; the result is in it."""
        body = members(reply)
        word = body.get("status")
        status = self.status_of(word)
        if status is FAILED:
            code, message = _failure(body)
            return OcrJob(status=FAILED, word=word, code=code or str(word).lower(), message=message)
        output = OcrOutput()
        if status is SUCCEEDED:
            output = _output(body.get("analyzeResult"), params.get("url"), params.get("output") or ())
        return OcrJob(status=status, word=word, output=output, query_after=_asked(reply))

    def _check_patience(self, reply: Reply, now: datetime) -> None:
        if reply.status == 429:
            raise ThrottledError(
                f"{self.key} was answered with 429: {reply.excerpt}; the vendor asks for patience",
                delay=_milliseconds(reply) or reply.retry_after(now),
            )

    def _at_home(self, place: str) -> str | None:
        """Return where a job is asked about, on our own origin; ``None`` where the address is none.

        A gateway may answer with the address of what is behind it: the key is not for that one, and the
        same path leads there through the gateway.
        """
        try:
            url = urljoin(f"{self.base_url}/", place)
            parts, own = urlsplit(url), urlsplit(self.base_url)
        except ValueError:
            return None
        if (parts.scheme, parts.netloc.lower()) == (own.scheme, own.netloc.lower()):
            return url
        start = max(parts.path.lower().find(_PRODUCT), 0)
        return f"{self.base_url}{parts.path[start:]}{f'?{parts.query}' if parts.query else ''}"


def _place(model: str) -> str:
    return path("documentintelligence", "documentModels", model)


def _milliseconds(reply: Reply) -> timedelta | None:
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        asked = (reply.header(name) or "").strip()
        if asked.isdecimal():
            return min(timedelta(milliseconds=int(asked[:12])), LONGEST_ASKED)
    return None


def _asked(reply: Reply) -> timedelta | None:
    """Return when the vendor wants to be asked again; dates, which it does not send, are left out."""
    asked = (reply.header("retry-after") or "").strip()
    seconds = min(timedelta(seconds=int(asked[:9])), LONGEST_ASKED) if asked.isdecimal() else None
    return _milliseconds(reply) or seconds


def _failure(body: dict[str, Any]) -> tuple[str | None, str]:
    """Return the code and message of an error, the inner code first: it says what is wrong."""
    code, message = error_of(body)
    inner = within(body, "error", "innererror")
    told = text_of(inner, "message")
    if told is not None and told not in message:
        message = f"{message} {told}".strip()
    return text_of(inner, "code") or code, message


def _output(result: object, url: str | None, output: list[str] | tuple[str, ...]) -> OcrOutput:
    content = within(result, "content")
    found = within(result, "pages")
    pages = tuple(_page(page, content) for page in found) if isinstance(found, list) else ()
    has_text = isinstance(content, str)
    is_markdown = within(result, "contentFormat") == "markdown"
    return OcrOutput(
        markdown=content if has_text and is_markdown else None,
        text=content if has_text and not is_markdown else None,
        pages=pages,
        resources=tuple(_files(result, url, output)) if url is not None else (),
        usage={"page": len(pages)} if pages else {},
        metadata={"model_id": within(result, "modelId"), "api_version": within(result, "apiVersion")},
    )


def _page(page: Any, content: object) -> OcrPage:
    spans = within(page, "spans")
    pieces = [_piece(content, span) for span in spans] if isinstance(spans, list) else []
    lines = within(page, "lines")
    plain = [text_of(line, "content") or "" for line in lines] if isinstance(lines, list) else []
    number = within(page, "pageNumber")
    in_pixels = within(page, "unit") == "pixel"
    return OcrPage(
        number=number if isinstance(number, int) else 0,
        markdown="".join(pieces) or "\n".join(plain),
        text="\n".join(plain),
        width=_whole(within(page, "width")) if in_pixels else None,
        height=_whole(within(page, "height")) if in_pixels else None,
    )


def _piece(content: object, span: Any) -> str:
    offset, length = within(span, "offset"), within(span, "length")
    is_there = isinstance(content, str) and isinstance(offset, int) and isinstance(length, int)
    return content[offset : offset + length] if is_there and isinstance(content, str) else ""


def _whole(value: object) -> int | None:
    return round(value) if isinstance(value, int | float) else None


def _files(result: object, url: str, output: list[str] | tuple[str, ...]) -> list[OcrResource]:
    """Return the files that were asked for; each takes the account's key."""
    place, _, query = url.partition("?")
    files = [OcrResource(type="pdf", url=f"{place}/pdf?{query}")] if "pdf" in output else []
    figures = within(result, "figures") if "figures" in output else None
    for figure in figures if isinstance(figures, list) else ():
        name = text_of(figure, "id")
        if name is not None:
            files.append(OcrResource(type="figure", url=f"{place}{path('figures', name)}?{query}"))
    return files
