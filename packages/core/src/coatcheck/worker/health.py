"""How a worker is, as data and as one tiny HTTP page, answered from a thread of its own."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
from attrs import frozen

from coatcheck import codec
from coatcheck.errors import ConfigError


@frozen(kw_only=True)
class Health:
    """A worker's state at one moment; durations in seconds."""

    worker_id: str
    #: The main loop moves; false means that its leases run out and others take over.
    is_alive: bool
    #: It claims nothing any more and finishes what it holds.
    is_draining: bool
    beat_age: float
    #: Steps claimed and not yet committed.
    held: int
    #: Calls under way that were given up because they took too long.
    abandoned: int
    #: Failed store calls in a row.
    store_failures: int
    #: Steps written, leases lost and calls given up since the start.
    committed: int
    lost_leases: int
    abandoned_calls: int


class HealthServer:
    """Answers ``GET /health`` on the local machine: 200 while the worker is alive, 503 when it is not.

    Args:
        port: where; 0 takes a free one.
        health: returns the state.

    Raises:
        ConfigError: the port is taken, or may not be used.
    """

    def __init__(self, port: int, health: Callable[[], Health]) -> None:
        class Page(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                found = health() if self.path.partition("?")[0] == "/health" else None
                body = codec.dumps(attrs.asdict(found)) if found else b'{"error":"ask for /health"}'
                self.send_response(404 if found is None else 200 if found.is_alive else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: probes come every few seconds."""

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Page)
        except OSError as error:
            raise ConfigError(
                f"health_port must be a port that is free here, found {port}: {error.strerror}; "
                "choose another one, or 0 for any"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.5,), name="coatcheck-health", daemon=True
        )

    @property
    def port(self) -> int:
        """The port that it answers on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._server.server_close()
