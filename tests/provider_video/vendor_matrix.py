"""``VendorMatrix`` of the video vendors: requests whose prompt says how the job goes."""

from typing import Any, ClassVar

import attrs

from coatcheck.testing import vendor_matrix
from coatcheck_video.model import VideoRequest, VideoResponse


class VendorMatrix(vendor_matrix.VendorMatrix):
    """What every video vendor has to get through.

    Attributes:
        request: a request whose prompt is replaced; give the model and options that the tests are about.
    """

    request: ClassVar[VideoRequest] = VideoRequest(prompt="a")

    def request_for(self, name: str, url: str) -> VideoRequest:
        """Return a request whose prompt says how its job goes."""
        return attrs.evolve(self.request, prompt=name)

    def check_result(self, result: Any) -> None:
        """Check that there is a video."""
        assert isinstance(result, VideoResponse)
        assert result.url.startswith("http")
