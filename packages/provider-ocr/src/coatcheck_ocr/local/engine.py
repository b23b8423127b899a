"""The recognition engine: an image of one page in, pieces of text with their places out.

Wraps RapidOCR with the models that its wheel carries, so nothing is ever downloaded. Heavy imports happen
when an engine is built. Reading order is not decided here.
"""

import importlib.resources
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from coatcheck_ocr.local.layout import Piece, straighten

if TYPE_CHECKING:
    from PIL.Image import Image

#: What ``Engine`` calls its models; ``OcrRequest.model`` may name it.
MODEL = "rapidocr"
#: Pieces that the engine is less sure of than this (0 to 1) are noise.
MIN_SCORE = 0.5
#: How many of the longest pieces vote on the way up.
VOTES = 12


@frozen
class Reading:
    """What was seen on one page, the page turned the right way up."""

    pieces: tuple[Piece, ...]
    #: Width and height after turning, in pixels.
    size: tuple[int, int]
    #: How far the page was turned clockwise to stand upright: 0, 90, 180 or 270 degrees.
    turned: int
    #: The mean of the pieces' scores, weighted by length; None on an empty page.
    confidence: float | None


class Engine:
    """Reads pages one after the other; building one loads the models (about half a second)."""

    def __init__(self, *, threads: int = 1) -> None:
        """Load the models.

        Args:
            threads: how many threads one page may use. One is best when as many jobs run as there are cores.

        Raises:
            ImportError: the extra ``coatcheck-ocr[local]`` is not installed.
        """
        # Read when onnxruntime is imported: by itself it records what it runs for its makers.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import cv2
        from rapidocr import RapidOCR

        cv2.setNumThreads(threads)
        models = Path(str(importlib.resources.files("rapidocr"))) / "models"
        self._engine: Any = RapidOCR(
            params={
                "Global.log_level": "error",
                "Global.use_preprocess_img": False,  # pages come in a fit size
                "EngineConfig.onnxruntime.intra_op_num_threads": threads,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
                # A model that is named is never downloaded.
                "Det.model_path": _bundled(models, "det"),
                "Cls.model_path": _bundled(models, "cls"),
                "Rec.model_path": _bundled(models, "rec"),
            }
        )

    def read(self, page: "Image", *, min_score: float = MIN_SCORE) -> Reading:
        """Recognise the text of one page, whichever of its four sides is up.

        Args:
            page: any mode; more than some 2,000 pixels a side take time and memory without reading better.
            min_score: pieces below it are dropped.
        """
        import numpy as np

        image = np.asarray(page.convert("RGB"))[:, :, ::-1]
        boxes, crops = self._detect(image)
        turned = self._turn(boxes, crops)
        if turned:
            image = np.rot90(image, -turned // 90)
            boxes, crops = self._detect(image)
        quads, scores = [], []
        for box, crop in zip(boxes, crops, strict=True):
            seen = self._engine(_upright(crop, box), use_det=False, use_cls=False, use_rec=True)
            text, score = seen.txts[0].strip(), float(seen.scores[0])
            if text and score >= min_score:
                top_left, top_right, bottom_right, bottom_left = ((float(x), float(y)) for x, y in box)
                quads.append(((top_left, top_right, bottom_right, bottom_left), text))
                scores.append((score, len(text)))
        length = sum(weight for _, weight in scores)
        confidence = sum(score * weight for score, weight in scores) / length if length else None
        height, width = image.shape[:2]
        return Reading(tuple(straighten(quads)), (width, height), turned, confidence)

    def _detect(self, image: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        """Find pieces of text: their corners and their pictures (tall ones laid down to the left)."""
        import numpy as np

        image = np.ascontiguousarray(image)
        boxes = self._engine(image, use_det=True, use_cls=False, use_rec=False).boxes
        if boxes is None:
            return (), ()
        return boxes, self._engine.crop_text_regions(image, boxes.astype(np.float32))

    def _turn(self, boxes: Sequence[Any], crops: Sequence[Any]) -> int:
        """How far the page must be turned clockwise: most long pieces decide.

        The classifier looks at a picture four times as wide as high, and guesses when a whole line is
        squeezed into it; that is why it gets the beginning of a line, and why no line is turned on its own.
        """
        longest = sorted(zip(boxes, crops, strict=True), key=lambda pair: -max(pair[1].shape[:2]))[:VOTES]
        tall, upside_down = 0.0, 0.0
        for box, crop in longest:
            (width, height), beginning = _sides(box), crop[:, : 4 * crop.shape[0]]
            seen = self._engine(beginning.copy(), use_det=False, use_cls=True, use_rec=False)
            label, score = seen.cls_res[0]
            tall += 1 if height > width else -1
            upside_down += float(score) if "180" in label else -float(score)
        # A tall picture was laid down to the left: read from top to bottom it is upright now.
        if tall > 0:
            return 90 if upside_down > 0 else 270
        return 180 if upside_down > 0 else 0


def _bundled(models: Path, kind: str) -> str:
    found = sorted(models.glob(f"*_{kind}_*.onnx"))
    if not found:
        raise FileNotFoundError(
            f"expected a {kind} model in {models}, found none; install a rapidocr wheel that carries its "
            "models (pip install 'coatcheck-ocr[local]')"
        )
    return str(found[0])


def _sides(box: Any) -> tuple[float, float]:
    """Width and height of a piece on the page."""
    import numpy as np

    return float(np.linalg.norm(box[0] - box[1])), float(np.linalg.norm(box[0] - box[3]))


def _upright(crop: Any, box: Any) -> Any:
    """Stand a narrow character up again: cropping laid it down as if it were a line that runs upwards."""
    import numpy as np

    width, height = _sides(box)
    if 1.5 * width <= height < 2.5 * width and crop.shape[1] > crop.shape[0]:
        return np.ascontiguousarray(np.rot90(crop, -1))
    return crop
