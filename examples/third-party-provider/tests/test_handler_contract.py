"""The handler keeps coatcheck's contract, over replies as the vendor gives them."""

import pytest
from coatcheck_thumbnail import ThumbnailHandler, ThumbnailRequest

from coatcheck import QueryParams, ValidationError
from coatcheck.testing.handler_contract import HandlerContract, Recordings
from coatcheck.testing.transport import reply

DONE = {
    "id": "th-1",
    "state": "done",
    "image": {"url": "https://files.thumbnails.example/th-1.png", "width": 64, "height": 48},
}


class TestThumbnailHandler(HandlerContract):
    """The rules for every handler."""

    @pytest.fixture
    def handler(self) -> ThumbnailHandler:
        """Return the handler."""
        return ThumbnailHandler()

    @pytest.fixture
    def params(self) -> ThumbnailRequest:
        """Return a request."""
        return ThumbnailRequest("https://pictures.example/cat.png", width=64)

    @pytest.fixture
    def recordings(self) -> Recordings:
        """Return the vendor's reply in each situation."""
        return {
            "accepted": reply({"id": "th-1", "state": "waiting"}, 202),
            "at_once": reply(DONE),
            "running": reply({"id": "th-1", "state": "drawing", "percent": 40}),
            "unknown_word": reply({"id": "th-1", "state": "polishing"}),
            "succeeded": reply(DONE),
            "failed": reply(
                {"id": "th-1", "state": "failed", "reason": {"code": "no_picture", "text": "it is a film"}}
            ),
            "cancel_done": reply({"id": "th-1", "state": "canceled"}),
            "cancel_accepted": reply({"id": "th-1", "state": "drawing"}),
            "cancel_refused": reply({"reason": {"code": "too_late"}}, 409),
        }

    @pytest.fixture
    def old_params(self) -> list[bytes]:
        """Return requests as version 1.0 stored them."""
        return [b'{"type":"thumbnail.request","version":1,"data":{"url":"https://pictures.example/cat.png"}}']

    @pytest.fixture
    def old_query_params(self) -> list[QueryParams]:
        """Return query params as version 1.0 stored them."""
        return [QueryParams("th-1")]


@pytest.mark.parametrize(
    "request_",
    [
        ThumbnailRequest("cat.png"),
        ThumbnailRequest("https://pictures.example/cat.png", width=0),
        ThumbnailRequest("https://pictures.example/cat.png", width=2049),
    ],
)
def test_what_the_vendor_would_refuse_is_refused_first(request_: ThumbnailRequest) -> None:
    """A request that cannot succeed is not stored, and the message names the field."""
    with pytest.raises(ValidationError, match=r"url must be|width must be"):
        ThumbnailHandler().validate(request_)
