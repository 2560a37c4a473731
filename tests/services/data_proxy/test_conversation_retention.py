"""The conversations that were used the longest ago make room; what is in use stays."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_services.api.config import StoreConfig
from hermes_tui_services.api.protocol import Upstream
from hermes_tui_services.data_proxy.retention import LONGEST_TURN_S, Retention
from hermes_tui_services.data_proxy.store import ConversationStore, TurnRow
from hermes_tui_services.data_proxy.untrained_scores import UntrainedScores

DAY_S = 86_400.0
SCORED = Upstream(base_url="http://gw/v1", api_key="sk-sess-scored")
FREE = Upstream(base_url="http://gw/v1", api_key="sk-sess-free")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ConversationStore]:
    store = ConversationStore(tmp_path / "conversations.db")
    await store.open()
    yield store
    await store.close()


async def used(
    store: ConversationStore, session_key: str, ago_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store a long turn that ended some time ago."""
    at = time.time() - ago_s
    text = session_key * 40_000
    row = TurnRow(
        run_id="r",
        messages=[{"role": "user", "content": text}],
        summary="",
        started_at=at,
        finished_at=at,
        idempotency_keys=(session_key,),
    )
    with monkeypatch.context() as patched:
        patched.setattr("hermes_tui_services.data_proxy.store.time.time", lambda: at)
        await store.append(session_key, row)


def retention(
    store: ConversationStore,
    *,
    max_bytes: int = 1,
    keep_s: float = 0.0,
    kept: tuple[str, ...] = (),
    report: Callable[[str], None] = lambda text: None,
) -> Retention:
    async def is_kept(session_key: str, upstream: Upstream | None) -> bool:
        return session_key in kept

    config = StoreConfig(max_bytes=max_bytes, keep_s=keep_s)
    return Retention(store, config, is_kept=is_kept, report=report)


async def keys(store: ConversationStore) -> set[str]:
    return {row.session_key for row in await store.sessions()}


async def test_the_longest_unused_go_until_the_rest_fits(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for days in (5, 2, 4, 3):
        await used(store, str(days), days * DAY_S, monkeypatch)
    before = await store.num_bytes()
    said: list[str] = []
    bounded = retention(store, max_bytes=before * 3 // 5, report=said.append)
    assert await bounded.forget_excess() == 2
    assert await keys(store) == {"2", "3"}
    assert await store.find("5", "5") is None
    assert await store.num_bytes() <= before * 3 // 5
    assert [text.partition(",")[0] for text in said] == [
        "2 conversations that were used the longest ago were deleted"
    ]
    assert await bounded.forget_excess() == 0
    assert len(said) == 1


async def test_what_was_in_use_lately_stays(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await used(store, "old", 3 * DAY_S, monkeypatch)
    await used(store, "new", DAY_S, monkeypatch)
    assert await retention(store, keep_s=2 * DAY_S).forget_excess() == 1
    assert await keys(store) == {"new"}
    assert "all are in use max_bytes=1" in caplog.text


async def test_a_conversation_with_a_turn_that_has_begun_stays(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another data proxy runs the turn: all that this one sees is the file."""
    await used(store, "at work", 3 * DAY_S, monkeypatch)
    await used(store, "idle", 2 * DAY_S, monkeypatch)
    other = ConversationStore(tmp_path / "conversations.db")
    await other.open()
    assert (await other.load("at work")).messages
    assert await retention(store).forget_excess() == 1
    assert await keys(store) == {"at work"}
    await other.close()


async def test_one_that_is_used_just_before_it_would_go_stays(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await used(store, "a", 2 * DAY_S, monkeypatch)
    since = time.time() - LONGEST_TURN_S
    await store.load("a")
    assert not await store.forget_idle("a", since)
    assert await keys(store) == {"a"}


async def test_what_is_kept_does_not_keep_the_others(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(105):  # more than are looked at together
        await used(store, f"k{number}", (200 - number) * DAY_S, monkeypatch)
    await used(store, "free", 2 * DAY_S, monkeypatch)
    kept = tuple(f"k{number}" for number in range(105))
    assert await retention(store, kept=kept).forget_excess() == 1
    assert await keys(store) == set(kept)


async def test_without_a_bound_nothing_goes(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await used(store, "a", 9 * DAY_S, monkeypatch)
    assert await retention(store, max_bytes=0).forget_excess() == 0


@contextmanager
def trainer(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Answer as the trainer does; yield what was asked: (path, key)."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            key = self.headers["Authorization"].removeprefix("Bearer ")
            asked.append((self.path, key))
            state = parse_qs(urlsplit(self.path).query)["state"][0]
            rows = [{}] if key == SCORED.api_key and state == "claimed" else []
            self.send_response(401 if "gone" in key else 200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": rows}).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        host, port = server.server_address[:2]
        ready = RoleRunFile(
            name="trainer",
            pid=1,
            host=str(host),
            port=port,
            url=f"http://127.0.0.1:{port}",
            instance="",
            started_at=0.0,
        )
        path.write_text(ready.model_dump_json())
        yield asked
        server.shutdown()
        thread.join()


async def test_the_trainer_says_which_scores_wait(tmp_path: Path) -> None:
    scores = UntrainedScores(tmp_path / "trainer.json")
    with trainer(tmp_path / "trainer.json") as asked:
        assert await scores.wait_under(SCORED)
        assert asked == [
            ("/rl/episodes?state=scored&limit=1", SCORED.api_key),
            ("/rl/episodes?state=claimed&limit=1", SCORED.api_key),
        ]
        assert not await scores.wait_under(FREE)
        assert not await scores.wait_under(Upstream(base_url="b", api_key="sk-sess-gone"))
        del asked[:]
        assert not await scores.wait_under(Upstream(base_url="b", api_key="sk-of-another-server"))
        assert asked == []
    assert await scores.wait_under(FREE)  # it does not answer any more: nobody can tell
    (tmp_path / "trainer.json").unlink()
    assert await scores.wait_under(FREE)
    assert not await UntrainedScores(None).wait_under(SCORED)
