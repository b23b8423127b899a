"""The protocol of Baidu's document parsing; see ``coatcheck_ocr.baidu`` for where its facts come from."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from coatcheck.model import EMPTY
from coatcheck.sandbox import Answer, Job, Request, Script, VendorSandbox, public_url
from coatcheck_ocr.sandbox import documents

_CODES = {400: 216100, 401: 110}


class BaiduSandbox(VendorSandbox):
    """Answers like Baidu: errors under 200, both forms of credentials, and tokens for a pair of keys.

    A pair of keys is accepted where its secret key is among ``tokens``.
    """

    words: ClassVar[Mapping[str, str]] = {
        "queued": "pending",
        "running": "processing",
        "succeeded": "success",
        "failed": "failed",
        "canceled": "failed",
    }

    def __init__(self, *, script: Script | None = None, tokens: Iterable[str] | None = None) -> None:
        super().__init__(script=script, tokens=tokens)
        #: Access tokens that were given out → the secret key that each stands for.
        self.issued: dict[str, str] = {}
        self._revoked: set[str] = set()

    def revoke(self) -> None:
        """Refuse all access tokens that were given out so far."""
        self._revoked.update(self.issued)

    def environment(self, url: str) -> Mapping[str, str]:
        """Return the variables that lead ``ocr:baidu`` here."""
        return {"COATCHECK_OCR_BAIDU_URL": url, "BAIDU_OCR_API_KEY": "bce-v3/sandbox"}

    def token_of(self, request: Request) -> str | None:
        """Return the credentials of a request: a bearer token, or the access token in its query."""
        token = super().token_of(request) or request.query.get("access_token") or ""
        return None if token in self._revoked else self.issued.get(token, token) or None

    def answer(self, request: Request) -> Answer:
        """Answer one request."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST" | "GET", "oauth", "2.0", "token"):
                return self._issue(request)
            case ("POST", "rest", "2.0", "brain", "online", "v2", family, "task"):
                return self._submit(request, family)
            case ("POST", "rest", "2.0", "brain", "online", "v2", family, "task", "query"):
                return self._query(request, family)
            case ("GET", "files", job_id, "result.json"):
                return self.file(request, job_id, lambda job: Answer.json(_parsed(job)))
            case ("GET", "files", job_id, *_, name):
                return self.file(request, job_id, lambda job: documents.file(job, name))
        return self.refuse(404)

    def refuse(self, status: int, headers: Mapping[str, str] = EMPTY) -> Answer:
        """Return an error: under 200 where the vendor has a code for it."""
        code = _CODES.get(status)
        error = {"log_id": 1, "error_code": code or status, "error_msg": "as scripted"}
        return Answer.json(error, 200 if code else status, headers=headers)

    def full(self) -> Answer:
        """Return what too many calls come to."""
        return Answer.json({"log_id": "1", "error_code": 4, "error_msg": "Open api request limit reached"})

    def _issue(self, request: Request) -> Answer:
        secret_key = request.query.get("client_secret", "")
        is_known = secret_key if self.tokens is None else secret_key in self.tokens
        if not request.query.get("client_id") or not is_known:
            return Answer.json({"error": "invalid_client", "error_description": "unknown client id"}, 401)
        token = f"24.sandbox-{len(self.issued) + 1}"
        self.issued[token] = secret_key
        return Answer.json({"access_token": token, "expires_in": 2592000})

    def _submit(self, request: Request, family: str) -> Answer:
        said = request.form()
        if not said.get("file_name") or not said.get("file_url"):
            return Answer.json({"log_id": "1", "error_code": 216101, "error_msg": "not enough param"})
        return self.submit(request, said["file_name"], lambda job: _ok({"task_id": job.id}), family=family)

    def _query(self, request: Request, family: str) -> Answer:
        job_id = request.form().get("task_id", "")
        job = self.jobs.get(job_id)
        if job is None or job.facts["family"] != family:
            return self._act("query", request, self.script, job_id, lambda: self.refuse(400))
        return self.query(request, job_id, lambda job: self._show(request, job))

    def _show(self, request: Request, job: Job) -> Answer:
        files = f"{public_url(request)}/files/{job.id}"
        is_done = job.state == "succeeded"
        return _ok(
            {
                "task_id": job.id,
                "status": self.word(job),
                "task_error": f"cannot read {job.name}" if job.state == "failed" else None,
                "markdown_url": f"{files}/result.md" if is_done else None,
                "parse_result_url": f"{files}/result.json" if is_done else None,
            }
        )


def _ok(result: Mapping[str, Any]) -> Answer:
    return Answer.json({"log_id": "7", "error_code": 0, "error_msg": "", "result": result})


def _parsed(job: Job) -> dict[str, Any]:
    page = {"page_id": "p0", "page_num": 0, "page_angle": 0, "text": documents.markdown(job), "layouts": []}
    return {"file_name": job.name, "file_id": "f1", "pages": [page]}
