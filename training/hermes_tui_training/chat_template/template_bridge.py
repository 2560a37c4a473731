"""The next prompt of a model whose format is known only by its chat template.

A template is a program: only running it shows what it writes after a reply. So the conversation is
rendered with a placeholder for the last reply. The tokens after the placeholder's stop token follow
the sampled reply too, if the template writes the same after the real reply. That is checked by
rendering it as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from renderers.base import Renderer

_PLACEHOLDER = "Q7x"
"""The placeholder: characters that no template trims, splits at or takes for a tag."""


class UnprovenError(Exception):
    """The tokens after a reply cannot be determined; the text says why."""


def turn_suffix(
    renderer: Renderer,
    messages: Sequence[Mapping[str, Any]],
    num_history: int,
    *,
    last_token_id: int,
    tools: list[Any] | None,
) -> list[int]:
    """Return the tokens between a sampled reply and the next one.

    Args:
        renderer: runs the template.
        messages: the whole conversation.
        num_history: number of messages up to the reply, included.
        last_token_id: the last sampled token; if it is no stop token, one is added.
        tools: in OpenAI's format, or None.
    Raises: UnprovenError, and any error of the template itself.
    """
    before, reply = list(messages[: num_history - 1]), messages[num_history - 1]
    new = list(messages[num_history:])
    opened: list[int] = renderer.render_ids(before, tools=tools, add_generation_prompt=True)
    shown: list[int] = renderer.render_ids(
        [*before, _placeholder(reply), *new], tools=tools, add_generation_prompt=True
    )
    if shown[: len(opened)] != opened:
        raise UnprovenError("the chat template begins an earlier reply differently from a new one")
    stops = set(renderer.get_stop_token_ids())
    close = next((i for i in range(len(opened), len(shown)) if shown[i] in stops), None)
    if close is None:
        raise UnprovenError("the chat template writes no stop token after a reply")
    ending = shown[close:]
    actual = renderer.render_ids([*before, reply, *new], tools=tools, add_generation_prompt=True)
    if actual[-len(ending) :] != ending:
        raise UnprovenError("what the chat template writes after a reply depends on the reply")
    if last_token_id not in stops:
        return ending
    if last_token_id != ending[0]:
        raise UnprovenError("the reply ended with another stop token than the chat template's")
    return ending[1:]


def _placeholder(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply that calls the same tools and has no text that could contain a stop token."""
    message: dict[str, Any] = {"role": "assistant", "content": _PLACEHOLDER}
    if reply.get("tool_calls"):
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": "{}"}}
            for call in reply["tool_calls"]
        ]
    return message
