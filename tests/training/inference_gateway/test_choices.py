"""Several replies to one request (``n``): each is recorded and scored by its own id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import openai
import pytest
from fakes.apis import error_of, recorded
from fakes.engine import Script, encode, says
from fakes.inference import Gateway, until

from hermes_tui_training.algorithm.step_batch import make_step_batch
from hermes_tui_training.api.config import TrainingConfig

HI: list[Any] = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def client(gateway: Gateway, session: tuple[str, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=session[1], max_retries=0
    ) as client:
        yield client


def advantages_of(gateway: Gateway, session_id: str) -> Mapping[str, float]:
    """Return what a step would weight the newest episode's completions with."""
    episode = gateway.store.episodes.find(session_id=session_id)[-1]
    batch = make_step_batch([[episode]], {}, TrainingConfig())
    return batch.advantages[0].by_completion if batch.advantages else {}


async def test_each_choice_is_recorded_and_scored_alone(
    gateway: Gateway, session: tuple[str, str], client: openai.AsyncOpenAI
) -> None:
    gateway.engine.scripts = [says("before"), says("a"), says("bb"), says("ccc")]
    await client.chat.completions.create(model="policy", messages=HI)
    talk: list[Any] = [*HI, {"role": "assistant", "content": "before"}, *HI]
    answer = await client.chat.completions.create(model="policy", messages=talk, n=3, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == ["a", "bb", "ccc"]
    before, *choices = await recorded(gateway, session)
    ids = [answer.id, f"{answer.id}:1", f"{answer.id}:2"]
    assert [c["completion_id"] for c in choices] == ids
    assert [c["kind"] for c in choices] == ["turn", "choice", "choice"]
    assert [c["sampling"]["seed"] for c in choices] == [7, 8, 9]
    assert len({tuple(c["prompt_token_ids"]) for c in choices}) == 1
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(choices[0]["prompt_token_ids"])
    assert answer.usage.completion_tokens == sum(len(c["token_ids"]) for c in choices) == 9

    async def score(reward: float, interaction_id: str | None = None) -> None:
        body = {"reward": reward, "interaction_id": interaction_id}
        given = await gateway.call("POST", "/rl/set_reward", body, key=session[1])
        assert given.status_code == 200, given.text

    await score(-0.5, ids[2])
    # Neither the turn beside it nor the one before inherits it.
    assert advantages_of(gateway, session[0]) == {ids[2]: -0.5}
    await score(1.0)
    found = dict(advantages_of(gateway, session[0]))
    assert found.pop(before["completion_id"]) > 0
    assert found == {ids[0]: 1.0, ids[2]: -0.5}
    exported = await gateway.call("POST", "/export_trajectories", {"session_ids": [session[0]]})
    returns = {row["interaction_ids"][0]: row["reward"] for row in exported.json()["data"]}
    assert returns[ids[0]] == returns[before["completion_id"]] == 1.0
    assert (returns[ids[1]], returns[ids[2]]) == (None, -0.5)


async def test_the_choice_that_is_continued_is_the_turn(
    gateway: Gateway, session: tuple[str, str], client: openai.AsyncOpenAI
) -> None:
    gateway.engine.scripts = [says("a"), says("bb"), says("ccc"), says("done")]
    answer = await client.chat.completions.create(model="policy", messages=HI, n=3)
    talk: list[Any] = [*HI, {"role": "assistant", "content": "bb"}, *HI]
    await client.chat.completions.create(model="policy", messages=talk)
    first, second, third, last = await recorded(gateway, session)
    assert [c["kind"] for c in (first, second, third, last)] == ["choice", "turn", "choice", "turn"]
    reasons = [c["untrainable_reason"] for c in (first, second, third)]
    assert reasons == ["other_choice", None, "other_choice"]
    assert [c["trainable"] for c in (first, second, third)] == [False, True, False]
    assert last["prefix"]["parent_completion_id"] == f"{answer.id}:1"
    known = second["prompt_token_ids"] + second["token_ids"]
    assert last["prompt_token_ids"][: len(known)] == known
    given = await gateway.call("POST", "/rl/set_reward", {"reward": 1.0}, key=session[1])
    assert given.status_code == 200
    trained = advantages_of(gateway, session[0])
    assert set(trained) == {second["completion_id"], last["completion_id"]}


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_choices_are_streamed_side_by_side(
    gateway: Gateway, session: tuple[str, str], client: openai.AsyncOpenAI, path: str
) -> None:
    gateway.engine.scripts = [says("abc"), says("xy", logprob=lambda position: -2.0)]
    options: Any = {"model": "policy", "n": 2, "stream": True}
    options["stream_options"] = {"include_usage": True}
    texts, ends, usages, ids = ["", ""], [], [], set()
    stream: Any
    if path == "completions":
        stream = await client.completions.create(prompt="Hi", **options)
    else:
        stream = await client.chat.completions.create(messages=HI, **options)
    async for chunk in stream:
        ids.add(chunk.id)
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            text = choice.text if path == "completions" else choice.delta.content
            texts[choice.index] += text or ""
            ends += [choice.index] if choice.finish_reason else []
    assert texts == ["abc", "xy"]
    assert sorted(ends) == [0, 1]
    assert [usage.completion_tokens for usage in usages] == [7]
    completions = await recorded(gateway, session)
    assert ids == {completions[0]["completion_id"]}
    assert completions[1]["logprobs"] == [-2.0] * 3


async def test_a_choice_that_fails_ends_the_others(
    gateway: Gateway, session: tuple[str, str]
) -> None:
    gateway.engine.scripts = [
        says("abc", hold_after=1),
        Script(token_ids=encode("x"), error_after=0),
    ]
    answer = await gateway.chat(session[1], n=2)
    assert error_of(answer, 502)
    await until(lambda: all(c.status == "finished" for c in _completions(gateway, session)))
    reasons = {c.untrainable_reason for c in _completions(gateway, session)}
    assert reasons == {"engine_error"}
    assert "another choice" in str(_completions(gateway, session)[0].error)


def _completions(gateway: Gateway, session: tuple[str, str]) -> Any:
    return gateway.store.episodes.find(session_id=session[0])[-1].completions


@pytest.mark.parametrize("n", [0, 17, 1.5])
async def test_how_many_there_may_be(gateway: Gateway, session: tuple[str, str], n: float) -> None:
    assert error_of(await gateway.chat(session[1], n=n))["param"] == "n"
