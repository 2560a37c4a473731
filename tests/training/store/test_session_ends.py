"""How sessions end, and what an episode gets that nobody judged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.clock import Clock
from fakes.engine import FakeEngine, says
from fakes.inference import Gateway, running_gateway, until

from hermes_tui_training.api.config import InferenceGatewayConfig, RewardConfig, TrainingConfig
from hermes_tui_training.store.idle_sessions import end_idle
from hermes_tui_training.store.store import Store, hash_key


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path) as gateway:
        yield gateway


@pytest.fixture
async def generous(tmp_path: Path) -> AsyncIterator[Gateway]:
    """Return a gateway where an episode that nobody judged gets half a point."""
    training = TrainingConfig(reward=RewardConfig(unscored=0.5))
    async with running_gateway(tmp_path, training=training) as gateway:
        yield gateway


async def test_an_unjudged_episode_is_not_trained_by_default(gateway: Gateway) -> None:
    session_id, key = await gateway.session()
    await gateway.chat(key)
    await gateway.call("POST", "/rl/end_session", key=key)
    episode = await gateway.episode(session_id)
    assert (episode["state"], episode["reward"]) == ("ended", None)


@pytest.mark.parametrize("ending", ["asked", "refreshed", "idle"])
async def test_an_unjudged_episode_gets_the_reward_of_the_setting(
    generous: Gateway, ending: str
) -> None:
    session_id, key = await generous.session()
    await generous.chat(key)
    if ending == "asked":
        await generous.call("POST", "/rl/end_session", key=key)
    elif ending == "refreshed":
        await generous.session(api_key=key)
    else:
        generous.store.sessions.end_idle(float("inf"))
    episode = await generous.episode(session_id)
    assert (episode["state"], episode["reward"]) == ("scored", 0.5)
    session = generous.store.sessions.get(session_id)
    assert session is not None
    assert session.end_reason == ending


async def test_a_judgement_replaces_the_reward_of_the_setting(generous: Gateway) -> None:
    session_id, key = await generous.session()
    await generous.chat(key)
    await generous.call("POST", "/rl/end_session", key=key)
    assert (await generous.call("POST", "/rl/set_reward", {"reward": -1}, key=key)).is_success
    episode = await generous.episode(session_id)
    assert episode["reward"] == -1
    assert [entry["reward"] for entry in episode["reward_log"]] == [0.5, -1]


async def test_a_judged_episode_keeps_its_reward_when_its_session_ends(generous: Gateway) -> None:
    session_id, key = await generous.session()
    await generous.chat(key)
    await generous.call("POST", "/rl/set_reward", {"reward": -1}, key=key)
    await generous.call("POST", "/rl/end_session", key=key)
    assert (await generous.episode(session_id))["reward"] == -1


async def test_what_is_still_sampled_gets_it_when_it_has_ended(tmp_path: Path) -> None:
    training = TrainingConfig(reward=RewardConfig(unscored=0.0))
    engine = FakeEngine(says("ok", hold_after=0))
    async with running_gateway(tmp_path, training=training, engine=engine) as gateway:
        session_id, key = await gateway.session()
        answer = asyncio.create_task(gateway.chat(key))
        await until(lambda: engine.num_held)
        await gateway.call("POST", "/rl/end_session", {"session_id": session_id})
        assert (await gateway.episode(session_id))["state"] == "ended"
        engine.release.set()
        assert (await answer).is_success
        episode = await gateway.episode(session_id)
        assert (episode["state"], episode["reward"]) == ("scored", 0.0)


def test_only_idle_sessions_are_ended(tmp_path: Path) -> None:
    clock = Clock()
    store = Store(tmp_path / "trajectories.db", now=clock)

    def start(key: str) -> str:
        made = store.sessions.create(key_hash=hash_key(key), task_id="t", group_id=key)
        return made.session_id

    def begin(session_id: str) -> None:
        store.completions.begin(
            completion_id=f"chatcmpl-{session_id}",
            session_id=session_id,
            prompt_token_ids=[1],
            sampling={},
            request_messages=[],
            tools=[],
            prefix={},
        )

    silent, sampling = start("silent"), start("sampling")
    begin(sampling)  # and it still runs
    clock.now += 50.0
    fresh = start("fresh")
    assert store.sessions.end_idle(1040.0) == [silent]
    assert store.sessions.end_idle(1040.0) == []
    rows = {row.session_id: row.end_reason for row in store.sessions.newest()}
    assert rows == {silent: "idle", sampling: None, fresh: None}
    (event,) = [event for event in store.events.stored(after=0) if event.kind == "session.ended"]
    assert event.payload == {"session_id": silent, "reason": "idle"}
    store.close()


async def test_idle_sessions_are_looked_for_and_their_key_says_why(gateway: Gateway) -> None:
    session_id, key = await gateway.session()
    await gateway.chat(key)
    looking = asyncio.create_task(end_idle(gateway.store, 0.05))

    def ended() -> bool:
        session = gateway.store.sessions.get(session_id)
        return session is not None and session.ended_at is not None

    try:
        await until(ended)
    finally:
        looking.cancel()
    refused = await gateway.chat(key)
    assert refused.status_code == 401
    assert "idle" in refused.json()["error"]["message"]
    assert (await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)).is_success


async def test_zero_ends_no_session(gateway: Gateway) -> None:
    session_id, _ = await gateway.session()
    await end_idle(gateway.store, 0.0)
    session = gateway.store.sessions.get(session_id)
    assert session is not None
    assert session.ended_at is None


async def test_no_more_sessions_than_may_be_open(tmp_path: Path) -> None:
    training = TrainingConfig(gateway=InferenceGatewayConfig(max_sessions=2))
    async with running_gateway(tmp_path, training=training) as gateway:
        _, key = await gateway.session()
        siblings = {"task_id": "t", "group_size": 2}
        refused = await gateway.call("POST", "/rl/start_session", siblings)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert "training.gateway.max_sessions" in refused.json()["error"]["message"]
        assert gateway.store.sessions.num_running() == 1
        second, _ = await gateway.session()
        body = {"task_id": "t"}
        at_once = await asyncio.gather(
            *(gateway.call("POST", "/rl/start_session", body) for _ in range(4))
        )
        assert {answer.status_code for answer in at_once} == {429}
        await gateway.session(api_key=key)  # a refresh takes no room
        await gateway.call("POST", "/rl/end_session", {"session_id": second})
        at_once = await asyncio.gather(
            *(gateway.call("POST", "/rl/start_session", body) for _ in range(4))
        )
        assert sorted(answer.status_code for answer in at_once) == [201, 429, 429, 429]
