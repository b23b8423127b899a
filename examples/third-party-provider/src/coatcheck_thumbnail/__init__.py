"""An example of a coatcheck provider: thumbnails of pictures, drawn by a vendor that does not exist."""

from coatcheck_thumbnail.handler import ThumbnailHandler
from coatcheck_thumbnail.model import Thumbnail, ThumbnailRequest
from coatcheck_thumbnail.selector import Prefer

__all__ = [
    "Prefer",
    "Thumbnail",
    "ThumbnailHandler",
    "ThumbnailRequest",
]
