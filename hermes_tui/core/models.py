"""What the views show of the stack: small, frozen rows.

Each row is made by its ``of`` from the model that a service's client returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hermes_tui_training.api.types import CanaryAnswer, Session, trained_where
from hermes_tui_training.api.wire import (
    CompletionRecord,
    EpisodeRecord,
    EpisodeSummary,
    SampledTokens,
    StepRecord,
    StepSeconds,
    TopLogprob,
    TrainerStatus,
)

Message = Mapping[str, Any]
"""One chat message in OpenAI's shape."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStage:
    """What one process is doing while the stack starts."""

    process: str
    """Process name, or ``model`` while the embedded model is prepared."""
    state: str
    """A process state: starting, ready, failed; or waiting, for another process."""
    text: str = ""
    """What it is doing, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackInfo:
    """The stack that a view is attached to."""

    run_dir: str
    """Its run directory."""
    training: bool
    """Whether it has a trainer; without one nothing is recorded or scored."""
    model: str
    """The model's short name."""
    context_tokens: int = 0
    """Longest prompt with its reply that the model takes; 0 where that is not known."""
    workdir: str = ""
    """Directory under which each session's commands run; empty when the agent runs none."""
    cage: str = ""
    """What the agent's tools run in, as ``StackStatus.cage``; empty when it has none."""

    @property
    def warning(self) -> str:
        """What a person should know before the agent uses its first tool; empty: nothing."""
        if not self.cage.startswith("none"):
            return ""
        return (
            "The agent has tools and no cage: what you allow can read and change whatever you can, "
            f"your keys too. Every command asks first. ({self.cage}; docs/security.md)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewMemory:
    """What a view leaves behind for the next one that opens the same run directory."""

    session_id: str = ""
    """The session that was open; empty for none."""
    queued: tuple[str, ...] = ()
    """Messages of it that waited for a turn's end, the next one first."""
    draft: str = ""
    """What stood in the prompt and was not sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One session."""

    session_id: str
    """Its id."""
    task_id: str
    """The task it was started for."""
    title: str = ""
    """The first words that were said in it; empty before them, and where they are not kept."""
    topic: str = ""
    """What it is about; empty without a trainer."""
    sampled_by: str = ""
    """The model that sampled it, while another one is served; empty: the one that is."""
    group_id: str = ""
    """Siblings of one task share it."""
    created_at: float = 0.0
    """Seconds since the epoch."""
    branch_of: str = ""
    """The session whose conversation it goes on with; empty for no branch."""
    ended: bool = False
    """Whether its key takes no more completions."""
    timed_out: bool = False
    """Whether it was ended because nothing was said in it for too long."""
    num_turns: int = 0
    """Turns that the agent service keeps of it; 0 with a trainer, which does not count them."""

    @property
    def end_word(self) -> str:
        """How it ended; empty while it goes on."""
        return ("timed out" if self.timed_out else "ended") if self.ended else ""

    @classmethod
    def of(cls, session: Session) -> SessionRow:
        """Return a session of the trainer as a row."""
        return cls(
            session_id=session.session_id,
            task_id=session.task_id,
            title=session.title or "",
            topic=session.topic,
            sampled_by=session.sampled_by or "",
            group_id=session.group_id,
            created_at=session.created_at,
            branch_of=session.branch_of or "",
            ended=session.ended_at is not None,
            timed_out=session.end_reason == "idle",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRow:
    """One episode without its completions."""

    episode_id: str
    """Its id."""
    session_id: str
    """Session it belongs to."""
    state: str
    """open, ended, unscored, scored, claimed, trained, dropped."""
    reward: float | None = None
    """Reward in force."""
    feedback: str = ""
    """The sentence that goes with it; empty for none."""
    scored_at: float | None = None
    """When it was given, seconds since the epoch."""
    created_at: float = 0.0
    """Seconds since the epoch."""
    step: int | None = None
    """The step that trained it."""
    dropped_reason: str = ""
    """Why it will never be trained; empty when it may be."""
    policy_version: int | None = None
    """Newest version among its sampled tokens; None before the first."""
    staleness: int | None = None
    """Versions behind the one that serves."""
    num_completions: int | None = None
    """Recorded completions; None when not known yet."""
    num_trainable: int | None = None
    """Those that may be trained; None when not known yet."""
    incomplete: bool = False
    """Whether a completion was lost: then nothing of it is trained."""

    @classmethod
    def of(cls, episode: EpisodeSummary | EpisodeRecord) -> EpisodeRow:
        """Return an episode as a row."""
        if isinstance(episode, EpisodeSummary):
            num_completions, num_trainable = episode.num_completions, episode.num_trainable
            incomplete = episode.num_lost > 0
        else:
            num_completions = len(episode.completions)
            num_trainable = sum(completion.trainable for completion in episode.completions)
            incomplete = episode.incomplete
        return cls(
            episode_id=episode.episode_id,
            session_id=episode.session_id,
            state=episode.state,
            reward=episode.reward,
            feedback=episode.feedback or "",
            scored_at=episode.scored_at,
            created_at=episode.created_at,
            step=episode.step,
            dropped_reason=episode.dropped_reason or "",
            policy_version=episode.policy_version_max,
            staleness=episode.staleness,
            num_completions=num_completions,
            num_trainable=num_trainable,
            incomplete=incomplete,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token of a trajectory."""

    token_id: int
    """Its id in the model's vocabulary."""
    text: str
    """Its text; joined with the others it is the whole text."""
    logprob: float | None = None
    """Natural log at the sampling temperature; None for prompt tokens."""
    policy_version: int | None = None
    """Version that sampled it; None for prompt tokens."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """Likeliest (text, logprob) pairs of the other tokens, best first."""
    advantage: float | None = None
    """Its weight in the loss, once trained."""
    logprob_before: float | None = None
    """Recomputed just before the step that trained it."""
    logprob_after: float | None = None
    """Recomputed just after."""

    @property
    def sampled(self) -> bool:
        """Whether the model sampled it."""
        return self.logprob is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRow:
    """One recorded completion, as a view needs it."""

    completion_id: str
    """Its id."""
    created_at: float
    """When its request arrived, seconds since the epoch."""
    prompt: tuple[Token, ...]
    """What the engine was given."""
    tokens: tuple[Token, ...]
    """What it sampled."""
    finish_reason: str | None
    """None while in flight or when it broke off."""
    kind: str
    """turn, or aux for calls beside the agent's own turns."""
    trainable: bool
    """Whether the trainer may use it."""
    untrainable_reason: str
    """Why not; empty when it may."""
    num_constrained: int = 0
    """Tokens that the request's grammar constrained: they are not trained."""
    shared_tokens: int
    """How many of its first prompt tokens are the same as in the completion before it."""
    difference: str = ""
    """Why the next token differs; empty when the prompt continues the completion before it."""
    request_messages: tuple[Message, ...]
    """The client's messages."""
    message: Message
    """The assistant message; empty while in flight."""
    total_s: float
    """Seconds it took; 0.0 while in flight."""
    first_token_s: float = 0.0
    """Seconds until the first token: the engine read the prompt. 0.0 where that is not known."""

    @property
    def in_flight(self) -> bool:
        """Whether the engine still works on it."""
        return self.finish_reason is None and not self.untrainable_reason

    @classmethod
    def of(cls, completion: CompletionRecord) -> CompletionRow:
        """Return a recorded completion as a row."""
        difference = completion.prefix.first_difference
        return cls(
            completion_id=completion.completion_id,
            created_at=completion.created_at,
            prompt=prompt_tokens(completion),
            tokens=sampled_tokens(completion),
            finish_reason=completion.finish_reason,
            kind=completion.kind,
            trainable=completion.trainable,
            untrainable_reason=completion.untrainable_reason or "",
            num_constrained=_trained(completion).count(False),
            shared_tokens=completion.prefix.shared_token_count,
            difference=difference.why if difference else "",
            request_messages=completion.request_messages,
            message=completion.message or {},
            total_s=completion.latency.total_s or 0.0,
            first_token_s=completion.latency.ttft_s or 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeDetail:
    """One episode with everything that was recorded in it."""

    row: EpisodeRow
    """The episode."""
    completions: tuple[CompletionRow, ...]
    """In order of arrival."""

    @classmethod
    def of(cls, episode: EpisodeRecord) -> EpisodeDetail:
        """Return an episode and its completions as rows."""
        completions = tuple(map(CompletionRow.of, episode.completions))
        return cls(row=EpisodeRow.of(episode), completions=completions)


def prompt_tokens(completion: CompletionRecord) -> tuple[Token, ...]:
    """Return a completion's prompt; a token without a text shows as ``⟨id⟩``."""
    ids = completion.prompt_token_ids
    texts = _column(completion.prompt_texts, len(ids))
    return tuple(
        Token(token_id=token_id, text=f"⟨{token_id}⟩" if text is None else text)
        for token_id, text in zip(ids, texts, strict=True)
    )


def sampled_tokens(source: CompletionRecord | SampledTokens) -> tuple[Token, ...]:
    """Return the sampled tokens of a completion, or of one ``completion.tokens`` event.

    A token without a text shows as ``⟨id⟩``; one without a logprob has NaN.
    """
    num = len(source.token_ids)
    recorded = source if isinstance(source, CompletionRecord) else None
    trained = _trained(recorded) if recorded else ()
    columns = zip(
        source.token_ids,
        _column(source.texts, num),
        _column(source.logprobs, num),
        _column(source.policy_versions, num),
        _column(recorded.top_logprobs if recorded else (), num),
        _recomputed(recorded.proximal_logprobs if recorded else (), trained, num),
        _recomputed(recorded.after_logprobs if recorded else (), trained, num),
        strict=True,
    )
    return tuple(
        Token(
            token_id=token_id,
            text=f"⟨{token_id}⟩" if text is None else text,
            logprob=float("nan") if logprob is None else logprob,
            policy_version=version,
            alternatives=_others(token_id, top or ()),
            advantage=recorded.advantage if recorded else None,
            logprob_before=before,
            logprob_after=after,
        )
        for token_id, text, logprob, version, top, before, after in columns
    )


def _column(values: Sequence[Value], num: int) -> Sequence[Value | None]:
    """Return one value for each of ``num`` tokens: None for all where they were not recorded."""
    return values if len(values) == num else (None,) * num


def _trained(completion: CompletionRecord) -> tuple[bool, ...]:
    """Return of each sampled token whether it may be trained."""
    return trained_where(completion.removed_probs, len(completion.token_ids))


def _recomputed(
    values: Sequence[float], trained: Sequence[bool], num: int
) -> Sequence[float | None]:
    """Return one value for each of ``num`` tokens, from one for each that was trained."""
    if not values or len(values) != sum(trained):
        return (None,) * num
    rest = iter(values)
    return [next(rest) if was_trained else None for was_trained in trained]


def _others(token_id: int, top: Sequence[TopLogprob]) -> tuple[tuple[str, float], ...]:
    """Return the likeliest tokens but for the one that was sampled."""
    return tuple((entry.token, entry.logprob) for entry in top if entry.token_id != token_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimizer step, as the screen shows it; logprobs in nats, times in seconds."""

    step: int
    """Its number."""
    policy_version: int
    """The version it made."""
    episode_ids: tuple[str, ...] = ()
    """The episodes it trained."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Every number of the row by its wire name; the seconds as ``seconds.save``."""
    limit: str = ""
    """Why it moved less than wanted, by the learner's word; empty when it did not."""
    warnings: tuple[str, ...] = ()
    """What a person should look at after it, in sentences; empty when all is well."""

    @classmethod
    def of(cls, step: StepRecord) -> StepRow:
        """Return a step as a row."""
        values = _numbers("", step)
        for name, value in step:
            if isinstance(value, StepSeconds):
                values |= _numbers(f"{name}.", value)
        return cls(
            step=step.step,
            policy_version=step.policy_version,
            episode_ids=step.episode_ids,
            values=values,
            limit=step.limit or "",
            warnings=tuple((step.warnings or {}).values()),
        )


def _numbers(prefix: str, model: StepRecord | StepSeconds) -> dict[str, float]:
    """Return a model's numbers by name; what is None is left out."""
    return {prefix + name: float(value) for name, value in model if isinstance(value, (int, float))}


HELD_BY_PERSON = "by a person"
"""Why training is held when somebody wanted that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group that waits for siblings to be scored."""

    group_id: str
    """The group."""
    num_missing: int
    """Siblings without a reward."""
    ready_at: float
    """When it is trained without them, seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRow:
    """What the trainer does now."""

    policy_version: int | None = None
    """Version that serves; None before it is known."""
    state: str = ""
    """starting, waiting, training, publishing, paused, stopped."""
    num_scored: int = 0
    """Scored episodes that wait."""
    batch_size: int = 1
    """Scored episodes that make a step."""
    reason: str = ""
    """Why it waits, pauses or failed, as the trainer says it."""
    problem: str = ""
    """Why the last try to train or to serve came to nothing; empty when it did not."""
    learner_lost: bool = False
    """Whether there is no learner to do a step."""
    untrained: Mapping[str, int] = field(default_factory=dict)
    """Completions that are not trained, counted by reason."""
    baselines: Mapping[str, float] = field(default_factory=dict)
    """Rewards that are to be expected, by topic; none while scores are measured against 0."""
    kept_versions: tuple[int, ...] = ()
    """Versions that can be made current again, ascending; 0 is the model it began with."""
    groups: tuple[GroupRow, ...] = ()
    """Groups that wait for siblings to be scored."""
    notices: tuple[str, ...] = ()
    """What was found damaged or lost since it started, and what took its place."""

    @property
    def busy(self) -> bool:
        """Whether a step runs."""
        return self.state in ("training", "publishing")

    @classmethod
    def of(cls, status: TrainerStatus, now: float) -> TrainerRow:
        """Return the trainer's status as a row.

        Args:
            status: what the trainer answered.
            now: when it answered, seconds since the epoch.
        """
        served = status.served_version
        return cls(
            policy_version=status.policy_version if served is None else served,
            state=status.state,
            num_scored=status.num_scored,
            batch_size=status.batch_size,
            reason=status.reason or status.publish_error or "",
            problem=status.problem or "",
            learner_lost=not status.learner.reachable,
            untrained=status.untrained,
            baselines=status.baselines,
            kept_versions=tuple(sorted(status.kept_versions)),
            groups=tuple(
                GroupRow(
                    group_id=group.group_id,
                    num_missing=group.num_siblings - group.num_scored,
                    ready_at=now + group.seconds_left,
                )
                for group in status.groups
            ),
            notices=status.notices,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRow:
    """One version's answer to one of the canary's questions."""

    policy_version: int
    """The version."""
    prompt: str
    """The question."""
    text: str = ""
    """Its answer."""
    reason: str = ""
    """Why there is no answer; empty when there is one."""

    @classmethod
    def of(cls, answer: CanaryAnswer) -> CanaryRow:
        """Return a canary's answer as a row."""
        return cls(
            policy_version=answer.policy_version,
            prompt=answer.prompt,
            text=answer.text,
            reason=answer.reason or "",
        )
