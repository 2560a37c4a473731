"""Keys that are good for a session's completions alone: what a tool of the agent may find."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fakes.inference import Gateway, running_gateway

from hermes_tui_common.auth import COMPLETIONS_KEY_PATH, COMPLETIONS_KEY_PREFIX, RedactingFilter


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path) as gateway:
        yield gateway


async def completions_key(gateway: Gateway, session_key: str) -> str:
    answer = await gateway.call("POST", COMPLETIONS_KEY_PATH, key=session_key)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["api_key"])


CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def test_its_completions_are_recorded_under_the_session(gateway: Gateway) -> None:
    session_id, session_key = await gateway.session("t")
    key = await completions_key(gateway, session_key)
    assert key.startswith(COMPLETIONS_KEY_PREFIX)
    answer = await gateway.call("POST", "/v1/chat/completions", CHAT, key=key)
    assert answer.status_code == 200, answer.text
    assert (await gateway.call("GET", "/v1/models", key=key)).status_code == 200
    episodes = (await gateway.call("GET", "/rl/episodes", key=session_key)).json()["data"]
    assert [row["session_id"] for row in episodes] == [session_id]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/rl/set_reward", {"reward": 1.0}),
        ("POST", "/rl/unset_reward", {}),
        ("POST", "/rl/end_session", {}),
        ("POST", "/rl/start_session", {"task_id": "t"}),
        ("POST", COMPLETIONS_KEY_PATH, {}),
        ("GET", "/rl/sessions", None),
        ("GET", "/rl/episodes", None),
        ("GET", "/rl/steps", None),
        ("GET", "/rl/status", None),
        ("GET", "/rl/events", None),
        ("POST", "/rl/pause", {}),
        ("POST", "/rl/rollback", {"policy_version": 0}),
        ("POST", "/export_trajectories", {"session_ids": []}),
    ],
)
async def test_it_opens_no_other_door(
    gateway: Gateway, method: str, path: str, body: dict[str, Any] | None
) -> None:
    _, session_key = await gateway.session("t")
    key = await completions_key(gateway, session_key)
    await gateway.call("POST", "/v1/chat/completions", CHAT, key=key)
    answer = await gateway.call(method, path, body, key=key)
    assert answer.status_code == 403, answer.text
    episodes = (await gateway.call("GET", "/rl/episodes", key=session_key)).json()["data"]
    assert [(row["state"], row["reward"]) for row in episodes] == [("open", None)]


async def test_it_refreshes_no_session(gateway: Gateway) -> None:
    _, session_key = await gateway.session("t")
    key = await completions_key(gateway, session_key)
    body = {"task_id": "t", "api_key": key}
    assert (await gateway.call("POST", "/rl/start_session", body, key=key)).status_code == 403
    assert (await gateway.call("POST", "/rl/start_session", body)).status_code == 404


async def test_it_goes_with_the_session_key_to_the_next_session_and_ends_with_it(
    gateway: Gateway,
) -> None:
    _, session_key = await gateway.session("t")
    key = await completions_key(gateway, session_key)
    body = {"task_id": "t", "api_key": session_key}
    renewed = (await gateway.call("POST", "/rl/start_session", body)).json()["session_id"]
    answer = await gateway.call("POST", "/v1/chat/completions", CHAT, key=key)
    assert answer.status_code == 200, answer.text
    episodes = (await gateway.call("GET", "/rl/episodes", key=session_key)).json()["data"]
    assert [row["session_id"] for row in episodes] == [renewed]
    await gateway.call("POST", "/rl/end_session", {}, key=session_key)
    assert (await gateway.call("POST", "/v1/chat/completions", CHAT, key=key)).status_code == 401


async def test_a_made_up_one_is_unknown(gateway: Gateway) -> None:
    session_id, session_key = await gateway.session("t")
    real = await completions_key(gateway, session_key)
    for key in (
        f"{COMPLETIONS_KEY_PREFIX}{session_id}-{'0' * 64}",
        f"{COMPLETIONS_KEY_PREFIX}{session_id}",
        real[:-1] + ("1" if real.endswith("0") else "0"),
        COMPLETIONS_KEY_PREFIX,
    ):
        answer = await gateway.call("POST", "/v1/chat/completions", CHAT, key=key)
        assert answer.status_code == 401, answer.text


async def test_it_outlives_the_gateway_process_and_stays_out_of_logs(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        _, session_key = await gateway.session("t")
        key = await completions_key(gateway, session_key)
    async with running_gateway(tmp_path) as gateway:
        answer = await gateway.call("POST", "/v1/chat/completions", CHAT, key=key)
        assert answer.status_code == 200, answer.text
    assert key[12:] not in RedactingFilter().redact(f"refused {key}")
