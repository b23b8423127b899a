"""The protocol of AWS Textract; see ``coatcheck_ocr.textract`` for where its facts come from."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, Script, VendorSandbox
from coatcheck_ocr.sandbox import documents

#: Few, so that every result has several pages.
_BLOCKS = 2
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/, ]+)/\d{8}/[a-z0-9-]+/textract/aws4_request, "
    r"SignedHeaders=[a-z0-9;-]*host[a-z0-9;-]*, Signature=[0-9a-f]{64}"
)
_CODES = {401: "UnrecognizedClientException", 404: "InvalidJobIdException", 429: "ThrottlingException"}


class TextractSandbox(VendorSandbox):
    """Answers like Textract, except that no signature is verified and no bucket is looked into.

    Results come in pages of two blocks. A client token that was seen gives the job that it has.
    """

    words: ClassVar[Mapping[str, str]] = {
        "queued": "IN_PROGRESS",
        "running": "IN_PROGRESS",
        "succeeded": "SUCCEEDED",
        "failed": "FAILED",
        "canceled": "FAILED",
    }

    def __init__(self, *, script: Script | None = None, tokens: Iterable[str] | None = None) -> None:
        super().__init__(script=script, tokens=tokens)
        #: Client tokens → the input that each came with, and the job's id.
        self._inputs: dict[str, tuple[Any, str]] = {}

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead ``ocr:textract`` here."""
        return {
            "COATCHECK_OCR_TEXTRACT_URL": url,
            "AWS_ACCESS_KEY_ID": "sandbox-key",
            "AWS_SECRET_ACCESS_KEY": "sandbox-secret-key",
        }

    def token_of(self, request: Request) -> str | None:
        """Return the access key that a request was signed with."""
        signed = _SIGNED.fullmatch(request.header("authorization") or "")
        return signed[1] if signed and request.header("x-amz-date") else None

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        _, _, operation = (request.header("x-amz-target") or "").partition("Textract.")
        match (request.method, request.path, operation):
            case ("POST", "/", "StartDocumentTextDetection"):
                return self._start(request, "text")
            case ("POST", "/", "StartDocumentAnalysis"):
                return self._start(request, "analysis")
            case ("POST", "/", "GetDocumentTextDetection"):
                return self._get(request, "text")
            case ("POST", "/", "GetDocumentAnalysis"):
                return self._get(request, "analysis")
        return _error("UnknownOperationException")

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error, with 400 where the vendor has a code for it."""
        at = status if status not in _CODES or status == 429 else 400
        return _error(_CODES.get(status, "InvalidParameterException"), at, headers)

    def full(self) -> Answer:
        """Return what too many running jobs come to."""
        return _error("LimitExceededException")

    def _start(self, request: Request, api: str) -> Answer:
        said = request.json()
        token = said.pop("ClientRequestToken", None)
        name = said.get("DocumentLocation", {}).get("S3Object", {}).get("Name")
        if not name or (api == "analysis") != bool(said.get("FeatureTypes")):
            return self.refuse(400)

        def show(job: Job) -> Answer:
            if token is not None:
                self._inputs[token] = (said, job.id)
            return Answer.json({"JobId": job.id})

        known, job_id = self._inputs.get(token, (None, ""))
        if job_id not in self.jobs:
            return self.submit(request, name, show, api=api)
        if known != said:
            return _error("IdempotentParameterMismatchException")
        return self._of_job("submit", request, job_id, show)

    def _get(self, request: Request, api: str) -> Answer:
        said = request.json()
        job_id = str(said.get("JobId"))
        job = self.jobs.get(job_id)
        if job is not None and job.facts["api"] != api:
            return self.refuse(404)
        start = int(said.get("NextToken") or 0)
        # A further page of the result is no look at the job.
        look = self.result if start else self.query
        return look(request, job_id, lambda job: self._show(job, start))

    def _show(self, job: Job, start: int) -> Answer:
        shown: dict[str, Any] = {"JobStatus": self.word(job)}
        if job.state in ("failed", "canceled"):
            shown["StatusMessage"] = f"cannot read {job.name}"
        elif job.state == "succeeded":
            blocks = _blocks(job)
            shown["DocumentMetadata"] = {"Pages": 1}
            shown["Blocks"] = blocks[start : start + _BLOCKS]
            if start + _BLOCKS < len(blocks):
                shown["NextToken"] = str(start + _BLOCKS)
        return Answer.json(shown, headers={"Content-Type": "application/x-amz-json-1.1"})


def _error(code: str, status: int = 400, headers: Mapping[str, str] = EMPTY) -> Answer:
    body = {"__type": f"com.amazonaws.textract#{code}", "message": "as scripted"}
    return Answer.json(body, status, headers={"Content-Type": "application/x-amz-json-1.1", **headers})


def _blocks(job: Job) -> list[dict[str, Any]]:
    lines = [line.removeprefix("# ") for line in documents.markdown(job).split("\n") if line]
    found: list[dict[str, Any]] = [{"BlockType": "PAGE", "Id": "page", "Page": 1}]
    for number, line in enumerate(lines, start=1):
        found.append({"BlockType": "LINE", "Id": f"line-{number}", "Page": 1, "Text": line})
        found.append({"BlockType": "WORD", "Id": f"word-{number}", "Page": 1, "Text": line.split()[0]})
    if job.facts["api"] == "analysis":
        for number, _ in enumerate(lines, start=1):
            kind = "LAYOUT_TITLE" if number == 1 else "LAYOUT_TEXT"
            relations = [{"Type": "CHILD", "Ids": [f"line-{number}"]}]
            found.append({"BlockType": kind, "Id": f"part-{number}", "Page": 1, "Relationships": relations})
    return found
