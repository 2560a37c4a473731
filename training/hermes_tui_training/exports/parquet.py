"""Parquet: the rows of the JSON lines as columns; nested objects are JSON texts in theirs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO

from hermes_tui_common.errors import ConfigError

_ROWS_PER_GROUP = 256
"""Rows written at a time; at 8,192 tokens each they take 80 MB."""

_JSON_COLUMNS = ("sampling", "messages", "tools")
"""Columns whose keys differ from row to row."""


def write(rows: Iterable[dict[str, Any]], file: BinaryIO) -> int:
    """Write rows and return how many there were.

    Raises: ConfigError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError(
            "Parquet needs pyarrow: pip install 'hermes-tui[export]', or export as jsonl"
        ) from error
    schema = _schema(pa)
    written, remaining = 0, iter(rows)
    with pq.ParquetWriter(file, schema) as writer:
        while group := list(_flat(islice(remaining, _ROWS_PER_GROUP))):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            written += len(group)
    return written


def _flat(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        texts = {name: json.dumps(row[name], ensure_ascii=False) for name in _JSON_COLUMNS}
        yield row | texts


def _schema(pa: Any) -> Any:
    """Return the columns and their types."""
    texts = ("episode_id", "session_id", "task_id", "group_id", "state")
    fields = [(name, pa.string()) for name in texts]
    fields += [
        ("step", pa.int64()),
        ("interaction_ids", pa.list_(pa.string())),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        ("logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("reward", pa.float64()),
        ("rewards", pa.list_(pa.float64())),
        ("feedback", pa.string()),
        ("trainable", pa.bool_()),
        ("untrainable_reasons", pa.list_(pa.string())),
        ("constrained", pa.list_(pa.int32())),
    ]
    return pa.schema(fields + [(name, pa.string()) for name in _JSON_COLUMNS])
