"""What of a run directory belongs into a backup."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hermes_tui.config.paths import RunDir

_OF_A_RUN = ("run", "logs", "agents")
"""Not copied: what a running stack writes anew. Agent services are run directories themselves."""

_SQLITE_MAGIC = b"SQLite format 3\0"
_SQLITE_SIDES = ("-wal", "-shm", "-journal")
_CHECKPOINT = re.compile(r"policy_version_(\d+)")
_COMPLETE = "COMPLETE"
"""Marker of a checkpoint that was finished."""


@dataclass(slots=True, kw_only=True)
class Contents:
    """The paths of a run directory's contents, by how they are copied."""

    checkpoints: list[Path] = field(default_factory=list)
    """Folders that never change, newest first; old ones may be deleted meanwhile."""
    databases: list[Path] = field(default_factory=list)
    """SQLite files that some process may be writing to."""
    files: list[Path] = field(default_factory=list)
    """All other files."""
    links: list[Path] = field(default_factory=list)
    """Symbolic links."""
    left_out: list[str] = field(default_factory=list)
    """What cannot be copied, and why."""


def own_databases(root: Path) -> list[Path]:
    """Return the databases of the stack and of its agent services that there are."""
    paths = [path for home in _homes(root) for path in (home.conversations, home.trajectories)]
    return [path for path in paths if path.exists()]


def contents_of(root: Path) -> Contents:
    """Look through a run directory; what was set aside as damaged does not belong to it."""
    contents = Contents()
    for home in _homes(root):
        for entry in sorted(home.root.iterdir()):
            if entry.name in _OF_A_RUN or entry.name.startswith(".") or ".damaged-" in entry.name:
                continue
            if entry == home.checkpoints:
                contents.checkpoints += _checkpoints(entry)
            else:
                _sort(entry, contents)
    return contents


def files_in(folder: Path) -> list[Path]:
    """Return all files below a folder; links are not followed."""
    return sorted(Path(top, name) for top, _, names in os.walk(folder) for name in names)


def _homes(root: Path) -> Iterator[RunDir]:
    """Yield the run directory and those of its agent services."""
    yield RunDir(root)
    agents = root / "agents"
    if agents.is_dir():
        yield from (RunDir(home) for home in sorted(agents.iterdir()) if home.is_dir())


def _checkpoints(folder: Path) -> list[Path]:
    matches = ((_CHECKPOINT.fullmatch(path.name), path) for path in folder.iterdir())
    found = [(int(match[1]), path) for match, path in matches if match]
    return [path for _, path in sorted(found, reverse=True) if (path / _COMPLETE).exists()]


def _sort(path: Path, contents: Contents) -> None:
    """Put a file, or all that is in a folder, where it belongs."""
    try:
        path.name.encode()  # the manifest is text
        if path.is_symlink():
            contents.links.append(path)
        elif path.is_dir():
            for entry in sorted(path.iterdir()):
                _sort(entry, contents)
        elif not path.is_file():
            contents.left_out.append(f"{path}: is no file")
        elif _is_database(path):
            contents.databases.append(path)
        elif not _belongs_to_database(path):
            contents.files.append(path)
    except UnicodeEncodeError:
        contents.left_out.append(f"{path!a}: its name is no UTF-8")
    except FileNotFoundError:
        pass  # deleted meanwhile
    except OSError as error:
        contents.left_out.append(f"{path}: {error.strerror}")


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC


def _belongs_to_database(path: Path) -> bool:
    owners = (Path(str(path).removesuffix(side)) for side in _SQLITE_SIDES)
    return any(owner != path and owner.is_file() and _is_database(owner) for owner in owners)
