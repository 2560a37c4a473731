"""What the inference gateway answers with, as models. Free of torch.

The gateway builds these models and sends the fields that were set; the client returns the same
models. A field that an older gateway leaves out has its default. Shapes that the trainer keeps as
they are sent (``Session``, ``CanaryAnswer``, ``Event``) are in ``types``.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from hermes_tui_training.api.types import (
    Completion,
    CompletionKind,
    CompletionStatus,
    Episode,
    EpisodeState,
    RewardEntry,
    UntrainableReason,
)

TrainerActivity = Literal["starting", "waiting", "training", "publishing", "paused", "stopped"]
"""waiting: ``reason`` says for what · paused: until somebody resumes."""


SUCCESS: Final = "success"
"""AReaL's word for: it was done."""


class WireModel(BaseModel):
    """An answer, or a part of one; fields that it does not know are left out."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


# -- sessions and rewards -------------------------------------------------------------------------


class StartedSession(WireModel):
    """One session that was started."""

    session_id: str
    """The session."""
    session_api_key: str
    """Its key."""


class StartedSessions(WireModel):
    """Answer of ``POST /rl/start_session``; the first session is also named at the top."""

    session_id: str
    """The first session."""
    api_key: str
    """Its key."""
    group_id: str
    """The group of all of them."""
    sessions: tuple[StartedSession, ...]
    """All of them, siblings of one group."""


class EndedSession(WireModel):
    """Answer of ``POST /rl/end_session``."""

    message: Literal["success"] = SUCCESS
    """Always ``success``."""
    session_id: str
    """The session."""
    episode_id: str | None = None
    """Its newest episode; None when nothing was recorded."""
    interaction_count: int = 0
    """Completions of that episode."""


class CompletionsKey(WireModel):
    """Answer of ``POST /rl/completions_key``."""

    api_key: str
    """Good for completions under the caller's session and for the list of models, and for nothing
    else; it works for as long as the session's own key does."""
    session_id: str
    """The session."""


class SessionChanged(WireModel):
    """Answer of ``POST /rl/rename_session`` and ``/rl/delete_session``."""

    message: Literal["success"] = SUCCESS
    """Always ``success``."""
    session_id: str
    """The session."""


class RewardAnswer(WireModel):
    """Answer of ``POST /rl/set_reward``."""

    message: Literal["success"] = SUCCESS
    """Always ``success``."""
    interaction_count: int
    """Completions of the episode."""
    session_id: str
    """Its session."""
    episode_id: str
    """The episode that was judged."""
    trajectory_id: str
    """The same id, under AReaL's name."""
    trajectory_ready: bool = True
    """Always true: the trainer may take it."""
    ready_transition: bool
    """Whether this is the episode's first reward."""
    reward: float
    """The reward that was given."""
    warning: str | None = None
    """Why the episode will not be trained, as a sentence; left out when it will."""
    will_train: bool = True
    """Whether it will be trained, as things are."""
    reason: str | None = None
    """Why not: one of the reasons of docs/learning.md; None when it will."""


class UnsetRewardAnswer(WireModel):
    """Answer of ``POST /rl/unset_reward``."""

    message: Literal["success"] = SUCCESS
    """Always ``success``."""
    session_id: str
    """The episode's session."""
    episode_id: str
    """The episode that has no reward any more."""
    state: EpisodeState
    """Its state now."""


class TopicAnswer(WireModel):
    """Answer of ``POST /rl/set_topic``."""

    message: Literal["success"] = SUCCESS
    """Always ``success``."""
    session_id: str
    """The session; its siblings have the same topic."""
    topic: str
    """What they are about now."""


# -- episodes -------------------------------------------------------------------------------------


class EpisodeHead(WireModel):
    """What is said of an episode wherever it appears."""

    episode_id: str
    """``ep-`` and a unique part."""
    session_id: str
    """Session it belongs to."""
    group_id: str
    """Siblings of one task share it."""
    task_id: str
    """The task."""
    state: EpisodeState
    """Where it is on the way to the weights."""
    reward: float | None = None
    """Reward in force; None before the first."""
    feedback: str | None = None
    """The sentence that goes with it; None without one."""
    scored_at: float | None = None
    """When the reward in force was given, seconds since the epoch."""
    created_at: float
    """When it was opened, seconds since the epoch."""
    step: int | None = None
    """The step that trained it."""
    dropped_reason: str | None = None
    """Why it will never be trained."""
    policy_version_min: int | None = None
    """Oldest version among its sampled tokens; None without any."""
    policy_version_max: int | None = None
    """Newest version among its sampled tokens; None without any."""
    staleness: int | None = None
    """Versions that its oldest token is behind the served one; None once it is trained or dropped,
    or without a token."""


class EpisodeSummary(EpisodeHead):
    """One row of ``GET /rl/episodes``: an episode without its completions."""

    num_completions: int
    """How many completions it has."""
    num_trainable: int = 0
    """How many of them may be trained."""
    num_lost: int = 0
    """How many of them were lost when the process died."""
    will_train: bool = True
    """Whether a reward would train it, as things are; known before there is one."""
    reason: str | None = None
    """Why not: one of the reasons of docs/learning.md; None when it would. A reply that is
    ``truncated`` or ``client_left`` is trained by a reward that names it (``interaction_id``)."""


class TopLogprob(WireModel):
    """One of the likeliest tokens at a position."""

    token_id: int
    """The token."""
    token: str
    """Its text, decoded alone."""
    logprob: float
    """Natural log, at the sampling temperature."""


class Sampling(WireModel):
    """How a completion was sampled; an API's own settings stand beside these."""

    model_config = ConfigDict(extra="allow", frozen=True)

    temperature: float | None = None
    """0 is greedy."""
    top_p: float | None = None
    """Share of probability that is sampled from."""
    top_k: int | None = None
    """Number of tokens that is sampled from."""
    seed: int | None = None
    """The request's seed."""
    max_tokens: int | None = None
    """Tokens at most."""


class FirstDifference(WireModel):
    """Where a prompt leaves the recorded tokens."""

    index: int
    """Position in the prompt."""
    recorded_token_id: int
    """The token that was recorded there."""
    recorded_text: str
    """Its text."""
    token_id: int
    """The token that the prompt has there."""
    text: str
    """Its text."""
    why: str
    """Why the record was not continued, in words."""


class Prefix(WireModel):
    """What a prompt has in common with a completion before it."""

    parent_completion_id: str | None = None
    """The completion that it shares most with; None without any."""
    shared_token_count: int = 0
    """How many first tokens are the parent's prompt and sampled tokens."""
    first_difference: FirstDifference | None = None
    """Where the two differ; None when the prompt continues the parent."""


class Latency(WireModel):
    """How long a completion took."""

    ttft_s: float | None = None
    """Seconds to the first token; None before it."""
    total_s: float | None = None
    """Seconds to the end; None while in flight."""


class Usage(WireModel):
    """How many tokens a completion has."""

    prompt_tokens: int
    """Of the prompt."""
    completion_tokens: int
    """Sampled."""
    total_tokens: int
    """Both."""


class CompletionRecord(WireModel):
    """One recorded completion, in ``EpisodeRecord.completions``."""

    completion_id: str
    """Its id, which ``set_reward`` takes as ``interaction_id``."""
    episode_id: str
    """Episode it belongs to."""
    turn_index: int
    """Position in its episode, from 0."""
    created_at: float
    """When the request arrived, seconds since the epoch."""
    prompt_token_ids: tuple[int, ...]
    """What the engine was given."""
    prompt_texts: tuple[str, ...] = ()
    """The text of each prompt token, decoded in order: joined they are the prompt's text."""
    token_ids: tuple[int, ...]
    """What the engine sampled, the stop token included."""
    texts: tuple[str, ...] = ()
    """The text of each sampled token, decoded in order: joined they are the reply's text."""
    logprobs: tuple[float, ...]
    """Natural log, at the sampling temperature; as long as token_ids."""
    policy_versions: tuple[int, ...]
    """Version that sampled each token; as long as token_ids."""
    top_logprobs: tuple[tuple[TopLogprob, ...], ...] = ()
    """The likeliest tokens at each position; empty when none were asked for."""
    removed_probs: tuple[float, ...] = ()
    """Of each sampled token the probability of what the request's grammar ruled out there; from
    1e-6 on the token is not trained. Empty without a grammar."""
    finish_reason: str | None = None
    """``stop``, ``tool_calls``, ``length``; None while in flight or when it broke off."""
    sampling: Sampling = Sampling()
    """How it was sampled."""
    request_messages: tuple[dict[str, Any], ...] = ()
    """The client's messages, as it sent them."""
    tools: tuple[dict[str, Any], ...] = ()
    """The client's tools, as it sent them."""
    message: dict[str, Any] | None = None
    """OpenAI's assistant message that was answered; None while in flight."""
    latency: Latency = Latency()
    """How long it took."""
    trainable: bool = True
    """Whether the trainer may use it."""
    untrainable_reason: UntrainableReason | None = None
    """Why not, when it may not."""
    prefix: Prefix = Prefix()
    """What its prompt has in common with a completion before it."""
    kind: CompletionKind = "turn"
    """The agent's own turn, or a call beside it."""
    status: CompletionStatus = "finished"
    """Whether its outcome is recorded."""
    error: str | None = None
    """Why generation broke off."""
    reward: float | None = None
    """Reward of this completion alone."""
    advantage: float | None = None
    """What its tokens were weighted with, once trained."""
    proximal_logprobs: tuple[float, ...] = ()
    """Recomputed before the step that trained it, one per token that was trained; or empty."""
    after_logprobs: tuple[float, ...] = ()
    """Recomputed after that step, as many; or empty."""
    usage: Usage | None = None
    """How many tokens it has."""

    def to_completion(self) -> Completion:
        """Return what was recorded, without the texts of tokens."""
        return Completion(
            completion_id=self.completion_id,
            episode_id=self.episode_id,
            turn_index=self.turn_index,
            created_at=self.created_at,
            prompt_token_ids=self.prompt_token_ids,
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            policy_versions=self.policy_versions,
            top_logprobs=tuple(
                tuple((top.token_id, top.logprob) for top in tops) for tops in self.top_logprobs
            ),
            removed_probs=self.removed_probs,
            finish_reason=self.finish_reason,
            sampling=self.sampling.model_dump(exclude_unset=True),
            request_messages=list(self.request_messages),
            tools=list(self.tools),
            message=self.message,
            latency=self.latency.model_dump(exclude_unset=True),
            trainable=self.trainable,
            untrainable_reason=self.untrainable_reason,
            prefix=self.prefix.model_dump(exclude_unset=True),
            kind=self.kind,
            status=self.status,
            error=self.error,
            reward=self.reward,
            advantage=self.advantage,
            proximal_logprobs=self.proximal_logprobs,
            after_logprobs=self.after_logprobs,
        )


class EpisodeRecord(EpisodeHead):
    """Answer of ``GET /rl/episodes/{episode_id}``: an episode with all that was recorded."""

    reward_log: tuple[RewardEntry, ...] = ()
    """Every reward that was given, oldest first; those that were taken back, too."""
    incomplete: bool = False
    """Whether a completion of it was lost: it is never trained."""
    completions: tuple[CompletionRecord, ...] = ()
    """In order of arrival."""

    def to_episode(self) -> Episode:
        """Return what was recorded, without the texts of tokens."""
        return Episode(
            episode_id=self.episode_id,
            session_id=self.session_id,
            group_id=self.group_id,
            task_id=self.task_id,
            state=self.state,
            reward=self.reward,
            reward_log=self.reward_log,
            feedback=self.feedback,
            scored_at=self.scored_at,
            created_at=self.created_at,
            step=self.step,
            dropped_reason=self.dropped_reason,
            completions=tuple(completion.to_completion() for completion in self.completions),
        )


class SampledTokens(WireModel):
    """Payload of the event ``completion.tokens``: tokens of a completion that is in flight."""

    completion_id: str
    """The completion."""
    session_id: str
    """Its session."""
    episode_id: str
    """Its episode."""
    start: int
    """Position of the first token among the sampled ones."""
    token_ids: tuple[int, ...]
    """The tokens."""
    texts: tuple[str, ...]
    """Their texts, as many; joined they are the reply's text."""
    logprobs: tuple[float, ...]
    """Natural log, at the sampling temperature; as many."""
    policy_versions: tuple[int, ...]
    """Version that sampled each; as many."""


# -- steps and the trainer ------------------------------------------------------------------------


class StepSeconds(WireModel):
    """Where a step's time went, in seconds; None where it does not apply."""

    wait: float | None = None
    """Without work before the claim."""
    claim: float | None = None
    """To claim episodes and make samples."""
    recompute: float | None = None
    """The trials of the search: log-probabilities after."""
    update: float | None = None
    """Log-probabilities before, loss and gradient."""
    save: float | None = None
    """To write the checkpoint."""
    publish: float | None = None
    """Until the engine served it."""
    total: float | None = None
    """From the claim until it was served, without the wait."""


class StepRecord(WireModel):
    """One row of ``GET /rl/steps``: an optimizer step, or a rollback.

    A rollback has ``rolled_back_to``, no episodes, and None for what only a step has. Means are
    over the step's trained tokens unless they say otherwise.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    step: int
    """Its number."""
    policy_version: int
    """The version it made."""
    rolled_back_to: int | None = None
    """The version whose weights a rollback copied; None for a step."""
    base: str | None = None
    """``model.path`` that the version is trained from; None in rows from before."""
    adapter: str | None = None
    """Which of the base's adapters it is; None for the only one."""
    parent: int | None = None
    """The version that it was made from; None in rows from before."""
    episode_ids: tuple[str, ...] = ()
    """The episodes it trained."""
    num_groups: int | None = None
    """Groups among them."""
    reward_mean: float | None = None
    """Mean reward of the episodes."""
    reward_min: float | None = None
    """Smallest reward."""
    reward_max: float | None = None
    """Largest reward."""
    advantage_mean: float | None = None
    """Mean advantage of the trained completions."""
    num_praised: int | None = None
    """Completions that it was to make likelier."""
    num_punished: int | None = None
    """Those that it was to make less likely."""
    baseline: float | None = None
    """Mean baseline that the rewards were measured against."""
    num_prompt_tokens: int | None = None
    """Tokens in the samples that the loss is not on."""
    staleness_mean: float | None = None
    """Versions between a token's sampling and this step."""
    staleness_max: int | None = None
    """The largest."""
    loss: float | None = None
    """The loss that was minimized."""
    grad_norm: float | None = None
    """Norm of the whole gradient."""
    learning_rate: float | None = None
    """Length that the search found: what the step's direction was multiplied with."""
    step_frac: float | None = None
    """Share of the wanted move that was made; less than about 1.0 where ``limit`` says why."""
    target_nats: float | None = None
    """Wanted change of the judged tokens' mean log-probability, in the judged direction."""
    moved_nats: float | None = None
    """The change that was made, measured after the update."""
    limit: str | None = None
    """Why it moved less than wanted: ``certain``, ``step_kl``, ``reference_drift``, ``not_finite``,
    ``search``; None when it did not."""
    num_trials: int | None = None
    """Lengths that were tried."""
    num_certain: int | None = None
    """Completions with praise that counted less or not at all, since they are near certain."""
    reference_logprob: float | None = None
    """Mean log-probability of the reference text's tokens after the update, nats."""
    reference_drift: float | None = None
    """How far that is below where training began; negative when it rose."""
    reference_kl: float | None = None
    """KL(weights that training started from, policy) on the reference text, nats a token."""
    reply_alike_frac: float | None = None
    """Share of the last ten replies that begin with the same word."""
    reply_repetition: float | None = None
    """Share of runs of three words that those replies had before."""
    reply_length_mean: float | None = None
    """Their mean number of tokens."""
    warnings: dict[str, str] | None = None
    """What a person should look at, a sentence by its name: ``one_answer``, ``repetition``,
    ``length``, ``entropy``, ``reference``; empty when all is well."""
    ratio_mean: float | None = None
    """Policy after over before the update."""
    ratio_max: float | None = None
    """The largest."""
    clip_frac: float | None = None
    """Share of tokens that the update moved past the clip's bound."""
    rejected_frac: float | None = None
    """Share of tokens left out because sampler and learner disagree too much."""
    kl_behavior: float | None = None
    """KL(sampler, learner before), nats a token."""
    kl_reference: float | None = None
    """KL(policy, weights that training started from), nats a token."""
    kl_step: float | None = None
    """KL(before, after) over the whole vocabulary, nats a token."""
    entropy: float | None = None
    """Entropy before the update, nats a token."""
    num_trained_tokens: int | None = None
    """Tokens that the loss was on."""
    gap_mean: float | None = None
    """Logprob mismatch: mean |sampler's - learner's log-probability| before the update, nats."""
    gap_max: float | None = None
    """The largest."""
    logprob_before: float | None = None
    """Mean log-probability just before the update."""
    logprob_after: float | None = None
    """Mean log-probability just after it."""
    seconds: StepSeconds = StepSeconds()
    """Where the time went."""
    published: bool | None = None
    """Whether the engine took the weights."""
    score_to_weights_s: float | None = None
    """Seconds from the first reward until the weights were served."""
    finished_at: float | None = None
    """When it was recorded, seconds since the epoch."""


class TrainerState(WireModel):
    """What the trainer's loop does, and why it does nothing when it does not."""

    state: TrainerActivity
    """What it does."""
    reason: str = ""
    """What it waits for, or works on, in words."""
    paused: bool = False
    """Whether it begins no further step."""
    pause_reason: str | None = None
    """Why."""
    policy_version: int
    """Version of the last recorded step; 0 before the first."""
    served_version: int | None = None
    """Version that the engine samples with; None before it is known."""
    kept_versions: tuple[int, ...] = ()
    """Versions that can be made current again, ascending; 0 is the model it began with."""
    problem: str | None = None
    """Why the last try to train or to serve came to nothing; None when it did not."""
    publish_error: str | None = None
    """Why the engine does not serve the current version."""
    failed_attempts: int = 0
    """Failed steps in a row."""
    notices: tuple[str, ...] = ()
    """What was found damaged or lost since the trainer started, and what took its place."""


class WaitingGroup(WireModel):
    """A group that waits for siblings to be scored."""

    group_id: str
    """The group."""
    task_id: str
    """Its task."""
    num_scored: int
    """Siblings that have a reward."""
    num_siblings: int
    """All siblings."""
    seconds_left: float
    """Seconds until it is trained without the others."""


class StoreSize(WireModel):
    """How much is recorded."""

    num_bytes: int
    """Size of what is stored."""
    max_bytes: int
    """``training.store.max_bytes``; 0 is no bound."""


class LearnerPresence(WireModel):
    """The learner's process."""

    reachable: bool
    """Whether it lives and is not stopped."""
    pid: int | None = None
    """Process id; None when it was never started."""


class EngineStatus(WireModel):
    """What the engine does."""

    backend: str
    """Which engine it is."""
    num_running: int
    """Requests being decoded."""
    num_waiting: int
    """Requests that wait for a slot."""
    paused: bool
    """Whether sampling is held."""
    tokens_per_s: float
    """Sampled tokens per second over the last seconds, all requests together."""
    cached_tokens: int
    """Tokens whose keys and values are kept for later prompts."""
    prefix_hit_tokens: int
    """Prompt tokens that did not have to be computed, since start."""
    prompt_tokens: int
    """Prompt tokens received, since start."""


class TrainerStatus(TrainerState):
    """Answer of ``GET /rl/status``."""

    batch_size: int
    """Scored groups and lone episodes that make a step."""
    num_scored: int
    """Those that are ready."""
    groups: tuple[WaitingGroup, ...] = ()
    """Groups that wait for siblings."""
    episodes: dict[EpisodeState, int]
    """Number of episodes by state."""
    sessions: int
    """Sessions that run."""
    untrained: dict[str, int]
    """Completions that may not be trained, by reason."""
    baselines: dict[str, float] = {}
    """Running mean rewards by topic and turn (the second turn's is ``topic #2``), and the run's
    under the empty name; none when ``training.reward.baseline_decay`` is 1."""
    store: StoreSize
    """How much is recorded."""
    waiting: str
    """What the next step waits for, in words."""
    learner: LearnerPresence
    """The learner's process."""
    engine: EngineStatus
    """The engine."""


class KeptCheckpoint(WireModel):
    """Answer of ``POST /rl/checkpoint``."""

    policy_version: int
    """The version that is kept for good."""
    path: str
    """Directory of its checkpoint."""


class GatewayHealth(WireModel):
    """Answer of ``GET /health``."""

    status: Literal["ok", "degraded"] = "ok"
    """Whether all of it works."""
    problem: str | None = None
    """Which part does not, and what that means, in one sentence; None when all of it works."""
    backend: str
    """Which engine samples."""
    sessions: int
    """Sessions that run."""
    paused: bool
    """Whether training is paused."""
    policy_version: int
    """Version that the engine samples with."""


class ServedModel(WireModel):
    """One row of ``GET /v1/models``."""

    id: str
    """Its name."""
    object: Literal["model"] = "model"
    """OpenAI's name of this shape."""
    created: int = 0
    """Always 0."""
    owned_by: str = ""
    """Always ours."""
    max_model_len: int
    """Tokens of prompt and reply at most."""
    policy_version: int
    """Version that the engine samples with."""


class ServedModels(WireModel):
    """Answer of ``GET /v1/models``."""

    object: Literal["list"] = "list"
    """OpenAI's name of this shape."""
    data: tuple[ServedModel, ...]
    """The model that is served."""
    models: tuple[str, ...] = ()
    """Its name and those of other servers' registered models, as AReaL's gateway lists them."""
