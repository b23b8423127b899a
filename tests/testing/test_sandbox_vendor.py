"""The base of vendor protocols: scripts in names, faults in the vendor's shape, and several on one server."""

from collections.abc import Mapping
from typing import Any, ClassVar

import attrs
import pytest

from coatcheck.errors import UnknownNameError, ValidationError
from coatcheck.sandbox import Answer, Job, Mounts, Request, Script, VendorSandbox, public_url

TOKEN = {"authorization": "Bearer t"}


class Clerk(VendorSandbox):
    """A vendor that says its states by the base's words."""

    words: ClassVar[Mapping[str, str]] = {
        name: name.upper() for name in ("queued", "running", "succeeded", "failed", "canceled")
    }

    def answer(self, request: Request) -> Answer:
        """Route."""
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "jobs"):
                return self.submit(request, request.json()["name"], self.show)
            case ("GET", "jobs", job_id):
                return self.query(request, job_id, self.show)
            case ("DELETE", "jobs", job_id):
                return self.cancel(request, job_id, self.show)
            case ("GET", "results", job_id):
                return self.result(request, job_id, self.show)
            case ("GET", "files", job_id):
                return self.file(request, job_id, lambda job: Answer(200, job.name.encode()))
        return self.refuse(404)

    def show(self, job: Job) -> Answer:
        """Show a job."""
        return Answer.json({"id": job.id, "word": self.word(job), "progress": job.progress})

    def environment(self, url: str) -> Mapping[str, str]:
        """Return one variable."""
        return {"CLERK_URL": url}


def post(name: str, headers: Mapping[str, str] = TOKEN) -> Request:
    """Return a submit."""
    return Request("POST", "/jobs", headers=headers, body=b'{"name": "%s"}' % name.encode())


def get(path: str, headers: Mapping[str, str] = TOKEN) -> Request:
    """Return a query."""
    return Request("GET", path, headers=headers)


def words(clerk: Clerk, name: str, count: int) -> list[Any]:
    """Submit a document and return what that many queries say."""
    job_id = read(clerk(post(name)))["id"]
    return [read(clerk(get(f"/jobs/{job_id}")))["word"] for _ in range(count)]


def read(answer: Answer) -> dict[str, Any]:
    """Return a JSON body."""
    found: dict[str, Any] = attrs.evolve(Request("GET", "/"), body=answer.body).json()
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.pdf", Script()),
        ("https://h.example/d/a~polls=3,end=failed.pdf?sig=~x", Script(polls=3, end="failed")),
        ("a~seconds=0.5", Script(seconds=0.5)),
        (
            "a~on_query=429:0.2+html+500!,at_once=true.html",
            Script(on_query=("429:0.2", "html", "500!"), at_once=True),
        ),
        (
            "a~words=warming%20up+hot,progress=5+50.pdf",
            Script(words=("warming up", "hot"), progress=(5.0, 50.0)),
        ),
        ("home~user/a.pdf", Script()),
    ],
)
def test_a_script_is_read_from_a_documents_name(name: str, expected: Script) -> None:
    """Every vendor is told a name or a URL, so any job's way can be said there."""
    assert Script.named(name) == expected


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("a~polls=soon.pdf", ValidationError),
        ("a~poll=1.pdf", UnknownNameError),
        ("a~polls.pdf", ValidationError),
        ("a~on_query=explode.pdf", ValidationError),
    ],
)
def test_a_script_that_means_nothing_is_refused(name: str, error: type[Exception]) -> None:
    """A misspelt fault would make an experiment that proves nothing."""
    with pytest.raises(error):
        Script.named(name)
    assert Clerk()(post(name)).status == 400


def test_a_job_goes_as_its_name_says() -> None:
    """States come in order, scripted words in place of running."""
    assert words(Clerk(), "a~queued=1,polls=2,words=hm,end=failed.pdf", 5) == [
        "QUEUED",
        "hm",
        "RUNNING",
        "FAILED",
        "FAILED",
    ]


def test_faults_have_the_vendors_shape_and_say_whether_the_call_was_carried_out() -> None:
    """A throttled submit makes no job; one whose reply is lost has made it."""
    clerk = Clerk()
    name = "a~on_submit=429:2+busy+reset.pdf"
    refused = clerk(post(name))
    assert (refused.status, refused.headers["Retry-After"]) == (429, "2")
    assert read(refused)["error"]
    assert clerk(post(name)).status == 429
    assert not clerk.jobs
    assert clerk(post(name)).fault == "reset"
    assert len(clerk.jobs) == 1
    assert clerk.counts["submit"] == 3


def test_the_next_call_of_a_kind_can_be_spoilt() -> None:
    """A test scripts what happens before there is a job."""
    clerk = Clerk()
    clerk.fault("submit", "500")
    assert (clerk(post("a")).status, clerk(post("a")).status) == (500, 200)
    with pytest.raises(UnknownNameError):
        clerk.fault("sumbit", "500")


def test_calls_need_credentials_and_files_refuse_them() -> None:
    """A storage service that is shown our key must be noticed by every test that runs over the sandbox."""
    clerk = Clerk(tokens=["t"])
    assert clerk(post("a", {})).status == 401
    assert clerk(post("a", {"authorization": "Bearer other"})).status == 401
    job_id = read(clerk(post("a")))["id"]
    assert clerk(get(f"/files/{job_id}", {})).status == 200
    assert clerk(get(f"/files/{job_id}")).status == 400


def test_a_result_is_shown_without_moving_the_job_on() -> None:
    """Fetching is not asking how far it is; faults of results are its own."""
    clerk = Clerk()
    job_id = read(clerk(post("a~polls=0,on_result=503.pdf")))["id"]
    assert [clerk(get(f"/results/{job_id}")).status for _ in range(2)] == [503, 200]
    assert read(clerk(get(f"/results/{job_id}")))["word"] == "QUEUED"
    assert clerk(get(f"/results/{job_id}", {})).status == 401
    assert clerk(get("/results/other")).status == 404


def test_a_cancel_goes_as_scripted() -> None:
    """Done at once, done at the next look, or not at all."""
    clerk = Clerk()
    for script, expected in (("done", "CANCELED"), ("accepted", "CANCELED"), ("refused", "RUNNING")):
        job_id = read(clerk(post(f"a~cancel={script}.pdf")))["id"]
        clerk(Request("DELETE", f"/jobs/{job_id}", headers=TOKEN))
        assert read(clerk(get(f"/jobs/{job_id}")))["word"] == expected


def test_a_forgotten_job_is_missing() -> None:
    """Retention ends for everybody."""
    clerk = Clerk()
    job_id = read(clerk(post("a")))["id"]
    clerk.forget()
    assert clerk(get(f"/jobs/{job_id}")).status == 404
    assert clerk(get(f"/files/{job_id}", {})).status == 404


def test_protocols_are_mounted_below_their_names() -> None:
    """One server serves all, and each knows where its clients reached it."""
    seen = []

    def app(request: Request) -> Answer:
        seen.append((request.path, public_url(request)))
        return Answer()

    mounts = Mounts({"ocr:one": app})
    assert mounts(get("/ocr-one/v1/jobs", {"host": "localhost:9"})).status == 200
    assert seen == [("/v1/jobs", "http://localhost:9/ocr-one")]
    assert Mounts.url("http://localhost:9", "ocr:one") == "http://localhost:9/ocr-one"
    assert read(mounts(get("/"))) == {"paths": ["/ocr-one", "/documents/NAME"]}
    assert mounts(get("/elsewhere")).status == 404
    assert mounts(get("/documents/a.pdf")).body.startswith(b"%PDF")
