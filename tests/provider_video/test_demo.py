"""``coatcheck demo-video``: what it shows, what programs get, and what it leaves alone."""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from coatcheck import QueryResult, Registry, codec, load_plugins
from coatcheck.cli import main
from coatcheck.config import Config
from coatcheck.manager import Manager
from coatcheck.testing.vendor_matrix import QUICK
from coatcheck_video.aliyun_wan import AliyunWanHandler
from coatcheck_video.model import VideoRequest

REAL_KEY = "key-of-a-real-account"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where demos of this test put what they keep; the environment has a real account's key."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("COATCHECK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DASHSCOPE_API_KEY", REAL_KEY)
    monkeypatch.setenv("COATCHECK_ACCOUNT_DASHSCOPE", REAL_KEY)
    monkeypatch.setattr("coatcheck_video.demo.PACE", QUICK)
    return folder


def demo(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ["demo-video", *arguments])


def vendors() -> list[str]:
    """Return the handlers that take a request for a video, and can be tried on this machine."""
    registry = Registry()
    load_plugins(registry)
    sandboxes = registry.names("sandbox")
    return [resolved.key for resolved in registry.handlers_for(VideoRequest) if resolved.key in sandboxes]


def test_demo_shows_where_each_video_is_and_how_long_it_stays(temporary: Path) -> None:
    """What happens meanwhile goes to standard error, and the tasks can be looked at afterwards."""
    done = demo()
    assert done.exit_code == 0, done.output
    shown = re.findall(r"^=== (video:[\w-]+): .* ===$", done.stdout, re.MULTILINE)
    assert sorted(shown) == sorted(vendors())
    assert len(re.findall(r"^http://127\.0\.0\.1:\d+/video-", done.stdout, re.MULTILINE)) == len(shown)
    assert "the vendor keeps it for 1d, until" in done.stdout
    assert f"{len(shown)} videos made in" in done.stdout
    states = re.findall(r"^video:aliyun-wan: .*: (\w+)", done.stderr, re.MULTILINE)
    assert states[-1] == "succeeded"
    assert {"submitted", "running"} & set(states)
    (folder,) = temporary.glob("coatcheck-demo-*")
    with Manager.from_config(Config.load(environ={}, store=f"sqlite:///{folder}/tasks.db")) as manager:
        assert {task.handler_key for task in manager.list().items} == set(shown)


def test_programs_get_json() -> None:
    """One line of JSON says all that people are told."""
    done = demo("--json")
    assert (done.exit_code, done.stderr) == (0, "")
    found: Mapping[str, Any] = codec.loads(done.stdout)
    wan = next(video for video in found["videos"] if video["handler"] == "video:aliyun-wan")
    assert (wan["status"], wan["error"], wan["usage"]["second"]) == ("succeeded", None, 5)
    assert wan["url"].endswith("/video.mp4")
    assert wan["expires_at"].endswith("Z")


def test_task_that_fails_ends_the_demo_badly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is printed, without what it could do to a terminal; the others are shown."""
    monkeypatch.setattr(
        AliyunWanHandler, "query", lambda *_: QueryResult.failed("refused", "\x1b[2J is no picture")
    )
    done = demo()
    assert done.exit_code == 1
    assert r"refused: \x1b[2J is no picture" in done.stdout
    assert "1 task ended otherwise" in done.stdout


def test_no_real_key_is_sent_to_a_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandboxes have keys of their own."""
    seen = []
    sign = AliyunWanHandler.sign

    def watched(self: AliyunWanHandler, call: Any, account: Any) -> Any:
        seen.append(account.secret())
        return sign(self, call, account)

    monkeypatch.setattr(AliyunWanHandler, "sign", watched)
    assert demo().exit_code == 0
    assert set(seen) == {"sandbox-key"}


def test_demo_never_touches_another_store(tmp_path: Path, temporary: Path) -> None:
    """Sample tasks do not belong between real ones, so a store that is named is refused, not ignored."""
    done = CliRunner().invoke(main, ["--store", f"sqlite:///{tmp_path}/mine.db", "demo-video"])
    assert done.exit_code == 2
    assert "makes a store of its own, found --store" in done.output
    assert sorted(tmp_path.iterdir()) == [temporary]
    assert list(temporary.iterdir()) == []
