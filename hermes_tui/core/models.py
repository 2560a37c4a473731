"""Rows that the views know the stack by, read from the wire.

Rows are made from wire JSON by their ``from_wire``; a field that a service leaves out takes its
default, so that a view can attach to a stack that is a little older or newer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Wire = Mapping[str, Any]
"""One decoded JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartStage:
    """What one process is doing while the stack starts."""

    process: str
    """Process name, or ``model`` while the embedded model is prepared."""
    state: str
    """A process state: starting, ready, failed."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRow:
    """One supervised process."""

    name: str
    """Such as ``worker-0``."""
    state: str
    """starting, ready, stopping, stopped, failed, flapping."""
    role: str = ""
    """Such as ``worker``."""
    pid: int | None = None
    """None while it does not run."""
    port: int | None = None
    """Where it listens; None before it does."""
    restarts: int = 0
    """How often it was started again."""
    uptime_s: float = 0.0
    """Seconds since its start."""
    rss_bytes: int = 0
    """Resident memory."""
    reason: str = ""
    """Why it is not ready, or what it is doing while it starts."""

    @classmethod
    def from_wire(cls, row: Wire) -> ProcessRow:
        """Read one row of the control API's ``/status``."""
        return cls(
            name=str(row["name"]),
            state=str(row.get("state") or "starting"),
            role=str(row.get("role") or ""),
            pid=row.get("pid"),
            port=row.get("port"),
            restarts=int(row.get("restarts") or 0),
            uptime_s=float(row.get("uptime_s") or 0.0),
            rss_bytes=int(row.get("rss_bytes") or 0),
            reason=str(row.get("reason") or row.get("stage") or ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One session."""

    session_id: str
    """Its id."""
    task_id: str
    """The task it was started for."""
    group_id: str = ""
    """Siblings of one task share it."""
    created_at: float = 0.0
    """Seconds since the epoch."""
    ended: bool = False
    """Whether its key takes no more completions."""
    num_turns: int = 0
    """Turns that the agent service keeps of it; told only without a trainer."""

    @classmethod
    def from_wire(cls, row: Wire) -> SessionRow:
        """Read one row of ``/rl/sessions``."""
        return cls(
            session_id=str(row["session_id"]),
            task_id=str(row.get("task_id") or ""),
            group_id=str(row.get("group_id") or ""),
            created_at=float(row.get("created_at") or 0.0),
            ended=bool(row.get("ended_at") or row.get("ended") or row.get("state") == "ended"),
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
    """Recorded completions; None when the service did not say."""

    @classmethod
    def from_wire(cls, row: Wire) -> EpisodeRow:
        """Read one row of ``/rl/episodes``."""
        count = row.get("num_completions", row.get("interaction_count"))
        if count is None and row.get("completions") is not None:
            count = len(row["completions"])
        return cls(
            episode_id=str(row["episode_id"]),
            session_id=str(row["session_id"]),
            state=str(row["state"]),
            reward=row.get("reward"),
            scored_at=row.get("scored_at"),
            created_at=float(row.get("created_at") or 0.0),
            step=row.get("step"),
            dropped_reason=str(row.get("dropped_reason") or ""),
            policy_version=row.get("policy_version_max"),
            staleness=row.get("staleness"),
            num_completions=count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token of a trajectory."""

    token_id: int
    """Its id in the model's vocabulary."""
    text: str
    """Its text, as decoded alone."""
    logprob: float | None = None
    """Natural log at the sampling temperature; None for prompt tokens."""
    policy_version: int | None = None
    """Version that sampled it; None for prompt tokens."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """Likeliest (text, logprob) pairs, best first."""
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
    shared_tokens: int
    """How many prompt tokens are the completion's before it, token for token."""
    difference: str = ""
    """Why no more of them are, in words; empty when it goes on where the one before ended."""
    request_messages: tuple[Wire, ...]
    """The client's messages."""
    message: Wire
    """The assistant message; empty while in flight."""
    total_s: float
    """Seconds it took; 0.0 while in flight."""

    @property
    def in_flight(self) -> bool:
        """Whether the engine still works on it."""
        return self.finish_reason is None and not self.untrainable_reason

    @classmethod
    def from_wire(cls, row: Wire) -> CompletionRow:
        """Read one completion of ``/rl/episodes/{id}``."""
        prefix = row.get("prefix") or {}
        difference = prefix.get("first_difference") or {}
        return cls(
            completion_id=str(row["completion_id"]),
            created_at=float(row.get("created_at") or 0.0),
            prompt=prompt_tokens(row),
            tokens=sampled_tokens(row),
            finish_reason=row.get("finish_reason"),
            kind=str(row.get("kind") or "turn"),
            trainable=bool(row.get("trainable", True)),
            untrainable_reason=str(row.get("untrainable_reason") or ""),
            shared_tokens=int(prefix.get("shared_token_count") or 0),
            difference=str(difference.get("why") or "") if difference else "",
            request_messages=tuple(row.get("request_messages") or ()),
            message=row.get("message") or {},
            total_s=float((row.get("latency") or {}).get("total_s") or 0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeDetail:
    """One episode with everything that was recorded in it."""

    row: EpisodeRow
    """The episode."""
    completions: tuple[CompletionRow, ...]
    """In order of arrival."""

    @classmethod
    def from_wire(cls, row: Wire) -> EpisodeDetail:
        """Read ``/rl/episodes/{id}``."""
        completions = tuple(CompletionRow.from_wire(c) for c in row.get("completions") or ())
        return cls(row=EpisodeRow.from_wire(row), completions=completions)


def prompt_tokens(row: Wire) -> tuple[Token, ...]:
    """Return a completion's prompt; an id without a text shows as ``⟨id⟩``."""
    ids: Sequence[int] = row.get("prompt_token_ids") or ()
    texts: Sequence[str] = row.get("prompt_texts") or ()
    return tuple(
        Token(token_id=token_id, text=texts[i] if i < len(texts) else f"⟨{token_id}⟩")
        for i, token_id in enumerate(ids)
    )


def sampled_tokens(row: Wire) -> tuple[Token, ...]:
    """Return the sampled tokens of a completion, or of one ``completion.tokens`` event."""
    ids: Sequence[int] = row.get("token_ids") or ()

    def column(*names: str) -> Sequence[Any]:
        values = next((row[name] for name in names if row.get(name)), ())
        return values if len(values) == len(ids) else (None,) * len(ids)

    columns = zip(
        ids,
        column("texts", "token_texts"),
        column("logprobs"),
        column("policy_versions"),
        column("top_logprobs"),
        column("proximal_logprobs", "logprobs_before"),
        column("after_logprobs", "logprobs_after"),
        strict=True,
    )
    return tuple(
        Token(
            token_id=token_id,
            text=f"⟨{token_id}⟩" if text is None else text,
            logprob=float("nan") if logprob is None else logprob,
            policy_version=version,
            alternatives=_alternatives(top),
            advantage=row.get("advantage"),
            logprob_before=before,
            logprob_after=after,
        )
        for token_id, text, logprob, version, top, before, after in columns
    )


def _alternatives(top: Sequence[Any] | None) -> tuple[tuple[str, float], ...]:
    pairs: list[tuple[str, float]] = []
    for entry in top or ():
        if isinstance(entry, Mapping):
            pairs.append((str(entry.get("token", entry.get("token_id"))), float(entry["logprob"])))
        else:
            token, logprob = entry[0], entry[-1]
            pairs.append((token if isinstance(token, str) else f"⟨{token}⟩", float(logprob)))
    return tuple(pairs)


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

    @classmethod
    def from_wire(cls, row: Wire) -> StepRow:
        """Read one row of ``/rl/steps``."""
        values: dict[str, float] = {}
        for name, value in row.items():
            inner = value.items() if isinstance(value, Mapping) else ()
            values.update(
                {f"{name}.{k}": float(v) for k, v in inner if isinstance(v, (int, float))}
            )
            if isinstance(value, (int, float)):
                values[name] = float(value)
        return cls(
            step=int(row["step"]),
            policy_version=int(row["policy_version"]),
            episode_ids=tuple(row.get("episode_ids") or ()),
            values=values,
        )


HELD_BY_PERSON = "by a person"
"""Why training is held when somebody wanted that."""


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
    """Why it waits, pauses or failed, in its own words."""
    learner_lost: bool = False
    """Whether there is no learner to do a step."""
    untrained: Mapping[str, int] = field(default_factory=dict)
    """Completions that are not trained, counted by reason."""
    kept_versions: tuple[int, ...] = ()
    """Versions that can be made current again, ascending; 0 is the model it began with."""

    @property
    def busy(self) -> bool:
        """Whether a step runs."""
        return self.state in ("training", "publishing")

    @classmethod
    def from_wire(cls, row: Wire) -> TrainerRow:
        """Read ``/rl/status``."""
        learner = row.get("learner") or {}
        version = row.get("served_version")
        return cls(
            policy_version=row.get("policy_version") if version is None else version,
            state=str(row.get("state") or ""),
            num_scored=int(row.get("num_scored") or 0),
            batch_size=int(row.get("batch_size") or 1),
            reason=str(row.get("reason") or row.get("publish_error") or ""),
            learner_lost=not learner.get("reachable", True),
            untrained={str(k): int(v) for k, v in (row.get("untrained") or {}).items()},
            kept_versions=tuple(sorted(int(v) for v in row.get("kept_versions") or ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRow:
    """What one version said to one of the canary's questions."""

    policy_version: int
    """The version."""
    prompt: str
    """The question."""
    text: str = ""
    """Its answer."""
    reason: str = ""
    """Why there is no answer; empty when there is one."""

    @classmethod
    def from_wire(cls, row: Wire) -> CanaryRow:
        """Read one row of ``/rl/canaries``."""
        return cls(
            policy_version=int(row["policy_version"]),
            prompt=str(row["prompt"]),
            text=str(row.get("text") or ""),
            reason=str(row.get("reason") or ""),
        )
