"""From what a vendor offers to a whole ``OcrResponse``: which text counts, what an archive holds, images.

Everything here works on data that was already fetched; a download is described (``Follow``) and performed by
the transport in the same step, without credentials. Nothing is written to disk, and no vendor is known here.
"""

import base64
import binascii
import html
import mimetypes
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from posixpath import basename, dirname
from typing import IO, Any
from urllib.parse import unquote, unquote_to_bytes, urljoin, urlsplit

import attrs
from attrs import field, frozen

from coatcheck.errors import JobNotFoundError, VendorError
from coatcheck.http import FOLLOWS, Call, Follow, Reply
from coatcheck.model import QueryResult
from coatcheck_ocr.model import OcrPage, OcrResource, OcrResponse

#: The largest download, and the most that an archive may hold unpacked, in bytes.
DOWNLOAD_CAP = 100 * 1024 * 1024
EXTRACTED_CAP = 200 * 1024 * 1024
#: The most entries that an archive may have.
ENTRIES_CAP = 10_000
#: The largest image that is fetched to be published, in bytes.
IMAGE_CAP = 20 * 1024 * 1024
#: Images that one step fetches at most; the other calls of a step are the vendor's.
IMAGES = FOLLOWS - 10

#: Takes an image (bytes, MIME type, file name), keeps it somewhere and returns its URL; a blank one takes the
#: image out of the text. It is called within the step that saw the result, and again when that step is.
Publish = Callable[[bytes, str, str], str]
#: Makes the step's answer of the whole response.
Finish = Callable[[OcrResponse], QueryResult]

#: How long one download may take.
DOWNLOAD_TIME = timedelta(seconds=100)

_GONE = (403, 404, 410)
_CENTRAL = b"PK\x01\x02"
_MAGIC = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
_SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}
# Bounded and possessive: a vendor's text of some megabytes must not make a search quadratic.
_IMAGE = re.compile(
    r"(?P<code>^(?P<fence>`{3,20}+|~{3,20}+)[^\n]*+\n(?:.*?^(?P=fence)|.*\Z)|`[^`\n]{1,1000}+`)"
    r"|(?P<before>!\[[^\]\n]{0,500}+\]\(\s{0,9}+)"
    r"(?:<(?P<angled>[^<>\n]{1,4000}+)>|(?P<bare>(?:[^\s()<>]++|\([^\s()]{0,4000}+\))++))"
    r"(?P<after>(?:\s{1,9}+(?:\"[^\"\n]{0,2000}+\"|'[^'\n]{0,2000}+'))?\s{0,9}+\))"
    r"|(?P<tag><img\b[^<>]*+>)",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
_SRC = re.compile(r"(?<![\w-])src\s{0,9}=\s{0,9}(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'<>]+))", re.IGNORECASE)
_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+)?((?:;[\w-]+=[^;,]{0,200})*)(;base64)?,", re.IGNORECASE)
_HTML = re.compile(rb"\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE)


@frozen(kw_only=True)
class OcrOutput:
    """What a vendor gives for a finished job: content, or where it can be downloaded."""

    markdown: str | None = None
    text: str | None = None
    pages: tuple[OcrPage, ...] = ()
    resources: tuple[OcrResource, ...] = ()
    #: What the vendor counts, like ``{"page": 3}``.
    usage: Mapping[str, int] = field(factory=dict)
    #: Small facts about the job; no content, no URLs, no secrets.
    metadata: Mapping[str, Any] = field(factory=dict)
    #: What relative links in ``markdown`` are relative to, where that is known.
    base: str | None = None

    def first(self, kind: str) -> OcrResource | None:
        """Return the first resource of a type, if there is one."""
        return next((resource for resource in self.resources if resource.type == kind), None)

    @property
    def response(self) -> OcrResponse:
        """What is stored; plain text stands in for markdown."""
        return OcrResponse(
            markdown=self.markdown if self.markdown is not None else self.text or "",
            text=self.text or "",
            pages=self.pages,
            resources=self.resources,
            usage=dict(self.usage),
            metadata={name: value for name, value in self.metadata.items() if value is not None},
        )


class ArchiveError(Exception):
    """An archive is none, or is not safe to open; the text says what was found."""


class Archive:
    """A zip archive in memory, whose entries are found by normalised names.

    Args:
        file: the whole archive; it stays the caller's to close.

    Raises:
        ArchiveError: it has too many entries or would be too large unpacked.
        zipfile.BadZipFile: it is no zip archive, or is damaged.
    """

    def __init__(self, file: IO[bytes]) -> None:
        # Counted before it is read: a directory of millions of entries would fill the memory.
        if _count(file, _CENTRAL) > ENTRIES_CAP:
            raise ArchiveError(f"more than {ENTRIES_CAP} entries")
        self._zip = zipfile.ZipFile(file)
        infos = [info for info in self._zip.infolist() if not info.is_dir()]
        size = sum(info.file_size for info in infos)
        if size > EXTRACTED_CAP:
            raise ArchiveError(f"{size} bytes unpacked; at most {EXTRACTED_CAP} are")
        self._entries: dict[str, zipfile.ZipInfo] = {}
        for info in infos:
            name = entry_name(info.filename)
            if name is not None:
                self._entries.setdefault(name, info)

    @property
    def names(self) -> tuple[str, ...]:
        """The normalised names of all files that do not lead out of the archive."""
        return tuple(self._entries)

    @property
    def markdown(self) -> str | None:
        """The file that holds the text: ``full.md`` in any case, else the ``.md`` with the shortest path."""
        files = sorted(
            (name for name in self._entries if name.lower().endswith(".md")),
            key=lambda name: (basename(name).lower() != "full.md", len(name), name),
        )
        return files[0] if files else None

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; ``None`` if there is none of that name.

        Raises:
            ArchiveError: it is encrypted, or packed in a way that Python does not know.
            zipfile.BadZipFile: it is damaged.
        """
        info = self._entries.get(name)
        if info is None:
            return None
        try:
            # Reads no more than the size that was added up above, whatever the packed data would give.
            return self._zip.read(info)
        except (RuntimeError, NotImplementedError) as error:
            raise ArchiveError(f"the entry {name!r} cannot be read: {error}") from error
        except (zlib.error, EOFError, ValueError) as error:
            raise zipfile.BadZipFile(str(error)) from error


def _count(file: IO[bytes], mark: bytes) -> int:
    file.seek(0)
    count, tail = 0, b""
    while chunk := file.read(1024 * 1024):
        window = tail + chunk
        count += window.count(mark)
        tail = window[-len(mark) + 1 :]
    file.seek(0)
    return count


def entry_name(name: str) -> str | None:
    r"""Return an entry's name with ``/`` only and without ``.``, ``..`` and a leading ``/``.

    ``None``: it leads out of the archive, or nowhere.
    """
    parts: list[str] = []
    for part in name.replace("\\", "/").split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or None


def resolve(output: OcrOutput, finish: Finish, publish: Publish | None = None) -> QueryResult | Follow:
    """Return the answer of a step whose job is done: at once, or after the downloads that it takes.

    The first of these is the text: markdown in the reply, a file of type "markdown", the text in a file of
    type "archive", plain text. Where there are other files only, the response has no text but their links;
    where there is nothing at all, the job failed ``no_result``.

    Args:
        output: what the vendor gave.
        finish: makes the answer.
        publish: where images go; without it their links stay, made absolute where that is possible.
    """
    if output.markdown is not None:
        return _Images(output, finish, publish).next()
    resource = output.first("markdown")
    if resource is not None:
        url = resource.url

        def read_markdown(reply: Reply) -> QueryResult | Follow:
            check_download(reply, url)
            found = attrs.evolve(output, markdown=_decoded(reply.body), base=url)
            return _Images(found, finish, publish).next()

        return Follow(download(url), read_markdown)
    resource = output.first("archive")
    if resource is not None:
        url = resource.url

        def read_archive(reply: Reply) -> QueryResult | Follow:
            check_download(reply, url)
            return open_archive(reply.as_file(), output, finish, publish)

        return Follow(download(url, spool=True), read_archive)
    if output.text is None and not output.resources and not output.pages:
        return QueryResult.failed(
            "no_result", "the vendor calls the job done and gives neither text nor a file; look at it there"
        )
    return finish(output.response)


def open_archive(
    file: IO[bytes], output: OcrOutput, finish: Finish, publish: Publish | None = None
) -> QueryResult | Follow:
    """Return the answer of a step whose result is a zip archive that was fetched.

    Raises:
        VendorError: it is damaged; another download may be whole.
    """
    try:
        archive = Archive(file)
        name = archive.markdown
        if name is None:
            metadata = {**output.metadata, "archive_entries": list(archive.names[:20])}
            return finish(attrs.evolve(output, metadata=metadata).response)
        found = attrs.evolve(output, markdown=_decoded(archive.read(name) or b""), base=None)
        return _Images(found, finish, publish, archive, dirname(name)).next()
    except ArchiveError as error:
        return QueryResult.failed("archive_refused", f"the result is an archive that is not opened: {error}")
    except zipfile.BadZipFile as error:
        raise VendorError(
            f"expected a zip archive as result, found something else or a part of one: {error}",
            code="unreadable_result",
        ) from error


def links(found: Iterable[tuple[str, object]]) -> tuple[OcrResource, ...]:
    """Return what can be downloaded out of pairs of a kind and what the vendor has in the URL's place."""
    return tuple(
        OcrResource(type=kind, url=url)
        for kind, url in found
        if isinstance(url, str) and url.startswith(("https://", "http://"))
    )


def download(url: str, cap: int = DOWNLOAD_CAP, *, spool: bool = False) -> Call:
    """Return the call that fetches a file from wherever the vendor put it, without credentials.

    Args:
        url: where it is.
        cap: the largest file, in bytes.
        spool: whether it is kept in a temporary file instead of memory (``Reply.as_file``).
    """
    return Call("GET", url, plain=True, spool=spool, body_cap=cap, accept=_GONE, timeout=DOWNLOAD_TIME)


def check_download(reply: Reply, url: str) -> None:
    """Refuse what is no file.

    Raises:
        JobNotFoundError: the file is gone; after some tries in a row the job counts as lost.
        VendorError: it is an error page.
    """
    host = urlsplit(url).hostname
    if reply.status in _GONE:
        raise JobNotFoundError(
            f"the job is done, but its result at {host} is not there any more (HTTP {reply.status})",
            code="result_gone",
        )
    if "html" in (reply.header("content-type") or "") and _HTML.match(reply.body):
        raise VendorError(
            f"expected the result from {host}, found an HTML page: {reply.excerpt}", code="unreadable_result"
        )


def _decoded(data: bytes) -> str:
    return data.decode("utf-8-sig", "replace")


class _Images:
    """The images of one text: fetches one after another, publishes them, and rewrites the text."""

    def __init__(
        self,
        output: OcrOutput,
        finish: Finish,
        publish: Publish | None,
        archive: Archive | None = None,
        folder: str = "",
    ) -> None:
        self._output = output
        self._markdown = output.markdown or ""
        self._finish = finish
        self._publish = publish
        self._archive = archive
        self._folder = folder
        #: What each reference becomes; those that are missing here stay.
        self._urls: dict[str, str] = {}
        self._left = [] if publish is None else list(dict.fromkeys(references(self._markdown)))
        self._fetched = 0

    def next(self) -> QueryResult | Follow:
        """Return the next download, or the answer when there is none."""
        while self._left:
            ref = self._left.pop(0)
            found = self._here(ref)
            if found is not None:
                self._keep(ref, *found)
                continue
            url = self._absolute(ref)
            if _is_web(url) and self._fetched < IMAGES:
                self._fetched += 1
                return Follow(download(url, IMAGE_CAP), partial(self._read, ref))
        markdown = rewrite(self._markdown, lambda ref: self._urls.get(ref, self._absolute(ref)))
        return self._finish(attrs.evolve(self._output, markdown=markdown).response)

    def _read(self, ref: str, reply: Reply) -> QueryResult | Follow:
        if reply.is_success:
            self._keep(ref, reply.body, _file_name(self._absolute(ref)))
        return self.next()

    def _here(self, ref: str) -> tuple[bytes, str] | None:
        """Return the bytes of an image that needs no download, and its file name."""
        data = data_of(ref)
        if data is not None:
            return data, ""
        if self._archive is None or urlsplit(ref).scheme:
            return None
        name = entry_name(f"{self._folder}/{unquote(urlsplit(ref).path)}")
        content = None if name is None else self._archive.read(name)
        return None if name is None or content is None else (content, basename(name))

    def _keep(self, ref: str, content: bytes, name: str) -> None:
        assert self._publish is not None  # noqa: S101  # narrows the type: without it nothing is kept
        mime = mime_of(content, name)
        if not name:
            name = f"image-{len(self._urls) + 1}{_SUFFIXES.get(mime, '')}"
        self._urls[ref] = self._publish(content, mime, name).strip()

    def _absolute(self, ref: str) -> str:
        base = self._output.base
        try:
            is_relative = not urlsplit(ref).scheme and not ref.startswith("#")
            return urljoin(base, ref) if base is not None and is_relative else ref
        except ValueError:
            return ref


def references(markdown: str) -> Iterable[str]:
    """Return where the images of a markdown text are, in order; code in it has none."""
    found: list[str] = []

    def note(ref: str) -> str:
        found.append(ref)
        return ref

    rewrite(markdown, note)
    return found


def rewrite(markdown: str, change: Callable[[str], str]) -> str:
    """Return a markdown text whose image references are changed; an image with a blank one is taken out.

    Both ``![alt](ref "title")`` and ``<img src="ref">`` are images; in code they are not.
    """

    def replace(match: "re.Match[str]") -> str:
        if match["code"] is not None:
            return match[0]
        if match["tag"] is not None:
            return _rewrite_tag(match["tag"], change)
        ref = match["angled"] if match["angled"] is not None else match["bare"]
        changed = change(ref)
        if changed == ref:
            return match[0]
        if not changed:
            return ""
        is_plain = re.fullmatch(r"[^\s()<>]+", changed)
        return f"{match['before']}{changed if is_plain else f'<{changed}>'}{match['after']}"

    return _IMAGE.sub(replace, markdown)


def _rewrite_tag(tag: str, change: Callable[[str], str]) -> str:
    match = _SRC.search(tag)
    if match is None:
        return tag
    ref = html.unescape(next(group for group in match.groups() if group is not None))
    changed = change(ref)
    if changed == ref:
        return tag
    return f'{tag[: match.start()]}src="{html.escape(changed)}"{tag[match.end() :]}' if changed else ""


def data_of(ref: str) -> bytes | None:
    """Return the bytes of a ``data:`` URI; ``None`` for any other reference, or for one that is damaged."""
    match = _DATA.match(ref)
    if match is None:
        return None
    rest = ref[match.end() :]
    if not match[3]:
        return unquote_to_bytes(rest)
    try:
        return base64.b64decode(unquote(rest), validate=True)
    except (binascii.Error, ValueError):
        return None


def mime_of(content: bytes, name: str) -> str:
    """Return the MIME type of an image: by its first bytes, else by its file name."""
    for magic, mime in _MAGIC:
        if magic.match(content):
            return mime
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path).replace("\\", "/").rpartition("/")[2]


def _is_web(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https")
    except ValueError:
        return False
