"""The request and response types of the video package, and how a request is held against a model."""

import base64
from pathlib import Path
from typing import Any

import pytest

from coatcheck import codec
from coatcheck.errors import ValidationError
from coatcheck_video.capability import ANYTHING, VideoModel, infer
from coatcheck_video.handler import counted, number_of, size_of, videos_of
from coatcheck_video.model import Video, VideoMode, VideoRequest, VideoResponse

A, B, C = (f"https://media.example/{name}" for name in ("a.png", "b.png", "c.mp4"))
REQUEST = VideoRequest(
    prompt="a", mode=VideoMode.OMNI, first_frame=A, reference_images=(B,), duration=-1, options={"x": [1]}
)
RESPONSE = VideoResponse(
    videos=(Video(url=C, cover_url=A, duration=5.1, width=2, height=1, metadata={"id": "v"}),),
    usage={"second": 6},
    metadata={"seed": 7},
)


@pytest.mark.parametrize("value", [REQUEST, RESPONSE], ids=["request", "response"])
def test_values_survive_being_stored(value: object) -> None:
    """What comes back from a store equals what went in, down to the nested records."""
    assert codec.decode_value(codec.encode_value(value, field="params", cap=10_000)) == value


def test_a_response_reads_as_where_its_videos_are() -> None:
    """Whoever prints a result wants to look at it."""
    assert (str(RESPONSE), RESPONSE.url) == (C, C)


@pytest.mark.parametrize(
    "medium",
    [
        b"\x89PNG",
        Path("a.png"),
        "a.png",
        "/home/somebody/a.png",
        "data:image/png;base64,AAAA",
        base64.b64encode(b"x" * 300).decode(),
        "",
        "http://[",
        7,
    ],
    ids=str,
)
@pytest.mark.parametrize("field", ["first_frame", "last_frame", "reference_images", "source_video", "audio"])
def test_a_medium_that_is_no_url_is_refused_with_what_to_do(field: str, medium: object) -> None:
    """Another machine carries the task on, so bytes, base64 and paths have to be uploaded first."""
    given: Any = (medium,) if field == "reference_images" else medium
    with pytest.raises(ValidationError, match="upload the file first and submit its URL") as caught:
        VideoRequest(prompt="a", **{field: given})
    assert caught.value.field == field
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("url", [A, "oss://bucket/a.png", "asset://a-1", "runway://upload/1"])
def test_urls_of_any_scheme_are_left_to_the_handler(url: str) -> None:
    """Vendors have storages of their own."""
    assert VideoRequest(first_frame=url).first_frame == url


@pytest.mark.parametrize(
    "values",
    [
        {"prompt": " "},
        {"prompt": 7},
        {"duration": "5"},
        {"duration": -2},
        {"duration": True},
        {"seed": -2},
        {"fps": 0},
        {"width": 5},
        {"aspect_ratio": "16x9"},
        {"watermark": "no"},
        {"mode": "dream"},
        {"reference_images": A},
        {"options": "x"},
    ],
    ids=str,
)
def test_a_value_of_the_wrong_kind_is_refused(values: dict[str, Any]) -> None:
    """Before anything is stored."""
    with pytest.raises(ValidationError):
        VideoRequest(**values)


@pytest.mark.parametrize(
    ("media", "with_audio", "without"),
    [
        ({}, VideoMode.TEXT, VideoMode.TEXT),
        ({"first_frame": A}, VideoMode.FIRST_FRAME, VideoMode.FIRST_FRAME),
        ({"first_frame": A, "last_frame": B}, VideoMode.FIRST_LAST_FRAME, VideoMode.FIRST_LAST_FRAME),
        ({"reference_images": (A,)}, VideoMode.REFERENCE_IMAGES, VideoMode.REFERENCE_IMAGES),
        ({"reference_images": (A,), "first_frame": B}, VideoMode.OMNI, VideoMode.OMNI),
        ({"source_video": C}, VideoMode.VIDEO_TO_VIDEO, VideoMode.VIDEO_TO_VIDEO),
        ({"source_video": C, "first_frame": A}, VideoMode.OMNI, VideoMode.OMNI),
        ({"audio": C}, VideoMode.AUDIO_DRIVEN, VideoMode.TEXT),
        ({"audio": C, "first_frame": A}, VideoMode.OMNI, VideoMode.FIRST_FRAME),
        ({"audio": C, "source_video": C}, VideoMode.AUDIO_DRIVEN, VideoMode.VIDEO_TO_VIDEO),
    ],
)
def test_the_mode_is_inferred_from_the_media(
    media: dict[str, Any], with_audio: VideoMode, without: VideoMode
) -> None:
    """With the audio as what drives the video, and as what goes along with it."""
    request = VideoRequest(prompt="a", **media)
    assert (infer(request), infer(request, with_audio=False)) == (with_audio, without)


def test_audio_that_goes_along_changes_no_mode() -> None:
    """Trap: a model from text that takes audio is not refused for it."""
    request = VideoRequest(prompt="a", audio=C)
    assert VideoModel(modes=(VideoMode.TEXT,)).check(request, "m") is VideoMode.TEXT
    assert ANYTHING.check(request, "m") is VideoMode.AUDIO_DRIVEN
    with pytest.raises(ValidationError, match="m takes no audio"):
        VideoModel(audio=False).check(request, "m")


def test_a_mode_that_the_media_do_not_make_is_refused_unless_it_is_omni() -> None:
    """Omni means any media together, and at least one."""
    framed = VideoRequest(prompt="a", first_frame=A, mode=VideoMode.OMNI)
    assert ANYTHING.check(framed, "m") is VideoMode.OMNI
    for request in (
        VideoRequest(prompt="a", mode=VideoMode.OMNI),
        VideoRequest(prompt="a", first_frame=A, mode=VideoMode.TEXT),
    ):
        with pytest.raises(ValidationError, match="the media of the request make it"):
            ANYTHING.check(request, "m")


def test_what_a_table_leaves_open_is_open_and_what_is_empty_is_closed() -> None:
    """None restricts nothing, an empty list refuses every explicit value."""
    request = VideoRequest(prompt="a", aspect_ratio="7:5", duration=99, resolution="9K")
    assert ANYTHING.check(request, "m") is VideoMode.TEXT
    with pytest.raises(ValidationError, match="m has no aspect_ratio to choose"):
        VideoModel(ratios=()).check(request, "m")
    VideoModel(ratios=()).check(VideoRequest(prompt="a"), "m")
    with pytest.raises(ValidationError, match="duration of m must be one of 5, 10"):
        VideoModel(durations=(5, 10)).check(request, "m")


def test_a_resolution_is_compared_without_case_and_sent_as_the_vendor_spells_it() -> None:
    """One request is for several vendors."""
    known = VideoModel(resolutions=("720P",))
    known.check(VideoRequest(prompt="a", resolution="720p"), "m")
    assert (known.spelled("720p"), known.spelled(None), ANYTHING.spelled("4k")) == ("720P", None, "4k")


def test_a_video_from_text_has_a_text() -> None:
    """There is nothing else that it could be made of."""
    with pytest.raises(ValidationError, match="must have a prompt"):
        ANYTHING.check(VideoRequest(), "m")


def test_replies_are_read_leniently() -> None:
    """Numbers as texts, begun units in full, addresses once."""
    assert [number_of(value) for value in ("5.1", 5, True, "x", None, "inf")] == [
        5.1,
        5,
        None,
        None,
        None,
        None,
    ]
    assert counted(second="5.1", token=108900, page=None, bad=-1) == {"second": 6, "token": 108900}
    assert [video.url for video in videos_of([C, None, C, "ftp://x/y", A])] == [C, A]
    assert size_of(VideoRequest(width=2, height=1), "*") == "2*1"
    assert size_of(VideoRequest(), ":") is None
