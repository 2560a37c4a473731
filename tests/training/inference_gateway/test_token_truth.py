"""Random conversations through the real gateway: what is trained is what was sampled, no more."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fakes.engine import END, FakeEngine, Script, byte_tokenizer, qwen_tokenizer, says
from fakes.inference import Gateway, running_gateway, until
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_tui_training.algorithm.samples import segments, training_samples
from hermes_tui_training.chat_template.prefix_match import canonical
from hermes_tui_training.chat_template.renderer import Chat
from hermes_tui_training.inference_gateway.route_table import all_routes

TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
CALL = '<tool_call>\n{"name": "look",  "arguments": {"b":1, "a": "é"}}\n</tool_call>'
BAD_CALL = '<tool_call>{"name": "look"</tool_call>'
SUMMARY = "You've reached the maximum number of tool-calling iterations allowed. Please …"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One request of the random client."""

    back_to: int
    """Which of the points reached so far it goes on from, counted from the newest."""
    edit: bool
    """Whether it changes a message of that history first."""
    replay: str
    """What it does with the assistant's last message: as it is, or as Hermes sends it again."""
    says: list[str]
    """User messages; a call's result comes instead, when there is a call."""
    sampled: list[str]
    """Pieces of the reply."""
    fields: dict[str, Any]
    """Further fields of the request."""
    swap_at: int | None
    """Token at which new weights begin to sample."""


TURNS = st.builds(
    Turn,
    back_to=st.sampled_from([0, 0, 0, 0, 1, 2, 9]),
    edit=st.sampled_from([False, False, False, True]),
    replay=st.sampled_from(["same", "hermes"]),
    says=st.lists(st.sampled_from(["a", " b\n", "<tool_call>é", SUMMARY]), min_size=1, max_size=2),
    sampled=st.lists(
        st.sampled_from(["Hi", " ", "\n", "<think>hm</think>\n", CALL, BAD_CALL, "é😀", "<th"]),
        max_size=4,
    ),
    fields=st.sampled_from([{}, {}, {}, {"max_tokens": 3}, {"temperature": 0.5}, {"top_p": 0.9}]),
    swap_at=st.sampled_from([None, None, 0, 2]),
)


@dataclass
class Point:
    """A history that the client may go on from."""

    messages: list[dict[str, Any]]
    whole: bool
    """Whether the gateway can know it: nothing in it was edited."""


@dataclass
class Client:
    """Plays turns and remembers what the engine was given and gave."""

    engine: FakeEngine
    encode: Callable[[str], list[int]]
    points: list[Point] = field(default_factory=lambda: [Point([], True)])
    sent: list[list[dict[str, Any]]] = field(default_factory=list)
    given: list[list[int]] = field(default_factory=list)
    versions: list[list[int]] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)

    async def play(self, gateway: Gateway, key: str, turn: Turn) -> None:
        point = self.points[max(0, len(self.points) - 1 - turn.back_to)]
        messages = [dict(message) for message in point.messages]
        whole = point.whole
        if messages and turn.replay == "hermes":
            messages[-1] = as_hermes_replays(messages[-1])
        if messages and turn.edit:
            messages[0] = {**messages[0], "content": "edited"}
            whole = False
        calls = (messages[-1].get("tool_calls") or ()) if messages else ()
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in calls
        ] or [{"role": "user", "content": text} for text in turn.says]
        token_ids = [*self.encode("".join(turn.sampled)), END]
        versions: list[int] = []
        self.engine.scripts = [
            Script(token_ids=token_ids, logprob=self._swapping(turn.swap_at, versions))
        ]
        body = {"messages": messages, "tools": [TOOL], **turn.fields}
        answer = await gateway.call("POST", "/v1/chat/completions", body, key=key)
        assert answer.status_code == 200, answer.text
        self.sent.append(messages)
        self.given.append(token_ids[: turn.fields.get("max_tokens")])
        self.versions.append(versions)
        self.whole.append(whole)
        message = answer.json()["choices"][0]["message"]
        self.points.append(Point([*messages, message], whole))

    def _swapping(self, swap_at: int | None, versions: list[int]) -> Any:
        def logprob(position: int) -> float:
            self.engine.policy_version += position == swap_at
            versions.append(self.engine.policy_version)
            return -0.5 - position / 1024

        return logprob


def as_hermes_replays(message: dict[str, Any]) -> dict[str, Any]:
    """Return an assistant message as Hermes sends it again."""
    text = (message["content"] or "").replace(BAD_CALL, "")
    replayed: dict[str, Any] = {"role": "assistant", "content": text.strip()}
    if message.get("tool_calls"):
        replayed["tool_calls"] = [
            {**call, "function": {"name": call["function"]["name"], "arguments": arguments}}
            for call in message["tool_calls"]
            for arguments in [
                json.dumps(
                    json.loads(call["function"]["arguments"]),
                    sort_keys=True,
                    separators=(",", ":"),
                )
            ]
        ]
    return replayed


def common(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}"
    "{% for c in m['tool_calls'] or [] %}\n{{ c['function']['arguments'] | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template that ``renderers`` knows nothing of, and that no reply survives as it was sampled."""


@cache
def chat_of(renderer: str) -> Chat:
    if renderer == "default":
        tokenizer = copy.deepcopy(byte_tokenizer())
        tokenizer.chat_template = TEMPLATE
        return Chat(tokenizer, renderer="default")
    return Chat(byte_tokenizer() if renderer == "chatml" else qwen_tokenizer(), renderer=renderer)


@pytest.mark.parametrize("renderer", ["chatml", "default", "qwen3", "qwen3.5"])
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(TURNS, min_size=1, max_size=12), restart_at=st.integers(0, 12))
def test_what_is_recorded_is_what_happened(
    renderer: str, turns: list[Turn], restart_at: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory), chat_of(renderer), turns, restart_at))


async def play(directory: Path, chat: Chat, turns: list[Turn], restart_at: int) -> None:
    engine = FakeEngine()

    def encode(text: str) -> list[int]:
        return list(chat.tokenizer.encode(text, add_special_tokens=False))

    client = Client(engine, encode)
    async with running_gateway(directory, engine=engine, chat=chat) as gateway:
        session_id, key = await gateway.session()
        for turn in turns[:restart_at]:
            await client.play(gateway, key, turn)
    async with running_gateway(directory, engine=engine, chat=chat) as gateway:
        for turn in turns[restart_at:]:
            await client.play(gateway, key, turn)
        completions = (await gateway.episode(session_id))["completions"]
        stored = gateway.store.episodes.find(session_id=session_id)[0]
    assert len(completions) == len(turns)
    for index, completion in enumerate(completions):
        assert completion["request_messages"] == client.sent[index]
        assert completion["prompt_token_ids"] == engine.requests[index][0]
        assert completion["token_ids"] == client.given[index]
        assert completion["policy_versions"] == client.versions[index]
        count = len(completion["token_ids"])
        assert count == len(completion["logprobs"]) == completion["usage"]["completion_tokens"]
    check_prefixes(completions, client, chat)
    check_samples(stored, completions)


def check_prefixes(completions: list[dict[str, Any]], client: Client, chat: Chat) -> None:
    """Every prompt goes on from a record, or says where it does not."""
    known = {c["completion_id"]: c["prompt_token_ids"] + c["token_ids"] for c in completions}
    for index, completion in enumerate(completions):
        prefix, prompt = completion["prefix"], completion["prompt_token_ids"]
        if prefix["parent_completion_id"] is None:
            assert prefix["shared_token_count"] == 0
            continue
        parent = known[prefix["parent_completion_id"]]
        assert prefix["shared_token_count"] == common(parent, prompt)
        difference = prefix["first_difference"]
        if client.whole[index] and prefix["shared_token_count"] < len(parent):
            # Qwen3.5's prompts open the reasoning; a reply that ends in it has no continuation.
            # When such a turn is played again, its prompt is that of its twin.
            assert chat.renderer == "qwen3.5"
            words = "the model's renderer cannot continue after this reply"
            assert len(prompt) < len(parent) if difference is None else difference["why"] == words
        if difference is not None:
            position = difference["index"]
            assert position == common(parent, prompt)
            assert difference["recorded_token_id"] == parent[position]
            assert difference["token_id"] == prompt[position]
            assert difference["text"] == chat.token_texts.alone(prompt[position])
            assert difference["why"]
        else:
            assert prefix["shared_token_count"] in (len(parent), len(prompt))


def check_samples(episode: Any, completions: list[dict[str, Any]]) -> None:
    """Each trainable token is in one sample, once; no other token is masked in."""
    by_id = {c["completion_id"]: c for c in completions}
    advantages = {c["completion_id"]: 1.0 for c in completions if c["trainable"]}
    for c in completions:
        recomputable = c["sampling"]["top_p"] == 1.0
        whole = c["finish_reason"] != "length"
        aux = c["request_messages"][-1]["content"] == SUMMARY
        # An empty reply is a turn until it is asked again.
        empty = canonical([c["message"]]) == (("assistant", ""),)
        assert c["kind"] == "aux" if aux else c["kind"] == "turn" or empty
        assert c["trainable"] == (recomputable and whole and c["kind"] == "turn")
        assert c["trainable"] == (c["untrainable_reason"] is None)
    samples = training_samples(episode, advantages)
    spans = [(sample, span) for sample in samples for span in sample.spans]
    assert sorted(span.completion_id for _, span in spans) == sorted(advantages)
    for sample, span in spans:
        completion = by_id[span.completion_id]
        where = slice(span.start, span.start + span.num_tokens)
        assert list(sample.token_ids[: span.start]) == completion["prompt_token_ids"]
        assert list(sample.token_ids[where]) == completion["token_ids"]
        assert list(sample.behavior_logprobs[where]) == completion["logprobs"]
        assert list(sample.policy_versions[where]) == completion["policy_versions"]
        assert span.temperature == completion["sampling"]["temperature"]
    masked = sum(sample.loss_mask.count(True) for sample in samples)
    assert masked == sum(len(by_id[completion_id]["token_ids"]) for completion_id in advantages)
    for segment in segments(episode.completions):
        for before, after in itertools.pairwise(segment.completions):
            prompt = before.prompt_token_ids + before.token_ids
            assert after.prompt_token_ids[: len(prompt)] == prompt


async def test_a_turn_forks_from_a_point_far_back(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        session_id, key = await gateway.session()
        messages: list[dict[str, Any]] = []
        for number in range(20):
            messages.append({"role": "user", "content": f"u{number}"})
            await gateway.call("POST", "/v1/chat/completions", {"messages": messages}, key=key)
            messages.append({"role": "assistant", "content": "ok"})
        fork = [*messages[:4], {"role": "user", "content": "otherwise"}]
        gateway.engine.scripts = [says("well")]
        await gateway.call("POST", "/v1/chat/completions", {"messages": fork}, key=key)
        episode = gateway.store.episodes.find(session_id=session_id)[0]
    forked, second = episode.completions[-1], episode.completions[1]
    known = second.prompt_token_ids + second.token_ids
    assert forked.prefix == {
        "parent_completion_id": second.completion_id,
        "shared_token_count": len(known),
        "first_difference": None,
    }
    main, branch = training_samples(episode, {c.completion_id: 1.0 for c in episode.completions})
    assert main.num_trainable_tokens == 20 * 3
    assert branch.token_ids[: len(known)] == known
    assert branch.loss_mask.count(True) == len(forked.token_ids) == 5
    assert not any(branch.loss_mask[: len(forked.prompt_token_ids)])


async def test_a_regenerated_turn_is_a_second_leaf(tmp_path: Path) -> None:
    engine = FakeEngine(says("one"), says("two"), says("three"))
    async with running_gateway(tmp_path, engine=engine) as gateway:
        session_id, key = await gateway.session()
        first = [{"role": "user", "content": "a"}]
        again = [*first, {"role": "assistant", "content": "one"}, {"role": "user", "content": "b"}]
        for messages in (first, again, again):
            await gateway.call("POST", "/v1/chat/completions", {"messages": messages}, key=key)
        episode = gateway.store.episodes.find(session_id=session_id)[0]
    root, left, right = episode.completions
    assert left.prefix == right.prefix
    assert left.prefix["parent_completion_id"] == root.completion_id
    samples = training_samples(episode, {c.completion_id: 1.0 for c in episode.completions})
    trained = [[span.completion_id for span in sample.spans] for sample in samples]
    assert trained == [[root.completion_id, left.completion_id], [right.completion_id]]
    assert samples[1].loss_mask.count(True) == len(right.token_ids)


async def test_tokens_keep_their_ids_through_ten_tool_rounds(tmp_path: Path) -> None:
    """The client sorts arguments, strips text and forgets reasoning; nothing is sampled twice."""
    scripts = [says(f"<think>{n}</think> Look {n}.\n{CALL}") for n in range(10)]
    engine = FakeEngine(*scripts, says("Done."))
    async with running_gateway(tmp_path, engine=engine) as gateway:
        session_id, key = await gateway.session()
        messages: list[dict[str, Any]] = [{"role": "user", "content": "look <tool_call>"}]
        for _ in range(11):
            body = {"messages": messages, "tools": [TOOL]}
            answer = await gateway.call("POST", "/v1/chat/completions", body, key=key)
            replayed = as_hermes_replays(answer.json()["choices"][0]["message"])
            calls = replayed.get("tool_calls") or ()
            results = [{"role": "tool", "tool_call_id": c["id"], "content": "3"} for c in calls]
            messages = [*messages, replayed, *results]
        episode = gateway.store.episodes.find(session_id=session_id)[0]
    assert not results
    assert [c.finish_reason for c in episode.completions] == ["tool_calls"] * 10 + ["stop"]
    (sample,) = training_samples(episode, {c.completion_id: 1.0 for c in episode.completions})
    sampled = [t for t, m in zip(sample.token_ids, sample.loss_mask, strict=True) if m]
    assert sampled == [t for script in [*scripts, says("Done.")] for t in script.token_ids]


async def test_a_malformed_call_comes_back_as_text_with_its_reason(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, engine=FakeEngine(says(f"Hm {BAD_CALL}"))) as gateway:
        session_id, key = await gateway.session()
        answer = (await gateway.chat(key, tools=[TOOL])).json()["choices"][0]
        (completion,) = (await gateway.episode(session_id))["completions"]
    assert answer["finish_reason"] == "stop"
    assert answer["message"]["content"] == f"Hm {BAD_CALL}"
    assert "tool_calls" not in answer["message"]
    (reason,) = answer["message"]["malformed_tool_calls"]
    assert reason.startswith("a tool call is not JSON: ")
    assert completion["message"] == answer["message"]


async def test_tokens_carry_the_version_that_sampled_them(tmp_path: Path) -> None:
    """New weights begin to serve in the middle of a completion."""
    engine = FakeEngine(says("abcdef", hold_after=4))
    async with running_gateway(tmp_path, engine=engine, port=0) as gateway:
        session_id, key = await gateway.session()
        asking = asyncio.create_task(gateway.chat(key))
        await until(lambda: engine.num_held)
        await engine.swap(tmp_path, 1)
        engine.release.set()
        await asking
        episode = await gateway.episode(session_id)
    (completion,) = episode["completions"]
    assert completion["policy_versions"] == [0, 0, 0, 0, 1, 1, 1]
    assert (episode["policy_version_min"], episode["policy_version_max"]) == (0, 1)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"temperature": 0.6}, None),
        ({"temperature": 0}, "sampling_mismatch"),
        ({"top_p": 0.99}, "sampling_mismatch"),
        ({"top_k": 1}, "sampling_mismatch"),
    ],
)
async def test_only_what_can_be_recomputed_is_trained(
    tmp_path: Path, fields: dict[str, Any], reason: str | None
) -> None:
    async with running_gateway(tmp_path) as gateway:
        session_id, key = await gateway.session()
        await gateway.chat(key, **fields)
        (completion,) = (await gateway.episode(session_id))["completions"]
    assert (completion["trainable"], completion["untrainable_reason"]) == (reason is None, reason)


@pytest.mark.parametrize(
    "text",
    [
        SUMMARY,
        "[System: Your previous response was truncated by the output length limit. …]",
        "[System: The previous response was cut off by a network error. …]",
        "[System: Your previous response contained only internal reasoning and …]",
        "[System: Your previous tool call was …]",
        "[System: Continue now. Execute the required tool calls and only …]",
        "You are a summarization agent creating a context checkpoint. …",
        "Review the conversation above and consider saving to memory if appropriate.\n\n…",
        f"my question\n\n{SUMMARY}",
    ],
)
async def test_what_the_harness_wrote_is_no_turn(tmp_path: Path, text: str) -> None:
    async with running_gateway(tmp_path) as gateway:
        session_id, key = await gateway.session()
        await gateway.chat(key, text)
        await gateway.chat(key, "[System: a person may write this]")
        aux, turn = (await gateway.episode(session_id))["completions"]
    assert (aux["kind"], aux["untrainable_reason"]) == ("aux", "aux_call")
    assert (turn["kind"], turn["trainable"]) == ("turn", True)


async def test_every_route_but_health_needs_a_key(tmp_path: Path) -> None:
    routes = [route for route in all_routes() if route.path != "/health"]
    assert len(routes) > 20
    async with running_gateway(tmp_path) as gateway:
        assert (await gateway.call("GET", "/health", key=None)).status_code == 200
        for route, method in ((r, m) for r in routes for m in r.methods or ()):
            path = route.path.replace("{episode_id}", "ep-1")
            for key in (None, "", "wrong", "sk-sess-unknown"):
                answer = await gateway.call(method, path, key=key)
                assert answer.status_code == 401, (method, path, key)


async def test_a_turn_goes_on_from_further_back_than_is_in_memory(tmp_path: Path) -> None:
    """Its prompt is also the beginning of newer ones, but they are not what it continues."""
    async with running_gateway(tmp_path, engine=FakeEngine()) as gateway:
        gateway.engine.default = says("")
        session_id, key = await gateway.session()
        messages: list[dict[str, Any]] = []
        for _ in range(10):
            messages.append({"role": "user", "content": "a"})
            await gateway.call("POST", "/v1/chat/completions", {"messages": messages}, key=key)
            messages.append({"role": "assistant", "content": ""})
        await gateway.call("POST", "/v1/chat/completions", {"messages": messages[:3]}, key=key)
        first, *_, last = (await gateway.episode(session_id))["completions"]
    known = first["prompt_token_ids"] + first["token_ids"]
    assert last["prefix"]["parent_completion_id"] == first["completion_id"]
    assert last["prefix"]["shared_token_count"] == len(known)
    assert last["prompt_token_ids"][: len(known)] == known
