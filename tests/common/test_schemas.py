"""Each database of every released format is brought up to date, with what is in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from hermes_tui_common.migrations import migrate
from hermes_tui_common.sqlite_files import DatabaseFile, Schema
from hermes_tui_services.api.protocol import Upstream
from hermes_tui_services.data_proxy.store import SCHEMA as CONVERSATIONS
from hermes_tui_services.data_proxy.store import ConversationStore
from hermes_tui_training.store.database import SCHEMA as TRAJECTORIES
from hermes_tui_training.store.store import Store

SCHEMAS = {"conversations.db": CONVERSATIONS, "trajectories.db": TRAJECTORIES}
UPSTREAM = '{"base_url": "http://a/v1", "api_key": "k"}'
MESSAGES = '[{"role": "user", "content": "hi"}]'
FIRST_CONVERSATIONS = (
    f"INSERT INTO sessions VALUES ('ada', 1.0, '{UPSTREAM}')",  # noqa: S608
    f"INSERT INTO turns VALUES (1, 'ada', 'run-1', 0, '{MESSAGES}', 'hello', '{{}}', 1.0, 2.0)",  # noqa: S608
    "INSERT INTO idempotency_keys VALUES ('ada', 'once', 1)",
)
FIRST_TRAJECTORIES = (
    "INSERT INTO sessions VALUES ('sess-1', 'hash', 'greet', 'group', 1.0, NULL, 2.0)",
    "INSERT INTO episodes VALUES"
    " (1, 'ep-1', 'sess-1', 'group', 'greet', 'scored', 0.5, 2.0, 1.0, NULL, NULL)",
    "INSERT INTO completions (completion_id, episode_id, session_id, turn_index, created_at,"
    " status, kind, sampling, request_messages, tools, prefix, prompt_token_ids, token_ids,"
    " logprobs, policy_versions, finish_reason, message, trainable) VALUES ('chatcmpl-1', 'ep-1',"
    " 'sess-1', 0, 1.0, 'finished', 'turn', '{}', '[]', '[]', '{}', x'0100000002000000',"
    " x'0300000004000000', x'0000000000000000', x'0000000000000000', 'stop', '{}', 1)",
    "INSERT INTO rewards VALUES (1, 'ep-1', NULL, 0.5, 2.0)",
    """INSERT INTO steps VALUES (1, 1, '{"step": 1, "policy_version": 1}')""",
    "INSERT INTO meta VALUES ('anything', '7')",
)
FORMATS = [
    pytest.param(schema, version, id=f"{name}-{version}")
    for name, schema in SCHEMAS.items()
    for version in range(1, len(schema.migrations) + 1)
]


def make(path: Path, migrations: Sequence[str], *rows: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        migrate(db, migrations)
        for row in rows:
            db.execute(row)


def shape(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return the columns of each table, and the names of its indexes."""
    with closing(sqlite3.connect(path)) as db:
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        return {
            name: [
                *(row[1:] for row in db.execute(f"PRAGMA table_info({name})")),
                *sorted(row[1:2] for row in db.execute(f"PRAGMA index_list({name})")),
            ]
            for (name,) in tables.fetchall()
        }


@pytest.mark.parametrize(("schema", "version"), FORMATS)
def test_every_format_becomes_the_newest(schema: Schema, version: int, tmp_path: Path) -> None:
    old, fresh = tmp_path / "old.db", tmp_path / "fresh.db"
    make(old, schema.migrations[:version])
    for path in (old, fresh):
        file = DatabaseFile(path, schema)
        assert file.notice is None
        file.close()
    assert shape(old) == shape(fresh)


async def test_conversations_of_the_first_format_are_read(tmp_path: Path) -> None:
    path = tmp_path / "conversations.db"
    make(path, CONVERSATIONS.migrations[:1], *FIRST_CONVERSATIONS)
    store = ConversationStore(path)
    await store.open()
    state = await store.load("ada")
    assert [message["content"] for message in state.messages] == ["hi"]
    assert state.upstream == Upstream(base_url="http://a/v1", api_key="k")
    found = await store.find("ada", "once")
    assert found is not None
    assert found.summary == "hello"
    await store.close()


def test_trajectories_of_the_first_format_are_read(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.db"
    make(path, TRAJECTORIES.migrations[:1], *FIRST_TRAJECTORIES)
    store = Store(path)
    episode = store.episodes.get("ep-1")
    assert (episode.state, episode.reward) == ("scored", 0.5)
    (completion,) = episode.completions
    assert (completion.prompt_token_ids, completion.token_ids) == ((1, 2), (3, 4))
    assert store.steps.rows(limit=-1) == [{"step": 1, "policy_version": 1}]
    assert store.meta.get("anything") == 7
    store.close()
