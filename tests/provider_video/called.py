"""A house that hears of its jobs by callbacks only: it would look at them once an hour."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import coatcheck
from coatcheck import CallbackRefusedError, TaskNotFoundError
from coatcheck.embedded import Local
from coatcheck.policy import PollPolicy
from coatcheck.sandbox import Answer, Mounts, Request, Server, VendorSandbox
from coatcheck_video.handler import VideoHandler

_HOUR = timedelta(hours=1)
RARELY = PollPolicy(first=_HOUR, start=_HOUR, cap=_HOUR, jitter=0)


class Application:
    """An application's web server that takes callbacks."""

    def __init__(self) -> None:
        self.house: Local | None = None
        #: Codes of the callbacks that were refused.
        self.refused: list[str] = []

    def __call__(self, request: Request) -> Answer:
        """Take one callback."""
        assert self.house is not None
        task_id = request.path.rpartition("/")[2]
        try:
            self.house.manager.receive_callback(task_id, body=request.body, headers=request.headers)
        except (CallbackRefusedError, TaskNotFoundError) as error:
            self.refused.append(str(error))
            return Answer(404)
        return Answer(204)


@contextmanager
def called_back(
    folder: Path, handler_type: type[VideoHandler], sandbox: VendorSandbox, parts: Mapping[str, str]
) -> Iterator[tuple[Local, Application, str]]:
    """Serve a vendor and an application, and run a house; gives the address to be called, too."""
    application = Application()
    with (
        closing(sandbox),
        Server(application) as server,
        Server(Mounts({handler_type.key: sandbox})) as vendor,
    ):
        handler = handler_type(Mounts.url(vendor.url, handler_type.key), poll=RARELY)
        secrets = {part: lambda secret=secret: secret for part, secret in parts.items()}
        with coatcheck.local(
            folder / "tasks.db", plugins=False, handlers=[handler], accounts={handler.account: secrets}
        ) as house:
            application.house = house
            yield house, application, f"{server.url}/callbacks/{{task_id}}"
