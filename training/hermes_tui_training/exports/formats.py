"""The export formats by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from hermes_tui_training.api.types import Episode
from hermes_tui_training.exports import art, atropos, jsonl, parquet, tinker, trl, verifiers
from hermes_tui_training.exports.rows import ExportOptions

Convert = Callable[[Iterable[Episode], ExportOptions], Iterator[dict[str, Any]]]
Write = Callable[[Iterable[dict[str, Any]], BinaryIO], int]


def write_lines(rows: Iterable[dict[str, Any]], file: BinaryIO) -> int:
    """Write rows as JSON lines and return how many there were."""
    written = 0
    for row in rows:
        file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        written += 1
    return written


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One export format."""

    convert: Convert
    """Makes its rows from episodes."""
    write: Write = write_lines
    """Writes its rows to a file."""
    row: str = "sequences"
    """What a row is, in the plural."""
    is_text: bool = True
    """Whether it may go to a terminal or a pipe."""


FORMATS: Mapping[str, Format] = {
    "jsonl": Format(convert=jsonl.convert),
    "parquet": Format(convert=jsonl.convert, write=parquet.write, is_text=False),
    "trl": Format(convert=trl.convert, row="completions"),
    "art": Format(convert=art.convert, row="trajectories"),
    "atropos": Format(convert=atropos.convert, row="groups"),
    "verifiers": Format(convert=verifiers.convert, row="traces"),
    "tinker": Format(convert=tinker.convert, row="datums"),
}
