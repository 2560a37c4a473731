"""What the tests of the inference gateway's APIs share."""

from __future__ import annotations

from typing import Any

import httpx
from fakes.inference import Gateway

CALL = '<tool_call>\n{"name": "look",  "arguments": {"b":1, "a": "é"}}\n</tool_call>'
"""What a model samples that calls a tool."""

SCHEMA = {"type": "object", "properties": {}}
"""Parameters of the tool."""


async def recorded(gateway: Gateway, session: tuple[str, str]) -> list[dict[str, Any]]:
    """Return the completions of a session's newest episode; their counts agree."""
    completions = (await gateway.episode(session[0]))["completions"]
    for completion in completions:
        sampled = len(completion["token_ids"])
        assert sampled == len(completion["logprobs"]) == len(completion["policy_versions"])
        assert sampled == completion["usage"]["completion_tokens"]
    return completions


def error_of(answer: httpx.Response, status: int = 400) -> dict[str, Any]:
    """Return the error of a refused request."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error
