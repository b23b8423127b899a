"""``ocr:mineru`` and ``ocr:mineru-agent`` send what mineru-open-sdk sends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.wire.recorder import KEY, Recorder, lived, recording

from coatcheck import TaskStatus
from coatcheck.model import Account
from coatcheck.sandbox import Answer, Request
from coatcheck_ocr.mineru import MinerUAgentHandler, MinerUAgentOptions, MinerUHandler, MinerUOptions
from coatcheck_ocr.model import OcrRequest

pytestmark = pytest.mark.wire

sdk: Any = pytest.importorskip("mineru", reason="run nox -s wire")
if not hasattr(sdk, "MinerU"):
    # The server's package has the same module name.
    pytest.skip("the module mineru is not that of mineru-open-sdk", allow_module_level=True)

URL = "https://documents.example/a.pdf"
ACCOUNT = Account("wire", lambda _: KEY)


def answer(request: Request) -> Answer | None:
    """Answer like the vendor: ids and places, then a job that runs, or for the agent one that is done."""
    here = f"http://{request.header('host')}"
    match (request.method, *request.path.strip("/").split("/")):
        case ("POST", "v4", "extract", "task"):
            return ok({"task_id": "T1"})
        case ("POST", "v4", "extract", "task", "batch"):
            return ok({"batch_id": "B1"})
        case ("POST", "v4", "file-urls", "batch"):
            files = request.json()["files"]
            return ok(
                {"batch_id": "B1", "file_urls": [f"{here}/put/{n}?sign=s" for n, _ in enumerate(files)]}
            )
        case ("GET", "v4", "extract", "task", _):
            return ok({"task_id": "T1", "state": "running"})
        case ("GET", "v4", "extract-results", "batch", _):
            return ok({"batch_id": "B1", "extract_result": [{"state": "running", "data_id": "k"}]})
        case ("POST", "agent", "parse", "url" | "file"):
            return ok({"task_id": "T1", "file_url": f"{here}/put/0?sign=s"})
        case ("GET", "agent", "parse", _):
            return ok({"task_id": "T1", "state": "done", "markdown_url": f"{here}/files/a.md"})
        case ("PUT", *_):
            return Answer(200)
    return None


def ok(data: Any) -> Answer:
    """Return a reply in the vendor's envelope."""
    return Answer.json({"code": 0, "msg": "ok", "trace_id": "t1", "data": data})


def shown(request: Request) -> dict[str, Any]:
    """Return what both have to agree in; the SDK says "json" even of a GET, which has no body."""
    is_json = request.method == "POST"
    return {
        "method": request.method,
        "path": request.path,
        "query": dict(request.query),
        "authorization": request.header("authorization"),
        "content-type": None if request.method == "GET" else request.header("content-type"),
        "body": request.json() if is_json else request.body,
    }


@pytest.fixture
def recorder() -> Recorder:
    """Return a vendor that keeps what it is sent."""
    return Recorder(answer, {"/files/a.md": b"# A"})


@pytest.fixture
def url(recorder: Recorder) -> Iterator[str]:
    """Return where that vendor is."""
    with recording(recorder) as place:
        yield place


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    """Return the vendor's own client."""
    with sdk.MinerU(KEY, base_url=f"{url}/v4", flash_base_url=f"{url}/agent") as made:
        yield made


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return two local files."""
    paths = [tmp_path / "a.pdf", tmp_path / "b.docx"]
    for path in paths:
        path.write_bytes(b"content of " + path.name.encode())
    return [str(path) for path in paths]


def taken(recorder: Recorder) -> list[dict[str, Any]]:
    """Return what was sent since the last time."""
    return [shown(request) for request in recorder.take()]


def test_files_go_up_like_the_sdk_sends_them(
    recorder: Recorder, url: str, client: Any, files: list[str]
) -> None:
    """The ask with its fields at their levels, and each file to its place, in order and without a type."""
    own = {
        path: sdk.client.FileParam(pages="1-3", ocr=True, data_id=f"k-{number}")
        for number, path in enumerate(files, start=1)
    }
    client.submit_batch(
        files,
        model="pipeline",
        formula=False,
        table=True,
        language="en",
        extra_formats=["docx", "html"],
        file_params=own,
    )
    theirs = taken(recorder)
    options = MinerUOptions(
        is_ocr=True,
        enable_formula=False,
        enable_table=True,
        language="en",
        extra_formats=("docx", "html"),
        data_id="k",
    )
    MinerUHandler(f"{url}/v4").upload_all(files, ACCOUNT, model="pipeline", pages="1-3", options=options)
    assert taken(recorder) == theirs
    assert [call["method"] for call in theirs] == ["POST", "PUT", "PUT"]


def test_one_file_with_few_options_goes_up_like_the_sdk_sends_it(
    recorder: Recorder, url: str, client: Any, files: list[str]
) -> None:
    """The model is the one that the SDK chooses; ours says which document it is, too."""
    client.submit(files[0])
    theirs = taken(recorder)
    MinerUHandler(f"{url}/v4").upload(files[0], ACCOUNT)
    ours = taken(recorder)
    assert ours[0]["body"]["files"][0].pop("data_id")
    assert ours == theirs


@pytest.mark.parametrize("name", ["a.pdf", "a.html"])
def test_a_url_is_submitted_with_the_fields_of_the_sdk(
    recorder: Recorder, url: str, client: Any, name: str
) -> None:
    """The SDK makes every URL a batch of one; ours is the vendor's call for one, with the same fields."""
    document = f"https://documents.example/{name}"
    client.submit(document, ocr=False, table=False, language="en", pages="2-4", extra_formats=["latex"])
    (batch,) = taken(recorder)
    options = MinerUOptions(is_ocr=False, enable_table=False, language="en", extra_formats=("latex",))
    lived(MinerUHandler(f"{url}/v4"), OcrRequest(url=document, pages="2-4", options=options))
    submit, _ = taken(recorder)
    (entry,) = batch["body"].pop("files")
    assert submit == {**batch, "path": "/v4/extract/task", "body": {**batch["body"], **entry}}
    assert batch["path"] == "/v4/extract/task/batch"


def test_a_task_is_asked_about_like_the_sdk_does(recorder: Recorder, url: str, client: Any) -> None:
    """Path and key."""
    client.get_task("T1")
    theirs = taken(recorder)
    _, result = lived(MinerUHandler(f"{url}/v4"), OcrRequest(url=URL))
    assert result.status is TaskStatus.RUNNING
    assert taken(recorder)[1:] == theirs


def test_a_batch_is_asked_about_like_the_sdk_does(
    recorder: Recorder, url: str, client: Any, files: list[str]
) -> None:
    """Path and key; the submit of an uploaded file is no call."""
    client.get_batch("B1")
    theirs = taken(recorder)
    handler = MinerUHandler(f"{url}/v4")
    request = handler.upload(files[0], ACCOUNT, options={"data_id": "k"})
    recorder.take()
    _, result = lived(handler, request)
    assert (result.status, result.provider_status) == (TaskStatus.RUNNING, "running")
    assert taken(recorder) == theirs


def test_the_agent_api_is_used_like_the_sdk_does(
    recorder: Recorder, url: str, client: Any, files: list[str]
) -> None:
    """A URL and a file, each from its first call to its last, and no key in any of them."""
    said = {"is_ocr": True, "enable_formula": False, "enable_table": True}
    client.flash_extract(URL, language="en", page_range="1-2", **said)
    client.flash_extract(files[0], language="en", page_range="1-2", **said)
    theirs = taken(recorder)
    handler = MinerUAgentHandler(f"{url}/agent")
    options = MinerUAgentOptions(language="en", **said)
    _, result = lived(handler, OcrRequest(url=URL, pages="1-2", options=options))
    assert result.status is TaskStatus.SUCCEEDED
    lived(handler, handler.upload(files[0], pages="1-2", options=options))
    assert taken(recorder) == theirs
    assert [call["method"] for call in theirs] == ["POST", "GET", "POST", "PUT", "GET"]
    assert {call["authorization"] for call in theirs} == {None}
