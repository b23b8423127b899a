"""One value of each type that our provider packages store, with every field set; see README.md."""

from typing import Any

from tests.golden.samples import picture

from coatcheck import codec
from coatcheck_ocr import OcrPage, OcrRequest, OcrResource, OcrResponse
from coatcheck_video import Video, VideoMode, VideoRequest, VideoResponse


def values() -> dict[str, object]:
    """Return the values by the names of their files."""
    return {
        "ocr-request": OcrRequest(
            url="https://files.example/scan.pdf",
            file_name="receipt.pdf",
            model="reader-2",
            pages="1-3,7",
            languages=("zh", "en"),
            options={"is_ocr": True, "extra": {"level": 2}},
        ),
        "ocr-response": OcrResponse(
            markdown="# 收据\n\n| a | b |",
            text="收据 a b",
            pages=(
                OcrPage(
                    number=7, markdown="# 收据", text="收据", width=800, height=600, turned=90, confidence=0.5
                ),
            ),
            resources=(OcrResource(type="archive", url="https://cdn.example/r.zip", metadata={"bytes": 12}),),
            usage={"page": 3},
            metadata={"model": "reader-2"},
        ),
        "video-request": VideoRequest(
            prompt="waves at night",
            negative_prompt="people",
            mode=VideoMode.OMNI,
            first_frame="https://files.example/a.png",
            last_frame="https://files.example/b.png",
            reference_images=("https://files.example/c.png", "asset://d"),
            source_video="https://files.example/e.mp4",
            audio="https://files.example/f.mp3",
            duration=5,
            width=1280,
            height=720,
            resolution="720P",
            aspect_ratio="16:9",
            fps=24,
            seed=7,
            watermark=False,
            prompt_extend=True,
            generate_audio=False,
            camera_fixed=True,
            model="maker-1",
            options={"shot_type": "multi"},
        ),
        "video-response": VideoResponse(
            videos=(
                Video(
                    url="https://cdn.example/v.mp4",
                    cover_url="https://cdn.example/v.png",
                    duration=5.1,
                    width=1280,
                    height=720,
                    metadata={"id": "v-1"},
                ),
            ),
            usage={"second": 6},
            metadata={"seed": 7},
        ),
    }


def to_file(value: object) -> dict[str, Any]:
    """Return the content of a golden file: the envelope as it is stored, and what it means."""
    return {
        "envelope": codec.loads(codec.encode_value(value, field="result", cap=10_000)),
        "value": picture(value),
    }
