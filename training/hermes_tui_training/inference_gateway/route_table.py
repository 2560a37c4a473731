"""Every route of the inference gateway: what it takes, how much of it, what it answers."""

from __future__ import annotations

from typing import Any

from hermes_tui_common.auth import COMPLETIONS_KEY_PATH
from hermes_tui_common.routes import ApiRoute, BodySize, JsonObject, Rows
from hermes_tui_training.api.protocol import (
    CanariesQuery,
    ChatRequest,
    DeleteSession,
    DeregisterModel,
    EndSession,
    EpisodesQuery,
    EventsQuery,
    Export,
    PageQuery,
    Pause,
    RegisterModel,
    RenameSession,
    Rollback,
    SetReward,
    SetTopic,
    SetVersion,
    StartSession,
    StepsQuery,
    UnsetReward,
)
from hermes_tui_training.api.types import CanaryAnswer, Session
from hermes_tui_training.api.wire import (
    CompletionsKey,
    EndedSession,
    EpisodeRecord,
    EpisodeSummary,
    GatewayHealth,
    KeptCheckpoint,
    RewardAnswer,
    ServedModel,
    ServedModels,
    SessionChanged,
    StartedSessions,
    StepRecord,
    TopicAnswer,
    TrainerStatus,
    UnsetRewardAnswer,
)
from hermes_tui_training.inference_gateway.apis.anthropic import count_tokens, messages
from hermes_tui_training.inference_gateway.apis.anthropic_input import (
    CountTokensRequest,
    MessagesRequest,
)
from hermes_tui_training.inference_gateway.apis.chat import chat_completions
from hermes_tui_training.inference_gateway.apis.models import list_models, read_model
from hermes_tui_training.inference_gateway.apis.responses import responses
from hermes_tui_training.inference_gateway.apis.responses_input import ResponsesRequest
from hermes_tui_training.inference_gateway.apis.text_completions import (
    CompletionsRequest,
    completions,
)
from hermes_tui_training.inference_gateway.routes import (
    areal,
    episodes,
    sessions,
    status,
    versions,
)


def all_routes() -> list[ApiRoute]:
    """Return every route."""
    return [
        ApiRoute("/health", status.read_health, answer=GatewayHealth),
        *_completion_routes("/v1"),
        *_completion_routes(""),
        *_areal_routes(),
        *_session_routes(),
        *_reading_routes(),
        *_trainer_routes(),
    ]


def _completion_routes(prefix: str) -> list[ApiRoute]:
    """Return OpenAI's and Anthropic's routes; clients differ in whether they add ``/v1``."""
    asked: dict[str, Any] = {"method": "POST", "size": BodySize.CONVERSATION, "answer": JsonObject}
    tokens = f"{prefix}/messages/count_tokens"
    return [
        ApiRoute(
            f"{prefix}/chat/completions", chat_completions, body=ChatRequest, events=True, **asked
        ),
        ApiRoute(
            f"{prefix}/completions", completions, body=CompletionsRequest, events=True, **asked
        ),
        ApiRoute(f"{prefix}/responses", responses, body=ResponsesRequest, events=True, **asked),
        ApiRoute(f"{prefix}/messages", messages, body=MessagesRequest, events=True, **asked),
        ApiRoute(tokens, count_tokens, body=CountTokensRequest, **asked),
        ApiRoute(f"{prefix}/models", list_models, answer=ServedModels),
        ApiRoute(f"{prefix}/models/{{model_id:path}}", read_model, answer=ServedModel),
    ]


def _areal_routes() -> list[ApiRoute]:
    """Return the routes that AReaL's tools call, of one worker or of all."""
    rows: list[ApiRoute] = [
        ApiRoute(
            "/register_model",
            areal.register_model,
            method="POST",
            body=RegisterModel,
            answer=JsonObject,
        ),
        ApiRoute(
            "/deregister_model",
            areal.deregister_model,
            method="POST",
            body=DeregisterModel,
            answer=JsonObject,
        ),
    ]
    for worker in ("", "/{worker_id}"):
        for start in ("", "/callback"):
            for name, endpoint in (
                ("pause_generation", areal.pause_generation),
                ("continue_generation", areal.continue_generation),
            ):
                path = f"{start}/{name}{worker}"
                rows.append(ApiRoute(path, endpoint, method="POST", answer=JsonObject))
        version = {"body": SetVersion, "answer": JsonObject}
        rows.append(ApiRoute(f"/set_version{worker}", areal.set_version, method="POST", **version))
        rows.append(ApiRoute(f"/get_version{worker}", areal.get_version, answer=JsonObject))
    return rows


def _session_routes() -> list[ApiRoute]:
    post = "POST"
    start, end = sessions.start_session, sessions.end_session
    mint, name = sessions.completions_key, sessions.set_topic
    judge, take_back = sessions.set_reward, sessions.unset_reward
    return [
        ApiRoute(
            "/rl/start_session",
            start,
            method=post,
            body=StartSession,
            answer=StartedSessions,
            status=201,
        ),
        ApiRoute(COMPLETIONS_KEY_PATH, mint, method=post, answer=CompletionsKey),
        ApiRoute("/rl/end_session", end, method=post, body=EndSession, answer=EndedSession),
        ApiRoute("/rl/set_topic", name, method=post, body=SetTopic, answer=TopicAnswer),
        ApiRoute(
            "/rl/rename_session",
            sessions.rename_session,
            method=post,
            body=RenameSession,
            answer=SessionChanged,
        ),
        ApiRoute(
            "/rl/delete_session",
            sessions.delete_session,
            method=post,
            body=DeleteSession,
            answer=SessionChanged,
        ),
        ApiRoute("/rl/set_reward", judge, method=post, body=SetReward, answer=RewardAnswer),
        ApiRoute(
            "/rl/unset_reward", take_back, method=post, body=UnsetReward, answer=UnsetRewardAnswer
        ),
    ]


def _reading_routes() -> list[ApiRoute]:
    read = episodes.read_episode
    summaries = Rows[EpisodeSummary]
    return [
        ApiRoute("/rl/sessions", episodes.list_sessions, query=PageQuery, answer=Rows[Session]),
        ApiRoute("/rl/episodes", episodes.list_episodes, query=EpisodesQuery, answer=summaries),
        ApiRoute("/rl/episodes/{episode_id}", read, answer=EpisodeRecord),
        ApiRoute("/rl/steps", episodes.list_steps, query=StepsQuery, answer=Rows[StepRecord]),
        ApiRoute(
            "/export_trajectories",
            episodes.export_trajectories,
            method="POST",
            body=Export,
            answer=JsonObject,
        ),
        ApiRoute(
            "/rl/canaries",
            versions.list_canaries,
            query=CanariesQuery,
            answer=Rows[CanaryAnswer],
        ),
    ]


def _trainer_routes() -> list[ApiRoute]:
    post = "POST"
    keep = status.keep_checkpoint
    return [
        ApiRoute("/rl/status", status.read_status, answer=TrainerStatus),
        ApiRoute("/rl/pause", status.pause, method=post, body=Pause, answer=TrainerStatus),
        ApiRoute("/rl/resume", status.resume, method=post, answer=TrainerStatus),
        ApiRoute("/rl/checkpoint", keep, method=post, answer=KeptCheckpoint),
        ApiRoute("/rl/rollback", versions.rollback, method=post, body=Rollback, answer=StepRecord),
        ApiRoute("/rl/events", status.stream_events, query=EventsQuery, events=True),
    ]
