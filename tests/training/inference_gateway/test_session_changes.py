"""Branches beside an episode, names, and deleting: routes, rows, events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.inference import Gateway, running_gateway
from fakes.siblings import complete, scored, sibling

from hermes_tui_training.store.store import Store


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    """Return a gateway."""
    async with running_gateway(tmp_path) as opened:
        yield opened


async def test_a_branch_is_compared_with_the_episode_it_leaves(gateway: Gateway) -> None:
    session_id, key = await gateway.session("t")
    await gateway.chat(key)
    await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)
    await gateway.chat(key)  # the second episode
    left = await gateway.episode(session_id)
    body = {"task_id": "t", "branch_of": session_id, "beside": left["episode_id"]}
    answer = (await gateway.call("POST", "/rl/start_session", body)).json()
    assert answer["group_id"] == left["group_id"]
    rows = (await gateway.call("GET", "/rl/sessions")).json()["data"]
    assert [row["branch_of"] for row in rows] == [None, session_id]
    await gateway.chat(answer["api_key"])
    for reward, its_key in ((-1, key), (1, answer["api_key"])):
        await gateway.call("POST", "/rl/set_reward", {"reward": reward}, key=its_key)
    branch = await gateway.episode(answer["session_id"])
    groups = [group.episode_ids for group in gateway.store.steps.sibling_groups()]
    assert (left["episode_id"], branch["episode_id"]) in groups
    assert len(groups) == 2


async def test_beside_names_a_group_of_its_own(gateway: Gateway) -> None:
    for body, status in (
        ({"beside": "ep-none"}, 404),
        ({"beside": "ep-none", "group_id": "g"}, 400),
    ):
        answer = await gateway.call("POST", "/rl/start_session", {"task_id": "t", **body})
        assert answer.status_code == status


async def test_a_session_gets_a_name_that_stays(gateway: Gateway) -> None:
    session_id, key = await gateway.session("t")
    body = {"session_id": session_id, "title": "Ada’s"}
    assert (await gateway.call("POST", "/rl/rename_session", body)).is_success
    await gateway.chat(key)
    rows = (await gateway.call("GET", "/rl/sessions")).json()["data"]
    assert rows[0]["title"] == "Ada’s"
    body["session_id"] = "sess-none"
    assert (await gateway.call("POST", "/rl/rename_session", body)).status_code == 404
    assert (await gateway.call("POST", "/rl/rename_session", body, key=key)).status_code == 403


async def test_a_deleted_session_leaves_nothing(gateway: Gateway) -> None:
    session_id, key = await gateway.session("t")
    other_id, other_key = await gateway.session("t")
    await gateway.chat(key)
    await gateway.chat(other_key)
    await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)
    body = {"session_id": session_id}
    refused = await gateway.call("POST", "/rl/delete_session", body)
    assert refused.status_code == 409
    assert "take it back first" in refused.json()["error"]["message"]
    await gateway.call("POST", "/rl/unset_reward", body)
    assert (await gateway.call("POST", "/rl/delete_session", body)).is_success
    rows = (await gateway.call("GET", "/rl/sessions")).json()["data"]
    assert [row["session_id"] for row in rows] == [other_id]
    database = gateway.store.episodes._transactions.database
    for table, count in (("episodes", 1), ("completions", 1), ("rewards", 0)):
        assert database.query(f"SELECT count(*) FROM {table}")[0][0] == count  # noqa: S608
    assert (await gateway.call("POST", "/rl/delete_session", body)).status_code == 404


def test_a_branch_that_has_not_begun_is_waited_for_where_it_is_compared(store: Store) -> None:
    one = sibling(store)
    scored(store, one)
    second = complete(store, one)
    store.sessions.create(
        key_hash="b",
        task_id="t",
        group_id="siblings",
        branch_of=one,
        group_position=store.sessions.group_position(second),
    )
    store.rewards.set(second, 1.0)
    assert [group.num_awaited for group in store.steps.sibling_groups()] == [0, 1]
