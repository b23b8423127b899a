"""From a vendor's output to a response: which text counts, archives that are not trusted, images."""

import base64
import io
import time
import zipfile
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coatcheck import QueryResult, TaskStatus
from coatcheck.errors import JobNotFoundError, VendorError
from coatcheck.http import Call, Follow, Reply
from coatcheck_ocr import results
from coatcheck_ocr.model import OcrPage, OcrResource, OcrResponse
from coatcheck_ocr.results import Archive, ArchiveError, OcrOutput, entry_name, references, resolve, rewrite

PNG = b"\x89PNG\r\n\x1a\n..."
JPEG = b"\xff\xd8\xff.."
MARKDOWN = OcrResource(type="markdown", url="https://files.example/d/a.md?sig=1")
ARCHIVE = OcrResource(type="archive", url="https://files.example/d/a.zip")


def zipped(files: Mapping[str, bytes | str]) -> bytes:
    """Return a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class Web:
    """What can be downloaded, and what was."""

    def __init__(self, files: Mapping[str, bytes | Reply]) -> None:
        self.files = files
        self.calls: list[Call] = []

    def settle(self, answer: QueryResult | Follow) -> QueryResult:
        """Make the downloads that an answer waits for."""
        while isinstance(answer, Follow):
            self.calls.append(answer.call)
            found = self.files.get(answer.call.url, Reply(404))
            answer = answer.read(found if isinstance(found, Reply) else Reply(200, found))
        return answer


def read(
    output: OcrOutput, files: Mapping[str, bytes | Reply] | None = None, publish: Any = None
) -> OcrResponse:
    """Return the response that an output leads to."""
    result = Web(files or {}).settle(resolve(output, QueryResult.succeeded, publish)).result
    assert isinstance(result, OcrResponse)
    return result


class Shelf:
    """Publishes images under numbers."""

    def __init__(self) -> None:
        self.kept: list[tuple[bytes, str, str]] = []

    def __call__(self, content: bytes, mime: str, name: str) -> str:
        """Keep one."""
        self.kept.append((content, mime, name))
        return f"https://shelf.example/{len(self.kept)}"


# Which text counts.


def test_the_first_source_of_text_wins() -> None:
    """Inline markdown, a file, an archive, plain text: in this order, whatever else is there."""
    files: dict[str, bytes | Reply] = {MARKDOWN.url: b"file", ARCHIVE.url: zipped({"full.md": "archive"})}
    both = (ARCHIVE, MARKDOWN)
    assert read(OcrOutput(markdown="inline", text="plain", resources=both), files).markdown == "inline"
    assert read(OcrOutput(text="plain", resources=both), files).markdown == "file"
    assert read(OcrOutput(text="plain", resources=(ARCHIVE,)), files).markdown == "archive"
    assert read(OcrOutput(text="plain")).markdown == "plain"


def test_a_blank_page_is_a_text() -> None:
    """Nothing was recognised, which is not the same as nothing was given."""
    assert read(OcrOutput(markdown="")).markdown == ""


def test_everything_else_of_the_output_is_kept() -> None:
    """Pages, files, usage and facts are part of the response, wherever its text came from."""
    page = OcrPage(number=1, markdown="a")
    output = OcrOutput(
        resources=(MARKDOWN,),
        pages=(page,),
        usage={"page": 1},
        metadata={"model": "m", "gone": None},
        text="t",
    )
    response = read(output, {MARKDOWN.url: b"\xef\xbb\xbfa\xff"})
    assert response == OcrResponse(
        markdown="a\ufffd",
        text="t",
        pages=(page,),
        resources=(MARKDOWN,),
        usage={"page": 1},
        metadata={"model": "m"},
    )


def test_a_result_of_other_files_only_keeps_their_links() -> None:
    """Who asked for JSON has paid for it: a result without text is none the less a result."""
    file = OcrResource(type="json", url="https://files.example/a.json")
    assert read(OcrOutput(resources=(file,))).resources == (file,)
    without = read(OcrOutput(resources=(ARCHIVE,)), {ARCHIVE.url: zipped({"a.json": "{}"})})
    assert (without.markdown, without.metadata) == ("", {"archive_entries": ["a.json"]})


def test_success_with_nothing_in_it_is_a_failure() -> None:
    """No text, no file, no page: waiting for it would not help."""
    result = Web({}).settle(resolve(OcrOutput(), QueryResult.succeeded))
    assert result.error is not None
    assert (result.status, result.error.code) == (TaskStatus.FAILED, "no_result")


def test_downloads_are_plain_and_bounded() -> None:
    """No credentials go to a storage service, not even to one on the vendor's host; nothing is endless."""
    web = Web({ARCHIVE.url: zipped({"full.md": ""})})
    web.settle(resolve(OcrOutput(resources=(ARCHIVE,)), QueryResult.succeeded))
    (call,) = web.calls
    assert call.plain
    assert not call.headers
    assert call.body_cap == 100 * 1024 * 1024


@pytest.mark.parametrize("status", [403, 404, 410])
@pytest.mark.parametrize("resource", [MARKDOWN, ARCHIVE])
def test_a_file_that_is_gone_is_a_job_that_is_not_found(status: int, resource: OcrResource) -> None:
    """Counted like one: some more looks, then the job is lost; a refresh notes that the result is gone."""
    with pytest.raises(JobNotFoundError, match="result at files") as caught:
        read(OcrOutput(resources=(resource,)), {resource.url: Reply(status)})
    assert caught.value.code == "result_gone"
    assert "sig" not in str(caught.value)


def test_an_error_page_is_no_result() -> None:
    """A storage service that says 200 and shows a page is asked again."""
    page = Reply(200, b" <!DOCTYPE html><p>busy", {"Content-Type": "text/html"})
    for resource in (MARKDOWN, ARCHIVE):
        with pytest.raises(VendorError):
            read(OcrOutput(resources=(resource,)), {resource.url: page})
    fine = Reply(200, b"<table></table>", {"Content-Type": "text/html"})
    assert read(OcrOutput(resources=(MARKDOWN,)), {MARKDOWN.url: fine}).markdown == "<table></table>"


# Archives.


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["a.md", "deep/FULL.MD"], "deep/FULL.MD"),
        (["x/full.md", "full.md"], "full.md"),
        (["b/long.md", "c.md", "b.md"], "b.md"),
        (["notes.txt", "a.MD"], "a.MD"),
        (["a.txt"], None),
        ([r"out\full.md"], "out/full.md"),
        (["/full.md"], "full.md"),
        (["../full.md", "z.md"], "z.md"),
        (["x/../full.md"], "full.md"),
        (["full.md/"], None),
    ],
)
def test_the_text_of_an_archive_is_chosen_by_its_name(names: list[str], chosen: str | None) -> None:
    """``full.md`` in any case, else the shortest path, then the alphabet; nothing outside counts."""
    assert Archive(io.BytesIO(zipped(dict.fromkeys(names, b"")))).markdown == chosen


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b.md", "c\\d", "\\..\\"]), max_size=8).map("/".join))
def test_no_entry_name_leads_out_of_the_archive(name: str) -> None:
    """Whatever a name holds, what comes out has no step up, no root and no backslash, or is refused."""
    found = entry_name(name)
    if found is not None:
        assert all(part not in ("", ".", "..") for part in found.split("/"))
        assert "\\" not in found


def test_an_archive_that_would_burst_is_not_opened() -> None:
    """What it says of its size is added up before anything is unpacked."""
    bomb = zipped({f"{number}.md": bytes(50 * 1024 * 1024) for number in range(5)})
    assert len(bomb) < 1024 * 1024
    with pytest.raises(ArchiveError, match="unpacked"):
        Archive(io.BytesIO(bomb))
    result = Web({ARCHIVE.url: bomb}).settle(resolve(OcrOutput(resources=(ARCHIVE,)), QueryResult.succeeded))
    assert result.error is not None
    assert result.error.code == "archive_refused"


def test_an_archive_that_lies_about_its_size_is_damaged() -> None:
    """Not a byte more is unpacked than was counted."""
    whole = zipped({"full.md": b"x" * 100_000})
    size, lie = (100_000).to_bytes(4, "little"), (10).to_bytes(4, "little")
    assert whole.count(size) == 2
    with pytest.raises(VendorError):
        read(OcrOutput(resources=(ARCHIVE,)), {ARCHIVE.url: whole.replace(size, lie)})


def test_an_archive_of_too_many_entries_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted in the packed bytes, across the pieces that are read."""
    monkeypatch.setattr(results, "ENTRIES_CAP", 3)
    assert Archive(io.BytesIO(zipped(dict.fromkeys("abc", b"")))).names == ("a", "b", "c")
    with pytest.raises(ArchiveError, match="more than 3"):
        Archive(io.BytesIO(zipped(dict.fromkeys("abcd", b""))))


@pytest.mark.parametrize("cut", [0, 10, -10])
def test_a_part_of_an_archive_is_fetched_again(cut: int) -> None:
    """A download may have broken off; the next one may be whole."""
    part = zipped({"full.md": "text " * 1000})[:cut] if cut else b""
    with pytest.raises(VendorError) as caught:
        read(OcrOutput(resources=(ARCHIVE,)), {ARCHIVE.url: part})
    assert caught.value.retryable


def test_an_encrypted_archive_is_refused() -> None:
    """Nobody has its password."""
    data = bytearray(zipped({"full.md": b"text"}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    result = Web({ARCHIVE.url: bytes(data)}).settle(
        resolve(OcrOutput(resources=(ARCHIVE,)), QueryResult.succeeded)
    )
    assert result.error is not None
    assert result.error.code == "archive_refused"


# Images.


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("![a](b.png)", ["b.png"]),
        ('![a]( b.png "t" ) ![](c.png)', ["b.png", "c.png"]),
        ("![a](<b c.png>)", ["b c.png"]),
        ("![a](b_(1).png)", ["b_(1).png"]),
        ("[link](b.png) !(x)", []),
        ('<img alt="x" src="b.png?a=1&amp;b=2"/>', ["b.png?a=1&b=2"]),
        ("<IMG SRC=b.png>", ["b.png"]),
        ("<img src='b.png'> <img data-src='no'>", ["b.png"]),
        ("`![a](b.png)` ![a](c.png)", ["c.png"]),
        ("```md\n![a](b.png)\n```\n![a](c.png)", ["c.png"]),
        ("![a](b.png)\n~~~\n![a](c.png)", ["b.png"]),
        ("![a](data:image/png;base64,AAAA)", ["data:image/png;base64,AAAA"]),
        ("![a](b.png) ![b](b.png)", ["b.png", "b.png"]),
        ("![unclosed](b.png", []),
    ],
)
def test_images_are_found_in_both_notations_and_not_in_code(text: str, found: list[str]) -> None:
    """Markdown and HTML, quoted in every way."""
    assert list(references(text)) == found


def test_a_changed_reference_is_written_so_that_it_is_read_again() -> None:
    """Spaces and quotes do not break the text; a blank one takes the image out."""
    changed = rewrite("![a](x 't') <img src=x alt='q'> ![b](y)", lambda ref: "p q" if ref == "x" else "")
    assert changed == "![a](<p q> 't') <img src=\"p q\" alt='q'> "
    assert rewrite('<img src="x">', lambda _: 'a"b') == '<img src="a&quot;b">'


@given(st.text(alphabet="![](<>) \"'`~abc\n=srcimgdata:;,/"))
def test_a_text_that_is_not_changed_stays_as_it_is(text: str) -> None:
    """Whatever a vendor writes, rewriting without a change is no change."""
    assert rewrite(text, lambda ref: ref) == text


@pytest.mark.parametrize(
    "piece",
    ["![", "![a](", "<img ", "![a](<", "`", "~", "![a](((", "```\n", "<img src=", "![a](x  ", "\n~~~a"],
)
def test_a_hostile_text_takes_no_longer_than_a_long_one(piece: str) -> None:
    """A search that goes back and forth over megabytes would hold up a worker."""
    text = piece * (300_000 // len(piece))
    began = time.perf_counter()
    rewrite(text, lambda ref: ref)
    assert time.perf_counter() - began < 5


def test_relative_images_of_a_file_become_absolute() -> None:
    """The text is stored without its neighbours; links that are absolute, or mere anchors, stay."""
    text = b"![](i/a.png) ![](/b.png) ![](https://o.example/c.png) ![](#d) <img src='e.png'>"
    assert read(OcrOutput(resources=(MARKDOWN,)), {MARKDOWN.url: text}).markdown == (
        "![](https://files.example/d/i/a.png) ![](https://files.example/b.png) ![](https://o.example/c.png) "
        '![](#d) <img src="https://files.example/d/e.png">'
    )
    packed = {ARCHIVE.url: zipped({"full.md": "![](images/a.png)"})}
    assert read(OcrOutput(resources=(ARCHIVE,)), packed).markdown == "![](images/a.png)"


def test_images_are_published_from_wherever_they_are() -> None:
    """From the archive, from the text itself and from the web; each once, with its type and a name."""
    shelf = Shelf()
    data = base64.b64encode(JPEG).decode()
    refs = (
        "../i%20mg/a.PNG",
        f"data:image/x;base64,{data}",
        "https://o.example/c",
        "../i%20mg/a.PNG",
        "no.png",
    )
    text = " ".join(f"![]({ref})" for ref in refs)
    packed = zipped({"out/full.md": text, "i mg/a.PNG": PNG})
    files: dict[str, bytes | Reply] = {ARCHIVE.url: packed, "https://o.example/c": b"GIF89a"}
    found = read(OcrOutput(resources=(ARCHIVE,)), files, shelf)
    assert found.markdown == (
        "![](https://shelf.example/1) ![](https://shelf.example/2) ![](https://shelf.example/3) "
        "![](https://shelf.example/1) ![](no.png)"
    )
    assert shelf.kept == [
        (PNG, "image/png", "a.PNG"),
        (JPEG, "image/jpeg", "image-2.jpg"),
        (b"GIF89a", "image/gif", "c"),
    ]


def test_an_image_with_a_blank_link_is_taken_out() -> None:
    """The publisher decides what belongs into the text."""
    assert read(OcrOutput(markdown="a![](data:,x)b"), publish=lambda *_: " ").markdown == "ab"


def test_an_image_that_is_gone_keeps_its_link() -> None:
    """A picture that cannot be fetched does not cost the text."""
    found = read(OcrOutput(markdown="![](https://o.example/c)"), publish=Shelf())
    assert found.markdown == "![](https://o.example/c)"


def test_no_more_images_are_fetched_than_a_step_allows() -> None:
    """The rest keep their links, and the text arrives."""
    urls = [f"https://o.example/{number}.webp" for number in range(60)]
    web = Web(dict.fromkeys(urls, b"RIFF....WEBP"))
    output = OcrOutput(markdown="".join(f"![]({url})" for url in urls))
    shelf = Shelf()
    result = web.settle(resolve(output, QueryResult.succeeded, shelf)).result
    assert len(web.calls) == len(shelf.kept) == results.IMAGES
    assert shelf.kept[0][1:] == ("image/webp", "0.webp")
    assert urls[-1] in result.markdown


@pytest.mark.parametrize(
    ("content", "name", "mime"),
    [(b"x", "a.svg", "image/svg+xml"), (b"x", "a", "application/octet-stream"), (PNG, "a.jpg", "image/png")],
)
def test_the_type_of_an_image_is_told_by_its_bytes_then_its_name(
    content: bytes, name: str, mime: str
) -> None:
    """Vendors name pictures as they like."""
    assert results.mime_of(content, name) == mime


@pytest.mark.parametrize("ref", ["data:image/png;base64,@@@", "data:image/png", "x.png", "data:;base64,A"])
def test_a_damaged_data_uri_is_left_alone(ref: str) -> None:
    """What cannot be read cannot be published."""
    assert results.data_of(ref) is None
