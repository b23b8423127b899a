"""``ocr:mineru``: the contract from recorded replies, uploads, the shapes of batches, and its life, live."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.provider_ocr.vendor_matrix import VendorMatrix

from coatcheck import QueryParams, TaskStatus
from coatcheck.errors import (
    JobNotFoundError,
    NotSentError,
    RejectedError,
    ThrottledError,
    UnknownNameError,
    ValidationError,
    VendorError,
)
from coatcheck.http import Call, Reply
from coatcheck.model import Account, QueryResult
from coatcheck.testing.contexts import ACCOUNT, query_context, submit_context
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck.testing.vendor_matrix import PATIENCE, SECRET, Live
from coatcheck_ocr.mineru import MinerUHandler, MinerUOptions
from coatcheck_ocr.model import OcrRequest, OcrResponse
from coatcheck_ocr.sandbox.documents import archive
from coatcheck_ocr.sandbox.mineru import MinerUSandbox

BASE = "https://mineru.net/api/v4"
PLACE = "https://storage.example/put/1?signature=secret-signature"
REQUEST = OcrRequest(url="https://documents.example/reports/a.pdf", options={"enable_table": False})
BATCH = QueryParams("B1", base_url=BASE, kind="batch", data_id="k1", file_name="a.pdf")


def envelope(data: Any) -> Reply:
    """Return a reply in the vendor's envelope."""
    return reply({"code": 0, "msg": "ok", "trace_id": "t1", "data": data})


ACCEPTED = envelope({"task_id": "T1"})
PLACES = envelope({"batch_id": "B1", "file_urls": [PLACE]})


def zipped() -> Reply:
    """Return a result as the vendor packs it."""

    @attrs.frozen
    class Named:
        name: str

    return Reply(200, archive(Named("a.pdf"), {"layout.json": b"{}"}))  # type: ignore[arg-type]  # only its name counts


class TestContract(HandlerContract):
    """The rules that every handler keeps."""

    @pytest.fixture
    def handler(self) -> MinerUHandler:
        """Return the handler."""
        return MinerUHandler()

    @pytest.fixture
    def params(self) -> OcrRequest:
        """Return a request."""
        return REQUEST

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return replies with invented values."""
        pages = {"extracted_pages": 2, "total_pages": 9, "start_time": "2026-01-02 03:04:05"}
        done = {"task_id": "T1", "state": "done", "err_msg": "", "full_zip_url": "https://f.example/a.zip"}
        failed = {"task_id": "T1", "state": "failed", "err_code": -60003, "err_msg": "the file is damaged"}
        return {
            "accepted": ACCEPTED,
            "running": envelope({"task_id": "T1", "state": "running", "extract_progress": pages}),
            "unknown_word": envelope({"task_id": "T1", "state": "polishing"}),
            "succeeded": [envelope(done), zipped()],
            "failed": envelope(failed),
        }

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return what the first version stored."""
        return [QueryParams("T1"), QueryParams("T1", base_url=BASE, kind="task")]


class TestLive(VendorMatrix):
    """The whole life against the sandbox."""

    handler_type = MinerUHandler
    sandbox_type = MinerUSandbox
    path = "/api/v4"

    def account(self) -> Account:
        """Return the account whose key the house has."""
        return Account("mineru", lambda _: SECRET)

    def uploaded(self, live: Live, folder: Path, *names: str) -> list[OcrRequest]:
        """Upload files, each of which has its own name as content."""
        paths = [folder / name for name in names]
        for path in paths:
            path.write_text(path.name)
        assert isinstance(live.handler, MinerUHandler)
        return live.handler.upload_all(paths, self.account())

    def test_live_a_local_file_is_uploaded_and_read(self, live: Live, tmp_path: Path) -> None:
        """The file goes up from here; the task holds ids only, and no further call creates anything."""
        (request,) = self.uploaded(live, tmp_path, "a~queued=2.pdf")
        assert str(tmp_path) not in repr(request)
        response = live.house.result(live.house.submit(request).id, PATIENCE)
        assert response.markdown.startswith("# a~queued=2.pdf")
        assert live.sandbox.counts["submit"] == 1

    def test_live_files_of_one_batch_are_told_apart(self, live: Live, tmp_path: Path) -> None:
        """Each file of a batch is a task of its own and gets its own text, whatever the order of the list."""
        requests = self.uploaded(live, tmp_path, "a.pdf", "b.pdf", "c.docx")
        tasks = [live.house.submit(request) for request in requests]
        found = [live.house.result(task.id, PATIENCE).markdown.split("\n")[0] for task in tasks]
        assert found == ["# a.pdf", "# b.pdf", "# c.docx"]
        assert len(live.sandbox.jobs) == 1

    def test_live_a_place_that_wants_a_type_gets_one(self, live: Live, tmp_path: Path) -> None:
        """Trap 13, the other way round: after a refusal the file is sent once more with its type."""
        assert isinstance(live.sandbox, MinerUSandbox)
        live.sandbox.wants_type = True
        self.uploaded(live, tmp_path, "a.pdf")
        puts = [seen for seen in live.sandbox.requests if seen.method == "PUT"]
        assert [seen.header("content-type") for seen in puts] == [None, "application/pdf"]

    def test_live_a_file_that_was_not_taken_is_no_batch_to_wait_for(self, live: Live, tmp_path: Path) -> None:
        """Whoever uploads is told at once and may do it again; the storage's words are shown nowhere."""
        live.sandbox.fault("result", "503")
        with pytest.raises(NotSentError, match="HTTP 503"):
            self.uploaded(live, tmp_path, "a.pdf")
        live.sandbox.fault("result", "403", "403")
        with pytest.raises(RejectedError, match="HTTP 403") as caught:
            self.uploaded(live, tmp_path, "a.pdf")
        assert "storage-key" not in str(caught.value)

    @pytest.mark.parametrize("fault", ["500", "truncate"])
    def test_live_a_download_that_fails_is_made_again(self, live: Live, fault: str) -> None:
        """The vendor is asked again, and gives a link again."""
        assert "sandbox read this" in live.response(f"a~on_result={fault}+{fault}.pdf").markdown

    def test_live_a_result_that_is_gone_is_a_lost_job(self, live: Live) -> None:
        """A link that leads nowhere time after time is not waited for until the deadline."""
        task = live.run("a~on_result=404+404+404.pdf")
        assert task.error is not None
        assert (task.status, task.error.code) == (TaskStatus.FAILED, "job_lost")


def submitted(answer: Reply, request: OcrRequest = REQUEST) -> tuple[Any, list[Call]]:
    """Submit over scripted replies."""
    transport = ScriptedTransport([answer])
    return MinerUHandler().submit(request, submit_context(transport)), transport.calls


def queried(params: QueryParams, *answers: Reply) -> tuple[QueryResult, list[Call]]:
    """Query over scripted replies."""
    transport = ScriptedTransport(answers)
    return MinerUHandler().query(params, query_context(transport)), transport.calls


def upload(
    folder: Path, answers: Sequence[Reply | Exception], *names: str, **said: Any
) -> tuple[list[OcrRequest], list[Call]]:
    """Upload files over scripted replies."""
    paths = [folder / name for name in names or ("a.pdf",)]
    for path in paths:
        path.write_bytes(b"content of " + path.name.encode())
    transport = ScriptedTransport(answers)
    return MinerUHandler().upload_all(paths, ACCOUNT, transport=transport, **said), transport.calls


# Submits.


def test_the_submit_of_a_url_is_what_the_vendor_wants() -> None:
    """Method, path, key, and every field under the names of version 4."""
    request = attrs.evolve(
        REQUEST,
        pages="1-5,7",
        model="pipeline",
        options=MinerUOptions(
            enable_table=False,
            is_ocr=True,
            extra_formats=("docx",),
            data_id="k-1",
            extra={"callback": "https://c.example/", "url": "not this"},
        ),
    )
    _, (call,) = submitted(ACCEPTED, request)
    assert (call.method, call.url) == ("POST", f"{BASE}/extract/task")
    assert call.headers == {"Authorization": "Bearer secret-of-tests"}
    assert call.json == {
        "url": request.url,
        "model_version": "pipeline",
        "page_ranges": "1-5,7",
        "enable_table": False,
        "is_ocr": True,
        "extra_formats": ("docx",),
        "data_id": "k-1",
        "callback": "https://c.example/",
    }


@pytest.mark.parametrize(
    ("url", "name", "model"),
    [
        ("https://h.example/a.pdf", None, "vlm"),
        ("https://h.example/a.HTML?x=1", None, "MinerU-HTML"),
        ("https://h.example/page", "page.htm", "MinerU-HTML"),
        ("https://h.example/", None, "vlm"),
    ],
)
def test_html_gets_the_model_that_reads_it(url: str, name: str | None, model: str) -> None:
    """The vendor refuses HTML for any other model, and recommends vlm for the rest."""
    _, (call,) = submitted(ACCEPTED, OcrRequest(url=url, file_name=name))
    assert call.json == {"url": url, "model_version": model}


def test_the_kind_of_the_job_is_kept() -> None:
    """Trap 15: task and batch ids look alike, and only what is stored says which path to ask."""
    result, _ = submitted(ACCEPTED)
    assert dict(result.query_params.provider_params) == {"base_url": BASE, "kind": "task"}
    _, (call,) = queried(result.query_params, envelope({"task_id": "T1", "state": "pending"}))
    assert (call.method, call.url) == ("GET", f"{BASE}/extract/task/T1")
    _, (call,) = queried(BATCH, envelope({"batch_id": "B1", "extract_result": []}))
    assert (call.method, call.url) == ("GET", f"{BASE}/extract-results/batch/B1")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (-60009, ThrottledError),
        ("-60009", ThrottledError),
        ("A0202", RejectedError),
        ("A0211", RejectedError),
        (-10002, RejectedError),
        (-500, RejectedError),
        (-60005, RejectedError),
        (-60018, RejectedError),
        (-60007, NotSentError),
        (-10001, VendorError),
        (-99999, RejectedError),
    ],
)
def test_a_code_under_200_is_read_on_submit(code: int | str, error: type[Exception]) -> None:
    """Trap 1: HTTP 200 with an error code, as a number or as text."""
    with pytest.raises(error) as caught:
        submitted(reply({"code": code, "msg": "m", "trace_id": "t1"}))
    assert type(caught.value) is error


def test_a_quota_of_the_day_may_be_tried_tomorrow() -> None:
    """What a new job may cure is marked so; a file that is too large stays too large."""
    for code, is_retryable in ((-60018, True), (-60005, False)):
        with pytest.raises(RejectedError) as caught:
            submitted(reply({"code": code, "msg": "m"}))
        assert caught.value.retryable is is_retryable


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (-60009, ThrottledError),
        (-60012, JobNotFoundError),
        (-60013, JobNotFoundError),
        (-10001, VendorError),
        (-500, VendorError),
        ("A0202", VendorError),
    ],
)
def test_a_code_under_200_is_read_on_query(code: int | str, error: type[Exception]) -> None:
    """Trap 1 on query: none of these says that the job failed."""
    with pytest.raises(error) as caught:
        queried(QueryParams("T1"), reply({"code": code, "msg": "m"}))
    assert type(caught.value) is error


def test_a_gateways_refusal_without_a_code_is_no_success() -> None:
    """Trap 1: a missing code is never read as 0, however much the rest looks like a task."""
    refused = reply({"success": False, "msgCode": "A0202", "msg": "token error", "traceId": "t1"})
    with pytest.raises(RejectedError) as caught:
        submitted(refused)
    assert caught.value.code == "account_refused"
    bare = reply({"msg": "ok", "data": {"task_id": "T1", "state": "done"}})
    with pytest.raises(VendorError, match="code"):
        submitted(bare)
    with pytest.raises(VendorError, match="code"):
        queried(QueryParams("T1"), bare)


# Queries.


def test_progress_is_counted_in_pages() -> None:
    """Pages done of all pages, in percent; without a total there is none."""
    for pages, progress in (({"extracted_pages": 1, "total_pages": 4}, 25.0), ({"total_pages": 0}, None)):
        task = {"task_id": "T1", "state": "running", "extract_progress": pages}
        result, _ = queried(QueryParams("T1"), envelope(task))
        assert (result.status, result.progress) == (TaskStatus.RUNNING, progress)


@pytest.mark.parametrize("word", ["waiting-file", "pending"])
def test_a_job_that_waits_is_submitted(word: str) -> None:
    """A job whose file was not seen yet, or that stands in the queue, does not run."""
    result, _ = queried(QueryParams("T1"), envelope({"task_id": "T1", "state": word}))
    assert result.status is TaskStatus.SUBMITTED


def test_uploading_is_the_vendors_work() -> None:
    """The word means that the service fetches the document: it runs."""
    result, _ = queried(QueryParams("T1"), envelope({"task_id": "T1", "state": "uploading"}))
    assert result.status is TaskStatus.RUNNING


@pytest.mark.parametrize(("code", "is_retryable"), [(-60003, False), (-60010, True), (None, False)])
def test_a_failure_has_the_vendors_code(code: int | None, is_retryable: bool) -> None:  # noqa: FBT001  # a parameter
    """The code says whether a new job may go well."""
    task = {"task_id": "T1", "state": "FAILED", "err_code": code, "err_msg": "no"}
    result, _ = queried(QueryParams("T1"), envelope(task))
    assert result.error is not None
    assert (result.error.code, result.error.message, result.error.retryable) == (
        "failed" if code is None else str(code),
        "no",
        is_retryable,
    )


def test_an_empty_list_just_after_the_submit_is_a_job_that_waits() -> None:
    """Trap 9: the batch is known, its files are not listed yet."""
    for listed in ([], None, [{"file_name": "b.pdf", "state": "done", "data_id": "k2"}]):
        result, _ = queried(BATCH, envelope({"batch_id": "B1", "extract_result": listed}))
        assert result.status is TaskStatus.SUBMITTED


@pytest.mark.parametrize(
    "listed",
    [
        [{"file_name": "a.pdf", "data_id": "k2", "state": "failed"}, {"data_id": "k1", "state": "running"}],
        [{"file_name": "b.pdf", "state": "failed"}, {"file_name": "a.pdf", "state": "running"}],
        {"file_name": "a.pdf", "state": "running", "data_id": "k1"},
    ],
    ids=["data_id", "name", "one-object"],
)
def test_a_file_is_found_in_its_batch(listed: Any) -> None:
    """The order means nothing: the data_id counts, else the name; a list of one may be no list."""
    result, _ = queried(BATCH, envelope({"batch_id": "B1", "extract_result": listed}))
    assert (result.status, result.provider_status) == (TaskStatus.RUNNING, "running")


def test_a_name_that_two_files_have_finds_neither() -> None:
    """Another document's text would be worse than none."""
    twice = [{"file_name": "a.pdf", "state": "done"}, {"file_name": "a.pdf", "state": "failed"}]
    result, _ = queried(BATCH, envelope({"batch_id": "B1", "extract_result": twice}))
    assert result.status is TaskStatus.SUBMITTED


def test_the_text_is_in_the_archive_or_beside_it() -> None:
    """A link to an archive is the rule; markdown, inline or linked, is taken where it is given."""
    done = {"task_id": "T1", "state": "done", "full_zip_url": "https://f.example/a.zip"}
    result, (_, fetch) = queried(QueryParams("T1"), envelope(done), zipped())
    assert isinstance(result.result, OcrResponse)
    assert result.result.markdown.startswith("# a.pdf")
    assert (fetch.method, fetch.url, dict(fetch.headers)) == ("GET", "https://f.example/a.zip", {})
    result, _ = queried(
        QueryParams("T1"), envelope({**done, "markdown_url": "https://f.example/a.md"}), reply("# B")
    )
    assert isinstance(result.result, OcrResponse)
    assert result.result.markdown == "# B"
    result, _ = queried(QueryParams("T1"), envelope({**done, "markdown": "# C"}))
    assert isinstance(result.result, OcrResponse)
    assert result.result.markdown == "# C"


# Uploads.


def test_an_upload_is_what_the_vendor_wants(tmp_path: Path) -> None:
    """The ask has the key and puts each field at its level; the place gets the bytes and nothing else."""
    options = MinerUOptions(is_ocr=True, language="en", data_id="k1")
    (request,), (ask, put) = upload(
        tmp_path, [PLACES, Reply(200)], pages="2-3", model="pipeline", options=options
    )
    assert (ask.method, ask.url) == ("POST", f"{BASE}/file-urls/batch")
    assert ask.headers == {"Authorization": "Bearer secret-of-tests"}
    assert ask.json == {
        "files": [{"name": "a.pdf", "is_ocr": True, "page_ranges": "2-3", "data_id": "k1"}],
        "model_version": "pipeline",
        "language": "en",
    }
    assert (put.method, put.url, dict(put.headers), put.body) == ("PUT", PLACE, {}, b"content of a.pdf")
    assert request == OcrRequest(url="mineru:batch/B1/k1", file_name="a.pdf")


def test_a_place_is_filled_without_a_type_first(tmp_path: Path) -> None:
    """Trap 13: a place that was signed without a type refuses one."""
    _, (_, first, second) = upload(tmp_path, [PLACES, Reply(403), Reply(200)])
    assert dict(first.headers) == {}
    assert dict(second.headers) == {"Content-Type": "application/pdf"}
    assert first.body == second.body == b"content of a.pdf"


def test_what_a_storage_service_answers_is_not_shown(tmp_path: Path) -> None:
    """It may hold temporary keys, and so may the address of the place."""
    refusals = [PLACES, Reply(403, b"key-of-storage"), Reply(400, b"key-of-storage")]
    with pytest.raises(RejectedError) as caught:
        upload(tmp_path, refusals)
    assert "storage.example" in str(caught.value)
    assert "key-of-storage" not in str(caught.value)
    assert "secret-signature" not in str(caught.value)


def test_an_uploaded_file_is_submitted_without_a_call(tmp_path: Path) -> None:
    """The vendor reads it already: a submit only takes the ids over, and never reads twice."""
    (request,), _ = upload(tmp_path, [PLACES, Reply(200)], options={"data_id": "k1"})
    handler = MinerUHandler()
    handler.validate(request)
    transport = ScriptedTransport([])
    result = handler.submit(request, submit_context(transport))
    assert result.query_params == BATCH
    assert transport.calls == []


def test_every_file_of_a_batch_has_a_name_of_its_own(tmp_path: Path) -> None:
    """Files are told apart by data_id, whatever they are called."""
    places = envelope({"batch_id": "B1", "file_urls": [PLACE, PLACE]})
    requests, (ask, *_) = upload(tmp_path, [places, Reply(200), Reply(200)], "a.pdf", "b.pdf")
    ids = [entry["data_id"] for entry in ask.json["files"]]
    assert len(set(ids)) == 2
    assert [request.url for request in requests] == [f"mineru:batch/B1/{one}" for one in ids]


def test_a_batch_is_for_one_model(tmp_path: Path) -> None:
    """HTML needs a model of its own, which reads nothing else; whoever names a model knows better."""
    with pytest.raises(ValidationError, match="MinerU-HTML and vlm"):
        upload(tmp_path, [], "a.pdf", "b.html")
    places = envelope({"batch_id": "B1", "file_urls": [PLACE, PLACE]})
    requests, _ = upload(tmp_path, [places, Reply(200), Reply(200)], "a.pdf", "b.html", model="pipeline")
    assert len(requests) == 2


@pytest.mark.parametrize("data", [{}, {"batch_id": "B1", "file_urls": []}, {"file_urls": [PLACE]}])
def test_an_answer_without_places_is_no_upload(tmp_path: Path, data: dict[str, Any]) -> None:
    """Nothing was sent, so the upload may be tried again."""
    with pytest.raises(NotSentError, match="file_urls"):
        upload(tmp_path, [envelope(data)])


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [("missing.pdf", None, "can be read"), ("empty.pdf", b"", "empty"), ("report", b"x", "suffix")],
)
def test_a_file_that_cannot_be_uploaded_is_refused_before_any_call(
    tmp_path: Path, name: str, content: bytes | None, match: str
) -> None:
    """The vendor would find out after minutes what is plain here."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    transport = ScriptedTransport([])
    with pytest.raises(ValidationError, match=match):
        MinerUHandler().upload(path, ACCOUNT, transport=transport)
    assert transport.calls == []


def test_an_upload_without_a_key_says_which_variable_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key is looked up where the file is, by the vendor's customary names."""
    for name in ("MINERU_TOKEN", "MINERU_API_TOKEN", "MINERU_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "a.pdf"
    path.write_bytes(b"x")
    transport = ScriptedTransport([PLACES, Reply(200)])
    with pytest.raises(UnknownNameError, match="MINERU_TOKEN"):
        MinerUHandler().upload(path, transport=transport)
    monkeypatch.setenv("MINERU_TOKEN", "token-from-outside")
    MinerUHandler().upload(path, transport=transport)


# Requests.


@pytest.mark.parametrize(
    "url", ["mineru:batch/B1", "mineru:agent/T1", "mineru:batch/B1/k1/x", "mineru:x", "mineru:batch//k1"]
)
def test_a_url_that_upload_did_not_return_is_refused(url: str) -> None:
    """Only what an upload said can be asked for."""
    with pytest.raises(ValidationError, match="upload"):
        MinerUHandler().validate(OcrRequest(url=url))


@pytest.mark.parametrize("changes", [{"model": "vlm"}, {"pages": "1"}, {"options": {"is_ocr": True}}])
def test_what_comes_too_late_for_an_uploaded_file_is_refused(changes: dict[str, Any]) -> None:
    """An option that is silently not used would be found out from the result."""
    request = OcrRequest(url="mineru:batch/B1/k1", file_name="a.pdf", **changes)
    with pytest.raises(ValidationError, match=r"upload\(\)"):
        MinerUHandler().validate(request)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"table_enable": True}, UnknownNameError),
        ({"enable_tables": True}, UnknownNameError),
        ({"extra_formats": ["pdf"]}, ValidationError),
        ({"data_id": "not/this"}, ValidationError),
        ({"cache_tolerance": -1}, ValidationError),
    ],
)
def test_an_option_that_means_nothing_is_refused_before_it_is_stored(
    options: dict[str, Any], error: type[Exception]
) -> None:
    """``table_enable`` belongs to the old self-hosted server, and would be ignored here."""
    with pytest.raises(error, match=r"enable_table|must be"):
        MinerUHandler().validate(attrs.evolve(REQUEST, options=options))
