"""Sessions, keys, rewards, reading, events: the /rl routes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.engine import FakeEngine, encode, says
from fakes.inference import ADMIN_KEY, Gateway, running_gateway, until

from hermes_tui_common.errors import RefusedError, UnreachableError
from hermes_tui_training.api.client import InferenceClient
from hermes_tui_training.api.config import InferenceGatewayConfig, TrainingConfig
from hermes_tui_training.api.protocol import MAX_FEEDBACK_CHARS
from hermes_tui_training.api.types import Event, TrainedCompletion
from hermes_tui_training.store.store import hash_key


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path) as gateway:
        yield gateway


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path, port=0) as gateway:
        yield gateway


def assert_openai_error(answer: httpx.Response, status: int, text: str = "") -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "code", "param"}
    assert text in error["message"]
    return error


async def test_start_session_answers_in_both_shapes(gateway: Gateway) -> None:
    answer = await gateway.call("POST", "/rl/start_session", {"task_id": "t"})
    body = answer.json()
    assert answer.status_code == 201
    assert re.fullmatch(r"sk-sess-[A-Za-z0-9_-]{43}", body["api_key"])
    assert body["sessions"] == [
        {"session_id": body["session_id"], "session_api_key": body["api_key"]}
    ]
    assert body["group_id"]


async def test_a_group_has_siblings_of_one_task(gateway: Gateway) -> None:
    body = (
        await gateway.call("POST", "/rl/start_session", {"task_id": "t", "group_size": 3})
    ).json()
    assert len({s["session_api_key"] for s in body["sessions"]}) == 3
    rows = (await gateway.call("GET", "/rl/sessions")).json()["data"]
    assert {(row["task_id"], row["group_id"]) for row in rows} == {("t", body["group_id"])}


async def test_groups_never_mix_tasks(gateway: Gateway) -> None:
    await gateway.session("one", group_id="g")
    await gateway.session("one", group_id="g")
    answer = await gateway.call("POST", "/rl/start_session", {"task_id": "two", "group_id": "g"})
    assert_openai_error(answer, 409, "'one'")


async def topics(gateway: Gateway) -> list[str]:
    rows = (await gateway.call("GET", "/rl/sessions")).json()["data"]
    return [row["topic"] for row in rows]


async def test_the_first_message_says_what_a_session_is_about(gateway: Gateway) -> None:
    session_id, key = await gateway.session("chat")
    assert await topics(gateway) == ["chat"]
    await gateway.chat(key, "Write a poem")
    await gateway.chat(key, "Now fix my python script")
    assert await topics(gateway) == ["writing"], "the first message counts"
    told = [e.payload for e in gateway.store.events.stored() if e.kind == "session.topic_set"]
    assert [(one["session_id"], one["topic"]) for one in told] == [(session_id, "writing")]


async def test_a_topic_that_is_set_stays_and_siblings_share_it(gateway: Gateway) -> None:
    started = await gateway.call(
        "POST", "/rl/start_session", {"task_id": "compare", "group_size": 2}
    )
    first, second = started.json()["sessions"]
    body = {"session_id": second["session_id"], "topic": " rhymes "}
    assert (await gateway.call("POST", "/rl/set_topic", body)).json()["topic"] == "rhymes"
    await gateway.chat(first["session_api_key"], "Write a poem")
    assert await topics(gateway) == ["rhymes", "rhymes"]
    (episode,) = gateway.store.episodes.find(session_id=first["session_id"])
    assert (episode.task_id, episode.topic) == ("compare", "rhymes")


async def test_a_session_sets_its_own_topic_only(gateway: Gateway) -> None:
    own, key = await gateway.session()
    other, _ = await gateway.session()
    assert (await gateway.call("POST", "/rl/set_topic", {"topic": "a"}, key=key)).json() == {
        "message": "success",
        "session_id": own,
        "topic": "a",
    }
    body = {"topic": "a", "session_id": other}
    assert (await gateway.call("POST", "/rl/set_topic", body, key=key)).status_code == 403
    body = {"topic": "a#2", "session_id": own}
    refused = await gateway.call("POST", "/rl/set_topic", body)
    assert assert_openai_error(refused, 400)["param"] == "topic"
    unknown = {"topic": "a", "session_id": "sess-x"}
    assert (await gateway.call("POST", "/rl/set_topic", unknown)).status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "task_id"),
        ({"task_id": ""}, "task_id"),
        ({"task_id": 5}, "task_id"),
        ({"task_id": "t", "group_size": 0}, "group_size"),
        ({"task_id": "t", "group_size": True}, "group_size"),
        ({"task_id": "t", "typo": 1}, "typo"),
    ],
)
async def test_start_session_names_what_is_wrong(
    gateway: Gateway, body: dict[str, Any], param: str
) -> None:
    error = assert_openai_error(await gateway.call("POST", "/rl/start_session", body), 400)
    assert error["param"] == param


async def test_a_key_can_be_used_again(gateway: Gateway) -> None:
    session_id, key = await gateway.session("t")
    await gateway.chat(key)
    answer = await gateway.call("POST", "/rl/start_session", {"task_id": "t", "api_key": key})
    assert answer.status_code == 201
    assert answer.json()["api_key"] == key
    assert answer.json()["session_id"] != session_id
    assert (await gateway.episode(session_id))["state"] == "unscored"
    await gateway.chat(key)
    assert (await gateway.episode(answer.json()["session_id"]))["state"] == "open"


async def test_refreshes_at_once_leave_one_session(gateway: Gateway) -> None:
    _, key = await gateway.session("t")
    body = {"task_id": "t", "api_key": key}
    await asyncio.gather(*(gateway.call("POST", "/rl/start_session", body) for _ in range(8)))
    rows = (await gateway.call("GET", "/rl/sessions")).json()["data"]
    assert len(rows) == 9
    assert sum(row["ended_at"] is None for row in rows) == 1


async def test_a_chat_that_a_refresh_overtakes_is_told_to_try_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key = await gateway.session("t")
    completions, sessions = gateway.store.completions, gateway.store.sessions
    begin = completions.begin

    def overtaken(**request: Any) -> tuple[str, int]:
        monkeypatch.setattr(completions, "begin", begin)
        sessions.create(key_hash=hash_key(key), task_id="t", group_id="fresh")
        return begin(**request)

    monkeypatch.setattr(completions, "begin", overtaken)
    answer = await gateway.chat(key)
    assert_openai_error(answer, 409, "send the request again")
    assert answer.headers["retry-after"] == "1"
    assert (await gateway.chat(key)).status_code == 200


async def test_an_unknown_api_key_is_404(gateway: Gateway) -> None:
    body = {"task_id": "t", "api_key": "sk-sess-0123456789abcdef"}
    error = assert_openai_error(await gateway.call("POST", "/rl/start_session", body), 404)
    assert "0123456789abcdef" not in error["message"]


async def test_foreign_keys_are_taken_where_that_is_on(tmp_path: Path) -> None:
    training = TrainingConfig(gateway=InferenceGatewayConfig(accept_foreign_keys=True))
    async with running_gateway(tmp_path, training=training) as gateway:
        key = "sk-sess-0123456789abcdef"
        _, got = await gateway.session("t", api_key=key)
        assert got == key
        assert (await gateway.chat(key)).status_code == 200
        for bad in ("sk-sess-short", "other-0123456789abcdef", "sk-sess-" + "ü" * 20):
            body = {"task_id": "t", "api_key": bad}
            assert_openai_error(await gateway.call("POST", "/rl/start_session", body), 400)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/rl/start_session"),
        ("POST", "/rl/pause"),
        ("POST", "/rl/resume"),
        ("POST", "/rl/checkpoint"),
        ("POST", "/export_trajectories"),
        ("GET", "/rl/status"),
        ("GET", "/rl/steps"),
        ("GET", "/rl/events"),
    ],
)
async def test_admin_routes_need_the_admin_key(gateway: Gateway, method: str, path: str) -> None:
    _, key = await gateway.session()
    body = {} if method == "POST" else None
    assert_openai_error(await gateway.call(method, path, body, key=key), 403)
    assert_openai_error(await gateway.call(method, path, body, key="wrong"), 401)
    assert_openai_error(await gateway.call(method, path, body, key=None), 401)
    answer = await gateway.http.request(method, path, headers={"Authorization": "Bearer"})
    assert_openai_error(answer, 401)


async def test_chat_needs_a_session_key(gateway: Gateway) -> None:
    session_id, key = await gateway.session()
    assert_openai_error(await gateway.chat("sk-sess-unknown"), 401)
    assert_openai_error(await gateway.chat(ADMIN_KEY), 403)
    await gateway.call("POST", "/rl/end_session", {"session_id": session_id})
    assert_openai_error(await gateway.chat(key), 401, "ended")
    assert gateway.store.episodes.find() == []


async def test_a_session_key_sees_only_its_own(gateway: Gateway) -> None:
    mine, key = await gateway.session()
    other, other_key = await gateway.session()
    await gateway.chat(key)
    theirs = (await gateway.chat(other_key)).json()["id"]
    other_episode = (await gateway.episode(other))["episode_id"]
    rows = (await gateway.call("GET", "/rl/sessions", key=key)).json()["data"]
    assert [row["session_id"] for row in rows] == [mine]
    rows = (await gateway.call("GET", "/rl/episodes", key=key)).json()["data"]
    assert [row["session_id"] for row in rows] == [mine]
    for method, path, body in (
        ("GET", f"/rl/episodes?session_id={other}", None),
        ("GET", f"/rl/episodes/{other_episode}", None),
        ("POST", "/rl/end_session", {"session_id": other}),
        ("POST", "/rl/set_reward", {"reward": 1, "episode_id": other_episode}),
        ("POST", "/rl/set_reward", {"reward": 1, "interaction_id": theirs}),
        ("POST", "/rl/set_reward", {"reward": 1, "session_id": other}),
        ("POST", "/rl/unset_reward", {"session_id": other}),
    ):
        assert_openai_error(await gateway.call(method, path, body, key=key), 403)


async def test_a_reward_is_taken(gateway: Gateway) -> None:
    session_id, key = await gateway.session()
    await gateway.chat(key)
    answer = await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)
    body = answer.json()
    assert answer.status_code == 200
    episode = await gateway.episode(session_id)
    assert body == {
        "message": "success",
        "interaction_count": 1,
        "session_id": session_id,
        "episode_id": episode["episode_id"],
        "trajectory_id": episode["episode_id"],
        "trajectory_ready": True,
        "ready_transition": True,
        "reward": 1.0,
        "will_train": True,
    }
    assert (episode["state"], episode["reward"]) == ("scored", 1.0)
    kinds = [event.kind for event in gateway.store.events.stored()]
    assert kinds.count("episode.scored") == 1, "which wakes the trainer's loop"
    again = await gateway.call("POST", "/rl/set_reward", {"reward": -0.5}, key=key)
    assert again.json()["ready_transition"] is False
    log = (await gateway.episode(session_id))["reward_log"]
    assert [entry["reward"] for entry in log] == [1.0, -0.5]


@pytest.mark.parametrize(
    "raw",
    ["1.5", "-2", "NaN", "Infinity", "1e999", '"1"', "true", "null", "[1]", "{}", "9" * 400],
    ids=lambda raw: raw[:8],
)
async def test_what_is_no_reward_is_refused(gateway: Gateway, raw: str) -> None:
    session_id, key = await gateway.session()
    await gateway.chat(key)
    answer = await gateway.http.post(
        "/rl/set_reward",
        content=f'{{"reward": {raw}}}',
        headers={"Authorization": f"Bearer {key}"},
    )
    assert_openai_error(answer, 400)
    assert (await gateway.episode(session_id))["reward_log"] == []


async def test_a_reward_needs_something_to_judge(gateway: Gateway) -> None:
    _, key = await gateway.session()
    answer = await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)
    assert_openai_error(answer, 400, "No interactions in session")
    for body, status in (
        ({"reward": 1, "interaction_id": "chatcmpl-none"}, 404),
        ({"reward": 1, "episode_id": "ep-none"}, 404),
        ({"reward": 1, "session_id": "sess-none"}, 404),
        ({"reward": 1}, 400),
        ({}, 400),
    ):
        assert_openai_error(await gateway.call("POST", "/rl/set_reward", body), status)


async def test_the_admin_judges_by_session_or_episode(gateway: Gateway) -> None:
    session_id, key = await gateway.session()
    completion_id = (await gateway.chat(key)).json()["id"]
    for body in (
        {"session_id": session_id},
        {"episode_id": (await gateway.episode(session_id))["episode_id"]},
        {"interaction_id": completion_id},
    ):
        answer = await gateway.call("POST", "/rl/set_reward", {"reward": 0.5, **body})
        assert answer.status_code == 200, answer.text
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert completion["reward"] == 0.5


async def test_a_reward_in_flight_comes_back_later(gateway: Gateway) -> None:
    gateway.engine.scripts = [says("story", hold_after=2)]
    session_id, key = await gateway.session()
    asking = asyncio.create_task(gateway.chat(key))
    await until(lambda: gateway.engine.requests)
    answer = await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)
    assert_openai_error(answer, 409)
    assert int(answer.headers["retry-after"]) >= 1
    gateway.engine.release.set()
    assert (await asking).status_code == 200
    assert (await gateway.episode(session_id))["reward_log"] == []
    answer = await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)
    assert answer.status_code == 200


async def test_a_trained_episode_is_judged_no_more_and_the_key_goes_on(gateway: Gateway) -> None:
    session_id, key = await gateway.session()
    completion_id = (await gateway.chat(key)).json()["id"]
    await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)
    ((episode,),) = gateway.store.steps.claim(
        step=1, limit=1, min_count=1, scored_before=1e12, min_policy_version=0
    )
    answer = await gateway.call("POST", "/rl/set_reward", {"reward": 0}, key=key)
    assert_openai_error(answer, 409, "being trained as part of step 1")
    num_tokens = len(episode.completions[0].token_ids)
    gateway.store.steps.commit(
        {"step": 1, "policy_version": 1, "episode_ids": [episode.episode_id]},
        [
            TrainedCompletion(
                completion_id=completion_id,
                advantage=1.0,
                proximal_logprobs=(-0.5,) * num_tokens,
                after_logprobs=(-0.25,) * num_tokens,
            )
        ],
        {},
    )
    answer = await gateway.call("POST", "/rl/set_reward", {"reward": 0}, key=key)
    assert_openai_error(answer, 409, "already trained as part of step 1")
    assert (await gateway.chat(key)).status_code == 200
    rows = (await gateway.call("GET", f"/rl/episodes?session_id={session_id}")).json()["data"]
    assert [(row["state"], row["step"]) for row in rows] == [("trained", 1), ("open", None)]
    steps = (await gateway.call("GET", "/rl/steps")).json()["data"]
    assert steps[0]["episode_ids"] == [episode.episode_id]


async def test_a_reward_that_trains_nothing_says_so(gateway: Gateway) -> None:
    _, key = await gateway.session()
    await gateway.chat(key, top_p=0.5)
    answer = await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)
    assert "sampling_mismatch" in answer.json()["warning"]
    assert answer.json()["will_train"] is False
    assert answer.json()["reason"] == "sampling_mismatch"


async def test_a_cut_reply_is_trained_when_a_reward_names_it(gateway: Gateway) -> None:
    session_id, key = await gateway.session()
    cut = (await gateway.chat(key, max_tokens=1)).json()
    assert cut["choices"][0]["finish_reason"] == "length"

    async def row() -> tuple[bool, str | None]:
        rows = (await gateway.call("GET", f"/rl/episodes?session_id={session_id}")).json()["data"]
        return rows[-1]["will_train"], rows[-1]["reason"]

    assert await row() == (False, "truncated"), "known before the score"
    answer = (await gateway.call("POST", "/rl/set_reward", {"reward": -1}, key=key)).json()
    assert (answer["will_train"], answer["reason"]) == (False, "truncated")
    assert "interaction_id" in answer["warning"]
    named = {"reward": -1, "interaction_id": cut["id"]}
    answer = (await gateway.call("POST", "/rl/set_reward", named, key=key)).json()
    assert answer["will_train"] is True
    assert await row() == (True, None)
    # And so the trainer sees it.
    (claimed,) = gateway.store.steps.claim(
        step=1, limit=1, min_count=1, scored_before=9e9, min_policy_version=0
    )
    assert [completion.learnable for completion in claimed[0].completions] == [True]


async def test_a_full_backlog_holds_session_keys_back_and_never_the_admin(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, training=TrainingConfig(max_backlog=2)) as gateway:
        keys = [await gateway.session() for _ in range(4)]
        answers = []
        for _, key in keys:
            await gateway.chat(key)
            answers.append(await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key))
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert_openai_error(answers[-1], 429, "training.max_backlog")
        assert float(answers[-1].headers["retry-after"]) > 0
        body = {"reward": 1, "session_id": keys[-1][0]}
        assert (await gateway.call("POST", "/rl/set_reward", body)).status_code == 200
        # A score that waits already may be changed.
        again = await gateway.call("POST", "/rl/set_reward", {"reward": -1}, key=keys[0][1])
        assert again.status_code == 200


async def test_a_sentence_goes_with_a_reward(gateway: Gateway) -> None:
    session_id, key = await gateway.session()
    await gateway.chat(key)
    path = "/rl/set_reward"
    refused = await gateway.call("POST", path, {"feedback": "why"}, key=key)
    assert_openai_error(refused, 400, "'reward' is needed")
    said = await gateway.call("POST", path, {"reward": 0.35, "feedback": "too long"}, key=key)
    assert said.status_code == 200
    added = await gateway.call("POST", path, {"feedback": "and rude"}, key=key)
    assert (added.json()["reward"], added.json()["ready_transition"]) == (0.35, True)
    (row,) = (await gateway.call("GET", f"/rl/episodes?session_id={session_id}")).json()["data"]
    assert (row["reward"], row["feedback"]) == (0.35, "and rude")
    body = {"session_ids": [session_id]}
    exported = (await gateway.call("POST", "/export_trajectories", body)).json()["data"]
    assert exported[0]["feedback"] == "and rude"
    await gateway.call("POST", "/rl/unset_reward", {}, key=key)
    episode = await gateway.episode(session_id)
    assert episode["feedback"] is None
    assert [entry["feedback"] for entry in episode["reward_log"]] == ["and rude"]


@pytest.mark.parametrize("feedback", [1, True, ["why"], {}, "x" * (MAX_FEEDBACK_CHARS + 1)])
async def test_what_is_no_sentence_is_refused(gateway: Gateway, feedback: object) -> None:
    session_id, key = await gateway.session()
    await gateway.chat(key)
    body = {"reward": 1, "feedback": feedback}
    answer = await gateway.call("POST", "/rl/set_reward", body, key=key)
    assert_openai_error(answer, 400, "feedback")
    assert (await gateway.episode(session_id))["reward_log"] == []


async def test_a_reward_can_be_taken_back(gateway: Gateway) -> None:
    session_id, key = await gateway.session()
    await gateway.chat(key)
    await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)
    answer = await gateway.call("POST", "/rl/unset_reward", {"session_id": session_id})
    assert (answer.status_code, answer.json()["state"]) == (200, "open")
    assert (await gateway.episode(session_id))["reward"] is None


async def test_end_session(gateway: Gateway) -> None:
    session_id, key = await gateway.session()
    answer = await gateway.call("POST", "/rl/end_session", {}, key=key)
    assert answer.json() == {
        "message": "success",
        "session_id": session_id,
        "episode_id": None,
        "interaction_count": 0,
    }
    session_id, key = await gateway.session()
    await gateway.chat(key)
    answer = await gateway.call("POST", "/rl/end_session", key=key)
    assert answer.json()["interaction_count"] == 1
    assert (await gateway.episode(session_id))["state"] == "ended"
    assert (await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)).is_success


@pytest.mark.parametrize("path", ["/api/tags", "/v1/props", "/version", "/rl/none", "/v1"])
async def test_unknown_paths_are_404_and_no_activity(gateway: Gateway, path: str) -> None:
    session_id, key = await gateway.session()
    before = gateway.store.sessions.get(session_id)
    assert_openai_error(await gateway.call("GET", path, key=key), 404)
    assert gateway.store.sessions.get(session_id) == before


async def test_a_wrong_method_is_405(gateway: Gateway) -> None:
    assert_openai_error(await gateway.call("GET", "/v1/chat/completions"), 405)


@pytest.mark.parametrize("path", ["/v1/models", "/models"])
async def test_models(gateway: Gateway, path: str) -> None:
    _, key = await gateway.session()
    body = (await gateway.call("GET", path, key=key)).json()
    assert body["object"] == "list"
    assert body["data"][0]["id"] == "tiny"
    assert body["data"][0]["max_model_len"] == 4096
    assert_openai_error(await gateway.call("GET", path, key=None), 401)


async def test_health_and_status(gateway: Gateway) -> None:
    _, key = await gateway.session()
    health = (await gateway.http.get("/health")).json()
    assert health == {
        "status": "degraded",
        "problem": "the learner is not there: scores are kept, and trained once it is back",
        "backend": "fake",
        "sessions": 1,
        "paused": False,
        "policy_version": 0,
    }
    await gateway.chat(key, top_p=0.5)
    status = (await gateway.call("GET", "/rl/status")).json()
    assert status["policy_version"] == 0
    assert status["waiting"].startswith("0 of 1 scored")
    assert status["untrained"] == {"sampling_mismatch": 1}
    assert 0 < status["store"]["num_bytes"] < status["store"]["max_bytes"]
    assert status["episodes"] == {"open": 1}
    assert status["learner"] == {"reachable": False, "pid": None}
    assert status["engine"]["backend"] == "fake"
    body = (await gateway.call("POST", "/rl/pause", {"reason": "lunch"})).json()
    assert (body["paused"], body["pause_reason"]) == (True, "lunch")
    assert (await gateway.call("POST", "/rl/resume")).json()["paused"] is False


async def test_exporting_changes_nothing(gateway: Gateway) -> None:
    gateway.engine.scripts = [says("one"), says("two")]
    session_id, key = await gateway.session()
    await gateway.chat(key, "a")
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "b"},
    ]
    await gateway.call("POST", "/v1/chat/completions", {"messages": messages}, key=key)
    await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=key)
    before = await gateway.episode(session_id)
    body = {"session_ids": [session_id], "style": "individual", "discount": 0.5}
    for _ in range(2):
        rows = (await gateway.call("POST", "/export_trajectories", body)).json()["data"]
    assert [row["reward"] for row in rows] == [0.5, 1.0]
    sampled = [
        i for i, mask in zip(rows[0]["input_ids"], rows[0]["loss_mask"], strict=True) if mask
    ]
    assert sampled == [*encode("one"), 2]
    body["style"] = "concat"
    (row,) = (await gateway.call("POST", "/export_trajectories", body)).json()["data"]
    assert sum(row["loss_mask"]) == len(encode("onetwo")) + 2
    assert len(row["input_ids"]) == len(row["logprobs"]) == len(row["versions"])
    assert await gateway.episode(session_id) == before
    for unknown in ({"session_ids": ["sess-none"]}, {"episode_ids": ["ep-none"]}):
        assert_openai_error(await gateway.call("POST", "/export_trajectories", unknown), 404)


async def test_events_are_resumable(served: Gateway) -> None:
    gateway = served
    _, key = await gateway.session()
    await gateway.chat(key)
    stored = gateway.store.events.stored()
    headers = {"Authorization": f"Bearer {ADMIN_KEY}", "Last-Event-ID": str(stored[1].event_id)}
    got: list[dict[str, Any]] = []
    async with gateway.http.stream("GET", "/rl/events", headers=headers) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                got.append(json.loads(line[6:]))
            if len(got) == len(stored) - 2:
                break
    assert [event["event_id"] for event in got] == [e.event_id for e in stored[2:]]
    assert [event["kind"] for event in got] == [e.kind for e in stored[2:]]
    await until(lambda: not gateway.store.events.num_subscribers)  # the view that left is forgotten
    assert_openai_error(await gateway.call("GET", "/rl/events?after=x"), 400)


async def test_the_client_follows_events_over_a_restart(tmp_path: Path) -> None:
    seen: list[Event] = []

    async def follow(client: InferenceClient) -> None:
        async for event in client.events(after=0):
            if event.event_id is not None:
                seen.append(event)

    async with running_gateway(tmp_path, port=0) as gateway:
        client = InferenceClient(gateway.url, ADMIN_KEY)
        following = asyncio.create_task(follow(client))
        first, _ = await gateway.session()
        await until(lambda: len(seen) == 1)
        port = int(gateway.url.rsplit(":", 1)[1])
    async with running_gateway(tmp_path, port=port) as gateway:
        second, _ = await gateway.session()
        await until(lambda: len(seen) == 2)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    await client.aclose()
    assert [event.payload["session_id"] for event in seen] == [first, second]
    assert [event.kind for event in seen] == ["session.started"] * 2


async def test_the_client_speaks_for_programs(served: Gateway) -> None:
    gateway = served
    async with InferenceClient(gateway.url, ADMIN_KEY) as client:
        started = await client.start_session("t")
        key, session_id = started.api_key, started.session_id
        answer = await client.chat(key, [{"role": "user", "content": "x"}], max_tokens=8)
        assert answer["choices"][0]["message"]["content"] == "ok"
        chunks = [c async for c in client.chat_stream(key, [{"role": "user", "content": "x"}])]
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert (await client.set_reward(1.0, session_id=session_id)).interaction_count == 2
        (row,) = await client.episodes(session_id=session_id)
        assert (await client.episode(row.episode_id)).reward == 1.0
        assert (await client.unset_reward(episode_id=row.episode_id)).state == "open"
        assert await client.steps() == []
        assert (await client.status()).num_scored == 0
        assert (await client.pause("why")).paused
        assert not (await client.resume()).paused
        assert [s.session_id for s in await client.sessions()] == [session_id]
        assert (await client.models())[0].id == "tiny"
        with pytest.raises(RefusedError, match="no such episode") as caught:
            await client.episode("ep-none")
        assert caught.value.status == 404
        gateway.engine.scripts = [says("hello", error_after=1)]
        with pytest.raises(RefusedError, match="the engine broke"):
            _ = [c async for c in client.chat_stream(key, [{"role": "user", "content": "x"}])]
        assert (await client.end_session(session_id)).session_id == session_id
    async with InferenceClient("http://127.0.0.1:9", ADMIN_KEY) as client:
        with pytest.raises(UnreachableError):
            await client.status()


async def test_a_restart_keeps_sessions_and_versions_of_tokens(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.policy_version = 3
    async with running_gateway(tmp_path, engine=engine) as gateway:
        session_id, key = await gateway.session()
        await gateway.chat(key)
    async with running_gateway(tmp_path) as gateway:
        assert (await gateway.chat(key)).status_code == 200
        episode = await gateway.episode(session_id)
    assert len(episode["completions"]) == 2
    assert (episode["policy_version_min"], episode["policy_version_max"]) == (0, 3)
