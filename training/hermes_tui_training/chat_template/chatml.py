"""ChatML for models whose own template supports neither tools nor tool messages.

Each message is ``<|im_start|>role\\ncontent<|im_end|>\\n``, as in the embedded model's template; a
default system prompt comes first if there is no system message. In addition to that template, tools
are offered in the system message and called as ``<tool_call>{json}</tool_call>`` (the Hermes
convention), and their results are messages of the role ``tool``.

It differs from tokenizing the template's text in two ways. Names of control tokens in a message
stay text, so that users cannot end their own message. Each message is tokenized by itself, so that
the tokens of a conversation are a prefix of the tokens of its continuation.
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
from hermes_tui_common.openai import message_text
from hermes_tui_training.chat_template.reply_parser import Reply, parse_reply, write_call

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
"""How tools are offered: the wording that Hermes and Qwen models were trained with."""


class ChatMLRendererConfig(BaseRendererConfig):  # type: ignore[misc]  # untyped for mypy
    """Settings of ``ChatMLRenderer``."""

    name: Literal["chatml"] = "chatml"
    default_system_prompt: str | None = None
    """System message of conversations without one; None adds none."""

    _internal_fields: ClassVar[frozenset[str]] = frozenset({"default_system_prompt"})


class ChatMLRenderer:
    """Renders messages as ChatML and parses replies; a ``renderers.Renderer``."""

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
                f"the model's tokenizer has no token {token}, so it does not support ChatML; "
                'set model.renderer to the model\'s family, or to "default"'
            )
        return int(ids[0])

    def _encode(self, text: str) -> list[int]:
        return list(
            self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        )

    @property
    def is_prefix_stable(self) -> bool:
        """True: the tokens of a conversation are a prefix of those of its continuation."""
        return True

    def render(
        self,
        messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """Return the tokens of a conversation, each with the index of its message."""
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
        """Return the system message's text with the tools in it, and the other messages."""
        text, rest = self.config.default_system_prompt, messages
        if messages and messages[0]["role"] == "system":
            text, rest = message_text(messages[0]), messages[1:]
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
        prompt_ids: list[int] | None = None,  # unused: our prompts never open reasoning
    ) -> ParsedResponse:
        """Parse sampled tokens; without ``tools`` call tags are plain text."""
        stops = set(self.get_stop_token_ids())
        kept = token_ids[:-1] if token_ids and token_ids[-1] in stops else token_ids
        text = self._tokenizer.decode(kept, skip_special_tokens=True)
        return _parsed(parse_reply(text, tools=bool(tools)))

    def get_stop_token_ids(self) -> list[int]:
        """Return the ids of the tokens that end a reply."""
        eos = self._tokenizer.eos_token_id
        return [self._end] if eos in (None, self._end) else [self._end, int(eos)]

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,  # unused: they are in the previous prompt
    ) -> RenderedTokens | None:
        """Return the next prompt: the previous one, its sampled tokens, and the new messages.

        None if there are no new messages, or one of them is the assistant's.
        """
        if not previous_prompt_ids:
            return None
        known = [*previous_prompt_ids, *previous_completion_ids]
        suffix = self.turn_suffix(known[-1], new_messages)
        if suffix is None:
            return None
        return _rendered([*known, *suffix], [-1] * (len(known) + len(suffix)), new_messages)

    def turn_suffix(self, last_token_id: int, new_messages: list[Message]) -> list[int] | None:
        """Return the tokens after a reply in the next prompt, as ``bridge_to_next_turn`` does.

        Args:
            last_token_id: the last sampled token; if it is no stop token, one is added.
            new_messages: the messages after the reply.
        Returns: None if there are no new messages, or one of them is the assistant's.
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


def _body(message: Message) -> str:
    """Return the text between a message's role and its end."""
    text = message_text(message)
    if message["role"] == "tool":
        return f"<tool_response>\n{text}\n</tool_response>"
    calls = [_call_text(call) for call in message.get("tool_calls") or ()]
    return "\n".join([text, *calls] if text else calls) if calls else text


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return write_call(function["name"], arguments)


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
