"""Which engine samples, and which interpreter runs vLLM.

vLLM has an environment of its own: hermes-agent pins an ``openai`` that newer vLLM refuses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pynvml

from hermes_tui.config.settings import Config
from hermes_tui_common.errors import ConfigError

INSTALL = "hermes-tui engine install vllm"

COMPLETE = ".complete"
"""File in an environment whose installation came to its end."""


def vllm_environment(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory of vLLM's environment, which all run directories share."""
    environ = os.environ if environ is None else environ
    data = Path(environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    return data / "hermes-tui" / "engines" / "vllm"


def vllm_python(config: Config) -> Path | None:
    """Return the interpreter that has vLLM, or None when it is not installed.

    Raises: ConfigError: ``training.engine.python`` names none.
    """
    named = config.training.engine.python
    if named:
        found = shutil.which(Path(named).expanduser())
        if found is None:
            raise ConfigError(f"training.engine.python: {named} is no program that can be run")
        return Path(os.path.abspath(found))
    environment = vllm_environment()
    return environment / "bin" / "python" if (environment / COMPLETE).exists() else None


def choose_engine(config: Config) -> Literal["torch", "vllm"]:
    """Return the engine of a configuration on this machine.

    Raises: ConfigError: it asks for vLLM, which is not installed.
    """
    engine = config.training.engine
    if engine.kind == "torch":
        return "torch"
    if engine.base_url and engine.kind == "vllm":
        return "vllm"
    if vllm_python(config):
        return "vllm" if engine.kind == "vllm" or has_cuda() else "torch"
    if engine.kind == "vllm":
        raise ConfigError(
            f"training.engine.kind = vllm, but vLLM is not installed: `{INSTALL}` does it, or set "
            "training.engine.python or training.engine.base_url"
        )
    return "torch"


def has_cuda() -> bool:
    """Return whether there is an NVIDIA GPU with its driver."""
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount()) > 0
    except pynvml.NVMLError:
        return False
