"""``ocr:paddleocr``: the official PaddleOCR API of AI Studio at paddleocr.aistudio-app.com.

From the client in the vendor's package paddleocr 3.7.0 (SDK); ``(1)`` marks what is general knowledge only,
``(?)`` what is not sure:

- Submit: POST ``/api/v2/ocr/jobs`` (SDK): JSON ``fileUrl``, ``model``, ``optionalPayload`` in camelCase,
    ``pageRanges``, ``batchId``; or multipart with ``file`` in place of ``fileUrl`` and ``optionalPayload`` as
    JSON text. How ``pageRanges`` is written (?). Header ``Client-Platform``.
- Reply ``{"code": 0, "msg", "data": {"jobId"}}``; query: GET ``jobs/{jobId}``, ``data.state``,
    ``extractProgress``, ``resultUrl.jsonUrl``, ``errorMsg`` (SDK). A batch has the same kind of id and
    a path of its own, ``jobs/batch/{batchId}``, which is not used here: each job is asked about by itself.
- Result: JSON lines ``{"result": …}`` with ``layoutParsingResults`` or ``ocrResults`` (SDK); the text of the
    latter in ``prunedResult.rec_texts`` (1). How long links live (?).
- Codes in the body, with 200, 400, 403 or 429 (SDK). **10010**, "queue full", comes with 400 or 200 and is a
    throttle.
- 1000 pages a document, 200 MB by URL, 50 MB uploaded, 3000 pages a day and model. No cancel, no idempotency
    key.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import IO, Any, ClassVar

from attrs import frozen

from coatcheck import codec
from coatcheck.errors import RejectedError, ValidationError, VendorError
from coatcheck.http import Call, Follow, FromUrl, Part, Reply, path
from coatcheck.http.options import number, switch, text, whole, words
from coatcheck.http.read import id_of, members, members_if_any, percent, shortened, text_of, whole_of, within
from coatcheck.http.vendor import FAILED, RUNNING, SUBMITTED, SUCCEEDED, Trouble
from coatcheck.model import QueryContext, QueryParams, SubmitContext, TaskStatus
from coatcheck.policy import PollPolicy
from coatcheck_ocr.handler import FETCH_TIME, OcrHandler, OcrJob
from coatcheck_ocr.model import OcrPage, OcrRequest, OcrResource, page_numbers
from coatcheck_ocr.options import OcrOptions
from coatcheck_ocr.results import OcrOutput, check_download, download, rewrite

_JOBS = path("api", "v2", "ocr", "jobs")
#: What the vendor reads at most of one document.
_PAGES = 1000
#: Statuses under which the vendor's own codes come, beside 2xx.
_CODED = (400, 403)

_COMMON = ("use_doc_orientation_classify", "use_doc_unwarping", "visualize")
_LINES = (
    "use_textline_orientation",
    "text_det_limit_side_len",
    "text_det_limit_type",
    "text_det_thresh",
    "text_det_box_thresh",
    "text_det_unclip_ratio",
    "text_rec_score_thresh",
)
_LAYOUT = (
    "use_seal_recognition",
    "use_chart_recognition",
    "layout_threshold",
    "layout_nms",
    "layout_unclip_ratio",
    "layout_merge_bboxes_mode",
    "format_block_content",
    "markdown_ignore_labels",
    "prettify_markdown",
    "show_formula_number",
    "return_markdown_images",
    "output_formats",
)
_STRUCTURE = (
    "use_table_recognition",
    "use_formula_recognition",
    "use_region_detection",
    "use_wired_table_cells_trans_to_html",
    "use_wireless_table_cells_trans_to_html",
    "use_table_orientation_classify",
    "use_ocr_results_with_table_cells",
    "use_e2e_wired_table_rec_model",
    "use_e2e_wireless_table_rec_model",
)
_VL = (
    "use_layout_detection",
    "use_ocr_for_image_block",
    "layout_shape_mode",
    "prompt_label",
    "repetition_penalty",
    "temperature",
    "top_p",
    "min_pixels",
    "max_pixels",
    "max_new_tokens",
    "merge_layout_blocks",
    "restructure_pages",
    "merge_tables",
    "relevel_titles",
)
#: Options that are not the vendor's: how the request is sent.
_OURS = ("batch_id", "client_platform", "upload", "extra")
#: What a model's name begins with → the options that it takes; the first that fits counts.
_TAKEN: Mapping[str, tuple[str, ...]] = {
    "PP-OCR": _COMMON + _LINES,
    "PP-StructureV3": _COMMON + _LINES + _LAYOUT + _STRUCTURE,
    "PaddleOCR-VL": _COMMON + _LAYOUT + _VL,
}


@frozen(kw_only=True, eq=False)
class PaddleOptions(OcrOptions):
    """What ``OcrRequest.options`` may hold for ``ocr:paddleocr``; each model takes some of them.

    ``extra`` is for the vendor's ``optionalPayload``, in camelCase. Some options of the layout also take a
    mapping by label; such a one goes into ``extra``.
    """

    #: For all models.
    use_doc_orientation_classify: bool | None = switch("useDocOrientationClassify")
    use_doc_unwarping: bool | None = switch("useDocUnwarping")
    visualize: bool | None = switch()
    #: For PP-OCR and PP-StructureV3.
    use_textline_orientation: bool | None = switch("useTextlineOrientation")
    text_det_limit_side_len: int | None = whole(1, 100_000, "textDetLimitSideLen")
    text_det_limit_type: str | None = text(50, "textDetLimitType")
    text_det_thresh: float | None = number(0, 1, "textDetThresh")
    text_det_box_thresh: float | None = number(0, 1, "textDetBoxThresh")
    text_det_unclip_ratio: float | None = number(0, 100, "textDetUnclipRatio")
    text_rec_score_thresh: float | None = number(0, 1, "textRecScoreThresh")
    #: For PP-StructureV3 and PaddleOCR-VL.
    use_seal_recognition: bool | None = switch("useSealRecognition")
    use_chart_recognition: bool | None = switch("useChartRecognition")
    layout_threshold: float | None = number(0, 1, "layoutThreshold")
    layout_nms: bool | None = switch("layoutNms")
    layout_unclip_ratio: float | None = number(0, 100, "layoutUnclipRatio")
    layout_merge_bboxes_mode: str | None = text(50, "layoutMergeBboxesMode")
    format_block_content: bool | None = switch("formatBlockContent")
    markdown_ignore_labels: tuple[str, ...] | None = words(wire="markdownIgnoreLabels")
    prettify_markdown: bool | None = switch("prettifyMarkdown")
    show_formula_number: bool | None = switch("showFormulaNumber")
    return_markdown_images: bool | None = switch("returnMarkdownImages")
    output_formats: tuple[str, ...] | None = words(wire="outputFormats")
    #: For PP-StructureV3.
    use_table_recognition: bool | None = switch("useTableRecognition")
    use_formula_recognition: bool | None = switch("useFormulaRecognition")
    use_region_detection: bool | None = switch("useRegionDetection")
    use_wired_table_cells_trans_to_html: bool | None = switch("useWiredTableCellsTransToHtml")
    use_wireless_table_cells_trans_to_html: bool | None = switch("useWirelessTableCellsTransToHtml")
    use_table_orientation_classify: bool | None = switch("useTableOrientationClassify")
    use_ocr_results_with_table_cells: bool | None = switch("useOcrResultsWithTableCells")
    use_e2e_wired_table_rec_model: bool | None = switch("useE2eWiredTableRecModel")
    use_e2e_wireless_table_rec_model: bool | None = switch("useE2eWirelessTableRecModel")
    #: For PaddleOCR-VL.
    use_layout_detection: bool | None = switch("useLayoutDetection")
    use_ocr_for_image_block: bool | None = switch("useOcrForImageBlock")
    layout_shape_mode: str | None = text(50, "layoutShapeMode")
    prompt_label: str | None = text(50, "promptLabel")
    repetition_penalty: float | None = number(0, 100, "repetitionPenalty")
    temperature: float | None = number(0, 100)
    top_p: float | None = number(0, 1, "topP")
    min_pixels: int | None = whole(1, 1_000_000_000, "minPixels")
    max_pixels: int | None = whole(1, 1_000_000_000, "maxPixels")
    max_new_tokens: int | None = whole(1, 1_000_000, "maxNewTokens")
    merge_layout_blocks: bool | None = switch("mergeLayoutBlocks")
    restructure_pages: bool | None = switch("restructurePages")
    merge_tables: bool | None = switch("mergeTables")
    relevel_titles: bool | None = switch("relevelTitles")
    #: A name that the vendor keeps jobs together by; every job is asked about by itself all the same.
    batch_id: str | None = text(200)
    #: Who is calling, for the vendor's statistics.
    client_platform: str | None = text(200)
    #: Whether the document is fetched here and sent as a file, because the vendor cannot reach its URL.
    upload: bool | None = switch()


class PaddleHandler(OcrHandler):
    """Reads documents at AI Studio; takes http and https URLs, fetched by the vendor or sent as a file."""

    key = "ocr:paddleocr"
    account = "paddleocr"
    account_env: Mapping[str, tuple[str, ...]] = {"secret": ("PADDLEOCR_ACCESS_TOKEN",)}
    base_url = "https://paddleocr.aistudio-app.com"
    base_url_env = ("PADDLEOCR_BASE_URL",)
    options_type = PaddleOptions
    default_model = "PaddleOCR-VL-1.6"
    takes_pages = True
    poll = PollPolicy(
        first=timedelta(seconds=3), start=timedelta(seconds=3), factor=1.5, cap=timedelta(seconds=15)
    )
    #: Room for the fetch and the upload.
    call_limit = timedelta(seconds=600)
    states: ClassVar[Mapping[str, TaskStatus]] = {
        "pending": SUBMITTED,
        "running": RUNNING,
        "done": SUCCEEDED,
        "failed": FAILED,
    }
    troubles: ClassVar[Mapping[str, Trouble]] = {
        # Empty, bad URL, size, format, unreadable, pages; model, options; batch.
        **{str(code): Trouble.FINAL for code in range(10001, 10010)},
        "10010": Trouble.BUSY,
        # A job that is unknown, or that the vendor has not kept.
        "11001": Trouble.MISSING,
        "11002": Trouble.MISSING,
        "11003": Trouble.FINAL,
        # The day's quota of one model: tomorrow there is another.
        "12001": Trouble.FINAL_RETRYABLE,
        "12002": Trouble.BUSY,
    }

    def validate(self, params: OcrRequest) -> None:
        """Refuse what the vendor could not read; see ``OcrHandler.validate``."""
        super().validate(params)
        model = self.model(params) or ""
        taken = next((names for start, names in _TAKEN.items() if model.startswith(start)), ())
        options = self.options(params)
        for name in options:
            if taken and name not in taken and name not in _OURS:
                raise ValidationError(f"{self.key}: {model} does not take {name}; leave it out", name)
        low, high = options.get("min_pixels"), options.get("max_pixels")
        if low is not None and high is not None and low > high:
            raise ValidationError(
                f"min_pixels must be at most max_pixels, found {low} and {high}", "min_pixels"
            )

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call:
        """Describe the submit: the URL in a JSON body, or the document itself in a multipart one."""
        options = self.options(params)
        payload = {name: value for name, value in options.wire().items() if name not in _OURS}
        said = {
            "model": self.model(params),
            "optionalPayload": payload,
            "pageRanges": params.pages,
            "batchId": options.get("batch_id"),
        }
        said = {name: value for name, value in said.items() if value is not None}
        headers = _platform(options.get("client_platform"))
        if not options.get("upload"):
            body = {"fileUrl": params.url, **said}
            return Call("POST", _JOBS, headers=headers, json=body, accept=_CODED)
        parts: dict[str, Part | FromUrl] = {
            name: Part(content=value if isinstance(value, str) else codec.dumps(value))
            for name, value in said.items()
        }
        parts["file"] = FromUrl(params.url, filename=params.name, cap=50_000_000, timeout=FETCH_TIME)
        return Call(
            "POST", _JOBS, headers=headers, multipart=parts, accept=_CODED, timeout=timedelta(seconds=300)
        )

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the reply to the submit."""
        body, refused = self._body(reply, creating=True)
        if refused is not None:
            return refused
        platform = self.options(request).get("client_platform")
        facts = {"kind": "job", "pages": request.pages, "client_platform": platform}
        return OcrJob(
            status=SUBMITTED,
            id=id_of(body.get("data"), "jobId"),
            params={name: value for name, value in facts.items() if value is not None},
        )

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        headers = _platform(params.get("client_platform"))
        return Call("GET", _JOBS + path(params.external_task_id), headers=headers, accept=_CODED)

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query; the result is a file of JSON lines."""
        body, refused = self._body(reply, creating=False)
        if refused is not None:
            return refused
        data = body.get("data")
        word = within(data, "state")
        status = self.status_of(word)
        if status is not SUCCEEDED:
            return OcrJob(
                status=status,
                word=word,
                progress=percent(
                    whole_of(data, "extractProgress", "extractedPages"),
                    whole_of(data, "extractProgress", "totalPages"),
                ),
                message=shortened(text_of(data, "errorMsg")),
            )
        links = within(data, "resultUrl")
        found = [
            (kind, text_of(links, name)) for kind, name in (("json", "jsonUrl"), ("markdown", "markdownUrl"))
        ]
        resources = tuple(OcrResource(type=kind, url=url) for kind, url in found if url is not None)
        output = OcrOutput(resources=resources)
        lines = output.first("json")
        if lines is None:
            return OcrJob(status=SUCCEEDED, word=word, output=output)
        url = lines.url

        def read_lines(reply: Reply) -> Any:
            check_download(reply, url)
            read = _read(reply.as_file(), params.get("pages"), resources)
            return self.answer(OcrJob(status=SUCCEEDED, word=word, output=read))

        return Follow(download(url, spool=True), read_lines)

    def _body(self, reply: Reply, *, creating: bool) -> tuple[dict[str, Any], OcrJob | None]:
        """Return a reply's object, and what its code comes to where that is not 0.

        Raises:
            HandlerError: the code, or a status without one, says so.
        """
        body = members(reply) if reply.is_success else members_if_any(reply)
        code = id_of(body, "code")
        if code not in (None, "0"):
            message = text_of(body, "msg", "errorMsg", "message") or text_of(body.get("data"), "errorMsg")
            return body, self.judge(code, message, creating=creating)
        if reply.is_success:
            return body, None
        text = f"{self.key}: the vendor answered {reply.status}: {reply.excerpt}"
        if creating:
            raise RejectedError(text)
        raise VendorError(text, code=f"http_{reply.status}", http_status=reply.status)


def _platform(name: str | None) -> dict[str, str]:
    return {} if name is None else {"Client-Platform": name}


def _read(file: IO[bytes], pages: str | None, resources: tuple[OcrResource, ...]) -> OcrOutput:
    """Return the pages of a file of JSON lines; one line is in memory at a time.

    Raises:
        VendorError: a line is no JSON; another download may be whole.
    """
    texts: list[str] = []
    for line in file:
        if not line.strip():
            continue
        try:
            result = within(codec.loads(line), "result")
        except ValueError:
            raise VendorError(
                f"expected a line of JSON in the result, found {line[:100]!r}", code="unreadable_result"
            ) from None
        for name, read in (("layoutParsingResults", _layout), ("ocrResults", _ocr)):
            found = within(result, name)
            texts += map(read, found if isinstance(found, list) else ())
    numbers = page_numbers(pages, _PAGES)
    numbered = zip(numbers, texts, strict=False) if len(texts) <= len(numbers) else enumerate(texts, start=1)
    return OcrOutput(
        markdown="\n\n".join(texts) if texts else None,
        pages=tuple(OcrPage(number=number, markdown=markdown) for number, markdown in numbered),
        resources=resources,
        usage={"page": len(texts)} if texts else {},
    )


def _layout(page: Any) -> str:
    """Return one page's markdown, with its images by their URLs."""
    markdown = within(page, "markdown", "text")
    images = within(page, "markdown", "images")
    links = images if isinstance(images, Mapping) else {}

    def linked(ref: str) -> str:
        url = links.get(ref)
        return url if isinstance(url, str) and url else ref

    return rewrite(markdown, linked) if isinstance(markdown, str) else ""


def _ocr(page: Any) -> str:
    lines = within(page, "prunedResult", "rec_texts")
    return "\n".join(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ""
