"""Replies of a form that the client asks for, through the official clients, and their record.

The scripted engine refuses a script that the request's grammar does not allow.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pytest
from fakes.apis import error_of, recorded
from fakes.engine import says
from fakes.inference import Gateway
from pydantic import BaseModel

from hermes_tui_training.algorithm.samples import training_samples
from hermes_tui_training.api.config import ModelConfig, TrainingConfig
from hermes_tui_training.chat_template.renderer import Chat
from hermes_tui_training.chat_template.reply_parser import write_call
from hermes_tui_training.engine import create_engine
from hermes_tui_training.models.prepare import EMBEDDED_MODEL, prepare_model


class Weather(BaseModel):
    """What is asked for."""

    city: str
    sky: Literal["clear", "cloudy"]
    days: int


ANSWER = '{"city": "Oslo", "sky": "clear", "days": 3}'
EXPECTED = Weather(city="Oslo", sky="clear", days=3)
SCHEMA = {**Weather.model_json_schema(), "additionalProperties": False}
HI: list[Any] = [{"role": "user", "content": "Hi"}]
BAD: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "array", "contains": {}}}}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, **fields}}


@pytest.fixture
async def client(gateway: Gateway, session: tuple[str, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=session[1], max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def claude(
    gateway: Gateway, session: tuple[str, str]
) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=gateway.url, api_key=session[1], max_retries=0
    ) as client:
        yield client


# -- content ---------------------------------------------------------------------------------------


async def test_chat_parse_and_stream(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    gateway.engine.scripts = [says(ANSWER), says(ANSWER), says('{"x": 1}')]
    parsed = await client.chat.completions.parse(
        model="policy", messages=HI, response_format=Weather
    )
    assert parsed.choices[0].message.parsed == EXPECTED
    async with client.chat.completions.stream(
        model="policy", messages=HI, response_format=Weather
    ) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == EXPECTED
    free = await client.chat.completions.create(
        model="policy", messages=HI, response_format={"type": "json_object"}
    )
    assert json.loads(free.choices[0].message.content or "") == {"x": 1}


async def test_responses_parse(gateway: Gateway, client: openai.AsyncOpenAI) -> None:
    gateway.engine.scripts = [says(ANSWER), says(ANSWER)]
    parsed = await client.responses.parse(model="policy", input="Hi", text_format=Weather)
    assert parsed.output_parsed == EXPECTED
    assert parsed.text is not None
    assert parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"
    async with client.responses.stream(model="policy", input="Hi", text_format=Weather) as stream:
        final = await stream.get_final_response()
    assert final.output_parsed == EXPECTED


async def test_messages_parse(gateway: Gateway, claude: anthropic.AsyncAnthropic) -> None:
    gateway.engine.scripts = [says(ANSWER)]
    parsed = await claude.messages.parse(
        model="policy", max_tokens=99, messages=HI, output_format=Weather
    )
    assert parsed.parsed_output == EXPECTED


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_a_forced_call_of_chat(
    gateway: Gateway, client: openai.AsyncOpenAI, choice: Any
) -> None:
    gateway.engine.scripts = [says(write_call("weather", ANSWER))]
    other = function(name="other")
    answer = await client.chat.completions.create(
        model="policy",
        messages=HI,
        tools=[other, function()],
        tool_choice=choice,  # type: ignore[list-item]
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert Weather.model_validate_json(call.function.arguments) == EXPECTED
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_a_forced_call_of_responses_and_messages(
    gateway: Gateway, client: openai.AsyncOpenAI, claude: anthropic.AsyncAnthropic
) -> None:
    gateway.engine.scripts = [says(write_call("weather", ANSWER))] * 2
    response = await client.responses.create(
        model="policy",
        input="Hi",
        tools=[{"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}],
        tool_choice={"type": "function", "name": "weather"},
        parallel_tool_calls=False,
    )
    (item,) = response.output
    assert item.type == "function_call"
    assert Weather.model_validate_json(item.arguments) == EXPECTED
    assert response.parallel_tool_calls is False
    message = await claude.messages.create(
        model="policy",
        max_tokens=99,
        messages=HI,
        tools=[{"name": "weather", "input_schema": SCHEMA}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )
    (block,) = message.content
    assert block.type == "tool_use"
    assert Weather.model_validate(block.input) == EXPECTED


NO_CALL, ONE = "It is clear.", write_call("weather", ANSWER)
LOOSE = write_call("weather", '{"town": 5}')


@pytest.mark.parametrize(
    ("fields", "reply", "works"),
    [
        ({"tool_choice": "required"}, NO_CALL, False),
        ({"tool_choice": "required"}, f"{ONE}\n{ONE}", True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, f"{ONE}\n{ONE}", False),
        ({"parallel_tool_calls": False}, f"So: {LOOSE}", True),
        ({"parallel_tool_calls": False}, f"{ONE} {ONE}", False),
        ({"parallel_tool_calls": False}, NO_CALL, True),
        ({"tools": [function(strict=True)]}, NO_CALL, True),
        ({"tools": [function(strict=True)]}, f"So: {ONE}", True),
        ({"tools": [function(strict=True)]}, LOOSE, False),
        ({"tools": [function(strict=False)]}, LOOSE, True),
        ({"tool_choice": "none", "tools": [function(strict=True)]}, LOOSE, True),
        (
            {
                "tools": [function(), function(name="other")],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "weather"}}],
                    },
                },
            },
            write_call("other", "{}"),
            False,
        ),
        ({"response_format": {"type": "json_object"}}, LOOSE, True),
        ({"response_format": {"type": "json_object"}}, "{}", True),
        ({"response_format": {"type": "json_object"}}, NO_CALL, False),
    ],
)
async def test_what_the_engine_is_held_to(
    gateway: Gateway, session: tuple[str, str], fields: dict[str, Any], reply: str, works: bool
) -> None:
    gateway.engine.scripts = [says(reply)]
    answer = await gateway.chat(session[1], **{"tools": [function()], **fields})
    assert answer.status_code == (200 if works else 502), answer.text


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (
            "chat/completions",
            {
                "messages": HI,
                "response_format": {"type": "json_schema", "json_schema": {"schema": BAD}},
            },
            "response_format.json_schema.schema.properties.a",
        ),
        (
            "chat/completions",
            {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        (
            "chat/completions",
            {"messages": HI, "response_format": {"type": "regex"}},
            "response_format.type",
        ),
        (
            "chat/completions",
            {"messages": HI, "tools": [function(parameters=BAD, strict=True)]},
            "tools[0].function.parameters.properties.a",
        ),
        (
            "chat/completions",
            {
                "messages": HI,
                "tools": [function()],
                "tool_choice": {"type": "function", "function": {"name": "x"}},
            },
            "tool_choice",
        ),
        (
            "responses",
            {
                "input": "Hi",
                "tools": [
                    {"type": "function", "name": "a", "parameters": BAD, "strict": True},
                ],
            },
            "tools[0].parameters.properties.a",
        ),
        (
            "responses",
            {
                "input": "Hi",
                "text": {"format": {"type": "json_schema", "name": "x", "schema": BAD}},
            },
            "text.format.schema.properties.a",
        ),
        (
            "messages",
            {
                "max_tokens": 9,
                "messages": HI,
                "tools": [{"name": "a", "input_schema": BAD}],
                "tool_choice": {"type": "tool", "name": "a"},
            },
            "tools[0].input_schema.properties.a",
        ),
        (
            "messages",
            {
                "max_tokens": 9,
                "messages": HI,
                "output_config": {"format": {"type": "json_schema", "schema": BAD}},
            },
            "output_config.format.schema.properties.a",
        ),
    ],
)
async def test_what_cannot_be_held_to_is_a_400_with_its_path(
    gateway: Gateway, session: tuple[str, str], path: str, fields: dict[str, Any], param: str
) -> None:
    answer = await gateway.call("POST", f"/v1/{path}", fields, key=session[1])
    assert error_of(answer)["param"] == param
    assert gateway.engine.requests == []
    assert gateway.store.completions.of_session(session[0]) == []


# -- what is recorded and trained ------------------------------------------------------------------


async def test_only_tokens_that_the_policy_chose_are_trained(
    gateway: Gateway, session: tuple[str, str]
) -> None:
    """The loss is on tokens where the grammar ruled out less than a millionth."""
    gateway.engine.scripts = [
        says('{"a": 1}', removed_prob=lambda position: 9e-7 if position % 3 else 2e-6),
        says('{"a": 1}', removed_prob=lambda position: 0.25),
    ]
    form = {"response_format": {"type": "json_object"}}
    await gateway.chat(session[1], **form)
    await gateway.chat(session[1], "again", **form)
    some, none = await recorded(gateway, session)
    assert some["sampling"]["constrained"] is True
    assert some["removed_probs"] == pytest.approx([2e-6, 9e-7, 9e-7] * 3)
    assert (some["trainable"], some["untrainable_reason"]) == (True, None)
    assert (none["trainable"], none["untrainable_reason"]) == (False, "constrained")
    answer = await gateway.call("POST", "/rl/set_reward", {"reward": 1.0}, key=session[1])
    assert answer.status_code == 200
    status = (await gateway.call("GET", "/rl/status")).json()
    assert status["untrained"] == {"constrained": 1}
    (episode,) = gateway.store.episodes.find(session_id=session[0])
    first, second = episode.completions
    assert (first.learnable, second.learnable) == (True, False)
    (sample,) = training_samples(episode, {c.completion_id: 1.0 for c in episode.completions})
    start = len(first.prompt_token_ids)
    assert not any(sample.loss_mask[:start])
    assert sample.loss_mask[start : start + 9] == (False, True, True) * 3
    assert [span.num_tokens for span in sample.spans] == [6] == [sample.num_trainable_tokens]
    exported = await gateway.call("POST", "/export_trajectories", {"session_ids": [session[0]]})
    rows = exported.json()["data"]
    assert [row["constrained"] for row in rows] == [[3], [9]]
    assert [sum(row["loss_mask"]) for row in rows] == [6, 0]


@pytest.mark.embedded
@pytest.mark.timeout(300)
async def test_the_embedded_model_calls_when_it_is_forced(tmp_path: Path) -> None:
    """135 million parameters, asked for the weather: a valid call each time, hot or cold."""
    from fakes.inference import running_gateway

    model = ModelConfig(path=EMBEDDED_MODEL)
    directory = prepare_model(model.path, print)
    chat, engine = Chat.load(directory, model), create_engine(TrainingConfig(), model, directory)
    await engine.start()
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
        },
        "required": ["city", "unit", "days"],
        "additionalProperties": False,
    }
    tool = {"name": "get_weather", "description": "The forecast.", "parameters": parameters}
    ask = {
        "messages": [{"role": "user", "content": "What will the weather be in Paris?"}],
        "tools": [{"type": "function", "function": tool}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 120,
    }
    try:
        async with running_gateway(tmp_path, engine=engine, chat=chat) as gateway:  # type: ignore[arg-type]
            session_id, key = await gateway.session()
            for sampling in ({"temperature": 0}, {"seed": 1}):
                answer = await gateway.call(
                    "POST", "/v1/chat/completions", ask | sampling, key=key, timeout=120
                )
                choice = answer.json()["choices"][0]
                assert choice["finish_reason"] == "tool_calls", answer.text
                (call,) = choice["message"]["tool_calls"]
                arguments = json.loads(call["function"]["arguments"])
                assert set(arguments) == {"city", "unit", "days"}
                assert arguments["unit"] in ("celsius", "fahrenheit")
                assert 1 <= arguments["days"] <= 14
            completions = await recorded(gateway, (session_id, key))
    finally:
        await engine.stop()
    for completion in completions:
        assert max(completion["removed_probs"]) > 0.9  # alone, it would not have called
