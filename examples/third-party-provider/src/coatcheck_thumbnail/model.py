"""What is asked for and what comes back; stored with every task, so names and fields are kept for good."""

from attrs import frozen

from coatcheck import persistent


@persistent("thumbnail.request")
@frozen
class ThumbnailRequest:
    """A request for a small picture of a large one.

    Args:
        url: where the vendor finds the picture.
        width: of the thumbnail, in pixels, from 16 to 2048.
    """

    url: str
    width: int = 320


@persistent("thumbnail.thumbnail")
@frozen
class Thumbnail:
    """Where the thumbnail is, and its size in pixels."""

    url: str
    width: int
    height: int
