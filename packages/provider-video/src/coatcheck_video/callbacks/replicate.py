"""Callbacks of Replicate, signed by HMAC in the way of Standard Webhooks, which other vendors follow too.

Facts (DOC, and SDK: the vendor's own client verifies in this way): the body is the prediction; the headers
are ``webhook-id``, ``webhook-timestamp`` (seconds since the epoch) and ``webhook-signature``, a list of
``v1,<base64>`` with spaces between; the key is what follows ``whsec_`` in the secret, in base64; signed is
``{id}.{timestamp}.{raw body}`` with HMAC-SHA256. The secret of an account is given by GET
``/v1/webhooks/default/secret``.
"""

import base64
import binascii
import hmac
from collections.abc import Iterable
from datetime import datetime

from coatcheck.errors import CallbackRefusedError, ConfigError
from coatcheck.http import Callback, CallbackNote
from coatcheck.model import Account

#: The part of an account that holds its signing secrets: one, or several with spaces between while one takes
#: the place of another.
SECRET_PART = "webhook_secret"  # noqa: S105  # a name, not a secret
_PREFIX = "whsec_"
_VERSION = "v1"


def read_callback(callback: Callback, account: Account) -> CallbackNote:
    """Verify a callback of Replicate and return the id of its prediction.

    Args:
        callback: what arrived.
        account: with the part ``webhook_secret``.

    Raises:
        CallbackRefusedError: the signature is missing, wrong or too old, or the body holds no id.
        ConfigError: the account has no such part, or it is no secret of this kind.
    """
    secrets = account.secret(SECRET_PART).split()
    for secret in secrets:
        account.hide(secret)
    verify(callback, secrets)
    return callback.note("id")


def verify(callback: Callback, secrets: Iterable[str]) -> None:
    """Refuse a callback that was not signed with one of the secrets, or not within five minutes.

    Raises:
        CallbackRefusedError: the signature is missing, wrong or too old.
        ConfigError: something among the secrets is none.
    """
    keys = [_key(secret) for secret in secrets]
    webhook_id = callback.required("webhook-id")
    given = [
        signature
        for version, _, signature in (
            one.partition(",") for one in callback.required("webhook-signature").split()
        )
        if version == _VERSION
    ]
    signed_at = callback.check_time("webhook-timestamp")
    for key in keys:
        expected = _signature(key, webhook_id, signed_at, callback.body)
        # Compared as bytes: a signature that is no ASCII text would be an exception.
        if any(hmac.compare_digest(expected.encode(), one.encode(errors="replace")) for one in given):
            return
    raise CallbackRefusedError(
        "expected a callback with a signature by the account's webhook_secret, found none of "
        f"{len(given)} that fits; it is somebody else's or was changed on the way, or the secret is old",
        code="bad_signature",
    )


def sign(secret: str, webhook_id: str, signed_at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that verify: what the vendor does, for local vendors and tests."""
    timestamp = str(int(signed_at.timestamp()))
    signature = _signature(_key(secret), webhook_id, timestamp, body)
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"{_VERSION},{signature}",
    }


def _signature(key: bytes, webhook_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{webhook_id}.{timestamp}.".encode(errors="replace") + body
    return base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def _key(secret: str) -> bytes:
    """Return the key in a secret; what was found is not shown."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ConfigError(
            f"{SECRET_PART} must be a signing secret like {_PREFIX}<base64>, found something else; copy it "
            "from the vendor's settings"
        )
    return key
