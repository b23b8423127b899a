"""Connections to one SQLite file: opening, transactions, forks, and what SQLite's errors mean to a caller.

A writer begins immediate, so that it waits for its turn instead of being refused half way; readers see
snapshots of the log and wait for nobody. A connection never crosses a fork: the child opens its own.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from coatcheck.errors import CoatcheckError, StoreConfigError, StoreFullError, StoreUnavailableError
from coatcheck.stores.sqlite import schema

#: How long a writer waits for other processes before it gives up.
BUSY_SECONDS = 60.0

#: How the writer's connection is set up. The log goes into the file every 16 MiB instead of every 4, because
#: everybody waits for the disk then; a commit is as safe before as after. Pages stay in memory up to 16 MiB.
WRITER = ("synchronous = NORMAL", "wal_autocheckpoint = 4000", "cache_size = -16000")

MEMORY = ":memory:"

#: Connections that a child inherited: never used, never closed, since closing would disturb the parent's.
_inherited: list[sqlite3.Connection] = []
#: The databases that are locked while a fork is under way.
_forking: "list[Database]" = []
_open: "weakref.WeakSet[Database]" = weakref.WeakSet()


class Database:
    """One file (or memory) as one namespace sees it; ``start_anew`` is called in a forked child."""

    def __init__(self, path: str, prefix: str, start_anew: Callable[[], None]) -> None:
        self.path = path
        self._start_anew = start_anew
        self.is_memory = path == MEMORY
        self._prefix = prefix
        self._statements: dict[str, str] = {}
        self._closed = False
        #: A memory store in a child of the process that made it.
        self._is_foreign = False
        self._connections: list[sqlite3.Connection] = []
        self._make_locks()
        self._check_library()
        self._prepare_folder()
        with translated(self.path):
            self._open_connections()
        _open.add(self)

    def _make_locks(self) -> None:
        self._write_lock = threading.RLock()
        self._read_lock = self._write_lock if self.is_memory else threading.RLock()
        self._watch_lock = self._write_lock if self.is_memory else threading.RLock()

    def _check_library(self) -> None:
        with closing(sqlite3.connect(MEMORY)) as connection:
            try:
                connection.execute("SELECT value FROM json_each('[1]')").close()
            except sqlite3.OperationalError as error:
                raise StoreConfigError(
                    f"expected an SQLite library with its JSON functions, found {sqlite3.sqlite_version} "
                    "without them; use a Python with SQLite 3.38 or newer",
                    self.path,
                ) from error

    def _prepare_folder(self) -> None:
        if self.is_memory:
            return
        folder = Path(self.path).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreConfigError(
                f"expected a folder for the store that can be written, found {folder}: {error.strerror}; "
                "choose another path or change its permissions",
                self.path,
            ) from error

    def _open_connections(self) -> None:
        self._writer = self._connect()
        if self.is_memory:
            self._reader = self._watcher = self._writer
        else:
            self._writer.execute("PRAGMA journal_mode = WAL")
            self._reader = self._connect()
            self._watcher = self._connect()
        for pragma in WRITER:
            self._writer.execute(f"PRAGMA {pragma}").close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        self._connections.append(connection)
        return connection

    def create(self) -> None:
        """Create what is missing of the tables.

        Raises:
            StoreConfigError: the file's tables are of another version.
        """
        try:
            with self.write() as cursor:
                self._create(cursor)
        except BaseException:
            self.close()
            raise

    def _create(self, cursor: sqlite3.Cursor) -> None:
        cursor.execute(schema.SHARED)
        # The first version wrote no version down.
        is_new = not cursor.execute("SELECT 1 FROM coatcheck_meta").fetchone()
        if is_new:
            cursor.execute("INSERT INTO coatcheck_meta VALUES ('version', ?)", (str(schema.VERSION),))
        found = cursor.execute("SELECT value FROM coatcheck_meta WHERE name = 'version'").fetchone()
        version = found[0] if found else "1"
        if version != str(schema.VERSION):
            raise StoreConfigError(
                f"expected tables of version {schema.VERSION} in {self.path}, found version {version}; "
                "choose another path, or use the version of coatcheck that made the file",
                self.path,
            )
        for statement in schema.TABLES.split(";\n"):
            if statement.strip():
                cursor.execute(self.sql(statement))

    def sql(self, text: str) -> str:
        """Return a statement with the namespace's prefix in the place of ``@``."""
        found = self._statements.get(text)
        if found is None:
            found = self._statements[text] = text.replace("@", self._prefix)
        return found

    @contextmanager
    def write(self) -> Iterator[sqlite3.Cursor]:
        """Hold the only write transaction of the file."""
        with self._write_lock, translated(self.path):
            self.check_open()
            cursor = self._writer.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                if self._writer.in_transaction:
                    cursor.execute("ROLLBACK")
                raise
            finally:
                cursor.close()

    @contextmanager
    def read(self) -> Iterator[sqlite3.Cursor]:
        """Read a snapshot."""
        with self._read_lock, translated(self.path):
            self.check_open()
            cursor = self._reader.cursor()
            if not self.is_memory:
                cursor.execute("BEGIN")
            try:
                yield cursor
            finally:
                if not self.is_memory and self._reader.in_transaction:
                    cursor.execute("COMMIT")
                cursor.close()

    def change_mark(self) -> int:
        """Return a number that changes when another connection has written to the file; cheap."""
        with self._watch_lock, translated(self.path):
            self.check_open()
            (mark,) = self._watcher.execute("PRAGMA data_version").fetchone()
            return int(mark)

    def check_open(self) -> None:
        """Refuse a closed store, and a memory store in a forked child."""
        if self._closed:
            raise StoreUnavailableError(f"the store {self.path} is closed; open a new one")
        if self._is_foreign:
            raise StoreUnavailableError(
                "a memory store belongs to the process that made it, found a call after a fork; "
                "use a SQLite file or Redis to share tasks between processes"
            )

    def close(self) -> None:
        """Close the connections of this process."""
        with self._write_lock, self._read_lock, self._watch_lock:
            self._closed = True
            if not self._is_foreign:
                for connection in self._connections:
                    connection.close()
            self._connections.clear()
            _open.discard(self)

    def before_fork(self) -> None:
        """Keep every thread out of SQLite, so that the child inherits no lock that nobody will give back."""
        for lock in (self._write_lock, self._read_lock, self._watch_lock):
            lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        for lock in (self._write_lock, self._read_lock, self._watch_lock):
            lock.release()

    def after_fork_in_child(self) -> None:
        """Start anew with connections of the child's own."""
        self._make_locks()
        self._start_anew()
        if self._closed:
            return
        _inherited.extend(self._connections)
        self._is_foreign = self.is_memory
        if not self.is_memory:
            self._connections = []
            with translated(self.path):
                self._open_connections()


def _before_fork() -> None:
    _forking[:] = list(_open)
    for database in _forking:
        database.before_fork()


def _after_fork_in_parent() -> None:
    for database in _forking:
        database.after_fork_in_parent()
    _forking.clear()


def _after_fork_in_child() -> None:
    for database in _forking:
        database.after_fork_in_child()
    _forking.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.ProgrammingError, sqlite3.NotSupportedError) as error:
        raise _meaning(error, path) from error
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:
            raise
        raise StoreConfigError(
            f"expected a SQLite file at {path}, found something else ({error}); choose another path", path
        ) from error


def _meaning(error: sqlite3.Error, path: str) -> CoatcheckError | sqlite3.Error:
    text = str(error)
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_FULL"):
        return StoreFullError(f"the disk under {path} is full; nothing was stored, make room and try again")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailableError(f"{path} was held by another writer for {BUSY_SECONDS:.0f} s; try again")
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM")):
        return StoreConfigError(
            f"expected a file that can be written at {path}, found: {text}; "
            "change the path or its permissions",
            path,
        )
    if name.startswith("SQLITE_IOERR") or "closed" in text:
        return StoreUnavailableError(f"{path} cannot be used: {text}")
    return error
