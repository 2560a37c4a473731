"""AReaL's routes: other servers' models, generation on hold, the served version."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from fakes.engine import FakeEngine, encode
from fakes.inference import ADMIN_KEY, Gateway, running_gateway, until
from fakes.roles import Served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hermes_tui_training.api.client import InferenceClient

CALL = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}


class Provider:
    """Another server: answers what it is told to, with or without token ids."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.message: dict[str, Any] = {"role": "assistant", "content": "Bonjour."}
        self.token_ids: list[int] = []
        self.prompt_token_ids: list[int] = []
        self.status = 200
        self.gate: asyncio.Event | None = None
        self.app = Starlette(routes=[Route("/v1/chat/completions", self._chat, methods=["POST"])])

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        self.seen.append(body)
        self.keys.append(request.headers.get("authorization"))
        if self.status != 200:
            return JSONResponse({"error": {"message": "no such thing"}}, self.status)
        if body.get("stream"):
            return StreamingResponse(self._chunks(), media_type="text/event-stream")
        choice = {"index": 0, "message": self.message, "finish_reason": "stop", **self._ids()}
        return JSONResponse({**self._head("chat.completion"), "choices": [choice]})

    async def _chunks(self) -> AsyncIterator[str]:
        text = self.message["content"]
        deltas: list[dict[str, Any]] = [{"role": "assistant"}]
        deltas += [{"content": part} for part in (text[:3], text[3:]) if part]
        deltas += [{"tool_calls": [{"index": 0, **CALL}]}] if "tool_calls" in self.message else []
        for number, delta in enumerate(deltas):
            last = number == len(deltas) - 1
            choice = {"index": 0, "delta": delta, "finish_reason": "stop" if last else None}
            chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
            if last:
                choice.update(self._ids())
            yield f"data: {json.dumps(chunk)}\n\n"
            if self.gate and number == 1:
                await self.gate.wait()
        yield "data: [DONE]\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        told = {"prompt_token_ids": self.prompt_token_ids} if self.prompt_token_ids else {}
        return {"id": "chatcmpl-theirs", "object": kind, "created": 1, "model": "theirs", **told}

    def _ids(self) -> dict[str, Any]:
        if not self.token_ids:
            return {}
        content = [{"token": "?", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
        return {
            "token_ids": self.token_ids,
            "logprobs": {"content": content * len(self.token_ids), "refusal": None},
        }


@pytest.fixture
async def provider() -> AsyncIterator[tuple[Provider, str]]:
    provider = Provider()
    served = Served(provider.app)
    yield provider, f"{await served.start()}/v1"
    await served.stop()


async def register(gateway: Gateway, url: str, **more: Any) -> None:
    body = {"model": "theirs", "url": url, **more}
    answer = await gateway.call("POST", "/register_model", body)
    assert answer.status_code == 200, answer.text


async def completion_of(gateway: Gateway, session_id: str) -> dict[str, Any]:
    (completion,) = (await gateway.episode(session_id))["completions"]
    assert isinstance(completion, dict)
    return completion


@pytest.mark.parametrize("stream", [False, True])
async def test_the_answer_comes_back_and_is_recorded_but_not_trained(
    gateway: Gateway, provider: tuple[Provider, str], stream: bool
) -> None:
    other, url = provider
    other.message = {"role": "assistant", "content": "Bonjour.", "tool_calls": [CALL]}
    await register(gateway, url, api_key="sk-theirs", provider_model="big-one")
    session_id, key = await gateway.session()
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        said, calls, name = "", "", ""
        if stream:
            async with client.chat.completions.stream(model="theirs", messages=messages) as chunks:
                await chunks.until_done()
                answer: Any = await chunks.get_final_completion()
        else:
            answer = await client.chat.completions.create(model="theirs", messages=messages)
        message = answer.choices[0].message
        said, (call,) = message.content or "", message.tool_calls or ()
        calls, name = call.function.arguments, call.function.name
    assert (said, name, calls) == ("Bonjour.", "look", '{"a": 1}')
    assert other.seen[0]["model"] == "big-one"
    assert other.keys == ["Bearer sk-theirs"]
    completion = await completion_of(gateway, session_id)
    assert completion["completion_id"] == answer.id
    assert completion["message"] == other.message
    assert completion["request_messages"] == [{"role": "user", "content": "hello"}]
    assert (completion["trainable"], completion["untrainable_reason"]) == (False, "external_model")
    assert completion["finish_reason"] == "stop"
    body = {"reward": 1, "interaction_id": answer.id}
    judged = (await gateway.call("POST", "/rl/set_reward", body, key=key)).json()
    assert (judged["will_train"], judged["reason"]) == (False, "external_model")


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_that_are_told_are_recorded(
    gateway: Gateway, provider: tuple[Provider, str], stream: bool
) -> None:
    other, url = provider
    other.prompt_token_ids, other.token_ids = encode("hello"), encode("Bon")
    await register(gateway, url)
    session_id, key = await gateway.session()
    assert (await gateway.chat(key, model="theirs", stream=stream)).is_success
    completion = await completion_of(gateway, session_id)
    assert completion["prompt_token_ids"] == encode("hello")
    assert completion["token_ids"] == encode("Bon")
    assert completion["logprobs"] == [-0.5] * 3
    assert completion["untrainable_reason"] == "external_model"
    episode = await gateway.episode(session_id)
    assert episode["policy_version_min"] is None


@pytest.mark.parametrize(
    ("told", "fields", "reason"),
    [
        (True, {}, None),
        (False, {}, "no_token_ids"),
        (True, {"temperature": 0.7}, "sampling_mismatch"),
        (True, {"top_p": 0.5}, "sampling_mismatch"),
    ],
)
async def test_a_server_of_the_policy_itself_is_trained_if_it_tells_its_tokens(
    gateway: Gateway,
    provider: tuple[Provider, str],
    told: bool,
    fields: dict[str, Any],
    reason: str | None,
) -> None:
    other, url = provider
    if told:
        other.prompt_token_ids, other.token_ids = encode("hello"), encode("Bon")
    await register(gateway, url, policy_version=0)
    session_id, key = await gateway.session()
    await gateway.chat(key, model="theirs", **fields)
    assert other.seen[0]["return_token_ids"] is True
    completion = await completion_of(gateway, session_id)
    assert completion["untrainable_reason"] == reason
    assert completion["trainable"] is (reason is None)
    assert set(completion["policy_versions"]) == ({0} if told else set())


async def test_ids_of_another_vocabulary_are_not_trained(
    gateway: Gateway, provider: tuple[Provider, str]
) -> None:
    other, url = provider
    other.prompt_token_ids, other.token_ids = [5], [100_000]
    await register(gateway, url, policy_version=0)
    session_id, key = await gateway.session()
    await gateway.chat(key, model="theirs")
    completion = await completion_of(gateway, session_id)
    assert completion["untrainable_reason"] == "external_model"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "ours"), [(400, 400), (401, 502), (429, 429), (500, 500)])
async def test_a_refusal_has_its_status_and_is_recorded(
    gateway: Gateway, provider: tuple[Provider, str], stream: bool, status: int, ours: int
) -> None:
    other, url = provider
    other.status = status
    await register(gateway, url)
    session_id, key = await gateway.session()
    answer = await gateway.chat(key, model="theirs", stream=stream)
    assert answer.status_code == ours
    assert "no such thing" in answer.json()["error"]["message"]
    assert "no such thing" in (await completion_of(gateway, session_id))["error"]


async def test_a_client_that_leaves_is_recorded(
    gateway: Gateway, provider: tuple[Provider, str]
) -> None:
    other, url = provider
    other.gate = asyncio.Event()
    await register(gateway, url)
    session_id, key = await gateway.session()
    body = {"model": "theirs", "messages": [{"role": "user", "content": "x"}], "stream": True}
    headers = {"Authorization": f"Bearer {key}"}
    async with gateway.http.stream(
        "POST", "/v1/chat/completions", json=body, headers=headers
    ) as answer:
        await anext(answer.aiter_lines())

    def ended() -> bool:
        episode = gateway.store.episodes.newest_of(session_id)
        return episode is not None and episode.completions[0].status == "finished"

    await until(ended)
    other.gate.set()
    completion = await completion_of(gateway, session_id)
    assert completion["error"] == "the client left"


async def test_only_chat_completions_reach_another_server_and_none_reaches_the_policy(
    gateway: Gateway, provider: tuple[Provider, str]
) -> None:
    _, url = provider
    await register(gateway, url)
    _, key = await gateway.session()
    for path, body in (
        ("/v1/responses", {"model": "theirs", "input": "hi"}),
        ("/v1/completions", {"model": "theirs", "prompt": "hi"}),
    ):
        refused = await gateway.call("POST", path, body, key=key)
        assert refused.status_code == 400, path
        assert "another server's model" in refused.text
    assert gateway.engine.requests == []


async def test_a_registration_survives_a_restart_and_can_be_taken_back(
    tmp_path: Path, provider: tuple[Provider, str]
) -> None:
    _, url = provider
    async with running_gateway(tmp_path) as gateway:
        await register(gateway, url, api_key="sk-theirs")
    async with running_gateway(tmp_path, port=0) as gateway:
        _, key = await gateway.session()
        answer = await gateway.chat(key, model="theirs")
        assert answer.json()["choices"][0]["message"]["content"] == "Bonjour."
        listed = (await gateway.call("GET", "/models")).json()
        assert listed["models"] == ["tiny", "theirs"]
        assert [row["id"] for row in listed["data"]] == ["tiny"]
        assert "sk-theirs" not in json.dumps(listed)
        async with InferenceClient(gateway.url, ADMIN_KEY) as client:
            await client.deregister_model("theirs")
            assert await client.model_names() == ["tiny"]
        assert (await gateway.chat(key, model="theirs")).is_success
        assert gateway.engine.requests
        again = await gateway.call("POST", "/deregister_model", {"model": "theirs"})
        assert again.status_code == 404


async def test_registration_is_the_administrators_and_names_what_is_wrong(
    gateway: Gateway,
) -> None:
    _, key = await gateway.session()
    body = {"model": "theirs", "url": "http://127.0.0.1:1/v1"}
    for path in ("/register_model", "/pause_generation", "/continue_generation/w", "/set_version"):
        assert (await gateway.call("POST", path, body, key=key)).status_code == 403
    own = await gateway.call("POST", "/register_model", body | {"model": "tiny"})
    assert own.status_code == 409
    bad = await gateway.call("POST", "/register_model", body | {"url": "ftp://x"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "url")


@pytest.mark.parametrize("prefix", ["", "/callback"])
@pytest.mark.parametrize("worker", ["", "/worker-0"])
async def test_generation_can_be_held(tmp_path: Path, prefix: str, worker: str) -> None:
    engine = HeldEngine()
    async with running_gateway(tmp_path, engine=engine) as gateway:
        for route, held in (("pause_generation", True), ("continue_generation", False)):
            answer = await gateway.call("POST", f"{prefix}/{route}{worker}")
            (row,) = answer.json()["results"]
            assert (row["status"], row["ok"]) == (200, True)
            assert engine.held is held


class HeldEngine(FakeEngine):
    held = False

    async def pause(self) -> None:
        self.held = True

    async def resume(self) -> None:
        self.held = False


async def test_a_version_is_agreed_on_and_never_set(gateway: Gateway) -> None:
    gateway.engine.policy_version = 4
    assert (await gateway.call("GET", "/get_version/w")).json() == {"version": 4}
    same = await gateway.call("POST", "/set_version/w", {"version": 4})
    assert same.status_code == 200
    other = await gateway.call("POST", "/set_version", {"version": 5})
    assert other.status_code == 409
    assert "/rl/rollback" in other.json()["error"]["message"]
    assert gateway.engine.policy_version == 4
