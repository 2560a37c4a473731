"""The inference gateway: OpenAI's and Anthropic's completions, recorded; the trainer's routes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hermes_tui_common.auth import COMPLETIONS_KEY_PATH
from hermes_tui_common.http import EXCEPTION_HANDLERS
from hermes_tui_training.api.config import TrainerRole
from hermes_tui_training.api.wire import GatewayHealth
from hermes_tui_training.engine.base import Engine
from hermes_tui_training.inference_gateway.apis.anthropic import count_tokens, messages
from hermes_tui_training.inference_gateway.apis.chat import chat_completions
from hermes_tui_training.inference_gateway.apis.models import list_models, read_model
from hermes_tui_training.inference_gateway.apis.responses import responses
from hermes_tui_training.inference_gateway.apis.text_completions import completions
from hermes_tui_training.inference_gateway.context import Services, services_of
from hermes_tui_training.inference_gateway.routes import (
    areal,
    episodes,
    sessions,
    status,
    versions,
)
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
    app = Starlette(routes=_routes(), exception_handlers=EXCEPTION_HANDLERS)
    app.state.services = Services(
        config=config, store=store, engine=engine, chat=chat, orchestrator=orchestrator
    )
    return app


def _routes() -> list[Route]:
    get, post = ["GET"], ["POST"]
    return [
        Route("/health", health, methods=get),
        Route("/v1/chat/completions", chat_completions, methods=post),
        Route("/chat/completions", chat_completions, methods=post),
        Route("/v1/completions", completions, methods=post),
        Route("/completions", completions, methods=post),
        Route("/v1/responses", responses, methods=post),
        Route("/responses", responses, methods=post),
        Route("/v1/messages", messages, methods=post),
        Route("/messages", messages, methods=post),
        Route("/v1/messages/count_tokens", count_tokens, methods=post),
        Route("/messages/count_tokens", count_tokens, methods=post),
        Route("/v1/models", list_models, methods=get),
        Route("/models", list_models, methods=get),
        Route("/v1/models/{model_id:path}", read_model, methods=get),
        Route("/models/{model_id:path}", read_model, methods=get),
        Route("/register_model", areal.register_model, methods=post),
        Route("/deregister_model", areal.deregister_model, methods=post),
        *(
            Route(f"{path}{worker}", handler, methods=methods)
            for path, handler, methods in (
                ("/pause_generation", areal.pause_generation, post),
                ("/continue_generation", areal.continue_generation, post),
                ("/callback/pause_generation", areal.pause_generation, post),
                ("/callback/continue_generation", areal.continue_generation, post),
                ("/set_version", areal.set_version, post),
                ("/get_version", areal.get_version, get),
            )
            for worker in ("", "/{worker_id}")
        ),
        Route("/rl/start_session", sessions.start_session, methods=post),
        Route(COMPLETIONS_KEY_PATH, sessions.completions_key, methods=post),
        Route("/rl/end_session", sessions.end_session, methods=post),
        Route("/rl/set_topic", sessions.set_topic, methods=post),
        Route("/rl/rename_session", sessions.rename_session, methods=post),
        Route("/rl/delete_session", sessions.delete_session, methods=post),
        Route("/rl/set_reward", sessions.set_reward, methods=post),
        Route("/rl/unset_reward", sessions.unset_reward, methods=post),
        Route("/rl/sessions", episodes.list_sessions, methods=get),
        Route("/rl/episodes", episodes.list_episodes, methods=get),
        Route("/rl/episodes/{episode_id}", episodes.read_episode, methods=get),
        Route("/rl/steps", episodes.list_steps, methods=get),
        Route("/export_trajectories", episodes.export_trajectories, methods=post),
        Route("/rl/status", status.read_status, methods=get),
        Route("/rl/pause", status.pause, methods=post),
        Route("/rl/resume", status.resume, methods=post),
        Route("/rl/checkpoint", status.keep_checkpoint, methods=post),
        Route("/rl/rollback", versions.rollback, methods=post),
        Route("/rl/canaries", versions.list_canaries, methods=get),
        Route("/rl/events", status.stream_events, methods=get),
    ]


async def health(request: Request) -> Response:
    """``GET /health``."""
    services = services_of(request)
    sessions_open = await asyncio.to_thread(services.store.sessions.num_running)
    trainer = services.orchestrator.status()
    learner = await asyncio.to_thread(status.learner_presence, services.config.learner_run_file)
    problem = status.problem_of(trainer, learner)
    answer = GatewayHealth(
        status="degraded" if problem else "ok",
        problem=problem,
        backend=services.engine.backend,
        sessions=sessions_open,
        paused=bool(trainer.get("paused")),
        policy_version=services.engine.policy_version,
    )
    return JSONResponse(answer.model_dump(exclude_none=True))
