"""Whether a checkpoint's files are what was written. Free of torch.

A finished checkpoint's marker holds a manifest with a SHA-256 of every file. Older checkpoints have
an empty marker: of those the files' own structure is checked, as far as each format allows it.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from hermes_tui_common.errors import TrainingError

_MARKER = "COMPLETE"
_STEP_FILE = "step.json"
_WEIGHTS = ("adapter_model.safetensors", "model.safetensors")
_LENGTH_BYTES = 8
"""A safetensors file begins with the length of its JSON header."""


class DamagedCheckpointError(TrainingError):
    """A checkpoint is gone, or its files are not what was written.

    Args:
        version: its policy version.
        reason: what is wrong, with which file.
    """

    def __init__(self, version: int, reason: str) -> None:
        super().__init__(f"the checkpoint of version {version} cannot be used: {reason}")
        self.version = version
        self.reason = reason


class FileSum(BaseModel):
    """What a file was when it was written."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    num_bytes: int
    """Its size."""
    sha256: str
    """Hash of its content, hexadecimal."""


class Manifest(BaseModel):
    """What a finished checkpoint is, and what is in it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    base: str = ""
    """``model.path`` that it is trained from; empty when it is not known."""
    adapter: str = ""
    """Which of the base's adapters it is; empty is the only one."""
    parent: int | None = None
    """Version that it was made from; None when it is not known."""
    files: dict[str, FileSum]
    """Every file but the marker, by its path in the directory."""


def describe(directory: Path) -> dict[str, FileSum]:
    """Return size and hash of every file in a directory but the marker."""
    return {
        path.relative_to(directory).as_posix(): FileSum(
            num_bytes=path.stat().st_size, sha256=_sha256(path)
        )
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != _MARKER
    }


def read_manifest(directory: Path) -> Manifest | None:
    """Return a finished checkpoint's manifest; None for an old one, which has none.

    Raises: ValueError: the marker is neither empty nor a manifest. OSError: it cannot be read.
    """
    text = (directory / _MARKER).read_text(encoding="utf-8")
    return Manifest.model_validate_json(text) if text else None


def require_whole(directory: Path, version: int) -> None:
    """Let a finished checkpoint pass whose files are what was written; reads all of them.

    Raises:
        DamagedCheckpointError: a file is missing or is not what was written.
        TrainingError: a file cannot be read now; it may be well.
    """
    try:
        problem = _problem(directory)
    except OSError as error:
        raise TrainingError(f"{directory} cannot be read: {error}") from error
    if problem is not None:
        raise DamagedCheckpointError(version, problem)


def _problem(directory: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None."""
    try:
        manifest = read_manifest(directory)
    except (ValueError, ValidationError):
        return f"{_MARKER} is not a manifest"
    if manifest is None:
        return _old_problem(directory)
    for name, written in manifest.files.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        num_bytes = path.stat().st_size
        if num_bytes != written.num_bytes:
            return f"{name} has {num_bytes} bytes, {written.num_bytes} were written"
        if _sha256(path) != written.sha256:
            return f"{name} does not match its checksum"
    return None


def _old_problem(directory: Path) -> str | None:
    """Return what is wrong with a checkpoint without a manifest, as far as its files tell."""
    if not (directory / _STEP_FILE).is_file():
        return f"{_STEP_FILE} is missing"
    if not any((directory / name).is_file() for name in _WEIGHTS):
        return f"{_WEIGHTS[0]} is missing"
    for path in sorted(directory.rglob("*")):
        problem = _PROBLEMS[path.suffix](path) if path.suffix in _PROBLEMS else None
        if problem is not None:
            return f"{path.name} {problem}"
    return None


def _json_problem(path: Path) -> str | None:
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return "is no JSON"
    return None


def _safetensors_problem(path: Path) -> str | None:
    num_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if header_bytes > num_bytes:
            return "is cut short"
        try:
            header = json.loads(file.read(header_bytes))
            ends = [row["data_offsets"][1] for key, row in header.items() if key != "__metadata__"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return "has a damaged header"
    if num_bytes != _LENGTH_BYTES + header_bytes + max(ends, default=0):
        return "is cut short"
    return None


def _zip_problem(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (zipfile.BadZipFile, EOFError):
        return "is cut short"
    return None if bad is None else f"is damaged at {bad}"


_PROBLEMS = {".json": _json_problem, ".safetensors": _safetensors_problem, ".pt": _zip_problem}
"""By suffix: what is wrong with a file, or None; torch's files are zip archives."""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
