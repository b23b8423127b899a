"""Video handlers for coatcheck: one request type, one response type, whoever makes the video."""

from coatcheck_video.model import Video, VideoMode, VideoRequest, VideoResponse

__all__ = ["Video", "VideoMode", "VideoRequest", "VideoResponse"]
