"""The real engine reads the sample documents that the package ships."""

from pathlib import Path

import attrs
import pytest
from PIL import Image

from coatcheck.errors import UnknownNameError, ValidationError
from coatcheck_ocr.local.document import DocumentError, open_document
from coatcheck_ocr.local.engine import Engine
from coatcheck_ocr.local.recognition import LocalOptions, recognise
from coatcheck_ocr.model import OcrRequest
from coatcheck_ocr.samples import Sample, load_samples

SAMPLES = {sample.path.name: sample for sample in load_samples()}


def request(path: Path) -> OcrRequest:
    """A request for a file."""
    return OcrRequest(url=path.as_uri())


@pytest.fixture
def invoice() -> Sample:
    """The sample that has a bit of everything."""
    return SAMPLES["invoice.png"]


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_every_sample_is_read_in_order(sample: Sample, engine: Engine) -> None:
    """The words of each sample are found in reading order, and progress is told before each page."""
    told: list[tuple[int, int]] = []

    response = recognise(
        sample.path, sample.request, engine, on_page=lambda done, pages: told.append((done, pages))
    )

    assert sample.missing_from(response.text) == []
    assert sample.missing_from(response.markdown) == []
    assert told == [(done, sample.pages) for done in range(sample.pages)]
    assert response.usage == {"page": sample.pages}
    assert [page.number for page in response.pages] == [done + 1 for done in range(sample.pages)]


def test_there_are_png_and_pdf_samples_of_at_least_six_pages() -> None:
    """The demo has enough to show."""
    assert {sample.path.suffix for sample in SAMPLES.values()} == {".png", ".pdf"}
    assert sum(sample.pages for sample in SAMPLES.values()) >= 6
    assert all(len(sample.words) >= 10 for sample in SAMPLES.values())


def test_a_word_out_of_order_is_missing(invoice: Sample) -> None:
    """The check of the samples is about reading order too."""
    assert invoice.missing_from(" ".join(invoice.words)) == []
    assert invoice.missing_from(" ".join(reversed(invoice.words))) != []


@pytest.mark.parametrize("turned", [90, 180, 270])
def test_a_page_is_turned_the_right_way_up(
    turned: int, invoice: Sample, engine: Engine, tmp_path: Path
) -> None:
    """Whichever side of a sheet came first through the scanner, the text is the same."""
    scan = tmp_path / "scan.png"
    with Image.open(invoice.path) as page:
        # Pillow turns anticlockwise.
        page.rotate(turned, expand=True).save(scan)

    response = recognise(scan, request(scan), engine)

    assert response.pages[0].turned == turned
    assert invoice.missing_from(response.text) == []


def test_tables_become_markdown_tables(engine: Engine) -> None:
    """Rows and columns of the table sample line up in the markdown."""
    sample = SAMPLES["table.png"]

    lines = recognise(sample.path, sample.request, engine).markdown.splitlines()

    assert "| Station | Spring | Summer | Autumn | Winter |" in lines
    assert "| Summit | 305 | 388 | 342 | 297 |" in lines


def test_only_the_chosen_pages_are_read(engine: Engine) -> None:
    """Pages that nobody asked for cost nothing."""
    sample = SAMPLES["report.pdf"]

    response = recognise(sample.path, attrs.evolve(sample.request, pages="2,9"), engine)

    assert [page.number for page in response.pages] == [2]
    assert response.usage == {"page": 1}
    assert response.metadata["page_count"] == 3


def test_pages_beyond_the_end_are_an_error(invoice: Sample, engine: Engine) -> None:
    """Somebody who asks for page 7 of 1 must not take an empty text for an answer."""
    with pytest.raises(DocumentError) as caught:
        recognise(invoice.path, attrs.evolve(invoice.request, pages="7"), engine)

    assert caught.value.code == "no_such_page"


def test_an_empty_page_is_an_empty_text(engine: Engine, tmp_path: Path) -> None:
    """Nothing to read is a result, not a failure."""
    path = tmp_path / "empty.png"
    Image.new("L", (400, 300), 255).save(path)

    response = recognise(path, request(path), engine)

    assert (response.text, response.pages[0].confidence) == ("", None)


def test_tiff_frames_are_pages(tmp_path: Path) -> None:
    """A TIFF of a scanner holds several pages; large ones are scaled down."""
    path = tmp_path / "scan.tiff"
    Image.new("L", (5000, 100), 255).save(path, save_all=True, append_images=[Image.new("1", (60, 40))])

    with open_document(path) as document:
        sizes = [document.page(number + 1).size for number in range(document.page_count)]

    assert sizes == [(2000, 40), (60, 40)]


def test_a_photo_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    """Cameras keep the orientation beside the pixels."""
    path = tmp_path / "photo.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("L", (60, 40), 255).save(path, exif=exif)

    with open_document(path) as document:
        assert document.page(1).size == (40, 60)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "unsupported_document"),
        (b"PK\x03\x04 a zip", "unsupported_document"),
        (b"%PDF-1.7 and then nothing", "broken_document"),
        (b"\x89PNG\r\n\x1a\n and then nothing", "broken_document"),
        (b"\xff\xd8\xff\xe0 not really a photo", "broken_document"),
    ],
)
def test_files_that_are_no_documents_are_refused(content: bytes, code: str, tmp_path: Path) -> None:
    """Documents are told by their bytes, and a broken one says so."""
    path = tmp_path / "file.png"
    path.write_bytes(content)

    with pytest.raises(DocumentError) as caught, open_document(path) as document:
        document.page(1)

    assert caught.value.code == code
    assert "file.png" in str(caught.value)


def test_a_cut_off_image_is_broken(invoice: Sample, tmp_path: Path) -> None:
    """Half a file is not half a result."""
    path = tmp_path / "half.png"
    path.write_bytes(invoice.path.read_bytes()[:8000])

    with pytest.raises(DocumentError) as caught, open_document(path) as document:
        document.page(1)

    assert caught.value.code == "broken_document"


def test_a_missing_file_is_not_readable(tmp_path: Path) -> None:
    """The file may have gone since the submit."""
    with pytest.raises(DocumentError) as caught, open_document(tmp_path / "gone.png"):
        pass

    assert caught.value.code == "not_readable"


def test_options_are_read_strictly() -> None:
    """A misspelt option is refused with the closest name; ranges are checked."""
    with pytest.raises(UnknownNameError, match="did you mean 'min_score'"):
        LocalOptions.of({"min_scores": 0.3})
    for name, value in (("dpi", 20), ("dpi", "200"), ("dpi", True), ("min_score", 1.5), ("min_score", None)):
        with pytest.raises(ValidationError, match=name):
            LocalOptions.of({name: value})
    assert LocalOptions.of({"dpi": 300}) == LocalOptions(dpi=300)
