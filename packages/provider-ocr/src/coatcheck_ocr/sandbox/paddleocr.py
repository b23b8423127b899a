"""The protocol of the PaddleOCR API; see ``coatcheck_ocr.paddleocr`` for where its facts come from."""

from collections.abc import Mapping
from typing import Any, ClassVar

from coatcheck import codec
from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox, public_url
from coatcheck_ocr.sandbox import documents

_CODES = {400: 10002, 404: 11001, 429: 12002}


class PaddleSandbox(VendorSandbox):
    """Answers like the PaddleOCR API.

    A PP-OCR model gives lines of text, any other gives markdown of two pages, whose picture is a link.
    """

    words: ClassVar[Mapping[str, str]] = {
        "queued": "pending",
        "running": "running",
        "succeeded": "done",
        "failed": "failed",
        "canceled": "failed",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead ``ocr:paddleocr`` here."""
        return {"COATCHECK_OCR_PADDLEOCR_URL": url, "PADDLEOCR_ACCESS_TOKEN": "sandbox"}

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "api", "v2", "ocr", "jobs"):
                return self._submit(request)
            case ("GET", "api", "v2", "ocr", "jobs", job_id):
                if job_id not in self.jobs:
                    return self._act("query", request, self.script, job_id, self._missing)
                return self.query(request, job_id, lambda job: self._show(request, job))
            case ("GET", "files", job_id, "result.jsonl"):
                return self.file(request, job_id, lambda job: Answer(200, _lines(request, job)))
            case ("GET", "files", job_id, *_, name):
                return self.file(request, job_id, lambda job: documents.file(job, name))
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error: the status, and the vendor's code for it."""
        error = {"code": _CODES.get(status, status), "msg": "as scripted"}
        return Answer.json(error, status, headers=headers)

    def full(self) -> Answer:
        """Return what a full queue comes to: a code that means "later", under 400."""
        return Answer.json({"code": 10010, "msg": "the queue is full"}, 400)

    def _missing(self) -> Answer:
        return Answer.json({"code": 11001, "msg": "no such job"}, 400)

    def _submit(self, request: Request) -> Answer:
        parts = request.parts()
        if parts:
            said: dict[str, Any] = {name: part.text for name, part in parts.items() if name != "file"}
            said["optionalPayload"] = codec.loads(said.get("optionalPayload", "{}"))
            name = (parts["file"].filename if "file" in parts else None) or ""
        else:
            said = request.json()
            name = str(said.pop("fileUrl", "")).rpartition("/")[2]
        if not name or not said.get("model"):
            return self.refuse(400)
        return self.submit(request, name, lambda job: _ok({"jobId": job.id}), **said)

    def _show(self, request: Request, job: Job) -> Answer:
        shown: dict[str, Any] = {"jobId": job.id, "state": self.word(job)}
        if job.state == "running" and job.progress is not None:
            shown["extractProgress"] = {"totalPages": 100, "extractedPages": round(job.progress)}
        elif job.state == "failed":
            shown["errorMsg"] = f"cannot read {job.name}"
        elif job.state == "succeeded":
            shown["resultUrl"] = {"jsonUrl": f"{public_url(request)}/files/{job.id}/result.jsonl"}
        return _ok(shown)


def _ok(data: Mapping[str, Any]) -> Answer:
    return Answer.json({"code": 0, "msg": "ok", "data": data})


def _lines(request: Request, job: Job) -> bytes:
    text = documents.markdown(job)
    if job.facts["model"].startswith("PP-OCR"):
        results: list[Any] = [{"ocrResults": [{"prunedResult": {"rec_texts": text.splitlines()}}]}]
    else:
        images = {documents.IMAGE: f"{public_url(request)}/files/{job.id}/figure.png"}
        pages = ({"text": text, "images": images}, {"text": "The second page.", "images": {}})
        results = [{"layoutParsingResults": [{"markdown": page}]} for page in pages]
    return b"\n".join(codec.dumps({"result": result}) for result in results)
