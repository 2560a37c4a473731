"""Loads the agent class that the configuration names."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from typing import Any

from hermes_tui_common.errors import ConfigError, HermesTuiError
from hermes_tui_services.api.agent import AgentRunnable
from hermes_tui_services.api.config import WorkerRole

_KEY = "services.agent.class"


def load_agent(config: WorkerRole) -> AgentRunnable:
    """Return the agent, ready to run.

    The class is looked for among the installed packages and, after them, in the working directory.

    Raises: ConfigError: the path is wrong, or the class is no agent; one readable line.
    """
    path = config.agent.class_
    cls = _find(path)
    if not inspect.iscoroutinefunction(getattr(cls, "run", None)):
        raise ConfigError(
            f"{_KEY} = '{path}': the class has no 'async def run(self, request, *, emitter)'; "
            "see the agent protocol in docs/agent-service.md"
        )
    try:
        agent = cls.from_role(config) if hasattr(cls, "from_role") else cls()
    except HermesTuiError:
        raise
    except Exception as error:  # the user's class may raise anything; the line names it
        raise ConfigError(
            f"{_KEY} = '{path}': could not be created: {type(error).__name__}: {error}"
        ) from error
    assert isinstance(agent, AgentRunnable)
    return agent


def _find(path: str) -> Any:
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise ConfigError(f"{_KEY} = '{path}': write it as package.module.Class")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: it must not hide an installed package
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing a user's module may raise anything
        raise ConfigError(
            f"{_KEY} = '{path}': cannot import {module_name}: {type(error).__name__}: {error}"
        ) from error
    try:
        return getattr(module, name)
    except AttributeError as error:
        classes = [n for n, v in vars(module).items() if inspect.isclass(v) and hasattr(v, "run")]
        hint = f"; it has {', '.join(sorted(classes))}" if classes else ""
        raise ConfigError(f"{_KEY} = '{path}': {module_name} has no '{name}'{hint}") from error
