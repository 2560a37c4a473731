"""The cage of a worker: bubblewrap shows it the system read-only, its own directories, and no more.

The agent's file tools run within the worker and its commands are the worker's children, so the
worker as a whole is caged. It sees the system and Python, read-only, and the sessions' directories;
not the user's home, the run directory with its keys and databases, other processes, or the sockets
in /run and /tmp. It has no capabilities. Options as of bubblewrap 0.8.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hermes_tui_common.errors import ConfigError
from hermes_tui_services.api.config import AgentConfig

INHERITED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TERM", "TZ",
    "OMP_WAIT_POLICY", "SSL_CERT_DIR", "SSL_CERT_FILE", "HERMES_TUI_STACK",
)  # fmt: skip
"""Environment variables of a worker and its tools; the last is what the watchdog knows it by."""

INSTALL_HINT = "apt install bubblewrap, or your system's package of that name"

_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc", "opt", "nix", "gnu")
"""Top-level directories of programs and their settings; those that exist are shown."""

_SECRET_FILES = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/krb5.keytab")
_SECRET_FOLDERS = ("/etc/ssh", "/etc/ssl/private", "/etc/sudoers.d", "/etc/NetworkManager")
"""Hidden, since a stack that root started could read them."""

_RESOLVER = Path("/etc/resolv.conf")
"""Often a link into /run, which is hidden."""

_PROBE_S = 10.0
"""How long bubblewrap may take to run nothing."""

_OWN_CLASSES = "hermes_tui_services."

_SETTINGS_FILE = "hermes.toml"
"""Hidden where a directory is shown that has one: it may hold keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """Whether this machine can cage workers, and whether it is to."""

    bubblewrap: str | None = None
    """The program; None: workers run in nothing."""
    reason: str = ""
    """Why they run in nothing."""

    @classmethod
    def of(cls, agent: AgentConfig) -> Confinement:
        """Return what the configuration asks for and the machine can do; runs bubblewrap once.

        Raises: ConfigError: it must be bubblewrap, and that does not work here.
        """
        if agent.cage == "off":
            return cls(reason='services.agent.cage is "off"')
        reason = ""
        program = shutil.which("bwrap")
        if sys.platform != "linux":
            reason = "bubblewrap is for Linux"
        elif program is None:
            reason = f"bubblewrap is not installed: {INSTALL_HINT}"
        else:
            reason = _try(program)
        if not reason:
            return cls(bubblewrap=program)
        if agent.cage == "bubblewrap":
            raise ConfigError(f'services.agent.cage = "bubblewrap": {reason}')
        return cls(reason=reason)

    def __str__(self) -> str:
        return self.kind if self.bubblewrap else f"{self.kind}: {self.reason}"

    @property
    def kind(self) -> Literal["bubblewrap", "none"]:
        """What workers run in."""
        return "bubblewrap" if self.bubblewrap else "none"

    def cage(self, agent: AgentConfig, run_dir: Path, home: Path, workdir: Path) -> Cage | None:
        """Return the cage of one worker; None: it runs in nothing.

        Args:
            agent: what else it may see, and which class it loads.
            run_dir: hidden, but for the next two.
            home: the agent's own files.
            workdir: the sessions' directories.
        """
        if self.bubblewrap is None:
            return None
        own = agent.class_.startswith(_OWN_CLASSES)
        return Cage(
            program=self.bubblewrap,
            readable=tuple(map(_absolute, agent.read_paths)),
            writable=tuple(map(_absolute, agent.write_paths)),
            hidden=run_dir,
            own=(workdir, home),
            # A class of the user's may lie in the working directory.
            start_in=Path("/") if own else Path.cwd(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cage:
    """What one worker sees."""

    program: str
    """Bubblewrap."""
    readable: tuple[Path, ...]
    """Shown read-only, beside the system and Python."""
    writable: tuple[Path, ...]
    """Shown as they are."""
    hidden: Path
    """The run directory."""
    own: tuple[Path, ...]
    """The worker's own directories, which may lie in the hidden one; they are made."""
    start_in: Path
    """Working directory."""

    def command(self) -> tuple[str, ...]:
        """Return the command that a worker is run under."""
        return (self.program, *self._options(), "--")

    def _options(self) -> Iterator[str]:
        # The end of the supervisor ends the cage, and with its first process all that is in it.
        yield from ("--unshare-all", "--share-net", "--die-with-parent", "--cap-drop", "ALL")
        yield from _system()
        yield from ("--proc", "/proc", "--dev", "/dev")
        home = Path.home()
        for folder in (Path("/tmp"), Path("/var/tmp"), Path("/run"), home):  # noqa: S108
            if folder != Path("/"):
                yield from ("--tmpfs", str(folder))
        if _RESOLVER.is_symlink() and _RESOLVER.exists():
            yield from _bind("--ro-bind", _RESOLVER.resolve())
        needed = [place for place in (*_python(), self.start_in) if place not in _above(home)]
        for path in (*needed, *self.readable):
            if path.exists():
                yield from _bind("--ro-bind", path)
                if (settings := path / _SETTINGS_FILE).is_file():
                    yield from ("--ro-bind", "/dev/null", str(settings))
        for path in self.writable:
            yield from _bind("--bind", path)
        yield from ("--tmpfs", str(self.hidden))
        for path in self.own:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            yield from _bind("--bind", path)
        yield from ("--chdir", str(self.start_in))


def _system() -> Iterator[str]:
    for name in _SYSTEM:
        path = Path("/") / name
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from _bind("--ro-bind", path)
    for secret in _SECRET_FILES:
        if Path(secret).is_file():
            yield from ("--ro-bind", "/dev/null", secret)
    for folder in _SECRET_FOLDERS:
        if Path(folder).is_dir():
            yield from ("--tmpfs", folder)


def _python() -> Iterator[Path]:
    """Yield where this interpreter and its packages lie, outside of the system's directories."""
    places = [Path(sys.prefix), Path(sys.base_prefix), *map(Path, sys.path)]
    places += [Path(sys.executable).parent, Path(sys.executable).resolve().parent]
    shown = {Path("/") / name for name in _SYSTEM}
    for place in places:
        if place.is_absolute() and not shown & _above(place):
            shown.add(place)
            yield place


def _above(path: Path) -> set[Path]:
    """Return a path and all that contain it."""
    return {path, *path.parents}


def _bind(option: str, path: Path) -> tuple[str, str, str]:
    return option, str(path), str(path)


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def _try(program: str) -> str:
    """Return why bubblewrap does not work here; empty when it does."""
    command = [program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--", "true"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_S, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not work here: {error}"
    lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
    return "" if done.returncode == 0 else f"bubblewrap does not work here: {lines[-1]}"
