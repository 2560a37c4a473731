"""What the trainer records and trains: completions, episodes, steps. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

EpisodeState = Literal["open", "ended", "unscored", "scored", "claimed", "trained", "dropped"]
"""open: takes completions · ended: closed, being judged · unscored: closed without a reward ·
scored: has a reward, waits for the trainer · claimed: in the step that runs · trained: in a
step's row · dropped: will never be trained, ``dropped_reason`` says why."""

CompletionStatus = Literal["running", "finished", "lost"]
"""running: the engine works on it · finished: its outcome is recorded, whatever it was ·
lost: the process died before its outcome was recorded."""

EndReason = Literal["asked", "refreshed", "idle", "other_model"]
"""asked: by a request · refreshed: another session runs under its key · idle: it had no completion
for ``training.gateway.session_timeout_s`` · other_model: another model is served now."""

CompletionKind = Literal["turn", "aux", "choice"]
"""turn: the agent's own turn · aux: a summary, a retry or another call beside it · choice: another
choice of a turn's request (``n``), with which the conversation does not go on."""

UntrainableReason = Literal[
    "no_token_ids",
    "truncated",
    "client_left",
    "aux_call",
    "sampling_mismatch",
    "constrained",
    "other_choice",
    "stale",
    "zero_advantage",
    "engine_error",
    "external_model",
    "lost",
]
"""Why a completion is never trained; see docs/learning.md."""

NOT_OURS = -1
"""Policy version of a token that another model sampled."""

NAMED_REASONS: tuple[UntrainableReason, ...] = ("truncated", "client_left", "other_choice")
"""Replies that were cut or stopped, or are another choice than the one that counts. Their tokens
are the policy's own: a reward that names such a reply (``interaction_id``) trains it, one that it
merely inherits does not."""

CONSTRAINED_FROM = 1e-6
"""A token is trained only where the grammar of its request ruled out less than this probability.
Where it ruled out more, the token says what was asked for, and not what the policy would do."""


def trained_where(removed_probs: Sequence[float], num_tokens: int) -> tuple[bool, ...]:
    """Return of each sampled token whether the loss may be on it.

    Args:
        removed_probs: as ``Completion`` has them.
        num_tokens: how many were sampled.
    """
    if not removed_probs:
        return (True,) * num_tokens
    return tuple(prob < CONSTRAINED_FROM for prob in removed_probs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled sequence, as it was sampled."""

    completion_id: str
    """``chatcmpl-`` and a unique part."""
    episode_id: str
    """Episode it belongs to."""
    turn_index: int
    """Position in its episode, from 0."""
    created_at: float
    """When the request arrived, seconds since the epoch."""
    prompt_token_ids: tuple[int, ...]
    """What the engine was given."""
    token_ids: tuple[int, ...]
    """What the engine sampled, the stop token included."""
    logprobs: tuple[float, ...]
    """Natural log, float32, at the sampling temperature; as long as token_ids."""
    policy_versions: tuple[int, ...]
    """Version that sampled each token, -1 for another model's; as long as token_ids."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token its likeliest (id, logprob) pairs; empty when the client asked for none."""
    removed_probs: tuple[float, ...] = ()
    """Per token the probability, under the logprobs' distribution, of what the request's grammar
    ruled out there; empty without a grammar."""
    finish_reason: str | None
    """``stop``, ``tool_calls``, ``length``; None while in flight or when it broke off."""
    sampling: dict[str, Any]
    """temperature, top_p, top_k, seed, max_tokens."""
    request_messages: list[dict[str, Any]]
    """The client's messages."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """The client's tools."""
    message: dict[str, Any] | None
    """The assistant message that was answered; None while in flight."""
    latency: dict[str, float] = field(default_factory=dict)
    """ttft_s, total_s."""
    trainable: bool
    """Whether the trainer may use it."""
    untrainable_reason: UntrainableReason | None = None
    """Why not, when it may not."""
    prefix: dict[str, Any] = field(default_factory=dict)
    """parent_completion_id, shared_token_count, first_difference."""
    kind: CompletionKind = "turn"
    """The agent's own turn, or a call beside it."""
    status: CompletionStatus = "finished"
    """Whether its outcome is recorded."""
    error: str | None = None
    """Why generation broke off, or None."""
    reward: float | None = None
    """Reward of this completion alone, when one was given with its interaction_id."""
    advantage: float | None = None
    """What its tokens were weighted with, once trained."""
    proximal_logprobs: tuple[float, ...] = ()
    """Recomputed by the learner before its step, one per token that ``loss_mask`` has; or empty."""
    after_logprobs: tuple[float, ...] = ()
    """Recomputed by the learner after its step, as many; or empty."""

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """Of each sampled token whether the loss may be on it; see ``CONSTRAINED_FROM``."""
        return trained_where(self.removed_probs, len(self.token_ids))

    @property
    def learnable(self) -> bool:
        """Whether a step takes it: it may be trained, or a reward names a reply that was cut."""
        named = self.reward is not None and self.untrainable_reason in NAMED_REASONS
        return any(self.loss_mask) and (self.trainable or named)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRef:
    """The completion that another one begins with; of the other only what is new is stored."""

    completion_id: str
    """The recorded completion."""
    num_tokens: int
    """How many first tokens of its prompt and sampled tokens the other's prompt begins with."""
    num_messages: int
    """How many first messages of its request the other's request begins with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutcome:
    """How a completion ended."""

    completion_id: str
    """The completion."""
    prompt_token_ids: Sequence[int] | None = None
    """What another model's server says its prompt was; None: as it was recorded at the start."""
    token_ids: Sequence[int]
    """What was sampled, so far when it broke off."""
    logprobs: Sequence[float]
    """As many."""
    policy_versions: Sequence[int]
    """As many."""
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per token its likeliest (id, logprob) pairs; empty when the client asked for none."""
    removed_probs: Sequence[float] = ()
    """As many, or empty without a grammar; see ``Completion``."""
    finish_reason: str | None
    """None when it broke off."""
    message: dict[str, Any] | None
    """The assistant message that was answered."""
    latency: dict[str, float]
    """ttft_s, total_s."""
    trainable: bool
    """Whether the trainer may use it."""
    untrainable_reason: UntrainableReason | None
    """Why not, when it may not."""
    error: str | None = None
    """Why generation broke off, or None."""

    def __post_init__(self) -> None:
        """Refuse an outcome whose counts disagree.

        Raises: ValueError.
        """
        if not len(self.token_ids) == len(self.logprobs) == len(self.policy_versions):
            raise ValueError("token_ids, logprobs and policy_versions differ in length")
        if self.removed_probs and len(self.removed_probs) != len(self.token_ids):
            raise ValueError("token_ids and removed_probs differ in length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One session key and what it recorded."""

    session_id: str
    """``sess-`` and a unique part."""
    task_id: str
    """The task that start_session named."""
    group_id: str
    """Siblings of one task share it."""
    created_at: float
    """When it was started, seconds since the epoch."""
    ended_at: float | None = None
    """When it was ended, seconds since the epoch; None while its key works."""
    end_reason: EndReason | None = None
    """Why it was ended; None while its key works, and where that was not kept."""
    last_active_at: float
    """When its last completion began; its start before the first."""
    title: str | None = None
    """The name it was given, else the first words that were said in it; None before them."""
    branch_of: str | None = None
    """The session whose conversation it goes on with from an earlier turn; None for no branch."""
    topic: str = ""
    """What it is about, see ``training.topics``; its task until something is said."""
    sampled_by: str | None = None
    """The model that sampled it, while another one is served; None: the one that is."""
    num_episodes: int = 0
    """How many episodes it has."""
    num_completions: int = 0
    """How many completions it has, over all episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageId:
    """Versions that continue each other: those of one adapter of one base model."""

    base: str
    """``model.path`` that they are trained from."""
    adapter: str = ""
    """Which of the base's adapters they are; empty is the only one."""

    @property
    def name(self) -> str:
        """What a person calls it."""
        return f"{self.base} ({self.adapter})" if self.adapter else self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One change; the kinds are in ``protocol.EventKind``."""

    kind: str
    """What happened."""
    payload: dict[str, Any]
    """What changed, as JSON."""
    at: float
    """When, seconds since the epoch."""
    event_id: int | None = None
    """Larger for each later event that is stored; None for an event that is not stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardEntry:
    """One reward that was given."""

    reward: float
    """The reward."""
    interaction_id: str | None
    """The completion that was rewarded alone; None for the whole episode."""
    at: float
    """When it was given, seconds since the epoch."""
    feedback: str | None = None
    """The sentence that came with it, or was added to it."""
    taken_back_at: float | None = None
    """When it was taken back, seconds since the epoch; None while it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What one reward judges: completions of one session, in order."""

    episode_id: str
    """``ep-`` and a unique part."""
    session_id: str
    """Session it belongs to."""
    group_id: str
    """Siblings of one task share it."""
    task_id: str
    """The task that start_session named."""
    topic: str = ""
    """What its session is about now; empty where that is not known."""
    sampled_by: str | None = None
    """The model that sampled it, while another one is served; None: the one that is."""
    state: EpisodeState
    """Where it is on the way to the weights."""
    reward: float | None
    """Reward in force: the last one given to the whole episode (its last trainable completion), or,
    when only single completions were rewarded, the last of those; None before the first."""
    reward_log: tuple[RewardEntry, ...] = ()
    """Every reward that was given, oldest first; those that were taken back, too."""
    feedback: str | None = None
    """The sentence that goes with the reward in force; None without one."""
    scored_at: float | None = None
    """When the reward in force was given, seconds since the epoch."""
    created_at: float
    """When it was opened, seconds since the epoch."""
    step: int | None = None
    """The step that trained it."""
    dropped_reason: str | None = None
    """Why it will never be trained."""
    completions: tuple[Completion, ...] = ()
    """In order of arrival."""

    @property
    def incomplete(self) -> bool:
        """Whether the outcome of one of its completions was lost: it is never trained."""
        return any(c.status == "lost" for c in self.completions)

    @property
    def obstacle(self) -> str | None:
        """Why it would not be trained, as things are; None when it would."""
        if self.dropped_reason is not None:
            return self.dropped_reason
        if self.incomplete:
            return "incomplete"
        if self.sampled_by is not None and self.state != "trained":
            return "other_model"
        if not self.completions or any(completion.learnable for completion in self.completions):
            return None
        reasons = [c.untrainable_reason for c in self.completions if c.kind == "turn"]
        reasons += [c.untrainable_reason for c in self.completions]
        return next((reason for reason in reasons if reason), "no_token_ids")

    @property
    def policy_version_min(self) -> int | None:
        """Oldest version among its sampled tokens; None without any."""
        return min(self._policy_versions, default=None)

    @property
    def policy_version_max(self) -> int | None:
        """Newest version among its sampled tokens; None without any."""
        return max(self._policy_versions, default=None)

    @property
    def _policy_versions(self) -> list[int]:
        return [v for c in self.completions for v in c.policy_versions if v != NOT_OURS]


CanaryStatus = Literal["answered", "skipped", "failed"]
"""answered: by its version from the first token to the last · skipped: a newer version came ·
failed: the engine could not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryAnswer:
    """A version's answer to one fixed question; it belongs to no session and is never trained."""

    policy_version: int
    """The version."""
    position: int
    """Of the question in the configuration, from 0."""
    prompt: str
    """The question."""
    status: CanaryStatus
    """Whether there is an answer."""
    reason: str | None = None
    """Why there is none."""
    text: str = ""
    """The answer, without its stop token."""
    token_ids: tuple[int, ...] = ()
    """What was sampled, greedily, the stop token included."""
    logprobs: tuple[float, ...] = ()
    """Natural log, at temperature 1; as long as token_ids."""
    finish_reason: str | None = None
    """``stop`` or ``length``; None without an answer."""
    seconds: float = 0.0
    """How long it took."""
    at: float
    """When it was given, seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedCompletion:
    """What a step did to one completion."""

    completion_id: str
    """The completion."""
    advantage: float
    """Weight of its tokens in the loss."""
    proximal_logprobs: tuple[float, ...]
    """Recomputed before the update; one per token that the loss was on."""
    after_logprobs: tuple[float, ...]
    """Recomputed after the update; one per token that the loss was on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSpan:
    """Where one trainable completion's sampled tokens lie in a sample."""

    completion_id: str
    """The completion."""
    start: int
    """Index of its first sampled token."""
    num_tokens: int
    """How many of the tokens that it sampled the loss is on, at least 1."""
    advantage: float
    """What all these tokens are weighted with in the loss."""
    temperature: float
    """What its logits were divided by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One flat token sequence; the loss is on the tokens whose mask is true."""

    episode_id: str
    """Episode whose reward it learns from."""
    token_ids: tuple[int, ...]
    """[T tokens] prompt and sampled tokens, as the engine saw them."""
    loss_mask: tuple[bool, ...]
    """[T] true on sampled tokens of trainable completions, but for constrained ones."""
    behavior_logprobs: tuple[float, ...]
    """[T] natural log, as sampled; 0.0 where the mask is false."""
    policy_versions: tuple[int, ...]
    """[T] version that sampled the token; -1 where the mask is false."""
    spans: tuple[SampledSpan, ...]
    """Its trainable completions, in order; together they cover the mask."""

    @property
    def num_trainable_tokens(self) -> int:
        """Tokens that the loss is on."""
        return sum(span.num_tokens for span in self.spans)
