"""Callbacks as Replicate's own client verifies them: both take and refuse the same ones."""

import base64
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest

from coatcheck.errors import CallbackRefusedError
from coatcheck.http import Callback
from coatcheck_video.callbacks import replicate

pytestmark = pytest.mark.wire

SECRET = "whsec_" + base64.b64encode(b"signing key of a test").decode()
BODY = '{"id": "prediction-1", "status": "succeeded", "output": "häßlich"}'


@pytest.fixture(scope="module")
def sdk() -> Any:
    """Return the part of the vendor's client that verifies."""
    try:
        return import_module("replicate.webhook")
    except ImportError:
        pytest.skip("run nox -s wire")


@pytest.mark.parametrize(
    ("change", "is_good"),
    [
        ({}, True),
        ({"webhook-id": "msg-2"}, False),
        ({"webhook-timestamp": "1767323046"}, False),
        ({"webhook-signature": "v1,AAAA"}, False),
        ({"webhook-id": ""}, False),
    ],
)
def test_callback_is_judged_as_by_the_vendors_client(
    sdk: Any, change: dict[str, str], *, is_good: bool
) -> None:
    """What we sign it takes, and what it refuses we refuse."""
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    headers = {**replicate.sign(SECRET, "msg-1", now, BODY.encode()), **change}
    secret = sdk.WebhookSigningSecret(key=SECRET)
    callback = Callback(BODY.encode(), headers, received_at=now)
    if is_good:
        sdk.Webhooks.validate(headers=headers, body=BODY, secret=secret)
        replicate.verify(callback, [SECRET])
        return
    with pytest.raises(sdk.WebhookValidationError):
        sdk.Webhooks.validate(headers=headers, body=BODY, secret=secret)
    with pytest.raises(CallbackRefusedError):
        replicate.verify(callback, [SECRET])
