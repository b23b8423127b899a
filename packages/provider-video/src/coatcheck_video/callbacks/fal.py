"""Callbacks of fal, signed by ED25519 with keys that fal publishes; they need ``coatcheck-video[fal]``.

Facts (DOC, 3P: several agreeing implementations): the body is ``{request_id, gateway_request_id, status,
payload, error, payload_error}``; the headers are ``X-Fal-Webhook-Request-Id``, ``-User-Id``, ``-Timestamp``
(seconds since the epoch) and ``-Signature`` (hex); signed are request id, user id, timestamp and the hex
SHA-256 of the raw body, with line feeds between; the keys are a JWKS (``OKP``, base64url ``x``) at
``https://rest.fal.ai/.well-known/jwks.json``, may be kept for 24 hours, and each of them is to be tried;
times that are off by more than 300 s are refused.
"""

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from attrs import frozen

from coatcheck.errors import CallbackRefusedError, ConfigError, VendorError
from coatcheck.http import Call, Callback, CallbackNote, Follow, Reply

#: Where the public keys are.
JWKS_URL = "https://rest.fal.ai/.well-known/jwks.json"
#: Names another place for them, for instance that of a local vendor.
JWKS_VARIABLE = "COATCHECK_VIDEO_FAL_JWKS_URL"
#: How long keys are kept.
KEY_LIFE = timedelta(hours=24)
#: Keys of this age are fetched once more before a signature that fits none of them is refused: a new key may
#: have come; and not more often, or forged callbacks would make us call fal.
KEY_REST = timedelta(minutes=5)

_ID, _USER, _TIME, _SIGNATURE = (
    f"x-fal-webhook-{name}" for name in ("request-id", "user-id", "timestamp", "signature")
)
_KEY_LENGTH = 32


@frozen
class _Kept:
    keys: tuple[bytes, ...]
    fetched_at: datetime


class FalKeys:
    """Verifies callbacks of fal and keeps its public keys in memory; one for each handler, for all threads.

    Args:
        url: where the keys are; by default the variable ``COATCHECK_VIDEO_FAL_JWKS_URL``, or fal's own place.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = url or os.environ.get(JWKS_VARIABLE) or JWKS_URL
        self._kept: _Kept | None = None

    def read_callback(self, callback: Callback, now: datetime) -> CallbackNote | Follow:
        """Verify a callback and return the id of its request, or the call that gets the keys for that.

        Args:
            callback: what arrived.
            now: the store's time; says how old the keys are.

        Raises:
            CallbackRefusedError: the signature is missing, wrong or too old, or the body holds no id.
            ConfigError: the extra ``coatcheck-video[fal]`` is not installed.
        """
        signature, signed = _signed(callback)
        kept = self._kept
        age = None if kept is None else now - kept.fetched_at
        if kept is not None and age is not None and age < KEY_LIFE:
            if _is_signed(kept.keys, signature, signed):
                return callback.note("request_id")
            if age < KEY_REST:
                raise _refusal()
        call = Call("GET", self.url, plain=True, timeout=timedelta(seconds=10))
        return Follow(call, partial(self._read_keys, callback=callback, now=now))

    def _read_keys(self, reply: Reply, *, callback: Callback, now: datetime) -> CallbackNote:
        """Keep the keys of a reply and verify the callback with them."""
        self._kept = _Kept(read_jwks(reply), now)
        if not _is_signed(self._kept.keys, *_signed(callback)):
            raise _refusal()
        return callback.note("request_id")


def read_jwks(reply: Reply) -> tuple[bytes, ...]:
    """Return the ED25519 keys of a JWKS; keys of other kinds are left out.

    Raises:
        VendorError: there is none.
    """
    body = reply.json()
    listed = body.get("keys") if isinstance(body, Mapping) else None
    keys = tuple(filter(None, map(_read_key, listed if isinstance(listed, list) else ())))
    if not keys:
        raise VendorError(
            f"expected public keys of fal, found {reply.excerpt}; the callback is not judged",
            code="unreadable_reply",
            http_status=reply.status,
        )
    return keys


def _read_key(key: Any) -> bytes | None:
    if not isinstance(key, Mapping) or (key.get("kty"), key.get("crv", "Ed25519")) != ("OKP", "Ed25519"):
        return None
    text = key.get("x")
    try:
        found = base64.urlsafe_b64decode(f"{text}{'=' * (-len(text) % 4)}") if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return None
    return found if len(found) == _KEY_LENGTH else None


def message(request_id: str, user_id: str, timestamp: str, body: bytes) -> bytes:
    """Return what a signature of fal is made over."""
    digest = hashlib.sha256(body).hexdigest()
    return f"{request_id}\n{user_id}\n{timestamp}\n{digest}".encode(errors="replace")


class FalSigner:
    """Signs as fal does, with a key of its own: for local vendors and tests. Needs the extra, too."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.generate()

    def jwks(self) -> dict[str, Any]:
        """Return the public key as fal publishes its own."""
        public = base64.urlsafe_b64encode(self._key.public_key().public_bytes_raw()).decode().rstrip("=")
        return {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": public}]}

    def sign(self, request_id: str, user_id: str, signed_at: datetime, body: bytes) -> dict[str, str]:
        """Return the headers that verify."""
        timestamp = str(int(signed_at.timestamp()))
        signature = self._key.sign(message(request_id, user_id, timestamp, body))
        return {_ID: request_id, _USER: user_id, _TIME: timestamp, _SIGNATURE: signature.hex()}


def _signed(callback: Callback) -> tuple[bytes, bytes]:
    """Return the signature of a callback, and what it must be made over."""
    request_id, user_id = callback.required(_ID), callback.required(_USER)
    try:
        signature = bytes.fromhex(callback.required(_SIGNATURE))
    except ValueError:
        raise _refusal() from None
    return signature, message(request_id, user_id, callback.check_time(_TIME), callback.body)


def _is_signed(keys: tuple[bytes, ...], signature: bytes, signed: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise ConfigError(
            "callbacks of fal are verified by the cryptography package, which is not installed; "
            "run pip install 'coatcheck-video[fal]'"
        ) from None
    for key in keys:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)
        except (InvalidSignature, ValueError):
            continue
        return True
    return False


def _refusal() -> CallbackRefusedError:
    return CallbackRefusedError(
        "expected a callback with a signature by one of fal's keys, found one that fits none of them; it is "
        "somebody else's or was changed on the way",
        code="bad_signature",
    )
