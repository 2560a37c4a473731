"""``conversations.db``: what was acknowledged is there, for every data proxy, after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from hermes_tui_common.errors import StackError
from hermes_tui_services.api.protocol import Upstream
from hermes_tui_services.data_proxy.store import ConversationStore, TurnRow

UPSTREAM = Upstream(base_url="http://gw/v1", api_key="sk-sess-secret", model="m")


def turn(text: str, run_id: str = "run-1", *keys: str, interrupted: bool = False) -> TurnRow:
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text.upper()}]
    return TurnRow(
        run_id=run_id,
        messages=messages,
        summary=text.upper(),
        metadata={"usage": {"total_tokens": 3}},
        idempotency_keys=keys,
        interrupted=interrupted,
        started_at=1.0,
        finished_at=2.0,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "conversations.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[ConversationStore]:
    store = ConversationStore(path)
    await store.open()
    yield store
    await store.close()


async def test_the_files_are_private(store: ConversationStore, path: Path) -> None:
    await store.append("s", turn("hi"))
    files = list(path.parent.iterdir())
    assert {file.suffix for file in files} == {".db", ".db-wal", ".db-shm"}
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * 3


async def test_a_file_that_others_could_read_is_made_private(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o644)
    os.chmod(path, 0o644)
    store = ConversationStore(path)
    await store.open()
    await store.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_turns_come_back_in_order_from_another_process(
    store: ConversationStore, path: Path
) -> None:
    other = ConversationStore(path)
    await other.open()
    await store.append("s", turn("one", "run-1"))
    await other.append("s", turn("two", "run-2", interrupted=True))
    await store.append("t", turn("elsewhere"))
    rows = await other.turns("s")
    assert rows == [turn("one", "run-1"), turn("two", "run-2", interrupted=True)]
    state = await store.load("s")
    assert [m["content"] for m in state.messages] == ["one", "ONE", "two", "TWO"]
    await other.close()


async def test_two_data_proxies_start_and_write_at_once(path: Path) -> None:
    stores = [ConversationStore(path) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(
        *(s.append("s", turn(f"{i}-{j}")) for i, s in enumerate(stores) for j in range(10))
    )
    rows = await stores[0].turns("s")
    assert rows is not None
    written = [row.summary for row in rows]
    assert len(written) == 40
    for i in range(4):
        assert [text for text in written if text.startswith(f"{i}-")] == [
            f"{i}-{j}" for j in range(10)
        ]
    for store in stores:
        await store.close()


async def test_what_was_written_survives_without_a_close(path: Path) -> None:
    store = ConversationStore(path)
    await store.open()
    await store.append("s", turn("kept"))
    copy = path.with_name("copy.db")
    for suffix in ("", "-wal"):  # what a killed process leaves: no checkpoint was made
        copy.with_name(f"copy.db{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    with contextlib.closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT summary FROM turns").fetchall() == [("KEPT",)]
    await store.close()


async def test_the_upstream_is_kept_and_replaced(store: ConversationStore) -> None:
    assert (await store.load("s")).upstream is None
    await store.remember("s", UPSTREAM)
    assert (await store.load("s")).upstream == UPSTREAM
    newer = UPSTREAM.model_copy(update={"api_key": "sk-sess-other"})
    await store.remember("s", newer)
    await store.append("s", turn("hi"))
    assert (await store.load("s")).upstream == newer
    rows = await store.sessions()
    assert [(row.session_key, row.num_turns, row.inf_base_url) for row in rows] == [
        ("s", 1, "http://gw/v1")
    ]
    assert "sk-sess" not in str(rows)


async def test_forgetting_takes_everything(store: ConversationStore) -> None:
    await store.remember("s", UPSTREAM)
    await store.append("s", turn("hi", "run-1", "key"))
    await store.append("t", turn("stays"))
    assert await store.forget("s") is True
    assert await store.forget("s") is False
    assert await store.turns("s") is None
    assert await store.find("s", "key") is None
    assert (await store.load("s")).upstream is None
    assert len(await store.turns("t") or ()) == 1


async def test_a_turn_is_found_by_each_of_its_keys(store: ConversationStore) -> None:
    await store.append("s", turn("hi", "run-1", "a", "b"))
    for key in ("a", "b"):
        found = await store.find("s", key)
        assert found is not None
        assert found.run_id == "run-1"
    assert await store.find("t", "a") is None
    assert await store.find("s", "c") is None


async def test_text_of_any_kind_comes_back(store: ConversationStore) -> None:
    text = "\x00 \ud800 😀 \u202e 'quote\" \n"
    row = TurnRow(run_id="r", messages=[{"role": "user", "content": text}], summary="")
    await store.append("s", row)
    assert (await store.load("s")).messages[0]["content"] == text


async def test_a_newer_schema_is_refused_with_a_sentence(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    store = ConversationStore(path)
    with pytest.raises(StackError, match=r"newer version .*its format is 99"):
        await store.open()
    assert str(path) not in [file.path for file in psutil.Process().open_files()]
    await store.close()


async def test_a_file_that_is_no_database_is_set_aside(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"x" * 5000)
    store = ConversationStore(path)
    await store.open()
    assert store.notice is not None
    assert "file is not a database): nothing could be recovered" in store.notice
    assert await store.sessions() == []
    await store.close()
