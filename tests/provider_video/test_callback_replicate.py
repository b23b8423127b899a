"""Callbacks of Replicate: who signed them, when, and with which of the account's secrets."""

import base64
import hmac
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from coatcheck.errors import CallbackRefusedError, ConfigError, UnknownNameError
from coatcheck.http import Callback, CallbackNote
from coatcheck.model import Account
from coatcheck_video.callbacks import replicate

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SECRET = "whsec_" + base64.b64encode(b"signing key of a test, 32 bytes.").decode()
OLD = "whsec_" + base64.b64encode(b"the key before that one").decode()
BODY = b'{"id": "prediction-1", "status": "succeeded", "output": "https://files.example/v.mp4"}'


def account(*secrets: str) -> Account:
    """Return an account with these secrets, and with a list of what it handed out."""
    return Account("replicate", lambda part: {"webhook_secret": " ".join(secrets)}[part], [])


def signed(body: bytes = BODY, *, secret: str = SECRET, at: datetime = NOW) -> Callback:
    """Return a callback as the vendor would send it."""
    return Callback(body, replicate.sign(secret, "msg-1", at, body), received_at=NOW)


def with_headers(callback: Callback, **changes: str) -> Callback:
    """Return a callback with some headers replaced; ``_`` stands for ``-``."""
    changed = {name.replace("_", "-"): value for name, value in changes.items()}
    return attrs.evolve(callback, headers={**callback.headers, **changed})


def refusal(callback: Callback, *secrets: str) -> str:
    """Return the code that a callback is refused with."""
    with pytest.raises(CallbackRefusedError) as refused:
        replicate.read_callback(callback, account(*(secrets or (SECRET,))))
    assert "whsec" not in str(refused.value)
    return refused.value.code


def test_signature_is_what_the_sheet_says() -> None:
    """HMAC-SHA256 over id, timestamp and raw body, with the key that follows ``whsec_``, in base64."""
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = hmac.digest(key, b"msg-1." + b"1767323045." + BODY, "sha256")
    sent = {
        "Webhook-Id": "msg-1",
        "Webhook-Timestamp": "1767323045",
        "Webhook-Signature": f"v1,{base64.b64encode(expected).decode()}",
    }
    callback = Callback(BODY, sent, received_at=NOW)
    assert replicate.read_callback(callback, account(SECRET)) == CallbackNote("prediction-1")


def test_any_signature_and_any_secret_may_fit() -> None:
    """Both sides may be in the middle of a rotation: several signatures, several secrets."""
    good = signed().header("webhook-signature") or ""
    several = with_headers(signed(), webhook_signature=f"v2,{good[3:]} v1,AAAA {good} v1a,BBBB")
    assert replicate.read_callback(several, account(SECRET)) == CallbackNote("prediction-1")
    assert (
        replicate.read_callback(signed(secret=OLD), account(SECRET, OLD)).external_task_id == "prediction-1"
    )
    assert refusal(signed(secret=OLD)) == "bad_signature"


@pytest.mark.parametrize(
    "signature",
    [
        "v1,",
        "v1",
        "AAAA",
        "v2,{good}",
        "v1,{good}=",
        "v1,{lower}",
        "v1, {good}",
        "v1,é\ud800",
        "v1,\x00",
        ",",
    ],
)
def test_signature_that_does_not_fit_is_refused(signature: str) -> None:
    """Other versions, other spellings and whatever else somebody writes there."""
    good = (signed().header("webhook-signature") or "").removeprefix("v1,")
    text = signature.format(good=good, lower=good.swapcase())
    assert refusal(with_headers(signed(), webhook_signature=text)) == "bad_signature"


def test_changed_callback_is_refused() -> None:
    """Id, time and body are all signed, the body byte by byte."""
    assert (
        refusal(attrs.evolve(signed(), body=BODY.replace(b"prediction-1", b"prediction-2")))
        == "bad_signature"
    )
    assert refusal(attrs.evolve(signed(), body=BODY + b"\n")) == "bad_signature"
    assert refusal(with_headers(signed(), webhook_id="msg-2")) == "bad_signature"
    later = f"{NOW.timestamp() + 1:.0f}"
    assert refusal(with_headers(signed(), webhook_timestamp=later)) == "bad_signature"


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_callback_without_one_of_the_headers_is_unsigned(name: str) -> None:
    """The message names the header that is missing."""
    headers = {key: value for key, value in signed().headers.items() if key != name}
    callback = attrs.evolve(signed(), headers=headers)
    assert refusal(callback) == "unsigned"
    with pytest.raises(CallbackRefusedError, match=name):
        replicate.read_callback(callback, account(SECRET))


def test_old_callback_is_refused_though_its_signature_is_good() -> None:
    """Whoever recorded it may not use it for ever."""
    at_the_edge = signed(at=NOW - timedelta(minutes=5))
    assert replicate.read_callback(at_the_edge, account(SECRET)) == CallbackNote("prediction-1")
    assert refusal(signed(at=NOW - timedelta(minutes=5, seconds=1))) == "stale"
    assert refusal(signed(at=NOW + timedelta(hours=1))) == "stale"


def test_signed_body_without_an_id_is_unreadable() -> None:
    """The vendor's own word may still say nothing."""
    assert refusal(signed(b'{"status": "succeeded"}')) == "unreadable"
    assert refusal(signed(b"")) == "unreadable"


@pytest.mark.parametrize("secret", ["whsec_", "whsec_no-base64!", "sk-1234567890é"])
def test_secret_that_is_none_is_a_wrong_setting_and_is_not_shown(secret: str) -> None:
    """It is no signature that fails, and what stands there may be another secret (G8)."""
    with pytest.raises(ConfigError, match="must be a signing secret") as problem:
        replicate.read_callback(signed(), account(secret))
    said = str(problem.value).replace("whsec_<base64>", "")
    assert secret not in said


def test_every_secret_is_kept_out_of_what_is_written() -> None:
    """One of several would not be found by looking for them all as one text (G8)."""
    vault = account(SECRET, OLD)
    replicate.read_callback(signed(), vault)
    assert vault.handed_out == [SECRET, OLD]


def test_account_without_signing_secrets_says_so() -> None:
    """Without one nothing can be verified, and nothing passes; a blank one is none."""

    def lookup(part: str) -> str:
        raise UnknownNameError.of("account", part, ())

    with pytest.raises(UnknownNameError, match="webhook_secret"):
        replicate.read_callback(signed(), Account("replicate", lookup))
    assert refusal(signed(), " ") == "bad_signature"
