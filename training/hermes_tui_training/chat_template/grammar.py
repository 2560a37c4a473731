"""What a reply must be, as a grammar that llguidance reads (Lark, see its docs/syntax.md).

JSON is written as ``json.dumps`` writes it, with one space after a comma and a colon: with white
space anywhere, a small model may go on with white space for ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llguidance import LLMatcher

from hermes_tui_common.errors import ApiError
from hermes_tui_training.chat_template.reply_parser import (
    CALL_CLOSE,
    CALL_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
)

Schema = Mapping[str, Any]
"""A JSON schema."""

ANY_OBJECT: Schema = {"type": "object"}
NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
"""Arguments of a function that names none: OpenAI's meaning of leaving ``parameters`` out."""

_JSON_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
"""llguidance cannot hold ``oneOf`` against more than one match; as ``anyOf`` it takes the unions of
pydantic, whose members exclude each other."""

_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$schema", "deprecated"})
_ARGUMENT_KEYS = frozenset(
    {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
)
"""What a tool's parameters may say where each argument is written by itself."""

_TEXT_TYPES = ("string", ["string"])
"""Types of what is written without quotes there."""

_TEXT_BOUNDS = ("pattern", "format", "minLength", "maxLength")
"""What is not held to in a text that is written without quotes."""

_NAMED_PARTS = ("$defs", "definitions", "properties", "patternProperties")
_LISTED_PARTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_PARTS = ("items", "additionalProperties")
"""Keys of a schema that hold schemas, by kind; definitions come first, to be named first."""

_ANYTHING = r"/(.|\n)*/"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A function that the reply may call."""

    name: str
    parameters: Schema
    """Schema of its arguments."""
    is_held: bool
    """Whether the arguments are held to the schema; else they are any JSON object."""
    field: str
    """Where the request has the schema, for errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRules:
    """What a request says its reply must be: calls, content of a schema, or one of the two."""

    schema: Schema | None = None
    """Schema of the content, which is JSON then; None leaves the content free."""
    schema_field: str = ""
    """Where the request has the schema, for errors."""
    tools: tuple[CallableTool, ...] = ()
    """What may be called; empty: no call."""
    must_call: bool = False
    """Whether there is nothing but calls, one at least."""
    max_calls: Literal[1] | None = None
    """Upper bound of the number of calls; None for any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplySyntax:
    """How a model writes reasoning and calls."""

    calls: Literal["json", "parameters"]
    """Between the call tags: a JSON object, as Hermes, ChatML and Qwen3 do; or a tag per function
    and parameter, as Qwen3.5 does."""
    reasoning: Literal["open", "optional", "none"]
    """open: the prompt opened it · optional: the reply may · none: the reply may not."""
    token_id: Callable[[str], int | None]
    """Id of the token that is a tag; None where a tag is several tokens."""


def reply_grammar(rules: ReplyRules, syntax: ReplySyntax) -> str:
    """Return the grammar of a reply.

    Raises: ApiError: 400 with the path of what cannot be held to.
    """
    text = _Writer(rules, syntax).text()
    failed, why = LLMatcher.validate_grammar_with_warnings(text)
    if failed:
        raise ApiError(400, f"The reply cannot be held to what the request asks for: {why[0]}")
    return text


class _Writer:
    """Writes one grammar, a rule a line."""

    def __init__(self, rules: ReplyRules, syntax: ReplySyntax) -> None:
        self._rules = rules
        self._syntax = syntax
        self._lines: list[str] = []

    def text(self) -> str:
        """Return the grammar."""
        start = f"start: {self._reasoning()} {self._body()}"
        return "\n".join(["%llguidance {}", start, *self._lines])

    def _add(self, name: str, definition: str) -> str:
        self._lines.append(f"{name}: {definition}")
        return name.removesuffix("[lazy]")

    # -- parts of a reply -------------------------------------------------------------------

    def _reasoning(self) -> str:
        if self._syntax.reasoning == "none":
            return ""
        never = [CALL_OPEN] if self._syntax.calls == "parameters" else []  # it ends reasoning
        self._add("BLANK", r"/\n{0,2}/")
        closed = f"{self._until('reasoning', THINK_CLOSE, never=never)} BLANK"
        opened = self._syntax.reasoning == "open"
        return closed if opened else f"({self._tag(THINK_OPEN)} {closed})?"

    def _body(self) -> str:
        rules = self._rules
        if rules.schema is not None:
            self._add("content", _json(rules.schema, rules.schema_field))
        if not rules.tools:
            return "content"
        self._add("call", " | ".join(self._call(i, tool) for i, tool in enumerate(rules.tools)))
        one = f"{self._tag(CALL_OPEN)} call {self._tag(CALL_CLOSE)}"
        calls = one if rules.max_calls == 1 else f'{one} ("\\n" {one})*'
        if rules.must_call:
            return calls
        if rules.schema is not None:
            return f"(content | {calls})"
        begins = [THINK_OPEN] if self._syntax.reasoning == "optional" else []
        words = self._add("WORDS", _ANYTHING + _without([CALL_OPEN], begins))
        lead = f"{self._until('lead', CALL_OPEN, begins=begins)} call {self._tag(CALL_CLOSE)}"
        return f"({lead} | {words})" if rules.max_calls == 1 else f"({lead})* {words}"

    def _until(
        self, name: str, tag: str, *, never: Iterable[str] = (), begins: Iterable[str] = ()
    ) -> str:
        """Add and return the rule of any text up to a tag, and the tag.

        Args:
            never: what the text must not contain.
            begins: what it must not begin with.
        """
        terminal = name.upper()
        if self._syntax.token_id(tag) is not None:
            self._add(terminal, _ANYTHING + _without([tag, *never], begins))
            return self._add(name, f"{terminal} {self._tag(tag)}")
        self._add(terminal, rf"/(.|\n)*{_escaped(tag)}/" + _without(never, begins))
        return self._add(f"{name}[lazy]", terminal)

    def _tag(self, tag: str) -> str:
        token_id = self._syntax.token_id(tag)
        return json.dumps(tag) if token_id is None else f"<[{token_id}]>"

    # -- calls ------------------------------------------------------------------------------

    def _call(self, index: int, tool: CallableTool) -> str:
        """Add and return the rule of one function's call, between the call tags."""
        if tool.is_held and tool.parameters.get("type", "object") != "object":
            raise _refusal(f"{tool.field}.type", "must be 'object'")
        name = f"call_{index}"
        if self._syntax.calls == "json":
            opened = f'\n{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '
            parameters = {"type": "object", **tool.parameters} if tool.is_held else ANY_OBJECT
            arguments = _json(parameters, tool.field)
            return self._add(name, f'{json.dumps(opened)} {arguments} "}}\\n"')
        opened, closed = f"\n<function={tool.name}>\n", "</function>\n"
        written = " ".join(self._parameters(name, tool))
        return self._add(name, f"{json.dumps(opened)} {written} {json.dumps(closed)}")

    def _parameters(self, call: str, tool: CallableTool) -> Iterator[str]:
        """Yield the rules of a function's parameters, each optional or not."""
        schema = tool.parameters
        for key in schema:
            if tool.is_held and key not in _ARGUMENT_KEYS | _ANNOTATIONS:
                raise _refusal(f"{tool.field}.{key}", "cannot be enforced in this model's calls")
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        for key in required:
            if tool.is_held and key not in properties:
                raise _refusal(f"{tool.field}.required", f"names {key!r}, which is no property")
        for number, (key, value) in enumerate(properties.items()):
            where = f"{tool.field}.properties.{key}"
            held = value if tool.is_held else _loosened(value)
            written = self._value(f"{call}_{number}", held, where, definitions)
            rule = self._add(f"{call}_p{number}", f"{json.dumps(f'<parameter={key}>')} {written}")
            yield rule if key in required else f"{rule}?"

    def _value(self, name: str, schema: Any, where: str, definitions: Schema) -> str:
        """Return what stands between a parameter's tag and the next one."""
        if not isinstance(schema, Mapping) or schema.get("type") not in _TEXT_TYPES:
            whole = {**schema, **definitions} if isinstance(schema, Mapping) else schema
            return f'"\\n" {_json(whole, where)} "\\n</parameter>\\n"'
        options = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if options is None:
            for key in _TEXT_BOUNDS:
                if key in schema:
                    raise _refusal(f"{where}.{key}", "cannot be enforced in this model's calls")
            text = self._add(name.upper(), r"/(.|\n)*<\/parameter>/" + _without([CALL_CLOSE], []))
            return f'"\\n" {self._add(f"{name}[lazy]", text)} "\\n"'
        texts = (json.dumps(f"\n{option}\n</parameter>\n") for option in options)
        return f"({' | '.join(texts)})"


def _loosened(schema: Any) -> Schema:
    """Return a schema of an argument that says only whether it is written without quotes."""
    is_text = isinstance(schema, Mapping) and schema.get("type") in _TEXT_TYPES
    return {"type": "string"} if is_text else {}


def _without(parts: Iterable[str], beginnings: Iterable[str]) -> str:
    """Return the end of a terminal that keeps texts out."""
    anywhere = [rf" & ~/(.|\n)*{_escaped(part)}(.|\n)*/" for part in parts]
    return "".join([*anywhere, *(rf" & ~/{_escaped(text)}(.|\n)*/" for text in beginnings)])


def _escaped(tag: str) -> str:
    """Return a tag in a regular expression; only its slash has a meaning there."""
    return tag.replace("/", r"\/")


# -- schemas --------------------------------------------------------------------------------------


def _json(schema: Any, field: str) -> str:
    """Return JSON of a schema in a grammar. Raises: ApiError: 400 with the path at fault."""
    why = _obstacle(schema)
    if why is not None:
        path, why = _culprit(schema, schema, field, why)
        raise _refusal(path, f"cannot be enforced: {why}")
    return f"%json {json.dumps(_with_options(schema))}"


def _with_options(schema: Any) -> Any:
    if schema is True:
        schema = {}
    return {**schema, "x-guidance": _JSON_OPTIONS} if isinstance(schema, Mapping) else schema


def _obstacle(schema: Any) -> str | None:
    """Return why llguidance cannot hold to a schema, or None."""
    if not isinstance(schema, Mapping | bool):
        return "it is no schema"
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(_with_options(schema)))
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
    return messages[0].splitlines()[0] if failed else None


def _culprit(schema: Any, root: Any, path: str, why: str) -> tuple[str, str]:
    """Return the path of the innermost schema that cannot be held to, and why."""
    for place, part in _parts(schema):
        definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        inner = _obstacle({**definitions, **part} if isinstance(part, Mapping) else part)
        if inner is not None:
            return _culprit(part, root, f"{path}{place}", inner)
    return path, why


def _parts(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas right in a schema, each with its place."""
    if not isinstance(schema, Mapping):
        return
    for key in _NAMED_PARTS:
        named = schema.get(key)
        if isinstance(named, Mapping):
            yield from ((f".{key}.{name}", part) for name, part in named.items())
    for key in _LISTED_PARTS:
        listed = schema.get(key)
        if isinstance(listed, list):
            yield from ((f".{key}[{index}]", part) for index, part in enumerate(listed))
    for key in _PARTS:
        if isinstance(part := schema.get(key), Mapping):
            yield f".{key}", part


def _refusal(path: str, what: str) -> ApiError:
    return ApiError(400, f"'{path}' {what}.", param=path)
