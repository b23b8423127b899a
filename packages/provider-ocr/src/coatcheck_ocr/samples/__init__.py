"""Sample documents of our own making, and the words that a reader must find in each of them."""

from pathlib import Path

from attrs import frozen

from coatcheck import codec
from coatcheck_ocr.model import OcrRequest

_FOLDER = Path(__file__).parent


@frozen
class Sample:
    """One document that ships with this package."""

    path: Path
    #: What it shows, for people.
    title: str
    pages: int
    #: In reading order.
    words: tuple[str, ...]

    @property
    def request(self) -> OcrRequest:
        """A request to read it on this machine."""
        return OcrRequest(url=self.path.as_uri())

    def missing_from(self, text: str) -> list[str]:
        """Return the words that ``text`` does not hold in reading order; a good reading lacks none."""
        missing, place = [], 0
        for word in self.words:
            found = text.find(word, place)
            if found < 0:
                missing.append(word)
            else:
                place = found + len(word)
        return missing


def load_samples() -> tuple[Sample, ...]:
    """Return all sample documents."""
    index = codec.loads((_FOLDER / "words.json").read_bytes())
    return tuple(
        Sample(_FOLDER / name, about["title"], about["pages"], tuple(about["words"]))
        for name, about in index.items()
    )
