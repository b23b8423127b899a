"""Local files put where a vendor wants them, in the process that has them; a task then holds ids only.

Here are the parts that vendors share: a file, its way to a signed place, and the conversation that asks for
the place. No worker calls any of this, and no vendor is known here.
"""

import mimetypes
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from attrs import frozen

from coatcheck.accounts import Accounts
from coatcheck.errors import NotSentError, RejectedError, ValidationError
from coatcheck.http import Call, HttpHandler, Reply, run, steps
from coatcheck.model import Account, Step, SubmitContext

if TYPE_CHECKING:
    from coatcheck.transport import Transport

#: How long one file may take to its place.
UPLOAD_TIME = timedelta(minutes=10)

_ANY_REFUSAL = tuple(range(300, 600))
_LATER = (408, 425, 429)


@frozen
class LocalFile:
    """A file of this machine, and the name that the vendor sees."""

    path: Path
    name: str

    @classmethod
    def of(cls, path: str | Path, name: str | None = None) -> Self:
        """Find a file.

        Raises:
            ValidationError: it is no file that can be read here, it is empty, or its name has no suffix, by
                which vendors tell the kind of a document.
        """
        found = Path(path)
        try:
            with found.open("rb") as file:
                is_empty = not file.read(1)
        except OSError as error:
            raise ValidationError(
                f"path must be a file that can be read here, found {str(path)!r}: {error.strerror}", "path"
            ) from None
        if is_empty:
            raise ValidationError(f"{found} is empty; there is nothing to upload", "path")
        named = name or found.name
        if not Path(named).suffix:
            raise ValidationError(
                f"a file must have a name with a suffix, found {named!r}; pass file_name=", "file_name"
            )
        return cls(found, named)


def put(file: LocalFile, url: str) -> Generator[Call, Reply, None]:
    """Send a file to a place that was signed for it; part of a conversation.

    Most places are signed for a request without a ``Content-Type`` and refuse any other; a place that answers
    403 is tried once more with the type that the name suggests. What a storage service answers is shown
    nowhere: it may hold temporary keys.

    Raises:
        NotSentError: the place did not take the file this time.
        RejectedError: it will not.
    """
    guessed = mimetypes.guess_type(file.name)[0]
    status = 0
    for kind in (None, guessed) if guessed else (None,):
        with file.path.open("rb") as content:
            reply = yield Call(
                "PUT",
                url,
                headers={} if kind is None else {"Content-Type": kind},
                body=content,
                plain=True,
                accept=_ANY_REFUSAL,
                timeout=UPLOAD_TIME,
            )
        status = reply.status
        if reply.is_success:
            return
        if status != 403:
            break
    what = f"expected {urlsplit(url).hostname} to take {file.name!r}, found HTTP {status}"
    if status >= 500 or status in _LATER:
        raise NotSentError(f"{what}; upload it again", code=f"http_{status}")
    raise RejectedError(f"{what}; upload it again if its place has expired", code=f"http_{status}")


def converse(
    handler: HttpHandler[Any], request: Any, account: Account | None, transport: "Transport | None"
) -> Any:
    """Hold the conversation of a submit here and now, outside any task, and return its result.

    Args:
        handler: whose ``prepare_calls`` do the work.
        request: its request.
        account: whose credentials; by default the handler's own account, from the environment.
        transport: performs the calls; by default one that is made for this, and closed.

    Raises:
        HandlerError: as for a submit.
        ConfigError: the account has no credentials here.
    """
    # A process that only submits or lists must not load an HTTP client.
    from coatcheck.transport import RequestsTransport

    found = account or Accounts().get(handler.account, handler.account_env)
    used = transport or RequestsTransport()
    now = datetime.now(UTC)
    context = SubmitContext(
        task_id="upload", idempotency_key="upload", now=now, account=found, transport=used
    )
    try:
        return run(steps(handler, Step.SUBMIT, request, context), context)
    finally:
        if transport is None:
            used.close()
