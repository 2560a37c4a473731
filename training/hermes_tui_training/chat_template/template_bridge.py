"""The next prompt of a model of which only the chat template is known.

A template is a program: what it writes after a reply can only be found by running it. The history
is rendered with a stand-in for the last reply; what the template writes after the stand-in's end of
turn is what follows the sampled reply too, if the template does the same with the real reply. That
is checked by rendering it as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from renderers.base import Renderer

_STAND_IN = "Q7x"
"""Text of the stand-in reply: letters that no template trims, takes for a tag or splits at."""


class UnprovenError(Exception):
    """The template does not show what follows a reply; the text says why."""


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
        num_history: how many of them were there once the reply was given; the reply is the last.
        last_token_id: the last sampled token; a reply that was cut is closed first.
        tools: OpenAI's, or None.
    Raises: UnprovenError. Whatever the template raises about these messages.
    """
    before, reply = list(messages[: num_history - 1]), messages[num_history - 1]
    new = list(messages[num_history:])
    opened: list[int] = renderer.render_ids(before, tools=tools, add_generation_prompt=True)
    shown: list[int] = renderer.render_ids(
        [*before, _stand_in(reply), *new], tools=tools, add_generation_prompt=True
    )
    if shown[: len(opened)] != opened:
        raise UnprovenError("the chat template repeats a reply otherwise than it begins one")
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


def _stand_in(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reply that calls the same tools, without any text that could hold a stop token."""
    message: dict[str, Any] = {"role": "assistant", "content": _STAND_IN}
    if reply.get("tool_calls"):
        message["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": "{}"}}
            for call in reply["tool_calls"]
        ]
    return message
