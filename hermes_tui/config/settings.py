"""The whole configuration: one model, one file, and where each value came from.

Precedence: command line (``section.key=value``) > environment (``HERMES_TUI__SECTION__KEY``, and
AReaL's names) > file (``hermes.toml``) > default. A mistake is one line that names its place.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import tomli
from pydantic import BaseModel, Field, SecretStr, ValidationError

from hermes_tui.config import errors as config_errors
from hermes_tui_common.auth import MIN_STRONG_CHARS, weakness
from hermes_tui_common.errors import ConfigError
from hermes_tui_common.limits import HttpConfig
from hermes_tui_common.settings import Section
from hermes_tui_services.api.config import ServicesConfig, UpstreamConfig
from hermes_tui_training.api.config import ModelConfig, TrainingConfig

FILE_NAME = "hermes.toml"
ENV_PREFIX = "HERMES_TUI__"

ENV_ALIASES = {
    "HERMES_UPSTREAM_BASE_URL": "upstream.base_url",
    "HERMES_UPSTREAM_API_KEY": "upstream.api_key",
    "HERMES_UPSTREAM_MODEL": "upstream.model",
    "HERMES_MAX_TURNS": "services.agent.max_turns",
    "HERMES_ENABLED_TOOLSETS": "services.agent.enabled_toolsets",
    "HERMES_DISABLED_TOOLSETS": "services.agent.disabled_toolsets",
    "HERMES_TUI_HOME": "run.dir",
}
"""Environment names beside the ``HERMES_TUI__`` ones: AReaL's, and the run directory's."""


class RunConfig(Section):
    """``[run]``: where the running stack keeps its files, and how it is watched."""

    dir: str = ""
    """Run directory: keys, logs, databases, checkpoints; empty is the XDG state directory's."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Level of every process's log."""
    log_max_bytes: int = Field(10_000_000, ge=10_000)
    """Size at which a process's log is rotated; three old ones are kept."""
    start_timeout_s: float = Field(600.0, gt=0)
    """Seconds a process may take until it is ready."""
    stop_timeout_s: float = Field(10.0, gt=0)
    """Seconds that all processes together may take to stop; then they are killed."""
    heartbeat_s: float = Field(1.0, gt=0)
    """Seconds between two signs of life that each process gives to the supervisor."""
    hung_after_s: float = Field(20.0, ge=0)
    """Seconds without a sign of life, or with an event loop that does not run, after which a
    process counts as hung and is replaced. Below 10 a loaded machine may look hung; 0 is never."""
    starting_hung_after_s: float = Field(60.0, ge=0)
    """The same while a process starts: loading a library from a slow disk takes so long."""
    work_hung_after_s: float = Field(600.0, ge=0)
    """Seconds after which work that does not get on counts as hung: one step of the engine, one
    micro-batch of a training step, the end of an interrupted turn; 0 is never."""


class TuiConfig(Section):
    """``[tui]``: the screen."""

    theme: str = "textual-dark"
    """Colour theme; the palette lists the names."""
    keymap: dict[str, str] = Field(default_factory=dict)
    """Action id to keys, such as ``score_good = "f3,ctrl+g"``; the others keep their keys."""


class Config(Section):
    """All settings."""

    run: RunConfig = RunConfig()
    model: ModelConfig = ModelConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    http: HttpConfig = HttpConfig()
    services: ServicesConfig = ServicesConfig()
    training: TrainingConfig = TrainingConfig()
    tui: TuiConfig = TuiConfig()

    def to_json(self) -> str:
        """Return the resolved configuration with its keys in clear, for a 0600 file."""
        return self.model_dump_json(by_alias=True, context={"reveal": True}, indent=2)


def load_config(
    overrides: Sequence[str] = (),
    *,
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Config:
    """Return the configuration of this run.

    Args:
        overrides: ``section.key=value`` texts; the values are TOML.
        path: the file to read; None looks for the nearest one.
        environ: environment to read; None is the process's own.
        cwd: directory to look from; None is the working directory.

    Raises: ConfigError: one line that names the place, the key, the nearest known one.
    """
    return load_with_sources(overrides, path=path, environ=environ, cwd=cwd)[0]


def load_with_sources(
    overrides: Sequence[str] = (),
    *,
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> tuple[Config, config_errors.Sources]:
    """Return the configuration as ``load_config`` does, and where each setting came from."""
    tree, sources = _read(overrides, path, environ, cwd)
    config = validate(tree, sources)
    _check_exposure(config, sources)
    return config, sources


def load_with_problems(
    overrides: Sequence[str] = (), *, path: Path | None = None
) -> tuple[Config | None, config_errors.Sources, list[str]]:
    """Return the configuration without what is wrong in it, and all that is, a line each.

    Returns: None for the configuration when nothing can be made of the rest.

    Raises: ConfigError: there is no file, or it is no TOML.
    """
    tree, sources = _read(overrides, path, None, None)
    problems: list[str] = []
    config = None
    try:
        config = validate(tree, sources)
    except config_errors.InvalidConfigError as error:
        problems += error.problems
        with suppress(ConfigError):
            config = validate(error.rest, sources)
    if config is not None:
        try:
            _check_exposure(config, sources)
        except ConfigError as error:
            problems.append(str(error))
    return config, sources, problems


def _read(
    overrides: Sequence[str],
    path: Path | None,
    environ: Mapping[str, str] | None,
    cwd: Path | None,
) -> tuple[dict[str, Any], config_errors.Sources]:
    """Return the settings of file, environment and command line, and where each came from."""
    environ = os.environ if environ is None else environ
    file = path or find_file(cwd or Path.cwd(), environ)
    sources = config_errors.Sources()
    tree: dict[str, Any] = _read_file(file, sources) if file else {}
    for key, raw, where in (*_environment(environ), *_overrides(overrides)):
        sources.note(key, where)
        _put(tree, key.split("."), _parse_value(raw, _annotation(Config, key.split("."))))
    return tree, sources


def validate(tree: Mapping[str, Any], sources: config_errors.Sources) -> Config:
    """Return the configuration that a tree of TOML values describes.

    Raises: ConfigError: unknown key, wrong type, value out of range.
    """
    try:
        # JSON mode is strict about types, yet takes a list for a tuple and a str for a secret.
        return Config.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        problems = config_errors.explain(error, sources, Config)
        rest = config_errors.without_mistakes(tree, error)
        raise config_errors.InvalidConfigError(problems, rest) from error


def find_file(cwd: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the nearest ``hermes.toml`` from ``cwd`` upward, else the user's own, else None."""
    user = config_home(environ) / FILE_NAME
    candidates = [*(folder / FILE_NAME for folder in (cwd, *cwd.parents)), user]
    return next((file for file in candidates if file.is_file()), None)


def config_home(environ: Mapping[str, str]) -> Path:
    """Return the XDG configuration directory of this program."""
    base = environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "hermes-tui"


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only; unknown names are not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_file(file: Path, sources: config_errors.Sources) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
        tree = tomli.loads(text)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(
            f"{file}: cannot be read ({reason}); name another with --config"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text; TOML files are") from error
    except tomli.TOMLDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}: not TOML: {error.msg}") from error
    sources.read(file, text)
    return tree


def _environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield (dotted key, raw value, where) of the environment; the last one of a key wins."""
    for name, key in ENV_ALIASES.items():
        if environ.get(name):
            yield key, environ[name], f"environment {name}"
    for name, raw in sorted(environ.items()):
        if name.startswith(ENV_PREFIX):
            key = name.removeprefix(ENV_PREFIX).lower().replace("__", ".")
            yield key, raw, f"environment {name}"


def _overrides(overrides: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    for word in overrides:
        key, equals, raw = word.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(
                f"command line: {word!r} is no setting; write section.key=value, "
                "such as services.pairs.count=2"
            )
        yield key.strip(), raw, "command line"


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        child = tree.get(part)
        if not isinstance(child, dict):
            child = tree[part] = {}
        tree = child
    tree[path[-1]] = value


def _annotation(model: type[BaseModel], path: list[str]) -> Any:
    """Return the declared type of a dotted key, or None when there is no such key."""
    for name, field in model.model_fields.items():
        if path[0] != (field.alias or name):
            continue
        if len(path) == 1:
            return field.annotation
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            return _annotation(field.annotation, path[1:])
        if get_origin(field.annotation) is dict:
            return get_args(field.annotation)[1]
    return None


def _parse_value(raw: str, annotation: Any) -> Any:
    """Return the value of one override: TOML, else text, or a list split at commas."""
    try:
        parsed = tomli.loads(f"value = {raw}")
    except tomli.TOMLDecodeError:
        parsed = {}
    if set(parsed) == {"value"}:
        value = parsed["value"]
        is_text = annotation in (str, SecretStr)
        return raw if is_text and not isinstance(value, str) else value
    if get_origin(annotation) is tuple:
        return [part.strip() for part in raw.split(",") if part.strip()]
    return raw


def _check_exposure(config: Config, sources: config_errors.Sources) -> None:
    """Refuse to open an address beyond loopback without a key that deserves the name.

    Raises: ConfigError: names the host's place and the key to set.
    """
    for host_key, host, key_key, secret in _gateways(config):
        key = secret.get_secret_value()
        fault = weakness(key) if key else "missing"
        if is_loopback(host) or not fault:
            continue
        raise ConfigError(
            f"{sources.where(host_key)}: {host_key} = {json.dumps(host)} is reachable from other "
            f"machines, and {key_key} is {fault}; set it to at least {MIN_STRONG_CHARS} "
            "random characters, or listen on 127.0.0.1"
        )
    hosts = {host for _, host, _, _ in _gateways(config) if not is_loopback(host)}
    keys = [secret.get_secret_value() for *_, secret in _gateways(config)]
    if hosts and len(set(keys)) < len(keys):
        raise ConfigError(
            f"{sources.where('training.admin_api_key')}: training.admin_api_key is the same as "
            f"services.gateway.admin_api_key, and {', '.join(sorted(hosts))} is reachable from "
            "other machines; set two different keys, or listen on 127.0.0.1"
        )


def _gateways(config: Config) -> Iterator[tuple[str, str, str, SecretStr]]:
    """Yield (key of the host, host, key of the admin key, admin key) of each gateway that runs."""
    gateway, training = config.services.gateway, config.training
    yield (
        "services.gateway.host",
        gateway.host,
        "services.gateway.admin_api_key",
        gateway.admin_api_key,
    )
    if training.enabled:
        yield (
            "training.gateway.host",
            training.gateway.host,
            "training.admin_api_key",
            training.admin_api_key,
        )
