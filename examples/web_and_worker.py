"""Three processes and one SQLite file: one submits and ends, one works, a third waits for the result.

The vendor is the one that ``coatcheck[testing]`` brings for tests. If the third is faster than the worker's
start, it warns that nobody has the handler yet, and goes on waiting.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from coatcheck import Config, Manager, Registry, Worker
from coatcheck.testing.vendor import JobRequest, LocalVendor, VendorHandler


def open_manager(file: str, vendor_url: str) -> Manager:
    """Open the store with the handler; every process does the same."""
    registry = Registry()
    registry.add_handler(VendorHandler(vendor_url))
    return Manager.from_config(Config(store=f"sqlite:///{file}"), registry=registry)


def play(role: str, manager: Manager, task_id: str = "") -> None:
    """Be one of the three processes."""
    match role:
        case "web":
            print(manager.submit(JobRequest.of("hello from the web", polls=3)).id)
        case "worker":  # until SIGTERM; start as many as you like
            accounts, transport = manager.accounts, manager.transport
            Worker(manager.store, manager.registry, accounts=accounts, transport=transport).run()
        case "reader":
            print(manager.result(task_id, timeout=30).text)


def main() -> None:
    """Start the vendor and the three processes: this file, in each of its roles."""
    with tempfile.TemporaryDirectory() as folder, LocalVendor() as vendor:
        command = [sys.executable, __file__, str(Path(folder, "tasks.db")), vendor.url]
        web = subprocess.run([*command, "web"], stdout=subprocess.PIPE, text=True, check=True)
        with subprocess.Popen([*command, "worker"]) as worker:
            try:
                subprocess.run([*command, "reader", web.stdout.strip()], check=True)
            finally:
                worker.terminate()


if __name__ == "__main__":
    if sys.argv[1:]:
        file, url, role, *task_ids = sys.argv[1:]
        with open_manager(file, url) as manager:
            play(role, manager, *task_ids)
    else:
        main()
