"""The cage of a worker: bubblewrap shows it the system read-only, its own directories, and no more.

The agent's file tools run within the worker and its commands are the worker's children, so the
worker as a whole is caged. It sees the system and Python, read-only, and the sessions' directories;
not the user's home, the run directory with its keys and databases, other processes, or the sockets
in /run and /tmp. It has no capabilities. Options as of bubblewrap 0.8.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hermes_tui_common.errors import ConfigError, StackError
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

_LINKS_INTO_RUN = (Path("/etc/resolv.conf"), Path("/run/current-system"))
"""Where names are looked up, and NixOS' programs: often links into what is hidden."""

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
    network: Literal["host", "peers"] = "host"
    """What they reach."""

    @classmethod
    def of(cls, agent: AgentConfig) -> Confinement:
        """Return what the configuration asks for and the machine can do; runs bubblewrap once.

        Raises: ConfigError: it asks for what only a cage gives, and there is none here.
        """
        reason = 'services.agent.cage is "off"' if agent.cage == "off" else _obstacle()
        if not reason:
            return cls(bubblewrap=shutil.which("bwrap"), network=agent.network)
        if agent.cage == "bubblewrap":
            raise ConfigError(f'services.agent.cage = "bubblewrap": {reason}')
        if agent.network == "peers":
            raise ConfigError(f'services.agent.network = "peers" needs a cage: {reason}')
        return cls(reason=reason)

    def __str__(self) -> str:
        if self.bubblewrap:
            return f"{self.kind}, network: {self.network}"
        return f"{self.kind}: {self.reason}"

    @property
    def kind(self) -> Literal["bubblewrap", "none"]:
        """What workers run in."""
        return "bubblewrap" if self.bubblewrap else "none"

    def cage(
        self, agent: AgentConfig, run_dir: Path, home: Path, workdir: Path, relay: Path | None
    ) -> Cage | None:
        """Return the cage of one worker; None: it runs in nothing.

        Args:
            agent: what else it may see, and which class it loads.
            run_dir: hidden, but for the next two.
            home: the agent's own files.
            workdir: the sessions' directories.
            relay: the Unix socket that is its only way out; None: it shares the network.
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
            relay=relay,
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
    relay: Path | None = None
    """The Unix socket that is its only way out; None: it shares the machine's network."""

    def command(self) -> tuple[str, ...]:
        """Return the command that a worker is run under.

        Raises: StackError: a path of the user's is not there, or shows too much.
        """
        return (self.program, *self._options(), "--")

    def _options(self) -> Iterator[str]:
        # The end of the supervisor ends the cage, and with its first process all that is in it.
        yield from ("--unshare-all", "--die-with-parent", "--cap-drop", "ALL")
        if self.relay is None:
            yield "--share-net"
        yield from _system()
        yield from ("--proc", "/proc", "--dev", "/dev")
        homes = _homes()
        for folder in (Path("/tmp"), Path("/var/tmp"), Path("/run"), *homes):  # noqa: S108
            yield from ("--tmpfs", str(folder))
        for link in _LINKS_INTO_RUN:
            if link.is_symlink() and link.exists():
                yield from _bind("--ro-bind", link.resolve())
        shows_home = set().union(*map(_above, homes))
        for place in (*_python(), self.start_in):
            if place.exists() and place not in shows_home:
                yield from _shown("--ro-bind", place)
        for path in self._given("read_paths", self.readable):
            yield from _shown("--ro-bind", path)
        for path in self._given("write_paths", self.writable):
            yield from _shown("--bind", path)
        for path in self.own:
            if path in shows_home:
                raise StackError(
                    f"services.agent.workdir: {path} holds your home; give it a folder of its own"
                )
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        inside = [path for path in self.own if path.is_relative_to(self.hidden)]
        for path in self.own:
            if path not in inside:
                yield from _shown("--bind", path)
        yield from ("--tmpfs", str(self.hidden))
        for path in inside:
            yield from _bind("--bind", path)
        if self.relay:
            self.relay.parent.mkdir(exist_ok=True, mode=0o700)
            yield from _bind("--ro-bind", self.relay.parent)
        yield from ("--chdir", str(self.start_in))

    def _given(self, key: str, paths: tuple[Path, ...]) -> Iterator[Path]:
        for path in paths:
            if not path.exists():
                raise StackError(f"services.agent.{key}: there is no {path}")
            yield path


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
    # A worker does not inherit these, and they may show more than Python.
    not_inherited = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if not sys.flags.safe_path:
        not_inherited.add(sys.path[0])
    places = [Path(sys.prefix), Path(sys.base_prefix)]
    places += [Path(place) for place in sys.path if place not in not_inherited]
    places += [Path(sys.executable).parent, Path(sys.executable).resolve().parent]
    shown = {Path("/") / name for name in _SYSTEM}
    for place in places:
        if place.is_absolute() and not shown & _above(place):
            shown.add(place)
            yield place


def _homes() -> set[Path]:
    """Return the user's home, as the environment and as the system has it."""
    homes = {Path.home()}
    with contextlib.suppress(KeyError):  # a container may run as a user that has no name
        homes.add(Path(pwd.getpwuid(os.getuid()).pw_dir))
    return homes - {Path("/")}


def _above(path: Path) -> set[Path]:
    """Return a path and all that contain it."""
    return {path, *path.parents}


def _shown(option: str, path: Path) -> Iterator[str]:
    yield from _bind(option, path)
    if (settings := path / _SETTINGS_FILE).is_file():
        yield from ("--ro-bind", "/dev/null", str(settings))


def _bind(option: str, path: Path) -> tuple[str, str, str]:
    return option, str(path), str(path)


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def _obstacle() -> str:
    """Return why bubblewrap does not work here; empty when it does."""
    program = shutil.which("bwrap")
    if sys.platform != "linux":
        return "bubblewrap is for Linux"
    if program is None:
        return f"bubblewrap is not installed: {INSTALL_HINT}"
    command = [program, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--", "true"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_S, check=False, cwd="/"
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not work here: {error}"
    lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
    return "" if done.returncode == 0 else f"bubblewrap does not work here: {lines[-1]}"
