"""What one SQLite file promises to several processes."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from coatcheck.errors import StoreConfigError, StoreUnavailableError
from coatcheck.micros import from_micros, to_micros
from coatcheck.model import TaskStatus
from coatcheck.store import Outcome
from coatcheck.stores.sqlite import SqliteStore
from coatcheck.testing.records import claim, new_task, transition

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file for one test."""
    return str(tmp_path / "tasks.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    """A store in that file."""
    store = SqliteStore(path)
    yield store
    store.close()


# Forking a process with threads is just what this is about.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_every_forked_child_gets_its_own_answers_while_threads_write(store: SqliteStore) -> None:
    """F70: after a fork, with threads running, each answer belongs to its caller and the parent goes on."""
    is_over = threading.Event()

    def write(number: int) -> None:
        count = 0
        while not is_over.is_set():
            store.add([new_task(f"parent-{number}-{count}")])
            count += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for number in range(50):
                    task_id = f"child-{child}-{number}"
                    store.add([new_task(task_id)])
                    (found,) = store.get([task_id])
                    if found is None or found.row.id != task_id:
                        os._exit(2)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    is_over.set()
    for thread in threads:
        thread.join()
    assert codes == [0, 0, 0, 0]
    assert store.add([new_task("after")])[0].stored.row.id == "after"


def test_a_memory_store_refuses_to_pretend_in_a_child() -> None:
    """F109: a child of a fork is told that a memory store is not shared."""
    store = SqliteStore(":memory:")
    pid = os.fork()
    if pid == 0:
        try:
            store.get(["x"])
        except StoreUnavailableError as error:
            os._exit(0 if "process that made it" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    store.close()


def test_processes_claim_and_commit_on_one_file_beside_a_long_reader(store: SqliteStore, path: str) -> None:
    """F66, F45: writers beside a reader that keeps its snapshot meet no "locked"; no task is leased twice."""
    total = 300
    store.add([new_task(f"t{number}") for number in range(total)])
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM default_tasks").fetchone()
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / "claim_all.py"), path], stdout=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    claimed: list[str] = []
    for process in processes:
        out, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        claimed += out.split()
    reader.execute("COMMIT")
    reader.close()
    assert sorted(claimed) == sorted(f"t{number}" for number in range(total))


def test_the_clock_is_one_for_all_processes_of_a_file(store: SqliteStore, path: str) -> None:
    """F38: a second opener counts from the same anchor, whatever the wall clock says meanwhile."""
    other = SqliteStore(path)
    assert abs(other.now() - store.now()) < timedelta(seconds=5)
    with sqlite3.connect(path) as connection:
        anchors = connection.execute("SELECT COUNT(*) FROM coatcheck_meta WHERE name = 'anchor'").fetchone()
    connection.close()
    assert anchors == (1,)
    other.close()


def test_after_a_reboot_time_does_not_go_back(store: SqliteStore, path: str) -> None:
    """A new boot takes a new anchor, never before the old one, even if the wall clock was set back."""
    ahead = to_micros(datetime.now(UTC) + timedelta(days=1))
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE coatcheck_meta SET value = ? WHERE name = 'anchor'", (f"{ahead} 0 old-boot",)
        )
    connection.close()
    reopened = SqliteStore(path)
    assert reopened.now() >= from_micros(ahead)
    reopened.close()


@pytest.mark.parametrize("micros", [0, 1, 999_999, 1_796_037_016_951_825, 3_976_214_399_999_999])
def test_instants_survive_the_way_to_the_file(micros: int) -> None:
    """Microseconds come back exactly."""
    assert to_micros(from_micros(micros)) == micros


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """A foreign file is not overwritten; the error says what was expected."""
    path = tmp_path / "notes.txt"
    path.write_text("these are notes, not tasks\n" * 100)
    with pytest.raises(StoreConfigError, match="expected a SQLite file"):
        SqliteStore(str(path))
    assert path.read_text().startswith("these are notes")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A path below a file is refused with what to do."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreConfigError, match="expected a folder"):
        SqliteStore(str(tmp_path / "file" / "tasks.db"))


def test_a_row_that_cannot_be_written_spoils_no_other(store: SqliteStore) -> None:
    """G10: one broken transition fails alone; its neighbours are done."""
    store.add([new_task("good"), new_task("bad")])
    moves = []
    for lease in claim(store).leases:
        # A record of no bytes at all breaks a constraint of the table.
        changes = {"record": None} if lease.task_id == "bad" else {}
        moves.append(transition(lease, TaskStatus.RUNNING, **changes))
    outcomes = dict(
        zip((move.task_id for move in moves), (c.outcome for c in store.commit(moves)), strict=True)
    )
    assert outcomes == {"good": Outcome.DONE, "bad": Outcome.FAILED}
