"""The gateway's request bodies, and how a turn is made of them."""

from __future__ import annotations

import secrets
from typing import Any
from urllib.parse import quote

from pydantic import Field, model_validator
from starlette.requests import Request

from hermes_tui_common.errors import ApiError
from hermes_tui_common.openai import check_message_fields, content_text, refuse_unknown
from hermes_tui_services.api.agent import CHAT_REQUEST_KEY, UPSTREAM_KEY
from hermes_tui_services.api.protocol import (
    SESSION_KEY_HEADERS,
    Body,
    ChatMessage,
    TurnRequest,
    UpstreamFields,
    check_session_key,
)

_RESERVED = (CHAT_REQUEST_KEY, UPSTREAM_KEY, "inf_model", "instructions", "sampling", "tools")
"""Names in a turn's metadata that the service sets itself."""

_TEXT_PARTS = ("input_text", "output_text", "text")

_ITEM_FIELDS = {
    "message": ("type", "role", "content", "id", "status"),
    "function_call_output": ("type", "call_id", "output", "id", "status"),
}

_ROLES = ("system", "developer", "user", "assistant", "tool")


class _OpenAIBody(UpstreamFields):
    """A body in which null asks for the default, as it does at OpenAI."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {k: v for k, v in given.items() if v is not None or k not in cls.model_fields}


class ResponsesBody(_OpenAIBody):
    """``POST /v1/responses``: one agent turn (AReaL's and OpenAI's shape)."""

    input: str | list[dict[str, Any]]
    """The user's message."""
    model: str = ""
    """Name of the agent; part of the session key when no header names the session."""
    user: str = ""
    """Who speaks; part of the session key when no header names the session."""
    instructions: str | None = None
    """Added to the system prompt for this turn."""
    tools: list[dict[str, Any]] = Field(default_factory=list)
    """For agents that take tools from their callers."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """For the agent; ``background: true`` lets the turn go on when its caller leaves."""
    stream: bool = False
    """Whether to answer with events while the turn runs."""
    temperature: float | None = Field(None, ge=0, le=2)
    """Sampling temperature of this turn."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Nucleus of this turn's sampling."""
    max_output_tokens: int | None = Field(None, ge=1)
    """Tokens that all model calls of this turn may sample together."""

    def turn(self, idempotency_key: str | None = None) -> TurnRequest:
        """Return the turn. Raises: ApiError: 400 that names the field."""
        message, system = _input_text(self.input)
        sampling = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_output_tokens,
        }
        return turn_request(
            self,
            message=message,
            metadata=self.metadata,
            instructions=[self.instructions or "", *system],
            tools=self.tools,
            sampling=sampling,
            idempotency_key=idempotency_key,
        )


class StreamOptions(Body):
    """OpenAI's ``stream_options``."""

    include_usage: bool = False
    """Whether a last chunk tells the usage."""


class ChatBody(_OpenAIBody):
    """``POST /v1/chat/completions``: one agent turn; the messages are the history."""

    messages: list[ChatMessage] = Field(min_length=1)
    """The conversation; the last one is the user's message."""
    model: str = ""
    """Name of the agent."""
    user: str = ""
    """Who speaks; part of the session key when no header names the session."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    """As in ``/v1/responses``."""
    stream: bool = False
    """Whether to answer with chunks while the turn runs."""
    stream_options: StreamOptions | None = None
    """Only with ``stream``."""
    temperature: float | None = Field(None, ge=0, le=2)
    """Sampling temperature."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Nucleus of the sampling."""
    max_tokens: int | None = Field(None, ge=1)
    """Tokens that all model calls of the turn may sample together."""
    max_completion_tokens: int | None = Field(None, ge=1)
    """OpenAI's newer name of max_tokens."""
    seed: int | None = None
    """Seed of the sampling."""
    stop: str | list[str] | None = None
    """Where sampling stops."""
    n: int = Field(1, ge=1, le=1)
    """How many answers; a turn has one."""

    def turn(self, *, once: bool) -> TurnRequest:
        """Return the turn. Raises: ApiError: 400 that names the field."""
        rows = [_row(row, f"messages[{index}]") for index, row in enumerate(self.messages)]
        if self.stream_options and not self.stream:
            raise ApiError(
                400, "stream_options only goes with stream = true.", param="stream_options"
            )
        if len({self.max_tokens, self.max_completion_tokens} - {None}) > 1:
            raise ApiError(
                400, "max_tokens and max_completion_tokens differ; send one.", param="max_tokens"
            )
        if rows[-1].get("role") != "user":
            raise ApiError(400, "The last message must be the user's.", param="messages")
        system = [row["content"] for row in rows if row.get("role") in ("system", "developer")]
        history = [row for row in rows[:-1] if row.get("role") not in ("system", "developer")]
        sampling = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "seed": self.seed,
            "stop": self.stop,
        }
        return turn_request(
            self,
            message=rows[-1]["content"],
            metadata=self.metadata,
            instructions=system,
            sampling=sampling,
            chat_request=self.model_dump(
                exclude_unset=True, exclude=set(UpstreamFields.model_fields)
            ),
            history=history,
            once=once,
        )


def _row(message: ChatMessage, where: str) -> ChatMessage:
    """Return a message with its content as one text. Raises: ApiError: 400."""
    if message.get("role") not in _ROLES:
        raise ApiError(
            400, f"{where}: role must be one of {', '.join(_ROLES)}.", param=f"{where}.role"
        )
    check_message_fields(message, where)
    return {**message, "content": _text(message.get("content"), where)}


def turn_request(
    fields: UpstreamFields,
    *,
    message: str,
    metadata: dict[str, Any],
    instructions: list[str] | None = None,
    tools: list[dict[str, Any]] | None = None,
    sampling: dict[str, Any] | None = None,
    chat_request: dict[str, Any] | None = None,
    **more: Any,
) -> TurnRequest:
    """Return a turn for the data proxy.

    Raises: ApiError: 400 that names the field: no text, half an upstream, a reserved name.
    """
    if not message.strip():
        raise ApiError(400, "There is no text in the input.", param="input")
    for name in _RESERVED:
        if name in metadata:
            raise ApiError(400, f"metadata.{name} is set by the service.", param="metadata")
    background = metadata.get("background", False)
    if not isinstance(background, bool):
        raise ApiError(400, "metadata.background must be true or false.", param="metadata")
    added = {
        "instructions": "\n\n".join(filter(None, instructions or ())),
        "tools": tools,
        CHAT_REQUEST_KEY: chat_request,
        "sampling": {name: v for name, v in (sampling or {}).items() if v is not None},
    }
    return TurnRequest(
        message=message,
        metadata={**metadata, **{name: value for name, value in added.items() if value}},
        background=background,
        upstream=fields.upstream(),
        model=fields.model_name(),
        **more,
    )


def _input_text(given: str | list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Return the user's text and the system texts of an ``input``."""
    if isinstance(given, str):
        return given, []
    texts: list[str] = []
    system: list[str] = []
    for index, item in enumerate(given):
        kind, role = item.get("type", "message"), item.get("role", "user")
        where = f"input[{index}]"
        if kind in _ITEM_FIELDS:
            refuse_unknown(item, where, _ITEM_FIELDS[kind])
        if kind == "function_call_output":
            texts.append(f"[tool result] {item.get('output', '')}")
        elif kind != "message":
            raise ApiError(400, f"{where}: type '{kind}' is not supported.", param="input")
        elif role in ("system", "developer"):
            system.append(_text(item.get("content"), where))
        elif role == "user":
            texts.append(_text(item.get("content"), where))
        else:
            raise ApiError(
                400,
                f"{where}: role '{role}' is not supported; the service keeps the history.",
                param="input",
            )
    return "\n".join(texts), system


def _text(content: object, where: str) -> str:
    return content_text(content or "", f"{where}.content", kinds=_TEXT_PARTS, separator="\n")


def session_key_of(request: Request, *, kind: str, model: str, user: str) -> str | None:
    """Return the session that a request names by header, or by model and user; None for neither.

    Raises: ApiError: 400, when it is no valid key.
    """
    for name in SESSION_KEY_HEADERS:
        if value := request.headers.get(name, "").strip():
            return check_session_key(_utf8(value))
    if user.strip():
        return check_session_key(f"{kind}:{model or 'default'}:{user}")
    return None


def new_session_key(kind: str) -> str:
    """Return a key for a session that lives for one turn."""
    return f"{kind}:once:{secrets.token_hex(8)}"


def header_value(session_key: str) -> str:
    """Return a session key as a header's value: UTF-8, control characters percent-encoded."""
    shown = "".join(c if c.isprintable() else quote(c) for c in session_key)
    return shown.encode().decode("latin-1")


def _utf8(value: str) -> str:
    # HTTP headers arrive decoded as latin-1.
    try:
        return value.encode("latin-1").decode()
    except UnicodeDecodeError:
        return value
