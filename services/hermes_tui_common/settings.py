"""Building blocks of every configuration section: a strict section, and keys that hide."""

from __future__ import annotations

from typing import Annotated

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PlainSerializer,
    SecretStr,
    SerializationInfo,
)

from hermes_tui_common.auth import admin_key_fault

MASK = "**********"


def _serialize_secret(secret: SecretStr, info: SerializationInfo) -> str:
    reveal = bool(info.context and info.context.get("reveal"))
    return secret.get_secret_value() if reveal or not secret else MASK


Secret = Annotated[SecretStr, PlainSerializer(_serialize_secret)]
"""A key that its repr and its dump hide; ``model_dump(context={"reveal": True})`` shows it."""


def _usable(secret: SecretStr) -> SecretStr:
    key = secret.get_secret_value()
    if key and (fault := admin_key_fault(key)):
        raise ValueError(f"{fault}; leave it out to have one minted")
    return secret


def _present(secret: SecretStr) -> SecretStr:
    if fault := admin_key_fault(secret.get_secret_value()):
        raise ValueError(fault)
    return secret


OptionalKey = Annotated[Secret, AfterValidator(_usable)]
"""An admin key that a person may set; empty mints one."""

RoleKey = Annotated[Secret, AfterValidator(_present)]
"""An admin key that a process is started with."""


class Section(BaseModel):
    """A configuration section: unknown keys are errors, values do not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, populate_by_name=True
    )
