"""Turns a failed validation into one line that says where the mistake is and what to do."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from hermes_tui_common.errors import ConfigError

_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*([A-Za-z0-9_."'\- ]+?)\s*=""")
_QUOTES = ('"""', "'''")

_WANTED = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "a whole number",
    "model_type": "a table",
    "string_type": "text in quotes",
    "tuple_type": "a list",
}


class Sources:
    """Where each setting was written: file and line, environment variable, command line."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._lines: dict[str, int] = {}
        self._noted: dict[str, str] = {}

    def read(self, file: Path, text: str) -> None:
        """Remember the line of each key of a TOML text."""
        self._file, self._lines = file, dict(_key_lines(text))

    def note(self, key: str, where: str) -> None:
        """Remember that a dotted key was set elsewhere; the latest note wins over the file."""
        self._noted[key] = where

    @property
    def file(self) -> Path | None:
        """The file that was read, or None."""
        return self._file

    def sets(self, key: str) -> bool:
        """Return whether a dotted key was set at all, rather than left at its default."""
        return key in self._noted or key in self._lines

    def where(self, key: str) -> str:
        """Return where a dotted key, its table or something in it was set."""
        for noted in sorted(self._noted, key=len, reverse=True):
            if noted == key or noted.startswith(f"{key}.") or key.startswith(f"{noted}."):
                return self._noted[noted]
        if self._file is None:
            return "configuration"
        line = self._line(key)
        return f"{self._file}:{line}" if line else str(self._file)

    def _line(self, key: str) -> int | None:
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            line = self._lines.get(".".join(parts[:length]))
            if line:
                return line
        inside = [line for known, line in self._lines.items() if known.startswith(f"{key}.")]
        return min(inside, default=None)


def _key_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield (dotted key, line from 1) of every table and key; text in triple quotes is skipped."""
    prefix, quoted = "", ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quoted:
            quoted = "" if quoted in line else quoted
            continue
        quoted = next((q for q in _QUOTES if line.count(q) % 2), "")
        if header := _HEADER.match(line):
            prefix = _plain(header[1])
            yield prefix, number
        elif key := _KEY.match(line):
            yield (f"{prefix}.{_plain(key[1])}" if prefix else _plain(key[1])), number


def _plain(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


class InvalidConfigError(ConfigError):
    """Settings that do not validate.

    Args:
        problems: one line for each, at least one.
        rest: the settings without those.
    """

    def __init__(self, problems: Sequence[str], rest: Mapping[str, Any]) -> None:
        more = len(problems) - 1
        others = f" (and {more} more; `hermes-tui config check` lists them)" if more else ""
        super().__init__(problems[0] + others)
        self.problems = tuple(problems)
        self.rest = rest


def explain(error: ValidationError, sources: Sources, model: type[BaseModel]) -> list[str]:
    """Return each mistake of a validation in one line that names its place."""
    problems = []
    for detail in error.errors(include_url=False):
        key = ".".join(part for part in detail["loc"] if isinstance(part, str))
        key = key or "the configuration"
        is_unknown = detail["type"] == "extra_forbidden"
        what = _unknown(key, model) if is_unknown else _wrong(key, detail, model)
        problems.append(f"{sources.where(key)}: {what}")
    return problems


def without_mistakes(tree: Mapping[str, Any], error: ValidationError) -> dict[str, Any]:
    """Return a tree of settings without those that a validation found wrong."""
    rest: dict[str, Any] = json.loads(json.dumps(tree, default=str))
    for detail in error.errors(include_url=False):
        keys = [part for part in detail["loc"] if isinstance(part, str)]
        table: Any = rest
        for key in keys[:-1]:
            table = table.get(key) if isinstance(table, dict) else None
        if keys and isinstance(table, dict):
            table.pop(keys[-1], None)
    return rest


def known_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a model, sections included."""
    for name, field in model.model_fields.items():
        key = prefix + (field.alias or name)
        yield key
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from known_keys(field.annotation, f"{key}.")


def nearest_key(key: str, model: type[BaseModel]) -> str | None:
    """Return the known key that was most likely meant, or None when none is near."""
    known = list(known_keys(model))
    parent = key.rpartition(".")[0]
    siblings = [other for other in known if other.rpartition(".")[0] == parent]
    for candidates in (siblings, known):
        if near := difflib.get_close_matches(key, candidates, n=1, cutoff=0.6):
            name, other = key.rpartition(".")[2], near[0].rpartition(".")[2]
            if difflib.SequenceMatcher(None, name, other).ratio() >= 0.5:
                return near[0]
    same_name = [other for other in known if other.rpartition(".")[2] == key.rpartition(".")[2]]
    return same_name[0] if same_name else None


def _unknown(key: str, model: type[BaseModel]) -> str:
    if near := nearest_key(key, model):
        return f"unknown key {key}; did you mean {near}?"
    parent = key.rpartition(".")[0]
    siblings = [k for k in known_keys(model) if k.rpartition(".")[0] == parent]
    return f"unknown key {key}; remove it, or use one of {', '.join(siblings)}"


def _wrong(key: str, detail: ErrorDetails, model: type[BaseModel]) -> str:
    wanted = _WANTED.get(detail["type"])
    fault = f"must be {wanted}" if wanted else _lower(detail["msg"])
    field = _field(key, model)
    is_secret = field is not None and field[0] is SecretStr
    value = "" if is_secret else f", not {_shown(detail['input'])}"
    default = "" if field is None or is_secret else f"; the default is {_shown(field[1])}"
    return f"{key} {fault}{value}{default}"


def _lower(message: str) -> str:
    """Return pydantic's sentence as the end of one of ours."""
    message = message.removeprefix("Value error, ")  # a validator of ours says what it is about
    rest = message.removeprefix("Input should be ")
    return f"must be {rest}" if rest != message else message[:1].lower() + message[1:]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _field(key: str, model: type[BaseModel]) -> tuple[Any, Any] | None:
    """Return (declared type, default) of a key that is no section."""
    for name, field in model.model_fields.items():
        own, _, rest = key.partition(".")
        if own != (field.alias or name):
            continue
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            return _field(rest, field.annotation) if rest else None
        return None if get_origin(field.annotation) is dict else (field.annotation, field.default)
    return None
