"""What the sandbox vendors make of any prompt: a file that is called a video and has no picture in it."""

from coatcheck.sandbox import Answer

#: The head of an MP4 file, and an empty box of content.
MP4 = bytes.fromhex("000000186674797069736f6d0000020069736f6d69736f32") + bytes.fromhex("000000086d646174")


def video() -> Answer:
    """Answer with the file."""
    return Answer(200, MP4, headers={"Content-Type": "video/mp4"})
