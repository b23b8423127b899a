"""Callbacks of fal: signatures by published keys, and how long these are kept."""

import base64
import builtins
import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coatcheck.errors import CallbackRefusedError, ConfigError, VendorError
from coatcheck.http import Callback, CallbackNote, Follow
from coatcheck.testing.transport import reply
from coatcheck_video.callbacks.fal import JWKS_URL, FalKeys, FalSigner

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BODY = (
    b'{"request_id": "request-1", "status": "OK", "payload": {"video": {"url": "https://files.example/v"}}}'
)
NOTE = CallbackNote("request-1")
SIGNER = FalSigner()


def signed(
    body: bytes = BODY, *, signer: FalSigner = SIGNER, at: datetime = NOW, now: datetime = NOW
) -> Callback:
    """Return a callback as the vendor would send it."""
    return Callback(body, signer.sign("request-1", "user-1", at, body), received_at=now)


def with_header(callback: Callback, name: str, value: str) -> Callback:
    """Return a callback with one header replaced."""
    return attrs.evolve(callback, headers={**callback.headers, f"x-fal-webhook-{name}": value})


def read(keys: FalKeys, callback: Callback, jwks: Any, now: datetime = NOW) -> CallbackNote:
    """Read a callback, with this answer to a call for keys."""
    answer = keys.read_callback(callback, now)
    if isinstance(answer, Follow):
        assert (answer.call.method, answer.call.plain) == ("GET", True)
        answer = answer.read(reply(jwks))
    assert isinstance(answer, CallbackNote)
    return answer


def known(signer: FalSigner = SIGNER) -> FalKeys:
    """Return keys that were fetched now."""
    keys = FalKeys()
    assert read(keys, signed(signer=signer), signer.jwks()) == NOTE
    return keys


def test_signature_is_what_the_sheet_says() -> None:
    """ED25519 over request id, user id, timestamp and the hex SHA-256 of the raw body, with line feeds."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    public = base64.urlsafe_b64encode(key.public_key().public_bytes_raw()).decode().rstrip("=")
    digest = hashlib.sha256(BODY).hexdigest()
    sent = {
        "X-Fal-Webhook-Request-Id": "request-1",
        "X-Fal-Webhook-User-Id": "user-1",
        "X-Fal-Webhook-Timestamp": "1767323045",
        "X-Fal-Webhook-Signature": key.sign(f"request-1\nuser-1\n1767323045\n{digest}".encode()).hex(),
    }
    jwks = {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": public}]}
    assert read(FalKeys(), Callback(BODY, sent, received_at=NOW), jwks) == NOTE


def test_keys_are_fetched_once_and_kept_for_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """From fal's own place, or from the one that is named; a call for each callback would be too many."""
    keys = FalKeys()
    first = keys.read_callback(signed(), NOW)
    assert isinstance(first, Follow)
    assert first.call.url == JWKS_URL == "https://rest.fal.ai/.well-known/jwks.json"
    assert first.read(reply(SIGNER.jwks())) == NOTE
    almost = NOW + timedelta(hours=23, minutes=59)
    assert keys.read_callback(signed(at=almost, now=almost), almost) == NOTE
    then = NOW + timedelta(hours=24)
    assert isinstance(keys.read_callback(signed(at=then, now=then), then), Follow)
    monkeypatch.setenv("COATCHECK_VIDEO_FAL_JWKS_URL", "http://127.0.0.1:8099/jwks.json")
    assert FalKeys().url == "http://127.0.0.1:8099/jwks.json"


def test_any_of_the_keys_may_fit() -> None:
    """Others beside it, of other kinds or broken, do not matter."""
    (key,) = SIGNER.jwks()["keys"]
    others = [
        *FalSigner().jwks()["keys"],
        {"kty": "RSA", "n": "AQAB"},
        {**key, "crv": "X25519"},
        {**key, "x": key["x"][:-4]},
        {**key, "x": "é"},
        {**key, "x": None},
        "key",
        None,
    ]
    assert read(FalKeys(), signed(), {"keys": [*others, key]}) == NOTE
    with pytest.raises(CallbackRefusedError):
        read(FalKeys(), signed(), {"keys": others})


def test_new_key_is_found_before_the_old_ones_are_forgotten() -> None:
    """Keys that fit nothing are fetched again, but not for each forged callback."""
    keys, newer = known(), FalSigner()
    soon = NOW + timedelta(minutes=4)
    with pytest.raises(CallbackRefusedError):
        keys.read_callback(signed(signer=newer, at=soon, now=soon), soon)
    later = NOW + timedelta(minutes=6)
    fresh = signed(signer=newer, at=later, now=later)
    assert read(keys, fresh, newer.jwks(), later) == NOTE
    assert keys.read_callback(fresh, later) == NOTE
    with pytest.raises(CallbackRefusedError):
        keys.read_callback(signed(at=later, now=later), later)


@pytest.mark.parametrize("jwks", [{}, [], {"keys": {}}, {"keys": []}, {"keys": [{"kty": "RSA"}]}, "<html>"])
def test_reply_without_keys_judges_nothing_and_is_not_kept(jwks: Any) -> None:
    """A broken page at fal's must not make forgeries of its callbacks for a day."""
    keys = FalKeys()
    with pytest.raises(VendorError):
        read(keys, signed(), jwks)
    assert read(keys, signed(), SIGNER.jwks()) == NOTE


@pytest.mark.parametrize(
    "change",
    [
        lambda good: attrs.evolve(good, body=BODY.replace(b"request-1", b"request-2")),
        lambda good: attrs.evolve(good, body=BODY + b" "),
        lambda good: with_header(good, "request-id", "request-2"),
        lambda good: with_header(good, "user-id", "user-2"),
        lambda good: with_header(good, "timestamp", f"{NOW.timestamp() + 1:.0f}"),
        lambda good: with_header(good, "signature", "00" * 64),
        lambda good: with_header(good, "signature", "00"),
        lambda good: with_header(good, "signature", "no hex"),
        lambda good: with_header(good, "signature", (good.header("x-fal-webhook-signature") or "")[:-2]),
        lambda good: with_header(good, "user-id", "user\ud800"),
        # What is signed is joined by line feeds: a piece may not slip into the next one.
        lambda good: with_header(with_header(good, "request-id", "request-1\nuser-1"), "user-id", "1"),
    ],
)
def test_changed_callback_is_refused(change: Callable[[Callback], Callback]) -> None:
    """Ids, time and the digest of the raw body are all signed."""
    with pytest.raises(CallbackRefusedError) as refused:
        known().read_callback(change(signed()), NOW)
    assert refused.value.code == "bad_signature"


@pytest.mark.parametrize("name", ["request-id", "user-id", "timestamp", "signature"])
def test_callback_without_one_of_the_headers_is_unsigned_and_fetches_nothing(name: str) -> None:
    """Nobody makes us call fal with less than a whole signature of today."""
    headers = {key: value for key, value in signed().headers.items() if not key.endswith(name)}
    with pytest.raises(CallbackRefusedError, match=name) as refused:
        FalKeys().read_callback(attrs.evolve(signed(), headers=headers), NOW)
    assert refused.value.code == "unsigned"


def test_old_callback_is_refused_before_any_key_is_fetched() -> None:
    """Off by more than 300 s, to either side."""
    assert isinstance(FalKeys().read_callback(signed(at=NOW - timedelta(seconds=300)), NOW), Follow)
    for apart in (timedelta(seconds=301), timedelta(hours=-1)):
        with pytest.raises(CallbackRefusedError) as refused:
            FalKeys().read_callback(signed(at=NOW - apart), NOW)
        assert refused.value.code == "stale"


def test_signed_body_without_an_id_is_unreadable() -> None:
    """The vendor's own word may still say nothing."""
    with pytest.raises(CallbackRefusedError) as refused:
        known().read_callback(signed(b'{"status": "OK"}'), NOW)
    assert refused.value.code == "unreadable"


def test_without_the_extra_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken for good because it cannot be verified."""
    keys, original = known(), builtins.__import__

    def no_cryptography(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", no_cryptography)
    with pytest.raises(ConfigError, match=r"coatcheck-video\[fal\]"):
        keys.read_callback(signed(), NOW)
