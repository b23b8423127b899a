"""What a protocol reads out of a request's body."""

from coatcheck.http import Call, Part
from coatcheck.sandbox import FormPart, Request
from coatcheck.testing.transport import request_of


def test_a_multipart_body_is_taken_apart_byte_for_byte() -> None:
    """Names, file names and content arrive as the transport sent them, whatever bytes a document has."""
    content = b"\r\n\x00\xff--x\r\n\n\r"
    call = Call(
        "POST",
        "https://v.example/jobs",
        multipart={
            "model": Part(content="größe"),
            "file": Part(content=content, filename="报告 1.pdf", content_type="application/pdf"),
        },
    )
    assert request_of(call).parts() == {
        "model": FormPart("größe".encode(), None, None),
        "file": FormPart(content, "报告 1.pdf", "application/pdf"),
    }
    assert request_of(call).parts()["model"].text == "größe"


def test_a_form_is_read_and_other_bodies_have_no_parts() -> None:
    """A protocol may ask for what is not there."""
    assert request_of(Call("POST", "https://v.example/", form={"a": "1 2", "b": ""})).form() == {
        "a": "1 2",
        "b": "",
    }
    assert Request("POST", "/", body=b"{}").parts() == {}
