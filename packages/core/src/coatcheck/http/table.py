"""The reply table: what a reply means that is no evidence of a job's state. Pure."""

from datetime import datetime, timedelta

from coatcheck.errors import (
    JobNotFoundError,
    NotReadyError,
    NotSentError,
    RejectedError,
    ThrottledError,
    VendorError,
)
from coatcheck.http.call import Call, Reply

#: How long an account's gate stays shut after the vendor refused its key or its balance.
ACCOUNT_REFUSED = timedelta(seconds=60)


def check(
    reply: Reply,
    call: Call,
    *,
    creating: bool,
    now: datetime,
    absence: bool = True,
    is_token_old: bool = False,
) -> None:
    """Raise what a reply means, unless it is for the handler to read.

    Args:
        reply: what the vendor answered.
        call: what it answered to.
        creating: whether the column for submits holds.
        now: the store's time, for dates in ``Retry-After``.
        absence: whether 404 and 410 say that the job is not there; a lookup, whose miss leads to a new job,
            must not take that from an address that may simply be wrong.
        is_token_old: whether the call was signed with a token that was kept, so that another may help.

    Raises:
        HandlerError: see the table in the documentation of ``HttpHandler``.
    """
    status = reply.status
    if 200 <= status < 300 or status in call.accept:
        return
    what = f"{call!r} was answered with {status}: {reply.excerpt}"
    if call.plain:
        _check_plain(reply, what, creating=creating, now=now)
    if status in (429, 425) or (status == 503 and reply.retry_after(now) is not None):
        raise ThrottledError(f"{what}; the vendor asks for patience", delay=reply.retry_after(now))
    if status == 401 and is_token_old:
        advice = "the token is given up, the next call gets a new one"
        if creating:
            raise NotSentError(f"{what}; nothing was submitted: {advice}", code="token_refused")
        raise VendorError(f"{what}; {advice}", code="token_refused", http_status=status)
    if status in (401, 402):
        advice = "check the account's credentials and balance"
        if creating:
            raise RejectedError(f"{what}; {advice}", code="account_refused", gate_delay=ACCOUNT_REFUSED)
        raise VendorError(
            f"{what}; {advice}", code="account_refused", http_status=status, gate_delay=ACCOUNT_REFUSED
        )
    if creating and 400 <= status < 500 and status != 408:
        raise RejectedError(f"{what}; the vendor refused the request")
    if not creating and absence and status in (404, 410):
        raise JobNotFoundError(f"{what}; the vendor does not know the job")
    raise VendorError(f"{what}; expected 2xx", code=f"http_{status}", http_status=status)


def _check_plain(reply: Reply, what: str, *, creating: bool, now: datetime) -> None:
    """A host without credentials says nothing about the account: no gate of the vendor closes for it."""
    status = reply.status
    delay = reply.retry_after(now)
    if status in (429, 425) or (status == 503 and delay is not None):
        if creating:
            raise NotSentError(f"{what}; nothing was submitted", code=f"http_{status}")
        raise NotReadyError(f"{what}; it is asked again later", delay=delay)
    if creating and 400 <= status < 500 and status != 408:
        raise RejectedError(f"{what}; what it holds cannot be fetched", code=f"http_{status}")
    raise VendorError(f"{what}; expected 2xx", code=f"http_{status}", http_status=status)
