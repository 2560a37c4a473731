"""The chat template of a model: messages to prompt tokens, sampled tokens to messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from renderers import create_renderer
from renderers.base import Renderer, merge_chat_template_kwargs
from renderers.default import DefaultRenderer
from renderers.qwen3 import Qwen3Renderer
from renderers.qwen3_vl import Qwen3VLRenderer
from renderers.qwen35 import Qwen35Renderer
from renderers.reasoning import prompt_ends_in_reasoning

from hermes_tui_common.errors import ApiError, ConfigError
from hermes_tui_common.openai import message_text
from hermes_tui_training.api.config import ModelConfig
from hermes_tui_training.chat_template.chatml import ChatMLRenderer, ChatMLRendererConfig
from hermes_tui_training.chat_template.detokenizer import TokenTexts
from hermes_tui_training.chat_template.family_parser import FamilyParser
from hermes_tui_training.chat_template.grammar import ReplyRules, ReplySyntax, reply_grammar
from hermes_tui_training.chat_template.prefix_match import (
    Recorded,
    context_key,
    shared_length,
    why_broken,
)
from hermes_tui_training.chat_template.prompt import NO_PARENT, Prompt, PromptRequest
from hermes_tui_training.chat_template.renderer_choice import (
    choose_renderer,
    load_model_tokenizer,
)
from hermes_tui_training.chat_template.reply_parser import THINK_CLOSE, THINK_OPEN, ReplyParser
from hermes_tui_training.chat_template.reply_stream import ReplyStream
from hermes_tui_training.chat_template.template_bridge import UnprovenError, turn_suffix
from hermes_tui_training.models.prepare import EMBEDDED_MODEL

logger = logging.getLogger(__name__)

_QWEN3 = (Qwen3Renderer, Qwen3VLRenderer)
_OUR_GRAMMAR = (ChatMLRenderer, DefaultRenderer, *_QWEN3)
"""Renderers of models that write reasoning and calls as ``reply_parser`` reads them."""

_MAX_RENDERERS = 8
"""Cached renderers, one per template settings; each is a few hundred bytes."""


class Chat:
    """A model's chat format; safe to use from any thread."""

    def __init__(self, tokenizer: Any, *, renderer: str = "auto", model_name: str = "") -> None:
        """Choose the renderer.

        Args:
            tokenizer: of transformers.
            renderer: ``model.renderer``: "auto", "chatml", "default" or a family of ``renderers``.
            model_name: hub id, by which "auto" finds the family.

        Raises: ConfigError: there is no such renderer, or it does not fit the tokenizer.
        """
        self.tokenizer = tokenizer
        self._lock = threading.Lock()
        self.token_texts = TokenTexts(tokenizer)
        if model_name:
            tokenizer.name_or_path = model_name
        self._config = choose_renderer(tokenizer, renderer)
        self._renderers: dict[str, Renderer] = {}
        try:
            base = self._renderer({})
        except Exception as error:  # renderers use assertions to check a tokenizer
            raise ConfigError(
                f'model.renderer = "{renderer}" does not fit the model: {error}'
            ) from error
        self._uses_our_grammar = isinstance(base, _OUR_GRAMMAR)
        self.stop_token_ids = tuple(base.get_stop_token_ids())
        """Ids of the tokens that end a reply."""
        self.renderer = str(self._config.name)
        """Name of the renderer: a model family, "chatml" or "default"."""
        logger.info("chat renderer=%s", self.renderer)

    @classmethod
    def load(cls, directory: Path, model: ModelConfig) -> Chat:
        """Load the tokenizer of a prepared model.

        Raises: ConfigError.
        """
        try:
            tokenizer = load_model_tokenizer(directory)
        except Exception as error:  # the loaders raise many types; the user needs one sentence
            raise ConfigError(
                f'model.path = "{model.path}": its tokenizer cannot be loaded: {error}'
            ) from error
        name = "" if model.path == EMBEDDED_MODEL else model.path
        return cls(tokenizer, renderer=model.renderer, model_name=name)

    def _renderer(self, template: Mapping[str, Any]) -> Renderer:
        key = context_key([], template)
        if key not in self._renderers:
            config = self._config
            try:
                if template:
                    config = merge_chat_template_kwargs(config, template)
                made = (
                    ChatMLRenderer(self.tokenizer, config)
                    if isinstance(config, ChatMLRendererConfig)
                    else create_renderer(self.tokenizer, config)
                )
            except (ValueError, TypeError) as error:
                raise ApiError(
                    400, f"chat_template_kwargs: {error}", param="chat_template_kwargs"
                ) from error
            if len(self._renderers) >= _MAX_RENDERERS:
                self._renderers.pop(next(reversed(self._renderers)))
            self._renderers[key] = made
        return self._renderers[key]

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template: Mapping[str, Any] | None = None,
        parents: Sequence[Recorded] = (),
    ) -> Prompt:
        """Return the prompt for the next reply.

        Args:
            messages: in OpenAI's format, validated; content parts are text.
            tools: in OpenAI's format; may be empty.
            template: ``chat_template_kwargs``.
            parents: recorded completions of the session, oldest first.

        Raises: ApiError: 400: the template fails on the messages or on its settings.
        """
        template = template or {}
        request = PromptRequest.of(messages, tools, template, parents)
        is_begun = request.history == len(messages)
        before = PromptRequest.of(messages[:-1], tools, template, parents) if is_begun else request
        with self._lock:
            renderer = self._renderer(template)
            try:
                prompt = self._prompt(renderer, before, parents)
                if is_begun:
                    prompt = self._within_reply(renderer, request, prompt, parents)
                return prompt
            except ApiError:
                raise
            except Exception as error:  # a template is a program and may raise anything
                raise ApiError(
                    400,
                    f"The model's chat template cannot render these messages: {error}",
                    param="messages",
                ) from error

    def _prompt(
        self, renderer: Renderer, request: PromptRequest, parents: Sequence[Recorded]
    ) -> Prompt:
        """Continue the recorded tokens; else render the conversation and record why."""
        if not request.history or not parents:
            return request.prompt(self._render(renderer, request), NO_PARENT, None)
        parent = request.parent(parents)
        why = None
        if parent is not None and request.history < len(request.messages):
            try:
                suffix = self._suffix(renderer, request, parent)
                prefix = {**NO_PARENT, "parent_completion_id": parent.completion_id}
                prefix["shared_token_count"] = len(parent.token_ids)
                return request.prompt(parent.token_ids + tuple(suffix), prefix, parent)
            except UnprovenError as error:
                why = str(error)
        elif parent is not None:
            why = "no message follows the reply"
        token_ids = self._render(renderer, request)
        closest, shared = _closest(token_ids, parents)
        why = why or why_broken(request.canonical_history, request.context, closest)
        prefix = self._compared(token_ids, closest, shared, why)
        return request.prompt(token_ids, prefix, closest)

    def _within_reply(
        self,
        renderer: Renderer,
        request: PromptRequest,
        before: Prompt,
        parents: Sequence[Recorded],
    ) -> Prompt:
        """Return the prompt that ends with what the assistant's last message says so far.

        Args:
            before: the prompt of the messages before it.
        """
        message = request.messages[-1]
        text, thought = message_text(message), message.get("reasoning_content") or ""
        if message.get("tool_calls"):
            why = "its calls need their results after it"
        elif not isinstance(renderer, _OUR_GRAMMAR):
            why = f"it cannot be continued in the chat format {self.renderer!r}"
        else:
            parent = request.parent(parents)
            said = self._said(parent) if parent is not None else ()
            if parent is not None and self.token_texts.decode(said) == text:
                return request.prompt(
                    parent.token_ids[: parent.num_prompt_tokens + len(said)],
                    {
                        **NO_PARENT,
                        "parent_completion_id": parent.completion_id,
                        "shared_token_count": parent.num_prompt_tokens + len(said),
                    },
                    parent,
                    is_begun=True,
                )
            if isinstance(renderer, ChatMLRenderer):
                thought = ""  # it writes none of earlier replies either
            if self._ends_in_reasoning(renderer, before):
                text = f"{thought}\n{THINK_CLOSE}\n\n{text}"
            elif thought:
                text = f"{THINK_OPEN}\n{thought}\n{THINK_CLOSE}\n\n{text}"
            begun = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
            token_ids = (*before.token_ids, *begun)
            if not parents or (before.num_parent_tokens and before.continues_parent):
                messages = [*before.messages, message]
                return replace(
                    before,
                    token_ids=token_ids,
                    request=request.canonical,
                    messages=messages,
                    is_begun=True,
                )
            closest, shared = _closest(token_ids, parents)
            why = "it ends within a reply that was not sampled so"
            prefix = self._compared(token_ids, closest, shared, why)
            return request.prompt(token_ids, prefix, closest, is_begun=True)
        raise ApiError(400, f"The last message is the assistant's: {why}.", param="messages")

    def _said(self, parent: Recorded) -> tuple[int, ...]:
        """Return the tokens of a recorded reply, without the stop token."""
        said = parent.token_ids[parent.num_prompt_tokens :]
        return said[:-1] if said[-1] in self.stop_token_ids else said

    @staticmethod
    def _render(renderer: Renderer, request: PromptRequest) -> tuple[int, ...]:
        plain: list[Any] = [_plain(message) for message in request.messages]
        rendered = renderer.render_ids(plain, tools=request.tools, add_generation_prompt=True)
        return tuple(rendered)

    @staticmethod
    def _suffix(renderer: Renderer, request: PromptRequest, parent: Recorded) -> Sequence[int]:
        """Return the tokens after a recorded reply.

        Raises: UnprovenError: they cannot be determined; the text says why.
        """
        known, split = parent.token_ids, parent.num_prompt_tokens
        if isinstance(renderer, DefaultRenderer):
            plain = [_plain(message) for message in request.messages]
            return turn_suffix(
                renderer, plain, request.history, last_token_id=known[-1], tools=request.tools
            )
        new: list[Any] = [_plain(message) for message in request.messages[request.history :]]
        if isinstance(renderer, ChatMLRenderer):
            suffix = renderer.turn_suffix(known[-1], new)
            assert suffix is not None, "what follows the last reply is not the assistant's"
            return suffix
        bridged = renderer.bridge_to_next_turn(
            list(known[:split]), list(known[split:]), new, tools=request.tools
        )
        if bridged is None or tuple(bridged.token_ids[: len(known)]) != known:
            raise UnprovenError("the model's renderer cannot continue after this reply")
        return list(bridged.token_ids[len(known) :])

    def raw_prompt(
        self, prompt: str | Sequence[int], *, parents: Sequence[Recorded] = ()
    ) -> Prompt:
        """Return a prompt without a chat template: a text, or its token ids.

        Args:
            prompt: names of control tokens in a text become control tokens. The tokenizer adds
                what it begins every text with, and nothing else is added.
            parents: recorded completions of the session, oldest first.

        Raises: ApiError: 400: it is empty, or an id is not in the vocabulary.
        """
        token_ids = self._encoded(prompt) if isinstance(prompt, str) else tuple(prompt)
        if not token_ids:
            raise ApiError(400, "'prompt' must have at least one token.", param="prompt")
        size = len(self.tokenizer)
        unknown = next((token_id for token_id in token_ids if not 0 <= token_id < size), None)
        if unknown is not None:
            raise ApiError(
                400,
                f"'prompt' contains {unknown}; the model's token ids are 0 to {size - 1}.",
                param="prompt",
            )
        if not parents:
            return Prompt(token_ids=token_ids, prefix=NO_PARENT)
        closest, shared = _closest(token_ids, parents)
        why = "it is a prompt without a conversation"
        return Prompt(
            token_ids=token_ids,
            prefix=self._compared(token_ids, closest, shared, why),
            num_parent_tokens=len(closest.token_ids),
        )

    def knows(self, token_ids: Sequence[int]) -> bool:
        """Return whether all ids are in the vocabulary."""
        return min(token_ids, default=0) >= 0 and max(token_ids, default=0) < len(self.tokenizer)

    def _encoded(self, text: str) -> tuple[int, ...]:
        with self._lock:
            return tuple(self.tokenizer.encode(text, split_special_tokens=False))

    def _compared(
        self, token_ids: Sequence[int], closest: Recorded, shared: int, why: str
    ) -> dict[str, Any]:
        """Return ``Prompt.prefix``: the common prefix with a completion, and why it ends there."""
        recorded, difference = closest.token_ids, None
        if shared < min(len(recorded), len(token_ids)):
            difference = {
                "index": shared,
                "recorded_token_id": recorded[shared],
                "recorded_text": self.token_texts.alone(recorded[shared]),
                "token_id": token_ids[shared],
                "text": self.token_texts.alone(token_ids[shared]),
                "why": why,
            }
        return {
            "parent_completion_id": closest.completion_id,
            "shared_token_count": shared,
            "first_difference": difference,
        }

    def reply_stream(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template: Mapping[str, Any] | None = None,
        stop: Sequence[str] = (),
        raw: bool = False,
    ) -> ReplyStream:
        """Return the parser of a reply, which takes the tokens as they are sampled.

        Args:
            raw: True after a raw prompt: the whole reply is content.
        """
        # Everything that encodes holds the lock: transformers stores how control tokens are treated
        # on the tokenizer that all threads share (https://github.com/huggingface/tokenizers/issues/537).
        # Decoding changes nothing and needs no lock (checked with tokenizers 0.23.3).
        with self._lock:
            renderer = self._renderer(template or {})
            reasoning_open = self._ends_in_reasoning(renderer, prompt)
        parser: ReplyParser | FamilyParser
        if raw or prompt.is_begun:
            parser = ReplyParser(tools=bool(tools), raw=True)
        elif self._uses_our_grammar:
            parser = ReplyParser(
                tools=bool(tools),
                reasoning_open=reasoning_open,
                trim=isinstance(renderer, _QWEN3),
            )
        else:
            parser = FamilyParser(
                renderer, self.token_texts, prompt_token_ids=prompt.token_ids, tools=tools
            )
        return ReplyStream(self.token_texts, parser, stop=stop, stop_token_ids=self.stop_token_ids)

    def grammar(
        self, rules: ReplyRules, prompt: Prompt, *, template: Mapping[str, Any] | None = None
    ) -> str:
        """Return what a reply is held to, in this model's syntax.

        Raises: ApiError: 400: the model's syntax is not known, or a schema cannot be held to.
        """
        with self._lock:
            renderer = self._renderer(template or {})
            is_open = self._ends_in_reasoning(renderer, prompt)
        if not isinstance(renderer, (*_OUR_GRAMMAR, Qwen35Renderer)):
            raise ApiError(
                400,
                "Replies of a given form (response_format, forced or single calls, strict tools) "
                f"are not supported with the chat format {self.renderer!r}; supported are chatml, "
                "qwen3, qwen3.5 and models that are known by their template.",
            )
        may_reason = isinstance(renderer, _QWEN3) or (
            isinstance(renderer, DefaultRenderer) and THINK_OPEN in self.tokenizer.chat_template
        )
        syntax = ReplySyntax(
            calls="parameters" if isinstance(renderer, Qwen35Renderer) else "json",
            reasoning="open" if is_open else "optional" if may_reason else "none",
            token_id=self._tag_id,
        )
        return reply_grammar(rules, syntax)

    def _ends_in_reasoning(self, renderer: Renderer, prompt: Prompt) -> bool:
        """Return whether a prompt has opened the reasoning of the reply."""
        reasons = isinstance(renderer, (DefaultRenderer, *_QWEN3, Qwen35Renderer))
        return reasons and prompt_ends_in_reasoning(
            self.tokenizer, list(prompt.token_ids), stop_ids=set(self.stop_token_ids)
        )

    def _tag_id(self, tag: str) -> int | None:
        """Return the id of the token that is a tag, or None."""
        token_id = self.tokenizer.convert_tokens_to_ids(tag)
        is_token = isinstance(token_id, int) and token_id != self.tokenizer.unk_token_id
        return token_id if is_token else None


def _closest(token_ids: Sequence[int], parents: Sequence[Recorded]) -> tuple[Recorded, int]:
    """Return the newest completion with the longest common prefix, and its length in tokens."""
    shared = [shared_length(parent.token_ids, token_ids) for parent in parents]
    most = max(shared)
    index = len(shared) - 1 - shared[::-1].index(most)
    return parents[index], most


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with the keys that renderers support, its content as one string."""
    kept = ("tool_calls", "tool_call_id", "name", "reasoning_content")
    role = "system" if message["role"] == "developer" else message["role"]
    plain = {"role": role, "content": message_text(message)}
    return plain | {key: message[key] for key in kept if message.get(key)}
