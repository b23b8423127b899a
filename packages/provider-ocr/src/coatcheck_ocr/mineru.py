"""``ocr:mineru`` and ``ocr:mineru-agent``: MinerU in the cloud, at mineru.net.

What is known comes from the official SDK mineru-open-sdk 0.2.5 (SDK), copies of the vendor's API page (DOC),
the agents-flex adapter (AF) and clients of third parties (3P). ``(1)`` marks what one weaker source says,
``(?)`` what is not sure:

- A URL: POST ``/extract/task`` (DOC, AF); query GET ``/extract/task/{id}``. The SDK sends a batch of one.
- Local files: POST ``/file-urls/batch`` gives signed places, PUT fills them, and parsing begins by itself;
    query GET ``/extract-results/batch/{id}``, whose list may be empty at first and has no fixed order.
    Task and batch ids look alike, so the kind is kept with the task.
- Places are filled without ``Content-Type`` (DOC, SDK); those of another login want the type (AF).
- ``is_ocr``, ``page_ranges`` and ``data_id`` stand inside ``files[]`` in batches, all else at the top.
    ``data_id`` has letters, digits and ``_-.`` (1). No idempotency key, no cancel.
- ``MinerU-HTML`` is required for HTML; ``vlm`` is recommended, the vendor's own default is ``pipeline``.
- Envelope ``{"code": 0, "msg", "trace_id", "data"}``, the code as number or text; a gateway says
    ``{"success": false, "msgCode"}`` without ``code``, which is no success. Both with HTTP 200.
- Links of results live for an unpublished time. Pages are told in ``extract_progress`` only, which vanishes.
- Variables: ``MINERU_TOKEN`` (SDK), ``MINERU_API_TOKEN`` (3P), ``MINERU_API_KEY`` (AF).
- The agent API takes no token, counts by IP address (HTTP 429), and gives a link to markdown (SDK, DOC).
"""

import re
import secrets
from collections.abc import Generator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote, urlsplit

import attrs
from attrs import frozen

from coatcheck.errors import ValidationError, VendorError
from coatcheck.http import Call, Follow, Reply, path
from coatcheck.http.options import switch, text, whole, words
from coatcheck.http.read import id_of, members, percent, shortened, text_of, whole_of, within
from coatcheck.http.vendor import FAILED, RUNNING, SUBMITTED, SUCCEEDED, Trouble
from coatcheck.model import EMPTY, Account, QueryContext, QueryParams, SubmitContext, SubmitResult, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck_ocr.handler import OcrHandler, OcrJob
from coatcheck_ocr.model import OcrRequest
from coatcheck_ocr.options import OcrOptions
from coatcheck_ocr.results import OcrOutput, links
from coatcheck_ocr.upload import LocalFile, converse, put

if TYPE_CHECKING:
    from coatcheck.transport import Transport

#: The scheme of requests for files that were uploaded: ``mineru:batch/ID/DATA_ID``, ``mineru:agent/ID``.
SCHEME = "mineru"
#: The most files that one batch takes.
BATCH = 50

_DATA_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_HTML = (".html", ".htm")
_RETRYABLE = (Trouble.AGAIN, Trouble.BUSY, Trouble.UNSURE, Trouble.FINAL_RETRYABLE)


@frozen(kw_only=True, eq=False)
class MinerUOptions(OcrOptions):
    """What ``OcrRequest.options`` may hold for ``ocr:mineru``."""

    #: Whether every page is read as a picture; by default only where it has no text.
    is_ocr: bool | None = switch()
    #: Whether formulas and tables are recognised (the vendor's default: yes); not for HTML.
    enable_formula: bool | None = switch()
    enable_table: bool | None = switch()
    #: The language to expect, in the vendor's codes; its default is "ch".
    language: str | None = text(50)
    #: Further files in the archive of the result.
    extra_formats: tuple[str, ...] | None = words("docx", "html", "latex")
    #: A name of yours for the document, shown by the vendor; it does not make a repeat safe.
    data_id: str | None = text(128)
    #: Whether a URL that the vendor fetched before is fetched again, and how old its copy may be, in seconds.
    no_cache: bool | None = switch()
    cache_tolerance: int | None = whole(0, 10_000_000)


@frozen(kw_only=True, eq=False)
class MinerUAgentOptions(OcrOptions):
    """What ``OcrRequest.options`` may hold for ``ocr:mineru-agent``."""

    #: Whether every page is read as a picture.
    is_ocr: bool | None = switch()
    #: Whether formulas and tables are recognised.
    enable_formula: bool | None = switch()
    enable_table: bool | None = switch()
    #: The language to expect, in the vendor's codes; its default is "ch".
    language: str | None = text(50)


class _Cloud(OcrHandler):
    """What both APIs of the cloud have in common: words, codes, envelope, and files that were uploaded."""

    takes_pages = True
    schemes: ClassVar[tuple[str, ...]] = ("http", "https", SCHEME)
    poll = PollPolicy(
        first=timedelta(seconds=2),
        start=timedelta(seconds=2),
        step=timedelta(seconds=2),
        cap=timedelta(seconds=30),
    )
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "waiting-file": SUBMITTED,
        "pending": SUBMITTED,
        # The service fetches the document.
        "uploading": RUNNING,
        "running": RUNNING,
        "converting": RUNNING,
        "done": SUCCEEDED,
        "failed": FAILED,
    }
    #: What the path of an uploaded file begins with.
    kind: ClassVar[str]

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the vendor could not read; see ``OcrHandler.validate``."""
        super().validate(params)
        if urlsplit(params.url).scheme.lower() != SCHEME:
            return
        self._uploaded(params)
        if params.model is not None or params.pages is not None or params.options:
            raise ValidationError(
                f"{self.key}: the vendor reads an uploaded file as the upload said; pass model, pages and "
                "options to upload() instead",
                "options",
            )

    def _uploaded(self, request: OcrRequest) -> list[str] | None:
        """Return the ids in the URL of an uploaded file; ``None`` for another URL."""
        parts = urlsplit(request.url)
        if parts.scheme.lower() != SCHEME:
            return None
        kind, *ids = [unquote(part) for part in parts.path.split("/")]
        if kind != self.kind or len(ids) != (2 if kind == "batch" else 1) or not all(ids):
            raise ValidationError(
                f"{self.key}: a {SCHEME}: URL must be one that upload() of this handler returned, "
                f"found {request.url!r}",
                "url",
            )
        return ids

    def _data(self, reply: Reply, *, creating: bool) -> Mapping[str, Any] | OcrJob:
        """Return what is in the envelope; a failed job where its code says so.

        Raises:
            HandlerError: what the code means; or there is none, so the reply says nothing.
        """
        body = members(reply)
        code = id_of(body, "code", "msgCode")
        if code is not None and code != "0":
            return self.judge(code, text_of(body, "msg", "message"), creating=creating)
        data = body.get("data")
        if code is None or not isinstance(data, Mapping):
            raise VendorError(
                f"{self.key}: expected a code and data from the vendor, found {reply.excerpt}; "
                "the reply is not used",
                code="unreadable_reply",
            )
        return data

    def _job(self, task: Mapping[str, Any]) -> OcrJob:
        """Return what the vendor says about one document."""
        word = task.get("state")
        status = self.status_of(word)
        done = whole_of(task, "extract_progress", "extracted_pages")
        total = whole_of(task, "extract_progress", "total_pages")
        code = id_of(task, "err_code") or "failed"
        return OcrJob(
            status=status,
            word=str(word),
            progress=percent(done, total),
            code=code if code != "0" else "failed",
            message=shortened(task.get("err_msg")),
            retryable=self.troubles.get(code) in _RETRYABLE,
            output=_output(task, total) if status is SUCCEEDED else OcrOutput(),
        )


class MinerUHandler(_Cloud):
    """Reads documents in the MinerU cloud: http and https URLs that it can reach, and files by ``upload``."""

    key = "ocr:mineru"
    account = "mineru"
    account_env: Mapping[str, tuple[str, ...]] = {
        "secret": ("MINERU_TOKEN", "MINERU_API_TOKEN", "MINERU_API_KEY")
    }
    base_url = "https://mineru.net/api/v4"
    options_type = MinerUOptions
    kind = "batch"
    troubles: ClassVar[Mapping[str, Trouble]] = {
        "A0202": Trouble.ACCOUNT,
        "A0211": Trouble.ACCOUNT,
        "-10001": Trouble.UNSURE,
        "-60001": Trouble.AGAIN,
        **dict.fromkeys(("-60002", "-60003", "-60004", "-60005", "-60006"), Trouble.FINAL),
        "-60007": Trouble.AGAIN,
        "-60008": Trouble.FINAL_RETRYABLE,
        "-60009": Trouble.BUSY,
        "-60010": Trouble.FINAL_RETRYABLE,
        "-60011": Trouble.FINAL,
        "-60012": Trouble.MISSING,
        "-60013": Trouble.MISSING,
        "-60015": Trouble.FINAL,
        "-60016": Trouble.FINAL,
        # Quotas of the day.
        **dict.fromkeys(("-60017", "-60018", "-60019"), Trouble.FINAL_RETRYABLE),
        **dict.fromkeys(("-60020", "-60021", "-60022"), Trouble.FINAL_RETRYABLE),
    }

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the vendor could not read; see ``OcrHandler.validate``."""
        super().validate(params)
        data_id = self.options(params).get("data_id")
        if data_id is not None and not _DATA_ID.fullmatch(data_id):
            raise ValidationError(
                f"data_id must be 1 to 128 letters, digits, '_', '-' and '.', found {data_id!r}", "data_id"
            )

    def model(self, request: OcrRequest) -> str | None:
        """Return the model to name: the request's, else what the document's suffix asks for."""
        if request.model is not None:
            return request.model
        names = (request.name.lower(), urlsplit(request.url).path.lower())
        return "MinerU-HTML" if any(name.endswith(_HTML) for name in names) else "vlm"

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call | SubmitResult:
        """Describe the submit; a file that was uploaded is on its way already."""
        uploaded = self._uploaded(params)
        if uploaded is not None:
            batch_id, data_id = uploaded
            facts = {"kind": "batch", "data_id": data_id, "file_name": params.name}
            job = OcrJob(status=SUBMITTED, id=batch_id, params=facts)
            return SubmitResult.submitted(self.create_query_params(job, params))
        said = self.fields(params, url=params.url, model_version=self.model(params), page_ranges=params.pages)
        return Call("POST", "/extract/task", json=said)

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the reply to the submit."""
        data = self._data(reply, creating=True)
        if isinstance(data, OcrJob):
            return data
        return OcrJob(status=SUBMITTED, id=id_of(data, "task_id"), params={"kind": "task"})

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query, by the kind of the job."""
        if params.get("kind", "task") == "batch":
            return Call("GET", path("extract-results", "batch", params.external_task_id))
        return Call("GET", path("extract", "task", params.external_task_id))

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query."""
        data = self._data(reply, creating=False)
        if isinstance(data, OcrJob):
            return data
        if params.get("kind", "task") != "batch":
            return self._job(data)
        task = _mine(data.get("extract_result"), params)
        # Not listed yet: it has not begun.
        return OcrJob(status=SUBMITTED) if task is None else self._job(task)

    def upload(
        self,
        path: str | Path,
        account: Account | None = None,
        *,
        file_name: str | None = None,
        model: str | None = None,
        pages: str | None = None,
        options: Mapping[str, Any] = EMPTY,
        transport: "Transport | None" = None,
    ) -> OcrRequest:
        """Send a local file to the vendor, which begins to read it, and return the request that waits for it.

        Called where the file is, before the submit; nothing is stored. A repeat sends it again and makes the
        vendor read it again.

        Args:
            path: the file, at most 200 MB.
            account: whose credentials; by default those of the handler's account in the environment.
            file_name: the name that the vendor sees.
            model: as in ``OcrRequest``.
            pages: as in ``OcrRequest``.
            options: as in ``OcrRequest``.
            transport: performs the calls; by default one of its own.

        Raises:
            ValidationError: the file cannot be read here, or an option's value is not right.
            UnknownNameError: no option has that name, or the account is not configured here.
            HandlerError: the vendor or its storage did not take the file; ``NotSentError`` and
                ``ThrottledError`` may be tried again.
        """
        files = [LocalFile.of(path, file_name)]
        return self._upload(files, account, transport, model=model, pages=pages, options=options)[0]

    def upload_all(
        self,
        paths: Sequence[str | Path],
        account: Account | None = None,
        *,
        model: str | None = None,
        pages: str | None = None,
        options: Mapping[str, Any] = EMPTY,
        transport: "Transport | None" = None,
    ) -> list[OcrRequest]:
        """Send up to 50 local files as one batch, and return a request for each, in their order.

        See ``upload``; model, pages and options hold for all files.
        """
        if not 1 <= len(paths) <= BATCH:
            raise ValidationError(f"a batch must have 1 to {BATCH} files, found {len(paths)}", "paths")
        files = [LocalFile.of(one) for one in paths]
        return self._upload(files, account, transport, model=model, pages=pages, options=options)

    def _upload(
        self,
        files: list[LocalFile],
        account: Account | None,
        transport: "Transport | None",
        *,
        model: str | None,
        pages: str | None,
        options: Mapping[str, Any],
    ) -> list[OcrRequest]:
        name = files[0].name
        request = OcrRequest(
            url="https://upload.invalid/", file_name=name, model=model, pages=pages, options=options
        )
        self.validate(request)
        chosen = {self.model(attrs.evolve(request, file_name=file.name)) for file in files}
        if len(chosen) > 1:
            raise ValidationError(
                f"a batch is read by one model, found files for {' and '.join(sorted(map(str, chosen)))}; "
                "upload HTML in a batch of its own",
                "paths",
            )
        batch = _BatchUpload(self, files)
        converse(batch, request, account, transport)
        return [
            OcrRequest(
                url=f"{SCHEME}:batch/{quote(batch.id, safe='')}/{quote(entry['data_id'], safe='')}",
                file_name=entry["name"],
            )
            for entry in batch.entries
        ]


class _BatchUpload(MinerUHandler):
    """An upload as a conversation: places are asked for and filled, and no call follows."""

    def __init__(self, owner: MinerUHandler, files: list[LocalFile]) -> None:
        super().__init__(owner.base_url, key=owner.key, account=owner.account)
        self.id = ""
        self.entries: list[dict[str, Any]] = []
        self._files = files

    def prepare_calls(self, params: OcrRequest, context: SubmitContext) -> Generator[Call, Reply, None]:
        """Ask for a place for each file, and fill it."""
        said = self.fields(params, model_version=self.model(params), page_ranges=params.pages)
        data_id = said.pop("data_id", None) or secrets.token_hex(8)
        each: dict[str, Any] = {name: said.pop(name) for name in ("is_ocr", "page_ranges") if name in said}
        for number, file in enumerate(self._files, start=1):
            own = data_id if len(self._files) == 1 else f"{data_id[:120]}-{number}"
            self.entries.append({"name": file.name, **each, "data_id": own})
        reply = yield Call("POST", "/file-urls/batch", json={**said, "files": self.entries})
        data = self._data(reply, creating=True)
        self.id = (id_of(data, "batch_id") or "") if isinstance(data, Mapping) else ""
        places = within(data, "file_urls")
        if not self.id or not isinstance(places, list) or len(places) != len(self._files):
            raise VendorError(
                f"{self.key}: expected a batch_id and {len(self._files)} file_urls, found {reply.excerpt}",
                code="unreadable_reply",
            )
        for file, place in zip(self._files, places, strict=True):
            yield from put(file, str(place))

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> SubmitResult:
        """Say that the vendor has the files."""
        return SubmitResult.submitted(QueryParams(self.id))


class MinerUAgentHandler(_Cloud):
    """Reads small documents in the MinerU cloud without a token: URLs, and files by ``upload``."""

    key = "ocr:mineru-agent"
    account = "mineru-agent"
    base_url = "https://mineru.net/api/v1/agent"
    options_type = MinerUAgentOptions
    kind = "agent"
    troubles: ClassVar[Mapping[str, Trouble]] = dict.fromkeys(
        ("-30001", "-30002", "-30003", "-30004"), Trouble.FINAL
    )

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the vendor could not read; see ``OcrHandler.validate``."""
        super().validate(params)
        if params.model is not None:
            raise ValidationError(
                f"{self.key} has one model only; leave model out, found {params.model!r}", "model"
            )

    def sign(self, call: Call, account: Account) -> Call:
        """Add nothing: this API counts by address."""
        return call

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call | SubmitResult:
        """Describe the submit; a file that was uploaded is on its way already."""
        uploaded = self._uploaded(params)
        if uploaded is not None:
            job = OcrJob(status=SUBMITTED, id=uploaded[0], params={"kind": "agent"})
            return SubmitResult.submitted(self.create_query_params(job, params))
        return Call("POST", "/parse/url", json=self.fields(params, url=params.url, page_range=params.pages))

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the reply to the submit."""
        data = self._data(reply, creating=True)
        if isinstance(data, OcrJob):
            return data
        return OcrJob(status=SUBMITTED, id=id_of(data, "task_id"), params={"kind": "agent"})

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path("parse", params.external_task_id))

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query."""
        data = self._data(reply, creating=False)
        return data if isinstance(data, OcrJob) else self._job(data)

    def upload(
        self,
        path: str | Path,
        account: Account | None = None,
        *,
        file_name: str | None = None,
        pages: str | None = None,
        options: Mapping[str, Any] = EMPTY,
        transport: "Transport | None" = None,
    ) -> OcrRequest:
        """Send a local file to the vendor, and return the request that waits for it.

        See ``MinerUHandler.upload``; no credentials are needed.
        """
        file = LocalFile.of(path, file_name)
        request = OcrRequest(url="https://upload.invalid/", file_name=file.name, pages=pages, options=options)
        self.validate(request)
        sent = _AgentUpload(self, file)
        converse(sent, request, account, transport)
        return OcrRequest(url=f"{SCHEME}:agent/{quote(sent.id, safe='')}", file_name=file.name)


class _AgentUpload(MinerUAgentHandler):
    """An upload as a conversation: a place is asked for and filled, and no call follows."""

    def __init__(self, owner: MinerUAgentHandler, file: LocalFile) -> None:
        super().__init__(owner.base_url, key=owner.key, account=owner.account)
        self.id = ""
        self._file = file

    def prepare_calls(self, params: OcrRequest, context: SubmitContext) -> Generator[Call, Reply, None]:
        """Ask for a place for the file, and fill it."""
        said = self.fields(params, file_name=self._file.name, page_range=params.pages)
        reply = yield Call("POST", "/parse/file", json=said)
        data = self._data(reply, creating=True)
        place = text_of(data, "file_url")
        self.id = (id_of(data, "task_id") or "") if isinstance(data, Mapping) else ""
        if not self.id or place is None:
            raise VendorError(
                f"{self.key}: expected a task_id and a file_url, found {reply.excerpt}",
                code="unreadable_reply",
            )
        yield from put(self._file, place)

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> SubmitResult:
        """Say that the vendor has the file."""
        return SubmitResult.submitted(QueryParams(self.id))


def _mine(found: object, params: QueryParams) -> Mapping[str, Any] | None:
    """Return what a batch's list says about our file: by its data_id, else by its name if only one has it."""
    listed = found if isinstance(found, list) else [found]
    entries = [entry for entry in listed if isinstance(entry, Mapping)]
    for entry in entries:
        if entry.get("data_id") and entry["data_id"] == params.get("data_id"):
            return entry
    named = [
        entry
        for entry in entries
        if not entry.get("data_id") and entry.get("file_name") == params.get("file_name")
    ]
    return named[0] if len(named) == 1 else None


def _output(task: Mapping[str, Any], total: int | None) -> OcrOutput:
    found = (("markdown", task.get("markdown_url")), ("archive", task.get("full_zip_url")))
    return OcrOutput(
        markdown=text_of(task, "markdown"),
        resources=links(found),
        usage={"page": total} if total else {},
        metadata={"data_id": task.get("data_id") or None},
    )
