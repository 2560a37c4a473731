"""The inference gateway: OpenAI's and Anthropic's completions, recorded; the trainer's routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette

from hermes_tui_common.http import EXCEPTION_HANDLERS
from hermes_tui_common.openapi import described
from hermes_tui_training.api.config import TrainerRole
from hermes_tui_training.engine.base import Engine
from hermes_tui_training.inference_gateway.context import (
    Services,
    known_callers_only,
)
from hermes_tui_training.inference_gateway.route_table import all_routes
from hermes_tui_training.store.store import Store

if TYPE_CHECKING:
    from hermes_tui_training.chat_template.renderer import Chat
    from hermes_tui_training.trainer.orchestrator import Orchestrator


def create_app(
    config: TrainerRole,
    *,
    store: Store,
    engine: Engine,
    chat: Chat,
    orchestrator: Orchestrator,
) -> Starlette:
    """Return the inference gateway over parts that have been started."""
    routes = described("Hermes TUI: the inference gateway", all_routes(), known_callers_only)
    app = Starlette(routes=routes, exception_handlers=EXCEPTION_HANDLERS)
    app.state.services = Services(
        config=config, store=store, engine=engine, chat=chat, orchestrator=orchestrator
    )
    return app
