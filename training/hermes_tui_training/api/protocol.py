"""Event kinds and request bodies of the inference gateway; its answers are in ``wire``.

Free of torch: the app reads it too.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hermes_tui_training.api.config import Topic
from hermes_tui_training.api.types import EpisodeState


class EventKind(StrEnum):
    """Kinds of events on ``/rl/events``."""

    SESSION_STARTED = "session.started"
    """A session key was minted or taken into use."""
    SESSION_TOPIC_SET = "session.topic_set"
    """A session has another topic, and so have its siblings; payload ``topic``."""
    SESSION_ENDED = "session.ended"
    """A session key works no longer."""
    SESSION_RENAMED = "session.renamed"
    """A session was given a name."""
    SESSION_FORGOTTEN = "session.forgotten"
    """A session was deleted with its episodes: somebody asked for that, or to make room."""
    EPISODE_OPENED = "episode.opened"
    """The first completion of a new episode began."""
    EPISODE_ENDED = "episode.ended"
    """An episode takes no more completions; payload ``state`` is ended or unscored."""
    EPISODE_SCORED = "episode.scored"
    """An episode got a reward, a new one, or came back from a step that failed."""
    EPISODE_UNSCORED = "episode.unscored"
    """An episode's reward was taken back."""
    EPISODE_CLAIMED = "episode.claimed"
    """An episode is in the step that runs."""
    EPISODE_TRAINED = "episode.trained"
    """An episode is in a finished step."""
    EPISODE_DROPPED = "episode.dropped"
    """An episode will never be trained; payload ``dropped_reason``."""
    COMPLETION_STARTED = "completion.started"
    """A request was recorded and goes to the engine."""
    COMPLETION_TOKENS = "completion.tokens"
    """Tokens were sampled; not stored, so it has no id and is not replayed."""
    COMPLETION_FINISHED = "completion.finished"
    """A completion's outcome was recorded."""
    STEP_STARTED = "step.started"
    """Episodes were claimed for a step."""
    STEP_FINISHED = "step.finished"
    """A step's row was recorded; the payload is the row."""
    STEP_FAILED = "step.failed"
    """A step was given up; payload ``reason``."""
    STEP_UNMOVED = "step.unmoved"
    """A step would have changed nothing, no version was made; payload ``reason``, ``message``."""
    VERSION_ROLLED_BACK = "version.rolled_back"
    """A version with an earlier one's weights was made; the payload is its row in the steps."""
    CANARY_ANSWERED = "canary.answered"
    """A version's answer to one of the canary's questions was recorded."""
    CANARY_SKIPPED = "canary.skipped"
    """A version did not answer one of them; payload ``reason``."""
    VERSION_PUBLISHED = "version.published"
    """The engine samples with new weights."""
    PUBLISH_FAILED = "version.failed"
    """The engine did not take new weights, the old ones serve on; payload ``reason``."""
    TRAINER_PAUSED = "trainer.paused"
    """No step will be begun; payload ``reason``."""
    TRAINER_RESUMED = "trainer.resumed"
    """Steps are begun again."""
    EVENTS_LOST = "events.lost"
    """Events between the asked-for id and payload ``oldest_event_id`` are no longer kept."""


MAX_PAGE = 1000
"""Rows of one answer at most."""

_MAX_ID = 2**53
"""Numbers of steps, versions and events stay below: every JSON parser keeps them whole."""


class Body(BaseModel):
    """A request body: unknown fields are refused by name, values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class StartSession(Body):
    """Body of ``POST /rl/start_session``."""

    task_id: str = Field(min_length=1, max_length=1000)
    """The task; a group is of one task. It is the topic, too, unless ``training.topics`` says
    otherwise."""
    api_key: str | None = None
    """A session key to use again; None mints one."""
    group_size: int = Field(1, ge=1, le=1024)
    """How many sibling sessions to start."""
    group_id: str | None = Field(None, min_length=1, max_length=200)
    """Group to join; None makes a new one."""
    branch_of: str | None = None
    """Session whose conversation the new one goes on with from an earlier turn; its task is meant
    to be the same."""
    beside: str | None = None
    """Episode of that session that the first episode of the new one is compared with: it joins the
    episode's group."""


class RenameSession(Body):
    """Body of ``POST /rl/rename_session``."""

    session_id: str
    """The session."""
    title: str = Field(min_length=1, max_length=200)
    """Its name."""


class DeleteSession(Body):
    """Body of ``POST /rl/delete_session``."""

    session_id: str
    """The session."""


class EndSession(Body):
    """Body of ``POST /rl/end_session``."""

    session_id: str | None = None
    """With the admin key: the session to end."""


class SetTopic(Body):
    """Body of ``POST /rl/set_topic``."""

    topic: Topic
    """What the session is about; sessions of one topic share a baseline."""
    session_id: str | None = None
    """With the admin key: the session that is meant."""


MAX_FEEDBACK_CHARS = 1000
"""Length of the sentence that may go with a reward."""


class SetReward(Body):
    """Body of ``POST /rl/set_reward``."""

    reward: Any = None
    """The reward: a finite number in ``training.reward.range``; None, with ``feedback`` alone,
    keeps the one in force."""
    feedback: str | None = Field(None, max_length=MAX_FEEDBACK_CHARS)
    """A sentence that says why; empty takes it away, None keeps the one that was given."""
    interaction_id: str | None = None
    """Completion to reward alone; None rewards the episode."""
    model: str | None = None
    """Not needed; AReaL's clients may send it."""
    session_id: str | None = None
    """Session whose newest episode is meant; needed with the admin key unless an episode is."""
    episode_id: str | None = None
    """Episode that is meant."""


class UnsetReward(Body):
    """Body of ``POST /rl/unset_reward``."""

    session_id: str | None = None
    """Session whose newest episode is meant; needed with the admin key unless an episode is."""
    episode_id: str | None = None
    """Episode that is meant."""


class Pause(Body):
    """Body of ``POST /rl/pause``."""

    reason: str = Field("paused by a person", max_length=1000)
    """Shown wherever the trainer's state is."""


class Rollback(Body):
    """Body of ``POST /rl/rollback``."""

    policy_version: int = Field(ge=0, le=_MAX_ID)
    """Version whose weights and baselines become the current ones; 0 is the model."""


class PageQuery(BaseModel):
    """Query of ``GET /rl/sessions``."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    limit: int = Field(MAX_PAGE, ge=1, le=MAX_PAGE)
    """Rows at most."""


class EpisodesQuery(PageQuery):
    """Query of ``GET /rl/episodes``."""

    limit: int = Field(100, ge=1, le=MAX_PAGE)
    """Rows at most."""
    session_id: str | None = None
    """Only this session's."""
    group_id: str | None = None
    """Only this group's."""
    state: EpisodeState | None = None
    """Only those in this state."""
    after: str | None = None
    """Only those after this episode."""


class StepsQuery(PageQuery):
    """Query of ``GET /rl/steps``."""

    after: int = Field(-1, ge=-1, le=_MAX_ID)
    """Only those with a higher number."""


class CanariesQuery(BaseModel):
    """Query of ``GET /rl/canaries``."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    policy_version: int | None = Field(None, ge=0, le=_MAX_ID)
    """The version; None: the two newest that answered."""


class EventsQuery(BaseModel):
    """Query of ``GET /rl/events``."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    after: int | None = Field(None, ge=0, le=_MAX_ID)
    """Events after this one; None: from now on. The header ``Last-Event-ID`` wins."""


class Export(Body):
    """Body of ``POST /export_trajectories``."""

    session_ids: list[str] | None = None
    """Sessions whose episodes to export."""
    episode_ids: list[str] | None = None
    """Episodes to export."""
    style: Literal["individual", "concat"] = "individual"
    """individual: one row per completion · concat: one row per run of completions that continue
    each other."""
    discount: float = Field(1.0, ge=0, le=1)
    """Discount per completion, counted back from the last."""


class RegisterModel(Body):
    """Body of AReaL's ``POST /register_model``."""

    model: str = Field(min_length=1, max_length=200)
    """What requests will call it."""
    url: str = Field(pattern="^https?://")
    """Base URL of an OpenAI-compatible server, such as ``https://llm.example/v1``."""
    api_key: str | None = None
    """Key of that server."""
    provider_model: str | None = None
    """What that server calls the model; None: the same."""
    policy_version: int | None = Field(None, ge=0)
    """Version of the policy that it serves, whose tokens are then trained; None: another model."""
    data_proxy_addrs: list[str] = Field(default_factory=list)
    """Without effect: the gateway records by itself."""


class DeregisterModel(Body):
    """Body of ``POST /deregister_model``."""

    model: str
    """The name that was registered."""


class SetVersion(Body):
    """Body of AReaL's ``POST /set_version``."""

    version: int = Field(ge=0)
    """The policy version that the caller takes for the served one."""


class StreamOptions(Body):
    """OpenAI's ``stream_options``."""

    include_usage: bool | None = None
    """Whether a last chunk says how many tokens there were."""
    include_obfuscation: bool | None = None
    """Without effect: nothing is obfuscated."""
    continuous_usage_stats: Literal[False] | None = None
    """vLLM's; not offered."""


MAX_CHOICES = 16
"""Replies to one request; more are to be asked for in several."""


class SamplingRequest(Body):
    """What OpenAI's two completion APIs share; null means the default, as it does there."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    model: str | None = None
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    stop: Any = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    # Only their neutral value can be honoured.
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    min_p: float | None = None
    logit_bias: dict[str, Any] | None = None
    # Without effect on what is answered.
    user: str | None = None


class ChatRequest(SamplingRequest):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    # Without effect on what is answered.
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
