"""``ocr:azure-di`` sends what azure-ai-documentintelligence sends."""

from typing import Any
from urllib.parse import quote

import pytest
from tests.wire.recorder import KEY, Recorder, lived, recording, shown

from coatcheck import TaskStatus
from coatcheck.sandbox import Answer, Request
from coatcheck_ocr.azure_di import AzureHandler, AzureOptions
from coatcheck_ocr.model import OcrRequest

pytestmark = pytest.mark.wire

sdk: Any = pytest.importorskip("azure.ai.documentintelligence", reason="run nox -s wire")
core: Any = pytest.importorskip("azure.core.credentials", reason="run nox -s wire")

URL = "https://documents.example/a.pdf"
HEADERS = ("ocp-apim-subscription-key", "authorization")
RESULT = {
    "apiVersion": "2024-11-30",
    "modelId": "m",
    "contentFormat": "markdown",
    "content": "# A",
    "pages": [],
}


def answer(request: Request) -> Answer:
    """Answer like the vendor: an address in a header, then a running job, then a finished one."""
    if request.method == "POST":
        model = request.path.rpartition("/")[2].removesuffix(":analyze")
        home = request.path.partition("/documentintelligence/")[0]
        place = f"http://{request.header('host')}{home}/documentintelligence/documentModels/{quote(model)}"
        location = f"{place}/analyzeResults/R1?api-version=2024-11-30"
        return Answer(202, headers={"Operation-Location": location, "Retry-After": "0"})
    return Answer.json({"status": "succeeded", "analyzeResult": RESULT}, headers={"Retry-After": "0"})


def sent_by_sdk(recorder: Recorder, endpoint: str, model: str, **options: Any) -> list[dict[str, Any]]:
    """Return what the vendor's client sends for one document."""
    credential = core.AzureKeyCredential(KEY)
    with sdk.DocumentIntelligenceClient(endpoint, credential, polling_interval=0) as client:
        body = sdk.models.AnalyzeDocumentRequest(url_source=URL)
        found = client.begin_analyze_document(model, body, **options).result()
    assert found.content == "# A"
    return [shown(request, *HEADERS) for request in recorder.take()]


def sent_by_us(recorder: Recorder, endpoint: str, request: OcrRequest) -> list[dict[str, Any]]:
    """Return what our handler sends for one document."""
    _, result = lived(AzureHandler(endpoint), request)
    assert result.status is TaskStatus.SUCCEEDED
    return [shown(request, *HEADERS) for request in recorder.take()]


@pytest.mark.parametrize("home", ["", "/team/ocr"], ids=["resource", "gateway"])
def test_a_document_is_submitted_and_asked_about_like_the_sdk_does(home: str) -> None:
    """Method, path, query, key and body of every call, with few options and with all of them."""
    recorder = Recorder(answer)
    with recording(recorder) as url:
        endpoint = f"{url}{home}"
        theirs = sent_by_sdk(
            recorder,
            endpoint,
            "prebuilt-layout",
            string_index_type="unicodeCodePoint",
            output_content_format="markdown",
        )
        ours = sent_by_us(recorder, endpoint, OcrRequest(url=URL))
        assert ours == theirs
        assert [call["method"] for call in ours] == ["POST", "GET"]
        theirs = sent_by_sdk(
            recorder,
            endpoint,
            "my model",
            pages="1-3,5",
            locale="en-US",
            string_index_type="unicodeCodePoint",
            features=["formulas", "queryFields"],
            query_fields=["Total", "Due date"],
            output_content_format="text",
            output=["pdf", "figures"],
        )
        options = AzureOptions(
            locale="en-US",
            features=("formulas", "queryFields"),
            query_fields=("Total", "Due date"),
            output_content_format="text",
            output=("pdf", "figures"),
        )
        request = OcrRequest(url=URL, model="my model", pages="1-3,5", options=options)
        assert sent_by_us(recorder, endpoint, request) == theirs
