"""Building blocks of every configuration section: a strict section, and keys that hide."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, PlainSerializer, SecretStr, SerializationInfo

MASK = "**********"


def _serialize_secret(secret: SecretStr, info: SerializationInfo) -> str:
    reveal = bool(info.context and info.context.get("reveal"))
    return secret.get_secret_value() if reveal or not secret else MASK


Secret = Annotated[SecretStr, PlainSerializer(_serialize_secret)]
"""A key that its repr and its dump hide; ``model_dump(context={"reveal": True})`` shows it."""


class Section(BaseModel):
    """A configuration section: unknown keys are errors, values do not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, populate_by_name=True
    )
