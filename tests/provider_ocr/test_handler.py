"""``OcrHandler``: documents, pages, and the results of vendors; the rest is tested with ``VendorHandler``."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from coatcheck import QueryParams, TaskStatus, codec
from coatcheck.errors import (
    ValidationError,
)
from coatcheck.http import Call, Follow, Reply, path
from coatcheck.http.read import id_of, members
from coatcheck.http.vendor import SUCCEEDED
from coatcheck.model import QueryContext, SubmitContext
from coatcheck.testing.contexts import query_context, submit_context
from coatcheck.testing.transport import ScriptedTransport, reply
from coatcheck_ocr.handler import OcrHandler, OcrJob, suffixed_name
from coatcheck_ocr.model import OcrRequest, OcrResource, OcrResponse
from coatcheck_ocr.results import OcrOutput, links

REQUEST = OcrRequest(url="https://documents.example/a.pdf")


class Plain(OcrHandler):
    """A vendor as simple as can be."""

    key = "ocr:plain-vendor"
    base_url = "https://api.vendor.example/v1"
    result_life = timedelta(hours=1)
    states: ClassVar[Mapping[str, TaskStatus]] = {"1": SUCCEEDED}

    def submit_call(self, params: OcrRequest, context: SubmitContext) -> Call:
        """Describe the submit."""
        return Call("POST", "/jobs", json=self.fields(params, url=params.url, model=self.model(params)))

    def read_submitted(self, reply: Reply, request: OcrRequest) -> OcrJob:
        """Read the reply to the submit."""
        return self._job(reply)

    def query_call(self, params: QueryParams, context: QueryContext) -> Call:
        """Describe the query."""
        return Call("GET", path("jobs", params.external_task_id))

    def read_job(self, reply: Reply, params: QueryParams) -> OcrJob | Follow:
        """Read the reply to the query."""
        return self._job(reply)

    def _job(self, reply: Reply) -> OcrJob:
        body = members(reply)
        link = body.get("link")
        output = OcrOutput(
            markdown=body.get("markdown"),
            resources=(OcrResource(type="markdown", url=link),) if link else (),
        )
        word = body.get("word")
        return OcrJob(status=self.status_of(word), id=id_of(body, "id"), word=str(word), output=output)


def submit(handler: OcrHandler, answer: Reply, request: OcrRequest = REQUEST) -> Any:
    """Submit against one reply."""
    return handler.submit(request, submit_context(ScriptedTransport([answer])))


def query(handler: OcrHandler, params: QueryParams, *answers: Reply) -> tuple[Any, list[Call]]:
    """Query against replies."""
    transport = ScriptedTransport(answers)
    return handler.query(params, query_context(transport)), transport.calls


@pytest.mark.parametrize("url", ["ftp://h.example/a", "s3://b/a", "data:,x"])
def test_a_url_that_the_vendor_cannot_read_is_refused(url: str) -> None:
    """Before it is stored, with the schemes that are read."""
    with pytest.raises(ValidationError, match="reads http and https URLs"):
        Plain().validate(OcrRequest(url=url))


def test_pages_are_refused_where_the_vendor_cannot_choose_any() -> None:
    """Reading the whole document instead would be paid for."""
    with pytest.raises(ValidationError, match="cannot choose pages"):
        Plain().validate(OcrRequest(url=REQUEST.url, pages="1"))


def test_one_range_of_pages_is_read_and_several_are_refused() -> None:
    """A vendor that reads one range must not leave out the others."""
    handler = Plain()
    for pages, found in ((None, None), ("3", (3, 3)), ("2-5", (2, 5))):
        assert handler.page_range(OcrRequest(url=REQUEST.url, pages=pages)) == found
    with pytest.raises(ValidationError, match='like "2-5"'):
        handler.page_range(OcrRequest(url=REQUEST.url, pages="1,3"))


@pytest.mark.parametrize(
    ("url", "file_name", "name"),
    [
        ("https://d.example/a.pdf?x=.png", None, "a.pdf"),
        ("https://d.example/a.pdf", "march", "march.pdf"),
        ("https://d.example/a.pdf", "march.tiff", "march.tiff"),
        ("https://d.example/get", None, "get"),
        ("https://d.example/", None, "document"),
    ],
)
def test_a_document_goes_out_with_a_suffix_where_there_is_one(
    url: str, file_name: str | None, name: str
) -> None:
    """Servers tell the kind of a document by it."""
    assert suffixed_name(OcrRequest(url=url, file_name=file_name)) == name


def test_a_result_that_is_there_at_once_ends_the_submit_and_one_behind_a_link_does_not() -> None:
    """A submit makes one call: the download is the first query's."""
    done = submit(Plain(), reply({"id": "j", "word": 1, "markdown": "# A"}))
    assert (done.status, str(done.result), done.expires_after) == (SUCCEEDED, "# A", timedelta(hours=1))
    linked = submit(Plain(), reply({"id": "j", "word": 1, "link": "https://files.example/a.md"}))
    assert linked.status is TaskStatus.RUNNING
    assert linked.query_params.external_task_id == "j"


def test_a_result_behind_a_link_is_fetched_in_the_same_step_with_its_life_noted() -> None:
    """The response is whole and can be stored; its links die when the vendor says."""
    answer = reply({"word": 1, "link": "https://files.example/d/a.md"})
    result, calls = query(Plain(), QueryParams("j"), answer, reply("![](b.png)"))
    assert isinstance(result.result, OcrResponse)
    assert result.result.markdown == "![](https://files.example/d/b.png)"
    assert result.expires_after == timedelta(hours=1)
    assert "Authorization" in calls[0].headers
    assert "Authorization" not in calls[1].headers
    assert codec.encode_value(result.result, field="result", cap=10_000)


def test_only_addresses_of_the_web_are_links() -> None:
    """A vendor may leave the place blank, or put something else there."""
    found = links(
        [("markdown", "https://f.example/a"), ("json", None), ("zip", ""), ("pdf", "ftp://f.example")]
    )
    assert found == (OcrResource(type="markdown", url="https://f.example/a"),)
