"""Messages between trainer and learner; some are also a checkpoint's ``step.json``.

Free of torch: the trainer's process reads it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from hermes_tui_common.errors import TrainingError
from hermes_tui_training.api.types import TrainedCompletion, TrainingSample

NON_FINITE = "non_finite"
"""Error code: the step gave numbers that are not finite; the body's episode_ids are at fault."""

NOTHING_MOVED = "nothing_moved"
"""Error code: the step would not have moved the policy; the body's ``reason`` says why."""

MAX_VERSION = 10**9
"""Highest number of a policy version: one a second for thirty years."""

VERSION_EXISTS = "version_exists"
"""Error code: the version to make has a finished checkpoint."""

VERSION_DAMAGED = "version_damaged"
"""Error code: a checkpoint to start from is damaged; the body has its policy_version and reason."""


class NonFiniteError(TrainingError):
    """A step gave numbers that are not finite; nothing of it was kept.

    Args:
        message: which numbers.
        episode_ids: the episodes at fault; all of the step's when it cannot be told.
    """

    def __init__(self, message: str, episode_ids: Sequence[str]) -> None:
        super().__init__(message)
        self.episode_ids = tuple(episode_ids)


StillReason = Literal["certain", "no_gradient", "stale", "step_too_far", "reference_drift"]
"""Why a step moved nothing. certain: the reply is said nearly always by now · no_gradient: the
scores ask for no change, or cancel each other out · stale: the policy has changed too much since
the reply was sampled · step_too_far: any step breaks ``training.loss.max_step_kl`` or gives numbers
that are not finite · reference_drift: any step breaks ``training.step.max_reference_drift``."""


Limit = Literal["certain", "step_kl", "reference_drift", "not_finite", "search"]
"""Why a step is shorter than the score asks for.

certain: the reply is near certain already, so that it cannot become much likelier · step_kl,
reference_drift: a longer one would break that bound · not_finite: a longer one gave numbers that
are not finite · search: no trial came close enough."""


class NothingMovedError(TrainingError):
    """A step would not have moved the policy; no version was made.

    Args:
        message: what was tried, for a person.
        reason: why.
    """

    def __init__(self, message: str, reason: StillReason) -> None:
        super().__init__(message)
        self.reason: StillReason = reason


class VersionExistsError(TrainingError):
    """The version to make has a finished checkpoint already."""


class Message(BaseModel):
    """A body or a part of one: strict about names, and about numbers being numbers."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class BatchFacts(Message):
    """What the trainer knows of a step before the learner has worked."""

    episode_ids: tuple[str, ...]
    """The episodes that this step consumes."""
    baselines: dict[str, float]
    """Baselines after this step, by topic and turn, and the run's under the empty name."""
    num_groups: int = 0
    """How many groups they are from, of siblings measured against each other."""
    reward_mean: float
    """Mean reward of the episodes."""
    reward_min: float
    """Smallest reward."""
    reward_max: float
    """Largest reward."""
    advantage_mean: float
    """Mean advantage of the trained completions."""
    num_praised: int | None = None
    """Completions with an advantage above 0; None in files from before."""
    num_punished: int | None = None
    """Those with one below 0."""
    baseline: float
    """Mean baseline that the rewards were measured against."""
    num_prompt_tokens: int
    """Tokens in the samples that the loss is not on."""
    staleness_mean: float
    """Versions between a trained token's sampling and this step; mean over tokens."""
    staleness_max: int
    """The largest."""
    scored_at: float
    """When the first of the episodes was scored, seconds since the epoch."""
    wait_s: float
    """Seconds for which the trainer had nothing to do before it claimed."""
    claim_s: float
    """Seconds to claim and to make samples."""


class StepRequest(Message):
    """``POST /step``."""

    base_version: int = Field(ge=0, le=MAX_VERSION)
    """Version to start from; 0 is the model without any checkpoint."""
    target_version: int = Field(ge=1, le=MAX_VERSION)
    """Version to make."""
    samples: tuple[TrainingSample, ...] = Field(min_length=1)
    """What to learn from, with advantages."""
    facts: BatchFacts
    """Kept in the checkpoint, so that the step can be recorded after a crash."""


class LearnerSeconds(Message):
    """Where the learner's time went."""

    recompute: float
    """The trials of the search: log-probabilities after."""
    update: float
    """Log-probabilities before, loss and gradient."""


class LearnerMetrics(Message):
    """What the learner measured of one step; means are over its trained tokens."""

    loss: float
    """The loss that was minimized."""
    grad_norm: float
    """Norm of the whole gradient of the loss."""
    learning_rate: float
    """Length that the search found: what the step's direction was multiplied with."""
    step_frac: float
    """Share of the wanted move that was made: about 1.0, or less where ``limit`` says why."""
    target_nats: float = 0.0
    """Wanted change of the judged tokens' mean log-probability, in the judged direction."""
    moved_nats: float = 0.0
    """The change that was made, measured after the update."""
    limit: Limit | None = None
    """Why it moved less than wanted; None when it did not."""
    num_trials: int = 1
    """Lengths that were tried."""
    num_certain: int = 0
    """Completions with praise that counted less or not at all, since they are near certain."""
    reference_logprob: float | None = None
    """Mean log-probability of the reference text's tokens after the update, nats a token."""
    reference_drift: float | None = None
    """How far that is below where training began; negative when it rose."""
    reference_kl: float | None = None
    """KL(weights that training started from, policy) on the reference text, nats a token."""
    ratio_mean: float
    """Policy after over before the update."""
    ratio_max: float
    """The largest."""
    clip_frac: float
    """Share of tokens that the update moved past the clip's bound."""
    rejected_frac: float
    """Share of tokens left out because sampler and learner disagree too much."""
    kl_behavior: float
    """KL(sampler, learner before), nats a token."""
    kl_reference: float
    """KL(policy, weights that training started from), nats a token; 0.0 unless kl_coef is set."""
    kl_step: float
    """KL(before, after) over the whole vocabulary, nats a token."""
    entropy: float
    """Entropy before the update, nats a token."""
    num_trained_tokens: int
    """Tokens that the loss was on."""
    gap_mean: float
    """Mean |sampler's - learner's log-probability| before the update, nats."""
    gap_max: float
    """The largest."""
    logprob_before: float
    """Mean log-probability of the trained tokens just before the update."""
    logprob_after: float
    """Mean log-probability of the trained tokens just after it."""
    seconds: LearnerSeconds
    """Where the time went."""


class StepResult(Message):
    """Answer of ``POST /step``, and ``step.json`` of the checkpoint it made."""

    base_version: int
    """Version it started from."""
    target_version: int
    """Version it made."""
    facts: BatchFacts
    """As the trainer sent them."""
    metrics: LearnerMetrics
    """As the learner measured them."""
    completions: tuple[TrainedCompletion, ...]
    """What happened to each trained completion."""
    base: str | None = None
    """``model.path`` that training started from; None in files from before."""
    adapter: str | None = None
    """Name of the adapter; None for the only one, or without."""
    parent: int | None = None
    """Version whose weights it continues: ``base_version``."""
    stale_episode_ids: tuple[str, ...] = ()
    """Episodes left out, since the policy has changed too much since they were sampled."""


class StepAnswer(Message):
    """A result, and what was only known once the checkpoint was written."""

    result: StepResult
    """The step."""
    save_s: float
    """Seconds to write the checkpoint."""


class RollbackRequest(Message):
    """``POST /rollback``."""

    version: int = Field(ge=0, le=MAX_VERSION)
    """Version to go back to; 0 is the model without any checkpoint."""
    target_version: int = Field(ge=1, le=MAX_VERSION)
    """Version to make: a copy of the other, under a number of its own."""


class RollbackResult(Message):
    """What a rollback made, and ``step.json`` of its checkpoint."""

    rolled_back_to: int
    """Version whose weights these are."""
    target_version: int
    """Version it made."""
    baselines: dict[str, float]
    """Baselines after the version that it went back to."""
    base: str | None = None
    """``model.path`` that training started from; None in files from before."""
    adapter: str | None = None
    """Name of the adapter; None for the only one, or without."""
    parent: int | None = None
    """Version whose weights it holds: ``rolled_back_to``."""


class RollbackAnswer(Message):
    """A result, and what was only known once the checkpoint was written."""

    result: RollbackResult
    """The rollback."""
    save_s: float
    """Seconds to write the checkpoint."""


class LearnerHealth(BaseModel):
    """``GET /health``."""

    status: Literal["ok"] = "ok"
    """Always ok: the learner answers."""
    policy_version: int
    """Version in memory."""
    busy_with: int | None
    """Version that is being made; None when idle."""
