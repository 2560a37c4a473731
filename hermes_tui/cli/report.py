"""``doctor --report``: what somebody needs to find out what is wrong, in one file without keys."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr

from hermes_tui_common.auth import RedactingFilter
from hermes_tui_common.errors import ConfigError, HermesTuiError

if TYPE_CHECKING:
    from hermes_tui.config.paths import RunDir
    from hermes_tui.config.settings import Config

LOG_LINES = 2_000
"""Of each process's log."""

NUM_STEPS = 100
"""Newest steps of the trainer."""

_SECRET_NAME = re.compile(r"(key|token|secret|password)$", re.IGNORECASE)
_PATTERNS = (
    (re.compile(r"\b(sk-)[A-Za-z0-9_-]{12,}"), r"\1***"),
    (re.compile(r"(Bearer )[^\s\"']{6,}"), r"\1***"),
    (re.compile(r"(://)[^/@\s\"']+@"), r"\1***@"),
)
"""What looks like a key, wherever it is from."""

_MIN_SECRET_CHARS = 6
"""A shorter value of a variable that is called a key is no key, and may be part of any word."""

Parts = dict[str, str]
"""The files of a report, by their name."""


async def write_report(path: Path, config: Config, run_dir: RunDir, findings: str) -> None:
    """Write a report; what cannot be found out is said in its place.

    Args:
        path: a new file, a ZIP archive that only its owner may read.
        config: the configuration.
        run_dir: the run directory; a stack may run on it.
        findings: what ``doctor`` found.

    Raises: ConfigError: the file exists, or cannot be written.
    """
    from hermes_tui.supervisor.logs import tail_lines

    parts: Parts = {"doctor.txt": findings, "configuration.json": config.model_dump_json(indent=1)}
    parts |= await _stack_parts(run_dir)
    parts["databases.json"] = _json(dict(_databases(run_dir)))
    parts["checkpoints.json"] = _json(list(_checkpoints(run_dir)))
    for log in sorted(run_dir.logs.glob("*.log")):
        parts[f"logs/{log.name}"] = "\n".join(tail_lines(log, LOG_LINES))
    redact = _redactor(config, run_dir)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise ConfigError(f"--report: {path}: {error.strerror}; name another file") from error
    with (
        os.fdopen(descriptor, "wb") as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, text in parts.items():
            archive.writestr(name, redact(text))


# What is in it ---------------------------------------------------------------------------------


async def _stack_parts(run_dir: RunDir) -> Parts:
    """Return what the running stack says of itself."""
    from hermes_tui.config.secrets import read_keys
    from hermes_tui.stack_client.health import read_health
    from hermes_tui.stack_client.launch import find_supervisor

    parts: Parts = {}
    try:
        async with await find_supervisor(run_dir) as control:
            stack = await control.status()
            parts["status.json"] = stack.model_dump_json(indent=1)
            parts["system.json"] = (await control.system()).model_dump_json(indent=1)
        health = await read_health(stack)
        parts["health.json"] = _json({name: row.model_dump() for name, row in health.items()})
        keys = read_keys(run_dir)
        if stack.inference_gateway and keys:
            parts |= await _trainer_parts(stack.inference_gateway, keys.inference_admin_key)
    except HermesTuiError as error:
        parts["not-answered.txt"] = str(error)
    return parts


async def _trainer_parts(url: str, key: str) -> Parts:
    from hermes_tui_training.api.client import InferenceClient

    async with InferenceClient(url, key) as trainer:
        status, steps = await trainer.status(), await trainer.steps()
    rows = [step.model_dump(mode="json") for step in steps[-NUM_STEPS:]]
    return {"trainer.json": status.model_dump_json(indent=1), "steps.json": _json(rows)}


def _databases(run_dir: RunDir) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield each database's name, and its size, format, check, and rows by table."""
    for path in (run_dir.conversations, run_dir.trajectories):
        if not path.exists():
            continue
        log = path.with_name(f"{path.name}-wal")
        facts: dict[str, object] = {
            "num_bytes": path.stat().st_size,
            "wal_bytes": log.stat().st_size if log.exists() else 0,
            "set_aside": [file.name for file in run_dir.root.glob(f"{path.name}.damaged-*")],
        }
        try:
            with contextlib.closing(
                sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            ) as db:
                facts |= _content(db)
        except sqlite3.Error as error:
            facts["check"] = str(error)
        yield path.name, facts


def _content(db: sqlite3.Connection) -> dict[str, object]:
    tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {
        "format": db.execute("PRAGMA user_version").fetchone()[0],
        "check": db.execute("PRAGMA quick_check(1)").fetchone()[0],
        "rows": {
            name: db.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]  # noqa: S608  # its own
            for (name,) in tables
        },
    }


def _checkpoints(run_dir: RunDir) -> Iterator[dict[str, object]]:
    """Yield what there is of each version, damaged ones included: its parent, files and sizes."""
    if not run_dir.checkpoints.is_dir():
        return
    for folder in sorted(run_dir.checkpoints.iterdir()):
        files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
        row: dict[str, object] = {
            "name": folder.name,
            "files": {file.name: file.stat().st_size for file in files},
        }
        for name in ("COMPLETE", "damage.txt"):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                row[name] = (folder / name).read_text(encoding="utf-8")
        with contextlib.suppress(OSError, ValueError):
            step = json.loads((folder / "step.json").read_bytes())
            row |= {k: step[k] for k in ("base_version", "rolled_back_to") if k in step}
        yield row


def _json(value: object) -> str:
    return json.dumps(value, indent=1, default=str)


# What is not in it -----------------------------------------------------------------------------


class _Redactor:
    """Masks every key that is known, and what looks like one."""

    def __init__(self, secrets: set[str]) -> None:
        # As they are, and as they stand in JSON; long ones first: one may be part of another.
        forms = {form for secret in secrets for form in (secret, json.dumps(secret)[1:-1])}
        self._known = RedactingFilter(tuple(sorted(forms, key=len, reverse=True)))

    def __call__(self, text: str) -> str:
        text = self._known.redact(text)
        for pattern, mask in _PATTERNS:
            text = pattern.sub(mask, text)
        return text


def _redactor(config: Config, run_dir: RunDir) -> _Redactor:
    secrets = {*_hidden_in(config), *_secrets_of(os.environ)}
    for file in (run_dir.keys, *run_dir.run.glob("*.json")):
        with contextlib.suppress(OSError, ValueError):
            secrets |= set(_secrets_in(json.loads(file.read_bytes())))
    return _Redactor({secret for secret in secrets if len(secret) >= _MIN_SECRET_CHARS})


def _hidden_in(section: BaseModel) -> Iterator[str]:
    """Yield the keys of a configuration."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _hidden_in(value)
        elif isinstance(value, SecretStr):
            yield value.get_secret_value()


def _secrets_of(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts whose name says that they are secret."""
    for name, value in values.items():
        if isinstance(value, str) and _SECRET_NAME.search(name):
            yield value


def _secrets_in(value: object) -> Iterator[str]:
    """Yield what is secret in a JSON value, at any depth."""
    if isinstance(value, dict):
        yield from _secrets_of(value)
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _secrets_in(inner)
