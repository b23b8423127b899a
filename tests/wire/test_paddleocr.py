"""``ocr:paddleocr`` sends what the client in the package paddleocr sends."""

import dataclasses
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
from tests.wire.recorder import KEY, Recorder, lived, recording, shown

from coatcheck import TaskStatus, codec
from coatcheck.sandbox import Answer, Request
from coatcheck_ocr.model import OcrRequest
from coatcheck_ocr.paddleocr import _TAKEN, PaddleHandler, PaddleOptions

pytestmark = pytest.mark.wire

#: Options of the SDK that are mappings: ours go into ``extra``.
MAPPINGS = ("vlm_extra_args",)
HEADERS = ("authorization", "client-platform")
DOCUMENT = b"%PDF-1.4 invented"
RESULT = codec.dumps({"result": {"layoutParsingResults": [{"markdown": {"text": "# A", "images": {}}}]}})
LINES = codec.dumps({"result": {"ocrResults": [{"prunedResult": {"rec_texts": ["A"]}}]}})


@pytest.fixture(scope="module")
def sdk() -> Any:
    """Return the vendor's client, without the engine that its package imports first."""
    spec = PathFinder.find_spec("paddleocr")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("run nox -s wire")
    # A package with the same modules and nothing run: its own __init__ wants the whole engine.
    package = ModuleType("paddleocr")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["paddleocr"] = package
    return import_module("paddleocr._api_client.client")


def answer(request: Request) -> Answer | None:
    """Answer like the vendor: an id, then a finished job."""
    if not request.path.startswith("/api/v2/"):
        return None
    if request.method == "POST":
        return Answer.json({"code": 0, "msg": "ok", "data": {"jobId": "J1"}})
    links = {"jsonUrl": f"http://{request.header('host')}/result.jsonl"}
    return Answer.json({"code": 0, "msg": "ok", "data": {"state": "done", "resultUrl": links}})


def sent(recorder: Recorder) -> list[dict[str, Any]]:
    """Return what was recorded of one document's life."""
    return [shown(request, *HEADERS) for request in recorder.take()]


def test_a_url_is_submitted_and_asked_about_like_the_sdk_does(sdk: Any) -> None:
    """Method, path, query, key and body of every call, with few options and with many."""
    recorder = Recorder(answer, {"/result.jsonl": RESULT})
    url = "https://documents.example/a.pdf"
    with recording(recorder) as home, sdk.PaddleOCRClient(KEY, home, client_platform="tests") as client:
        client.parse_document(file_url=url)
        theirs = sent(recorder)
        request = OcrRequest(url=url, options=PaddleOptions(client_platform="tests"))
        _, result = lived(PaddleHandler(home), request)
        assert result.status is TaskStatus.SUCCEEDED
        ours = sent(recorder)
        assert ours == theirs
        assert [call["method"] for call in ours] == ["POST", "GET"]

        said: dict[str, Any] = {
            "merge_tables": True,
            "top_p": 0.5,
            "max_new_tokens": 9,
            "prompt_label": "ocr",
        }
        options = sdk.resolve_document_options(sdk.Model.PADDLE_OCR_VL_15, None)
        for name, value in {**said, "markdown_ignore_labels": ["footer"]}.items():
            assert hasattr(options, name), name
            setattr(options, name, value)
        client.parse_document(
            "PaddleOCR-VL-1.5", file_url=url, options=options, page_ranges="2-3", batch_id="batch-1"
        )
        theirs = sent(recorder)
        request = OcrRequest(
            url=url,
            model="PaddleOCR-VL-1.5",
            pages="2-3",
            options=PaddleOptions(
                **said, markdown_ignore_labels=("footer",), batch_id="batch-1", client_platform="tests"
            ),
        )
        lived(PaddleHandler(home), request)
        assert sent(recorder) == theirs


def test_a_file_is_submitted_like_the_sdk_does(sdk: Any, tmp_path: Path) -> None:
    """The parts of the body, with the options as JSON text and the name of the file."""
    file = tmp_path / "a.pdf"
    file.write_bytes(DOCUMENT)
    recorder = Recorder(answer, {"/result.jsonl": LINES, "/documents/a.pdf": DOCUMENT})
    with recording(recorder) as home, sdk.PaddleOCRClient(KEY, home) as client:
        options = sdk.OCROptions(use_textline_orientation=True, text_det_thresh=0.3, visualize=False)
        client.ocr(file_path=str(file), options=options, model="PP-OCRv6", page_ranges="2", batch_id="b")
        theirs = sent(recorder)
        said = PaddleOptions(
            use_textline_orientation=True, text_det_thresh=0.3, visualize=False, batch_id="b", upload=True
        )
        request = OcrRequest(url=f"{home}/documents/a.pdf", model="PP-OCRv6", pages="2", options=said)
        _, result = lived(PaddleHandler(home), request)
        assert result.status is TaskStatus.SUCCEEDED
        assert sent(recorder) == theirs
        assert theirs[0]["body"]["file"] == (DOCUMENT, "a.pdf")


@pytest.mark.parametrize("name", ["OCROptions", "PPStructureV3Options", "PaddleOCRVLOptions"])
def test_every_option_of_the_sdk_is_here_under_the_same_names(sdk: Any, name: str) -> None:
    """Our option is spelled as theirs in Python and on the wire, and its model takes it."""
    models = {"OCROptions": "PP-OCRv6", "PPStructureV3Options": "PP-StructureV3"}
    model = models.get(name, "PaddleOCR-VL-1.6")
    kinds: Any = import_module("paddleocr._api_client.models")
    naming: Any = import_module("paddleocr._api_client._naming")
    theirs = {field.name for field in dataclasses.fields(getattr(kinds, name))} - {"extra_options", *MAPPINGS}
    known = {
        field.name: field.metadata["wire"] or field.name
        for field in attrs.fields(PaddleOptions)
        if field.metadata
    }
    assert theirs <= set(known)
    assert {known[option] for option in theirs} == {naming.snake_to_camel(option) for option in theirs}
    taken = next(names for start, names in _TAKEN.items() if model.startswith(start))
    assert set(taken) == theirs
