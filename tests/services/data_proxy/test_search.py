"""Searching all conversations, and forking one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_tui_services.api.protocol import Upstream
from hermes_tui_services.data_proxy.store import ConversationStore, TurnRow


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[ConversationStore]:
    """Return an open store."""
    opened = ConversationStore(tmp_path / "conversations.db")
    await opened.open()
    yield opened
    await opened.close()


def turn(number: int, said: str, reply: str = "yes", call: str | None = None) -> TurnRow:
    """Return a turn that ran for a second."""
    messages: list[dict[str, object]] = [{"role": "user", "content": said}]
    if call is not None:
        function = {"name": "terminal", "arguments": json.dumps({"command": call})}
        messages.append({"role": "assistant", "tool_calls": [{"id": "c", "function": function}]})
    messages.append({"role": "assistant", "content": reply})
    return TurnRow(
        run_id=f"run-{number}",
        messages=messages,
        summary=reply,
        started_at=number,
        finished_at=number + 1.0,
    )


async def found(store: ConversationStore, text: str, limit: int = 10) -> list[str]:
    """Return what a search finds, each with its session."""
    hits = await store.search(text, limit)
    return [f"{hit.session_key}: {hit.before}[{hit.match}]{hit.after}" for hit in hits]


async def test_a_search_finds_text_and_calls_the_newest_first(store: ConversationStore) -> None:
    await store.append("a", turn(1, "Where is the NEEDLE?"))
    await store.append("b", turn(2, "no straw", "50 % of a_b!", call="grep needle *"))
    assert await found(store, "needle") == [
        'b: {"command": "grep [needle] *"}',
        "a: Where is the [NEEDLE]?",
    ]
    assert len(await found(store, "needle", limit=1)) == 1
    assert await found(store, "0 % of a_b!") == ["b: 5[0 % of a_b!]"]
    assert await found(store, "a%b") == []


async def test_a_search_ignores_case_beyond_ascii_and_names_of_fields(
    store: ConversationStore,
) -> None:
    await store.append("a", turn(1, "Grüße aus ÖSTERREICH", "日本 \U0001f600 “quoted”\nline"))
    assert await found(store, "österreich") == ["a: Grüße aus [ÖSTERREICH]"]
    assert await found(store, "GRÜ") == ["a: [Grü]ße aus ÖSTERREICH"]
    assert await found(store, "本 \U0001f600") == ["a: 日[本 \U0001f600] “quoted”\nline"]
    assert await found(store, "assistant") == []
    assert await found(store, '"content"') == []


async def test_a_fork_copies_what_had_ended(store: ConversationStore) -> None:
    upstream = Upstream(base_url="http://127.0.0.1:1/v1", api_key="k", model="m")
    await store.remember("a", upstream)
    for number in (1, 3, 5):
        await store.append("a", turn(number, f"say {number}"))
    assert await store.fork("a", "b", until=4.0) == 2
    forked = await store.turns("b")
    assert forked is not None
    assert [row.run_id for row in forked] == ["run-1", "run-3"]
    assert (await store.load("b")).upstream == upstream
    assert len(await store.turns("a") or []) == 3
    assert await store.fork("a", "b", until=None) is None
    assert await store.fork("unknown", "c", until=None) is None
    await store.append("b", turn(9, "another way"))
    assert [m["content"] for m in (await store.load("b")).messages][-2:] == ["another way", "yes"]
