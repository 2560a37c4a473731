"""ChatML for models whose own template knows neither tools nor tool messages.

``<|im_start|>role\\ncontent<|im_end|>\\n``, message by message, as the embedded model's template
writes it; a default system prompt comes first when there is no system message. Beyond that
template: tools are offered in the system message and called as ``<tool_call>{json}</tool_call>``
(the Hermes convention), and results come back in a message of the role ``tool``.

Two deviations from rendering the template's text and tokenizing it: control tokens that somebody
typed stay text (a user cannot end its own message), and a message is not merged with its
neighbours by the tokenizer, which makes full renders prefixes of their continuations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from renderers.base import (
    Message,
    ParsedResponse,
    ParsedToolCall,
    RenderedTokens,
    Tokenizer,
    ToolSpec,
    extract_message_tool_names,
    reject_assistant_in_extension,
)
from renderers.configs import BaseRendererConfig

from hermes_tui_common.errors import ConfigError
from hermes_tui_training.chat_template.reply_parser import Reply, parse_reply

START = "<|im_start|>"
END = "<|im_end|>"

TOOLS_PROMPT = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
"""How tools are offered; the wording that Hermes- and Qwen-style models were trained with."""


class ChatMLRendererConfig(BaseRendererConfig):  # type: ignore[misc]  # untyped for mypy
    """Settings of ``ChatMLRenderer``."""

    name: Literal["chatml"] = "chatml"
    default_system_prompt: str | None = None
    """System message of conversations that bring none; None adds none."""

    _internal_fields: ClassVar[frozenset[str]] = frozenset({"default_system_prompt"})


class ChatMLRenderer:
    """Turns messages into ChatML tokens and sampled tokens into messages.

    Satisfies ``renderers.Renderer``.
    """

    config_class = ChatMLRendererConfig

    def __init__(self, tokenizer: Tokenizer, config: ChatMLRendererConfig | None = None) -> None:
        """Look up the control tokens.

        Raises: ConfigError: the tokenizer has no ChatML control tokens.
        """
        self.config = config or ChatMLRendererConfig()
        self._tokenizer = tokenizer
        self._start = self._control_token(START)
        self._end = self._control_token(END)
        self._newline = self._encode("\n")

    def _control_token(self, token: str) -> int:
        ids = list(self._tokenizer.encode(token, add_special_tokens=False))
        if len(ids) != 1:
            raise ConfigError(
                f"the model's tokenizer has no token {token}, so it cannot speak ChatML; "
                'set model.renderer to the model\'s family, or to "default"'
            )
        return int(ids[0])

    def _encode(self, text: str) -> list[int]:
        return list(
            self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        )

    @property
    def is_prefix_stable(self) -> bool:
        """Whether full renders preserve completed conversation prefixes."""
        return True

    def render(
        self,
        messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Return the tokens of a whole conversation, each with its message's index."""
        token_ids: list[int] = []
        indices: list[int] = []
        system, rest = self._system_text(messages, tools)
        first = len(messages) - len(rest)
        if system is not None:
            token_ids += self._message("system", system)
            indices += [first - 1] * len(token_ids)
        self._extend(token_ids, indices, rest, first)
        if add_generation_prompt:
            token_ids += self._generation_prompt()
        indices += [-1] * (len(token_ids) - len(indices))
        return _rendered(token_ids, indices, messages)

    def render_ids(
        self,
        messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Return the token ids of ``render``."""
        rendered = self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
        return list(rendered.token_ids)

    def _system_text(
        self, messages: list[Message], tools: list[ToolSpec] | None
    ) -> tuple[str | None, list[Message]]:
        """Return the first system message's text with the tools in it, and what follows it."""
        text, rest = self.config.default_system_prompt, messages
        if messages and messages[0]["role"] == "system":
            text, rest = _text(messages[0]), messages[1:]
        if not tools:
            return text, rest
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        offered = TOOLS_PROMPT.format(tools=listed)
        return (f"{text}\n\n{offered}" if text else offered), rest

    def _message(self, role: str, text: str) -> list[int]:
        return [self._start, *self._encode(f"{role}\n{text}"), self._end, *self._newline]

    def _generation_prompt(self) -> list[int]:
        return [self._start, *self._encode("assistant\n")]

    def _extend(
        self, token_ids: list[int], indices: list[int], messages: Sequence[Message], first: int
    ) -> None:
        for index, message in enumerate(messages, start=first):
            tokens = self._message(message["role"], _body(message))
            token_ids += tokens
            indices += [index] * len(tokens)

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[ToolSpec] | None = None,
        prompt_ids: list[int] | None = None,  # no prompt of ours opens reasoning
    ) -> ParsedResponse:
        """Return the message that sampled tokens are; tools are called only if any were offered."""
        stops = set(self.get_stop_token_ids())
        kept = token_ids[:-1] if token_ids and token_ids[-1] in stops else token_ids
        text = self._tokenizer.decode(kept, skip_special_tokens=True)
        return _parsed(parse_reply(text, tools=bool(tools)))

    def get_stop_token_ids(self) -> list[int]:
        """Return the tokens that end a reply."""
        eos = self._tokenizer.eos_token_id
        return [self._end] if eos in (None, self._end) else [self._end, int(eos)]

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,  # they are in the previous prompt
    ) -> RenderedTokens | None:
        """Return the next prompt: the previous one, what was sampled, and the new messages.

        None when there is nothing new, or when a new message is the assistant's.
        """
        if not previous_prompt_ids:
            return None
        known = [*previous_prompt_ids, *previous_completion_ids]
        suffix = self.turn_suffix(known[-1], new_messages)
        if suffix is None:
            return None
        return _rendered([*known, *suffix], [-1] * (len(known) + len(suffix)), new_messages)

    def turn_suffix(self, last_token_id: int, new_messages: list[Message]) -> list[int] | None:
        """Return what follows a reply in the next prompt; ``bridge_to_next_turn`` without copies.

        Args:
            last_token_id: the last sampled token; a reply that was cut is closed first.
            new_messages: what came after the reply.
        Returns: None when there is nothing new, or when a new message is the assistant's.
        """
        if not new_messages or reject_assistant_in_extension(new_messages):
            return None
        closed = last_token_id in self.get_stop_token_ids()
        token_ids = [] if closed else [self._end]
        token_ids += self._newline
        for message in new_messages:
            token_ids += self._message(message["role"], _body(message))
        return token_ids + self._generation_prompt()


def _rendered(
    token_ids: list[int], indices: list[int], messages: Sequence[Message]
) -> RenderedTokens:
    return RenderedTokens(
        token_ids=token_ids,
        message_indices=indices,
        message_roles=[message["role"] for message in messages],
        message_tool_names=extract_message_tool_names(list(messages)),
    )


def _text(message: Message) -> str:
    """Return a message's text; parts are joined, nothing is stripped."""
    content: Any = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content)


def _body(message: Message) -> str:
    """Return what stands between a message's role and its end."""
    text = _text(message)
    if message["role"] == "tool":
        return f"<tool_response>\n{text}\n</tool_response>"
    calls = [_call_text(call) for call in message.get("tool_calls") or ()]
    return "\n".join([text, *calls] if text else calls) if calls else text


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _parsed(reply: Reply) -> ParsedResponse:
    return ParsedResponse(
        content=reply.content,
        reasoning_content=reply.reasoning,
        tool_calls=[
            ParsedToolCall(raw=call.raw, name=call.name, arguments=json.loads(call.arguments))
            for call in reply.tool_calls
        ],
        reasoning_complete=not reply.reasoning_open,
    )
