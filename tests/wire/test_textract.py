"""``ocr:textract`` sends what boto3 sends."""

import hashlib
import hmac
import re
from typing import Any

import pytest
from tests.wire.recorder import KEY, Recorder, lived, recording, shown

from coatcheck import TaskStatus
from coatcheck.sandbox import Answer, Request
from coatcheck_ocr.model import OcrRequest
from coatcheck_ocr.textract import TextractHandler, TextractOptions

pytestmark = pytest.mark.wire

boto3: Any = pytest.importorskip("boto3", reason="run nox -s wire")
config: Any = pytest.importorskip("botocore.config", reason="run nox -s wire")

REGION = "eu-west-1"
HEADERS = ("x-amz-target", "x-amz-security-token")
PLACE = {"S3Object": {"Bucket": "invented-bucket", "Name": "reports/a b+ä.pdf", "Version": "v7"}}
URL = "s3://invented-bucket/reports/a b+ä.pdf"
SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<scope>[^ ]+), SignedHeaders=(?P<headers>[^ ]+), Signature=[0-9a-f]{64}"
)


def answer(request: Request) -> Answer:
    """Answer like the vendor: a job, then a result of two pages."""
    said = request.json()
    if "ClientRequestToken" in said:
        found: dict[str, Any] = {"JobId": "J1"}
    else:
        found = {"JobStatus": "SUCCEEDED", "DocumentMetadata": {"Pages": 1}, "Blocks": []}
        found |= {} if "NextToken" in said else {"NextToken": "n1"}
    return Answer.json(found, headers={"Content-Type": "application/x-amz-json-1.1"})


def compared(request: Request) -> dict[str, Any]:
    """Return what both have to agree in; of the signature its scope, for it covers the bytes of the body."""
    signed = SIGNED.fullmatch(request.header("authorization") or "")
    assert signed is not None
    assert re.fullmatch(r"\d{8}T\d{6}Z", request.header("x-amz-date") or "")
    day = (request.header("x-amz-date") or "")[:8]
    needed = {"content-type", "host", "x-amz-date", "x-amz-security-token", "x-amz-target"}
    return {
        **shown(request, *HEADERS),
        "body": request.json(),
        "scope": signed["scope"].replace(day, "today"),
        "signs what it must": needed <= set(signed["headers"].split(";")),
    }


def sent_by_boto3(
    recorder: Recorder, endpoint: str, operation: str, **parameters: Any
) -> list[dict[str, Any]]:
    """Return what boto3 sends to start a job and to read both pages of its result."""
    client = boto3.client(
        "textract",
        region_name=REGION,
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=KEY,
        aws_session_token=KEY,
        config=config.Config(retries={"total_max_attempts": 1}),
    )
    try:
        getattr(client, f"start_{operation}")(
            DocumentLocation=PLACE, ClientRequestToken="key-1", **parameters
        )
        read = getattr(client, f"get_{operation}")
        first = read(JobId="J1", MaxResults=1000)
        read(JobId="J1", MaxResults=1000, NextToken=first["NextToken"])
    finally:
        client.close()
    return [compared(request) for request in recorder.take()]


@pytest.mark.parametrize(
    ("operation", "options", "parameters"),
    [
        ("document_text_detection", TextractOptions(version="v7"), {}),
        (
            "document_text_detection",
            TextractOptions(
                version="v7",
                job_tag="invoices",
                kms_key="invented-key",
                output_bucket="invented-results",
                output_prefix="ocr",
                sns_topic="arn:aws:sns:eu-west-1:000000000000:done",
                sns_role="arn:aws:iam::000000000000:role/textract",
            ),
            {
                "JobTag": "invoices",
                "KMSKeyId": "invented-key",
                "OutputConfig": {"S3Bucket": "invented-results", "S3Prefix": "ocr"},
                "NotificationChannel": {
                    "SNSTopicArn": "arn:aws:sns:eu-west-1:000000000000:done",
                    "RoleArn": "arn:aws:iam::000000000000:role/textract",
                },
            },
        ),
        (
            "document_analysis",
            TextractOptions(version="v7", features=("TABLES", "QUERIES"), queries=("Who signed?",)),
            {"FeatureTypes": ["TABLES", "QUERIES"], "QueriesConfig": {"Queries": [{"Text": "Who signed?"}]}},
        ),
    ],
    ids=["text", "all the rest", "analysis"],
)
def test_a_job_is_started_and_read_like_boto3_does_it(
    operation: str, options: TextractOptions, parameters: dict[str, Any]
) -> None:
    """Every call, from the start to the last page of the result."""
    recorder = Recorder(answer)
    with recording(recorder) as url:
        expected = sent_by_boto3(recorder, url, operation, **parameters)
        _, result = lived(TextractHandler(url, region=REGION), OcrRequest(url=URL, options=options))
        found = [compared(request) for request in recorder.take()]
    assert result.status is TaskStatus.SUCCEEDED
    assert [one["headers"]["x-amz-target"] for one in expected] == [
        f"Textract.{verb}{operation.title().replace('_', '')}" for verb in ("Start", "Get", "Get")
    ]
    assert found == expected


def test_the_signature_is_of_what_arrives() -> None:
    """The service computes it anew from the request that it received, as the transport wrote it."""
    recorder = Recorder(answer)
    with recording(recorder) as url:
        lived(TextractHandler(url, region=REGION), OcrRequest(url=URL))
    for request in recorder.take():
        signed = SIGNED.fullmatch(request.header("authorization") or "")
        assert signed is not None
        assert request.header("authorization") == recomputed(request, signed["headers"].split(";"))


def recomputed(request: Request, names: list[str]) -> str:
    """Return the header that the service expects of a request that it received."""
    date = request.header("x-amz-date") or ""
    lines = [f"{name}:{request.header(name)}\n" for name in names]
    body = hashlib.sha256(request.body).hexdigest()
    canonical = "\n".join((request.method, request.path, "", "".join(lines), ";".join(names), body))
    scope = f"{date[:8]}/{REGION}/textract/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{KEY}".encode()
    for step in (*scope.split("/"), text):
        key = hmac.new(key, step.encode(), hashlib.sha256).digest()
    return (
        f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={';'.join(names)}, Signature={key.hex()}"
    )
