"""The run directory: where a stack keeps its keys, logs, databases and checkpoints."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hermes_tui.config.settings import Config
from hermes_tui_common.errors import ConfigError

_MAX_SOCKET_PATH_BYTES = 100
"""Less than Linux' 107 and macOS' 103."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """One stack's directory, and the names of what is in it."""

    root: Path
    """The directory itself; absolute."""

    @classmethod
    def of(cls, config: Config, environ: Mapping[str, str] | None = None) -> RunDir:
        """Return the run directory of a configuration; nothing is made yet."""
        environ = os.environ if environ is None else environ
        state = Path(environ.get("XDG_STATE_HOME") or "~/.local/state")
        root = Path(config.run.dir) if config.run.dir else state / "hermes-tui"
        return cls(Path(os.path.abspath(root.expanduser())))

    def create(self) -> None:
        """Make the directory and its folders, for their owner only.

        What is there already is closed to others, too: the folders, and the files in them.

        Raises: ConfigError: it cannot be made or written, or is a directory that others need.
        """
        if self.root in (Path("/"), Path.home(), Path(tempfile.gettempdir())):
            raise ConfigError(
                f"run.dir: {self.root} would be closed to others; set it to a directory of its own"
            )
        folders = (self.root, self.run, self.logs, self.work, self.root / "hermes")
        files = (self.view, self.conversations, self.trajectories, self.root / "metrics.jsonl")
        try:
            for folder in folders:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            ours = (*folders, self.checkpoints, self.root / "agents", *files)
            for entry in (*ours, *self.run.iterdir(), *self.logs.iterdir()):
                _close(entry)
        except OSError as error:
            raise ConfigError(
                f"run.dir: {self.root} cannot be made ({error.strerror}); set it to another place"
            ) from error
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise ConfigError(f"run.dir: {self.root} is not writable; set it to another place")

    @property
    def existing(self) -> Path:
        """The directory, or while it is not made the nearest one above it that there is."""
        return next(folder for folder in (self.root, *self.root.parents) if folder.exists())

    @property
    def free_bytes(self) -> int:
        """Bytes that are free on its disk."""
        return shutil.disk_usage(self.existing).free

    def workdir(self, config: Config) -> Path:
        """Return the directory under which each session's commands run; absolute."""
        chosen = config.services.agent.workdir
        return Path(os.path.abspath(Path(chosen).expanduser())) if chosen else self.work

    @property
    def keys(self) -> Path:
        """``keys.json``, mode 0600."""
        return self.root / "keys.json"

    @property
    def run(self) -> Path:
        """Folder of the run files."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """Folder of the logs."""
        return self.root / "logs"

    @property
    def conversations(self) -> Path:
        """Database of the data proxies."""
        return self.root / "conversations.db"

    @property
    def trajectories(self) -> Path:
        """Database of the trainer."""
        return self.root / "trajectories.db"

    @property
    def checkpoints(self) -> Path:
        """Folder of the ``policy_version_<N>`` folders."""
        return self.root / "checkpoints"

    @property
    def work(self) -> Path:
        """Folder under which each session gets its own."""
        return self.root / "work"

    @property
    def hermes(self) -> Path:
        """Folder of the agent's own files, one for each worker."""
        return self.root / "hermes"

    @property
    def supervisor(self) -> Path:
        """Run file of the supervisor: its control URL and pid."""
        return self.run / "supervisor.json"

    @property
    def view(self) -> Path:
        """What the last view left behind: the session that was open, and what was not sent."""
        return self.root / "view.json"

    @property
    def lock(self) -> Path:
        """Locked by the supervisor for as long as it lives."""
        return self.run / "supervisor.lock"

    @property
    def serve_output(self) -> Path:
        """What a supervisor that the screen started in the background writes."""
        return self.logs / "serve.out"

    @property
    def vllm_socket(self) -> Path:
        """Unix socket of the vLLM server.

        Linux takes paths of 107 bytes; a longer one lies in a private folder of the temporary
        directory.
        """
        path = self.run / "vllm.sock"
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES:
            return path
        name = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"hermes-tui-{os.getuid()}-{name}" / path.name

    def run_file(self, name: str) -> Path:
        """Return the run file of a process."""
        return self.run / f"{name}.json"

    def config_file(self, name: str) -> Path:
        """Return the resolved configuration of a process, mode 0600."""
        return self.run / f"{name}.config.json"

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.logs / f"{name}.log"


def _close(path: Path) -> None:
    """Take what others may do with a file or folder of ours; links are left alone."""
    try:
        status = path.lstat()
    except FileNotFoundError:  # not made yet, or a running stack's, and gone
        return
    mode = stat.S_IMODE(status.st_mode)
    if not stat.S_ISLNK(status.st_mode) and mode & 0o077 and status.st_uid == os.getuid():
        path.chmod(mode & 0o700)
