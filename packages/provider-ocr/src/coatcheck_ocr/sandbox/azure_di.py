"""The protocol of Document Intelligence; see ``coatcheck_ocr.azure_di`` for where its facts come from."""

from collections.abc import Mapping
from typing import Any, ClassVar

from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, VendorSandbox, public_url
from coatcheck_ocr.sandbox import documents

_VERSION = "2024-11-30"


class AzureSandbox(VendorSandbox):
    """Answers like Document Intelligence: a submit has its address in a header, the result is inline."""

    words: ClassVar[Mapping[str, str]] = {
        "queued": "notStarted",
        "running": "running",
        "succeeded": "succeeded",
        "failed": "failed",
        "canceled": "canceled",
    }

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead ``ocr:azure-di`` here."""
        return {"COATCHECK_OCR_AZURE_DI_URL": url, "DOCUMENTINTELLIGENCE_API_KEY": "sandbox"}

    def token_of(self, request: Request) -> str | None:
        """Return the credentials of a request: its key, or a bearer token."""
        return request.header("ocp-apim-subscription-key") or super().token_of(request)

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "documentintelligence", "documentModels", action) if action.endswith(":analyze"):
                return self._submit(request, action.removesuffix(":analyze"))
            case ("GET", "documentintelligence", "documentModels", model, "analyzeResults", job_id):
                job = self.jobs.get(job_id)
                if request.query.get("api-version") != _VERSION or (job and job.facts["model"] != model):
                    return self.refuse(404)
                return self.query(request, job_id, self._show)
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error."""
        error = {"code": str(status), "message": "as scripted", "innererror": {"code": f"E{status}"}}
        return Answer.json({"error": error}, status, headers=headers)

    def full(self) -> Answer:
        """Return what too many calls come to: 429 with a delay in milliseconds."""
        return self.refuse(429, {"retry-after-ms": "20"})

    def _submit(self, request: Request, model: str) -> Answer:
        url = str(request.json().get("urlSource") or "") if request.body else ""
        if not url or request.query.get("api-version") != _VERSION:
            return self.refuse(400)
        here = f"{public_url(request)}/documentintelligence/documentModels/{model}/analyzeResults"

        def accept(job: Job) -> Answer:
            place = f"{here}/{job.id}?api-version={_VERSION}"
            return Answer(202, headers={"Operation-Location": place, "apim-request-id": job.id})

        name = url.rpartition("/")[2]
        return self.submit(request, name, accept, model=model, query=dict(request.query))

    def _show(self, job: Job) -> Answer:
        times = {"createdDateTime": "2026-01-02T03:04:05Z", "lastUpdatedDateTime": "2026-01-02T03:04:06Z"}
        shown: dict[str, Any] = {"status": self.word(job), **times}
        if job.state == "failed":
            inner = {"code": "InvalidContent", "message": f"cannot read {job.name}"}
            shown["error"] = {"code": "InvalidRequest", "message": "Invalid request.", "innererror": inner}
        elif job.state == "succeeded":
            shown["analyzeResult"] = _result(job)
        return Answer.json(shown)


def _result(job: Job) -> dict[str, Any]:
    content = documents.markdown(job)
    page = {
        "pageNumber": 1,
        "width": 8.5,
        "height": 11,
        "unit": "inch",
        "spans": [{"offset": 0, "length": len(content)}],
        "lines": [{"content": line} for line in content.splitlines() if line],
    }
    return {
        "apiVersion": _VERSION,
        "modelId": job.facts["model"],
        "stringIndexType": "unicodeCodePoint",
        "contentFormat": job.facts["query"].get("outputContentFormat", "text"),
        "content": content,
        "pages": [page],
    }
