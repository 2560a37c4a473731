"""Database files that are damaged: set aside with their date, recovered as far as it goes, said."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hermes_tui_common.sqlite_files import DatabaseFile, Schema
from hermes_tui_common.sqlite_recovery import readable_rows, recover
from hermes_tui_services.api.protocol import Upstream
from hermes_tui_services.data_proxy.store import ConversationStore, TurnRow
from hermes_tui_training.store.store import Store

PAGE = 4096
NUM_TURNS = 400
SCHEMA = Schema(
    migrations=("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT;",),
    valid={"t": "json_valid(text)"},
)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def _cut_to_100(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _scribble(path: Path, page: int, num_bytes: int = PAGE) -> None:
    with path.open("r+b") as file:
        file.seek(page * PAGE)
        file.write(b"\xa5" * num_bytes)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "header": lambda path: _scribble(path, 0, 64),
    "middle": lambda path: _scribble(path, path.stat().st_size // PAGE // 2),
    "tail": lambda path: _scribble(path, path.stat().st_size // PAGE - 1),
    "cut": _cut,
    "cut to 100 bytes": _cut_to_100,
    "emptied": lambda path: path.write_bytes(b""),
}
LEAST_FRAC = {"header": 1.0, "middle": 0.9, "tail": 0.9, "cut": 0.3}
"""Share of the rows that is recovered at least; nothing where nothing is left."""


async def _conversations(path: Path) -> None:
    store = ConversationStore(path)
    await store.open()
    for number in range(NUM_TURNS):
        row = TurnRow(
            run_id=f"run-{number}",
            messages=[{"role": "user", "content": f"{number} " + "x" * 500}],
            summary="",
            idempotency_keys=(f"key-{number}",),
        )
        await store.append(f"session-{number % 20}", row)
    await store.close()


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conversations") / "conversations.db"
    asyncio.run(_conversations(path))
    return path


@pytest.mark.parametrize("damage", DAMAGES)
async def test_chats_go_on_with_what_can_be_read_of_conversations_db(
    conversations: Path, tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "conversations.db"
    shutil.copy(conversations, path)
    DAMAGES[damage](path)
    damaged = path.read_bytes()
    store = ConversationStore(path)
    await store.open()
    assert store.notice is not None
    assert store.notice.startswith("conversations.db was damaged (")
    found = sum(row.num_turns for row in await store.sessions())
    assert NUM_TURNS * LEAST_FRAC.get(damage, 0.0) <= found <= NUM_TURNS
    assert found == 0 or damage in LEAST_FRAC
    assert (f"{found} of turns" in store.notice) == (found > 0)
    (aside,) = tmp_path.glob("conversations.db.damaged-*")
    assert aside.read_bytes() == damaged
    await store.remember("new", Upstream(base_url="http://127.0.0.1:1/v1", api_key="k"))
    await store.append("new", TurnRow(run_id="r", messages=[], summary=""))
    await store.close()
    again = ConversationStore(path)
    await again.open()
    assert again.notice is None
    assert sum(row.num_turns for row in await again.sessions()) == found + 1
    await again.close()


async def test_a_scribbled_message_costs_its_turn_alone(
    conversations: Path, tmp_path: Path
) -> None:
    path = tmp_path / "conversations.db"
    shutil.copy(conversations, path)
    content = path.read_bytes()
    at = content.index(b'"content":"123 xxx')
    path.write_bytes(content[:at] + b"\x01\x02\x03" + content[at + 3 :])
    store = ConversationStore(path)
    await store.open()
    assert store.notice is not None
    assert "1 rows of turns hold something else than was written" in store.notice
    assert sum(row.num_turns for row in await store.sessions()) == NUM_TURNS - 1
    await store.close()


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_trainer_starts_with_what_can_be_read_of_trajectories_db(
    tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "trajectories.db"
    store = Store(path)
    for number in range(NUM_TURNS):
        store.sessions.create(key_hash=f"{number}", task_id="t" * 300, group_id=f"g{number}")
    store.close()
    DAMAGES[damage](path)
    store = Store(path)
    assert store.notice is not None
    assert "trajectories.db was damaged (" in store.notice
    found = store.sessions.num_running()
    assert NUM_TURNS * LEAST_FRAC.get(damage, 0.0) <= found <= NUM_TURNS
    store.sessions.create(key_hash="new", task_id="t", group_id="g")
    store.close()
    again = Store(path)
    assert again.notice is None
    again.close()


def _make(path: Path, num_rows: int = NUM_TURNS) -> None:
    file = DatabaseFile(path, SCHEMA)
    rows = [(number, f'"{number} {"x" * 300}"') for number in range(1, num_rows + 1)]
    file.connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
    file.close()


@pytest.mark.parametrize("program", ["sqlite3", None])
def test_rows_are_recovered_with_and_without_sqlites_program(
    tmp_path: Path, program: str | None
) -> None:
    if program and shutil.which(program) is None:
        pytest.skip("the program sqlite3 is not installed")
    path, fresh = tmp_path / "t.db", tmp_path / "fresh.db"
    _make(path)
    DatabaseFile(fresh, SCHEMA).close()
    _scribble(path, path.stat().st_size // PAGE // 2)
    said = recover(path, fresh, SCHEMA.valid, (), program=program)
    with closing(sqlite3.connect(fresh)) as db:
        ids = [number for (number,) in db.execute("SELECT id FROM t ORDER BY id")]
    assert said == f"these rows were recovered: {len(ids)} of t"
    assert NUM_TURNS * 0.9 < len(ids) < NUM_TURNS
    assert (ids[0], ids[-1]) == (1, NUM_TURNS)  # on both sides of the damaged page


def test_rows_of_a_whole_file_are_read_once_each(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    _make(path)
    with closing(sqlite3.connect(path)) as db:
        assert [row[0] for row in readable_rows(db, "t", "id")] == list(range(1, NUM_TURNS + 1))


def test_a_file_in_use_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    _make(path)
    first = DatabaseFile(path, SCHEMA)
    _scribble(path, 3)
    second = DatabaseFile(path, SCHEMA)
    assert second.notice is None
    second.close()
    first.close()
    third = DatabaseFile(path, SCHEMA)
    assert third.notice is not None
    third.close()


def test_those_that_start_together_make_one_file(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    notices: list[str | None] = []

    def start() -> None:
        file = DatabaseFile(path, SCHEMA)
        notices.append(file.notice)
        file.close()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notices == [None] * 8
    assert [file.name for file in tmp_path.iterdir()] == ["t.db"]
