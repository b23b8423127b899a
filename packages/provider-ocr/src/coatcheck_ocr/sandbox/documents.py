"""What the sandbox vendors read in any document: a text with an image, also as an archive."""

import io
import zipfile
from collections.abc import Mapping

from coatcheck.sandbox import Answer, Job

#: A picture of one transparent point.
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02"
    "0000000b4944415478da6364f80f00010501012718e3660000000049454e44ae426082"
)
IMAGE = "images/figure.png"


def markdown(job: Job) -> str:
    """Return the text that is found in the document of a job."""
    return f"# {job.name}\n\nA sandbox read this.\n\n![figure]({IMAGE})\n"


def file(job: Job, name: str) -> Answer:
    """Answer with one of a job's files: its text, the archive, or by any other name the picture."""
    match name:
        case "result.md":
            return Answer(200, markdown(job).encode())
        case "result.zip":
            return Answer(200, archive(job))
    return Answer(200, PNG)


def archive(job: Job, extra: Mapping[str, bytes] | None = None) -> bytes:
    """Return the text with its picture as a zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("full.md", markdown(job))
        packed.writestr(IMAGE, PNG)
        for name, content in (extra or {}).items():
            packed.writestr(name, content)
    return buffer.getvalue()
