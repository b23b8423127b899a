"""``ocr:textract``: AWS Textract, its asynchronous text detection and document analysis.

Facts come from botocore's description of the service (SDK, 1.44.8) and from calls to moto (RUN, 5.2.5);
``(1)`` marks what one weaker source says, or what is common knowledge about AWS:

- POST ``https://textract.{region}.amazonaws.com/``, ``application/x-amz-json-1.1``, ``X-Amz-Target``, a
    signature of version 4 for the service "textract" (SDK).
- Submit: ``StartDocumentTextDetection`` or ``StartDocumentAnalysis``, of an object in S3 and nothing else.
    ``ClientRequestToken`` of 1 to 64 characters: the same token with the same input gives the same job, with
    another input ``IdempotentParameterMismatchException`` (SDK).
- Query: the ``Get…`` that belongs to the ``Start…``; ``Blocks`` come in pages of at most 1000, the next one
    by ``NextToken`` (SDK). Words: SDK. No progress.
- Errors ``{"__type": "prefix#Code", "message"}``; which of them are worth a repeat: SDK. With which HTTP
    status a throttle comes is not said, so the code counts. Codes about credentials (1).
- A job is kept for 7 days (SDK). No cancel. Documents have at most 3000 pages (1).
- moto differs (RUN): ``Blocks`` is empty and ``Pages`` is an object; it knows no tokens.
"""

import hashlib
import logging
import os
import re
import threading
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Self

from attrs import define, field, frozen

from coatcheck import codec
from coatcheck.accounts import part_of
from coatcheck.errors import (
    ConfigError,
    NotReadyError,
    RejectedError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Follow, Reply, VendorHandler, VendorOptions
from coatcheck.http.options import text, words
from coatcheck.http.read import id_of, members, members_if_any, text_of, whole_of, within
from coatcheck.http.vendor import FAILED, RUNNING, SUCCEEDED, Trouble
from coatcheck.model import Account, QueryContext, QueryParams, SubmitContext, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck_ocr.handler import OcrHandler, OcrJob
from coatcheck_ocr.model import OcrPage, OcrRequest
from coatcheck_ocr.options import OcrOptions
from coatcheck_ocr.results import OcrOutput, Publish

FEATURES = ("TABLES", "FORMS", "QUERIES", "SIGNATURES", "LAYOUT")

#: The most blocks that a query asks for, and the largest reply with them, in bytes.
_BLOCKS = 1000
_PAGE_CAP = 16 * 1024 * 1024
#: Statuses that carry an error in the vendor's own shape.
_ERRORS = (400, 403, 500)
#: Signs for addresses that are not AWS's own, such as moto's.
_REGION = "us-east-1"
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_IS_REGION = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")
_AWS = re.compile(r"https://textract\.([a-z0-9-]+)\.amazonaws\.com")
_BUCKET = re.compile(r"[0-9A-Za-z.\-_]{3,255}")
_TOKEN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_OPERATIONS = {"text": "DocumentTextDetection", "analysis": "DocumentAnalysis"}


@frozen(kw_only=True, eq=False)
class TextractOptions(OcrOptions):
    """What ``OcrRequest.options`` may hold for ``ocr:textract``."""

    #: What to analyse; without any, only text is detected, which costs less.
    features: tuple[str, ...] | None = words(*FEATURES, wire="FeatureTypes")
    #: Questions to answer from the document, for the feature "QUERIES"; see ``answers`` in the metadata.
    queries: tuple[str, ...] | None = words()
    #: The version of the object, in a bucket with versions.
    version: str | None = text(1024)
    #: A mark that notifications carry.
    job_tag: str | None = text(64, wire="JobTag")
    #: Whom to tell when the job is done, and the role that may; both or neither.
    sns_topic: str | None = text(1024)
    sns_role: str | None = text(2048)
    #: Where the vendor leaves the result as well.
    output_bucket: str | None = text(255)
    output_prefix: str | None = text(1024)
    #: The key that the result is encrypted with there.
    kms_key: str | None = text(2048, wire="KMSKeyId")


class TextractHandler(OcrHandler):
    """Reads documents in S3 with AWS Textract; takes URLs like ``s3://bucket/name``.

    It is for one region, that of the bucket; jobs that were submitted in another region of AWS are asked
    about there. ``features`` in the options choose document analysis. Needs ``coatcheck-ocr[textract]``.

    Args:
        base_url: where the vendor is; by default the variable ``COATCHECK_<KEY>_URL``,
            ``AWS_ENDPOINT_URL_TEXTRACT``, or AWS's address for the region.
        region: by default the one in ``base_url``, ``AWS_REGION`` or ``AWS_DEFAULT_REGION``.
        key: see ``OcrHandler``.
        account: see ``OcrHandler``.
        poll: see ``OcrHandler``.
        earlier_base_urls: see ``OcrHandler``.
        publish: not used: there are no images.

    Raises:
        ConfigError: the region is not written like one.
    """

    key = "ocr:textract"
    account = "aws"
    account_env: Mapping[str, tuple[str, ...]] = {
        "access_key": ("AWS_ACCESS_KEY_ID",),
        "secret_key": ("AWS_SECRET_ACCESS_KEY",),
        "session_token": ("AWS_SESSION_TOKEN",),
    }
    base_url_env = ("AWS_ENDPOINT_URL_TEXTRACT",)
    options_type = TextractOptions
    schemes = ("s3",)
    #: The client token makes a submit safe to repeat.
    resubmit = "idempotent"
    poll = PollPolicy.exponential(timedelta(seconds=5))
    #: Every word is a block: 3000 dense pages come in some thousand replies.
    follow_limit = 10_000
    #: Room for these.
    call_limit = timedelta(minutes=30)
    result_life = timedelta(days=7)
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "in_progress": RUNNING,
        "succeeded": SUCCEEDED,
        # With warnings that name the pages that are missing.
        "partial_success": SUCCEEDED,
        "failed": FAILED,
    }
    #: Codes that are not here refuse a submit, and leave a query to be repeated.
    troubles: ClassVar[Mapping[str, Trouble]] = {
        "ThrottlingException": Trouble.BUSY,
        "ProvisionedThroughputExceededException": Trouble.BUSY,
        "LimitExceededException": Trouble.BUSY,
        "InternalServerError": Trouble.UNSURE,
        # There is a job for our token, whose id was never heard.
        "IdempotentParameterMismatchException": Trouble.UNSURE,
        "InvalidJobIdException": Trouble.MISSING,
        "AccessDeniedException": Trouble.ACCOUNT,
        # From here on (1):
        "ExpiredTokenException": Trouble.ACCOUNT,
        "IncompleteSignatureException": Trouble.ACCOUNT,
        "InvalidSignatureException": Trouble.ACCOUNT,
        "MissingAuthenticationTokenException": Trouble.ACCOUNT,
        "UnrecognizedClientException": Trouble.ACCOUNT,
    }

    def __init__(
        self,
        base_url: str | None = None,
        *,
        region: str | None = None,
        key: str | None = None,
        account: str | None = None,
        poll: PollPolicy | None = None,
        earlier_base_urls: Iterable[str] = (),
        publish: Publish | None = None,
    ) -> None:
        super().__init__(
            base_url,
            key=key,
            account=account,
            poll=poll,
            earlier_base_urls=earlier_base_urls,
            publish=publish,
        )
        found = (value for name in _REGION_VARIABLES if (value := os.environ.get(name)))
        chosen = region or _region_in(self.base_url) or next(found, None)
        if chosen is not None and not _IS_REGION.fullmatch(chosen):
            raise ConfigError(f'{self.key}: region must be one like "eu-west-1", found {chosen!r}')
        if not self.base_url and chosen is not None:
            self.base_url = _address(chosen)
        self.region = chosen or _REGION

    def at(self, base_url: str) -> Self:
        """Return a handler like this one at another address, and in its region."""
        client = super().at(base_url)
        client.region = _region_in(client.base_url) or self.region
        return client

    def query_client(self, params: QueryParams, context: QueryContext) -> VendorHandler[OcrRequest, OcrJob]:
        """Return who asks about a job: AWS is asked in the job's region, which any account may be.

        Raises:
            HandlerError: see ``OcrHandler.query_client``.
        """
        place = params.get("base_url", self.base_url)
        if _region_in(place) and _region_in(self.base_url):
            return self if place == self.base_url else self.at(place)
        client = super().query_client(params, context)
        if isinstance(client, TextractHandler) and client is not self:
            client.region = params.get("region", self.region)
        return client

    # Requests.

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the vendor could not read; see ``OcrHandler.validate``."""
        if not self.base_url:
            raise ValidationError(
                f"{self.key} must know the region, found none; set AWS_REGION", "handler_key"
            )
        super().validate(params)
        if params.model is not None:
            raise ValidationError(
                f"{self.key} has no models; leave model out and choose features in the options, "
                f"found {params.model!r}",
                "model",
            )
        bucket, name = _object(params.url)
        if not _BUCKET.fullmatch(bucket) or not name.strip():
            raise ValidationError(
                f"url must be written like s3://bucket/folder/name.pdf, found {params.url!r}", "url"
            )
        _check_options(self.options(params))

    def sign(self, call: Call, account: Account) -> Call:
        """Sign with the account's ``access_key``, ``secret_key`` and, where there is one, ``session_token``.

        Raises:
            ConfigError: botocore is not installed.
        """
        try:
            from botocore.auth import SigV4Auth
            from botocore.awsrequest import AWSRequest
            from botocore.credentials import Credentials
        except ImportError as error:
            raise ConfigError(
                f'{self.key} signs with botocore, which is missing; pip install "coatcheck-ocr[textract]"'
            ) from error
        # Names and values that are signed go out as they are here.
        request = AWSRequest(call.method, call.url, headers=dict(call.headers), data=call.body)
        credentials = Credentials(
            account.secret("access_key"), account.secret("secret_key"), part_of(account, "session_token")
        )
        _quiet.on = True
        try:
            SigV4Auth(credentials, "textract", self.region).add_auth(request)
        finally:
            _quiet.on = False
        return call.evolve(headers=dict(request.headers.items()))

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call:
        """Describe the start of a job, under the task's own token."""
        bucket, name = _object(params.url)
        said = self.fields(params)
        version = said.pop("version", None)
        place = {"Bucket": bucket, "Name": name, **({} if version is None else {"Version": version})}
        questions = said.pop("queries", None)
        if questions is not None:
            said["QueriesConfig"] = {"Queries": [{"Text": question} for question in questions]}
        _gather(said, "NotificationChannel", SNSTopicArn="sns_topic", RoleArn="sns_role")
        _gather(said, "OutputConfig", S3Bucket="output_bucket", S3Prefix="output_prefix")
        said["DocumentLocation"] = {"S3Object": place}
        said["ClientRequestToken"] = _token(context.idempotency_key)
        return _call(f"Start{_OPERATIONS[_api(said)]}", said)

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the id of the job."""
        refused = self._refused(reply, creating=True)
        if refused is not None:
            return refused
        return OcrJob(
            status=RUNNING,
            id=id_of(members(reply), "JobId"),
            params={"region": self.region, "api": _api(self.fields(request))},
        )

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query, by the operation that belongs to the one of the submit."""
        return self._page_call(params)

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the state of the job, and all pages of its blocks once it is done."""
        refused = self._refused(reply, creating=False)
        if refused is not None:
            return refused
        body = members(reply)
        word = body.get("JobStatus")
        status = self.status_of(word)
        if status is not SUCCEEDED:
            return OcrJob(status=status, word=str(word), message=text_of(body, "StatusMessage") or "")
        return self._gather_pages(body, params, str(word), _Blocks())

    def _gather_pages(
        self, body: dict[str, Any], params: QueryParams, word: str, blocks: "_Blocks"
    ) -> OcrJob | Follow:
        """Take what a page holds and return the next one, or the whole."""
        blocks.add(body)
        cursor = text_of(body, "NextToken")
        if cursor is None:
            return OcrJob(status=SUCCEEDED, word=word, output=blocks.output())

        def read(reply: Reply) -> Any:
            self._refused(reply, creating=False)
            more = members(reply)
            if self.status_of(more.get("JobStatus")) is not SUCCEEDED:
                raise NotReadyError(
                    f"{self.key}: the job was done, and a page of its result is not there yet"
                )
            found = self._gather_pages(more, params, word, blocks)
            return found if isinstance(found, Follow) else self.answer(found)

        return Follow(self._page_call(params, NextToken=cursor), read)

    def _page_call(self, params: QueryParams, **more: Any) -> Call:
        operation = f"Get{_OPERATIONS.get(params.get('api', 'text'), _OPERATIONS['text'])}"
        return _call(operation, {"JobId": params.external_task_id, "MaxResults": _BLOCKS, **more})

    def _refused(self, reply: Reply, *, creating: bool) -> OcrJob | None:
        """Judge an error in the vendor's shape; ``None`` where the reply is none.

        Raises:
            HandlerError: what the error means.
        """
        if reply.is_success:
            return None
        body = members_if_any(reply)
        code = (text_of(body, "__type") or "").rpartition("#")[2]
        if code:
            return self.judge(code, text_of(body, "message", "Message"), creating=creating)
        what = f"{self.key}: expected an answer of the vendor, found {reply.status}: {reply.excerpt}"
        if creating and reply.status < 500:
            raise RejectedError(what)
        raise VendorError(what, code=f"http_{reply.status}", http_status=reply.status)


def _check_options(options: VendorOptions) -> None:
    given = set(options)
    features = options.get("features") or ()
    for name, other in (
        ("sns_topic", "sns_role"),
        ("sns_role", "sns_topic"),
        ("output_prefix", "output_bucket"),
    ):
        if name in given and other not in given:
            raise ValidationError(f"{name} must come with {other}; add it", other)
    if ("queries" in given) != ("QUERIES" in features):
        raise ValidationError(
            f'queries and the feature "QUERIES" must come together, found features {list(features)!r}',
            "queries",
        )


def _call(operation: str, said: Mapping[str, Any]) -> Call:
    headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": f"Textract.{operation}"}
    # Bytes, because the signature covers them.
    return Call("POST", "/", headers=headers, body=codec.dumps(said), body_cap=_PAGE_CAP, accept=_ERRORS)


def _gather(said: dict[str, Any], name: str, **parts: str) -> None:
    """Move options into the object that holds them on the wire."""
    found = {theirs: said.pop(ours) for theirs, ours in parts.items() if ours in said}
    if found:
        said[name] = found


def _api(said: Mapping[str, Any]) -> str:
    return "analysis" if said.get("FeatureTypes") else "text"


def _address(region: str) -> str:
    return f"https://textract.{region}.amazonaws.com"


def _region_in(url: object) -> str | None:
    match = _AWS.fullmatch(url) if isinstance(url, str) else None
    return match[1] if match and _IS_REGION.fullmatch(match[1]) else None


def _object(url: str) -> tuple[str, str]:
    """Return bucket and name; nothing in a name is quoted, so nothing is unquoted."""
    bucket, _, name = url.partition("://")[2].partition("/")
    return bucket, name


def _token(key: str) -> str:
    return key if _TOKEN.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()


class _Quiet(threading.local):
    on = False


_quiet = _Quiet()


def _is_not_ours(record: logging.LogRecord) -> bool:
    """Keep out what botocore logs of our signing at DEBUG: signed headers, session token and all (G8)."""
    return not (_quiet.on and record.levelno <= logging.DEBUG)


logging.getLogger("botocore.auth").addFilter(_is_not_ours)


@define
class _Blocks:
    """The blocks of a result, as far as text is made of them."""

    #: Numbers of pages → ids of their lines, in order.
    lines: dict[int, list[str]] = field(factory=dict)
    texts: dict[str, str] = field(factory=dict)
    children: dict[str, list[str]] = field(factory=dict)
    #: Cells → row and column.
    cells: dict[str, tuple[int, int]] = field(factory=dict)
    tables: dict[int, list[str]] = field(factory=dict)
    #: Numbers of pages → parts of the layout: kind and id.
    layout: dict[int, list[tuple[str, str]]] = field(factory=dict)
    #: Questions → ids of their answers.
    questions: dict[str, list[str]] = field(factory=dict)
    facts: dict[str, Any] = field(factory=dict)
    count: int = 0

    def add(self, body: Mapping[str, Any]) -> None:
        """Take the blocks of one page of the result."""
        pages = whole_of(body, "DocumentMetadata", "Pages")
        self.count = self.count if pages is None else pages
        for name, found in (
            ("warnings", body.get("Warnings")),
            ("status_message", text_of(body, "StatusMessage")),
            ("model_version", text_of(body, "AnalyzeDocumentModelVersion")),
        ):
            if found:
                self.facts[name] = found
        blocks = body.get("Blocks")
        for block in blocks if isinstance(blocks, list) else ():
            if isinstance(block, Mapping):
                self._take(block)

    def _take(self, block: Mapping[str, Any]) -> None:
        kind, name = str(block.get("BlockType")), str(block.get("Id"))
        page = block.get("Page")
        number = page if isinstance(page, int) and page > 0 else 1
        match kind:
            case "LINE":
                self.lines.setdefault(number, []).append(name)
                self.texts[name] = text_of(block, "Text") or ""
                return
            case "WORD" | "QUERY_RESULT":
                self.texts[name] = text_of(block, "Text") or ""
                return
            case "SELECTION_ELEMENT":
                self.texts[name] = "[x]" if block.get("SelectionStatus") == "SELECTED" else "[ ]"
                return
            case "CELL":
                row, column = block.get("RowIndex"), block.get("ColumnIndex")
                if isinstance(row, int) and isinstance(column, int):
                    self.cells[name] = (row, column)
            case "TABLE":
                self.tables.setdefault(number, []).append(name)
            case "QUERY":
                question = text_of(block.get("Query"), "Alias", "Text")
                if question is not None:
                    self.questions.setdefault(question, []).extend(_related(block, "ANSWER"))
                return
            case _ if kind.startswith("LAYOUT_"):
                self.layout.setdefault(number, []).append((kind, name))
            case _:
                return
        self.children[name] = _related(block, "CHILD")

    def output(self) -> OcrOutput:
        """Return the whole; a document with nothing on it has an empty text."""
        last = max([self.count, *self.lines, *self.tables])
        pages = tuple(
            OcrPage(
                number=number, markdown=self._markdown(number), text=self._plain(self.lines.get(number, ()))
            )
            for number in range(1, last + 1)
        )
        answers = {
            question: " ".join(self.texts[name] for name in names if name in self.texts)
            for question, names in self.questions.items()
        }
        return OcrOutput(
            markdown="\n\n".join(page.markdown for page in pages if page.markdown),
            text="\n\n".join(page.text for page in pages if page.text),
            pages=pages,
            # What the vendor charges for, as far as it says so.
            usage={"page": self.count} if self.count else {},
            metadata={**self.facts, **({"answers": answers} if answers else {})},
        )

    def _plain(self, names: Iterable[str], glue: str = "\n") -> str:
        return glue.join(self.texts[name] for name in names if name in self.texts)

    def _markdown(self, number: int) -> str:
        tables = [self._table(name) for name in self.tables.get(number, ())]
        parts = self.layout.get(number)
        if not parts:
            return "\n\n".join(piece for piece in (self._plain(self.lines.get(number, ())), *tables) if piece)
        inner = {child for kind, name in parts if kind == "LAYOUT_LIST" for child in self.children[name]}
        places = sum(kind == "LAYOUT_TABLE" for kind, _ in parts)
        in_place = iter(tables if places == len(tables) else ())
        pieces = []
        for kind, name in parts:
            if name in inner:
                continue
            if kind == "LAYOUT_TABLE":
                pieces.append(next(in_place, None) or self._part(kind, name))
            else:
                pieces.append(self._part(kind, name))
        if places != len(tables):
            pieces += tables
        return "\n\n".join(piece for piece in pieces if piece)

    def _part(self, kind: str, name: str) -> str:
        children = self.children[name]
        match kind:
            case "LAYOUT_TITLE":
                return f"# {self._plain(children, ' ')}"
            case "LAYOUT_SECTION_HEADER":
                return f"## {self._plain(children, ' ')}"
            case "LAYOUT_LIST":
                items = (
                    self.texts.get(child) or self._plain(self.children.get(child, ()), " ")
                    for child in children
                )
                return "\n".join(f"- {item}" for item in items)
        return self._plain(children)

    def _table(self, name: str) -> str:
        cells = {
            self.cells[child]: self._plain(self.children[child], " ").replace("|", "\\|")
            for child in self.children[name]
            if child in self.cells
        }
        if not cells:
            return ""
        rows, columns = (sorted({place[axis] for place in cells}) for axis in (0, 1))
        lines = ["| " + " | ".join(cells.get((row, column), "") for column in columns) + " |" for row in rows]
        lines.insert(1, "|" + " --- |" * len(columns))
        return "\n".join(lines)


def _related(block: Mapping[str, Any], kind: str) -> list[str]:
    found = block.get("Relationships")
    return [
        str(name)
        for relation in (found if isinstance(found, list) else ())
        if within(relation, "Type") == kind
        for name in (within(relation, "Ids") or ())
    ]
