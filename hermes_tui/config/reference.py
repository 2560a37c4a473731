"""The configuration as commented TOML, written from the docstrings of its models."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import tomlkit
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from hermes_tui.config.recommend import Recommendation
from hermes_tui.config.settings import Config
from hermes_tui_common.settings import MASK

_WIDTH = 98
_HEAD = (
    "Settings of Hermes TUI, each with its default. `hermes-tui config init` writes this file "
    "into the current directory. A setting on the command line (section.key=value) wins over the "
    "environment (HERMES_TUI__SECTION__KEY), which wins over this file."
)

Annotate = Callable[[str], str]
"""Returns the comment that goes after a dotted key's value; empty for none."""


def reference_toml() -> str:
    """Return every setting with its explanation and its default."""
    rows = _section(Config(), "", explain=True, annotate=lambda _: "")
    return "\n".join([*_comment(_HEAD), "", *rows]).rstrip() + "\n"


def machine_toml(settings: Mapping[str, Recommendation], about: str) -> str:
    """Return every setting with its explanation; only recommended ones are not commented out.

    Args:
        settings: the recommended ones, by dotted key.
        about: the machine, in one line.
    """
    suits = "what is not commented out suits it" if settings else "the defaults suit it"
    lines = [*_comment(_HEAD), "#", *_comment(f"Written for {about}: {suits}."), ""]
    section = ""
    for row in _section(Config(), "", explain=True, annotate=lambda _: ""):
        key = f"{section}.{row.partition(' = ')[0]}"
        if row.startswith("["):
            section = row.strip("[]")
            # A table of a setting's own, not of settings: its header alone would empty it.
            if isinstance(_value_at(section), dict) and _value_at(section):
                row = f"# {row}"
        elif key in settings:
            name, _, default = row.partition(" = ")
            lines += _comment(f"For {settings[key].why}; the default is {default}.")
            row = f"{name} = {settings[key].value}"
        elif row and not row.startswith("#"):
            row = f"# {row}"
        lines.append(row)
    return "\n".join(lines).rstrip() + "\n"


def config_toml(config: Config, annotate: Annotate = lambda _: "") -> str:
    """Return a configuration as TOML with its keys masked."""
    rows = _section(config, "", explain=False, annotate=annotate)
    return "\n".join(rows).strip() + "\n"


def _section(section: BaseModel, path: str, *, explain: bool, annotate: Annotate) -> Iterator[str]:
    tables: list[tuple[str, BaseModel]] = []
    rows: list[str] = []
    for name, field in type(section).model_fields.items():
        key, value = field.alias or name, getattr(section, name)
        if isinstance(value, BaseModel):
            tables.append((key, value))
            continue
        if explain:
            rows += _comment(_explanation(field))
        if isinstance(value, dict):
            rows += [
                f"[{path}.{key}]",
                *(f"{tomlkit.key(k).as_string()} = {_toml(v)}" for k, v in value.items()),
            ]
            continue
        remark = annotate(f"{path}.{key}")
        rows.append(f"{key} = {_toml(value)}" + (f"  # {remark}" if remark else ""))
    if path and rows:
        if explain:
            yield from _comment(_about(section))
        yield f"[{path}]"
        yield from rows
        yield ""
    for key, value in tables:
        child = f"{path}.{key}" if path else key
        yield from _section(value, child, explain=explain, annotate=annotate)


def _value_at(path: str) -> Any:
    """Return the default section or value under a dotted key."""
    return functools.reduce(getattr, path.split("."), Config())


def _toml(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = MASK if value else ""
    if isinstance(value, tuple):
        value = list(value)
    return str(tomlkit.item(value).as_string())


def _about(section: BaseModel) -> str:
    """Return the docstring of a section without the ``[name]:`` in front."""
    text = _plain(type(section).__doc__ or "")
    text = re.sub(r"^`\[[^]]+\]`: ", "", text)
    return text[:1].upper() + text[1:]


def _explanation(field: FieldInfo) -> str:
    text = _plain(field.description or "")
    if get_origin(field.annotation) is Literal:
        choices = " | ".join(_toml(choice) for choice in get_args(field.annotation))
        text = f"{text} ({choices})"
    return text


def _plain(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]
