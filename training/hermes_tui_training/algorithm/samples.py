"""From recorded completions to training samples. Free of torch.

A prompt usually begins with the prompt before it and what was sampled for that one. Completions
that continue each other so form one *segment*: one flat token sequence, trained in one forward
pass. Ids are those that the engine was given and sampled. Text is never tokenized again, since
``tokenize(decode(ids)) != ids`` in general.

A prompt is compared with every segment, not only with the one before: a call beside the agent's
turns (a title, a summary) must not break the sequence of the turns themselves.

Shape legend: T tokens of one sample.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from hermes_tui_training.api.types import Completion, Episode, SampledSpan, TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Completions of which each prompt begins with the prompt and tokens of the one before."""

    completions: tuple[Completion, ...]
    """In order, at least one."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The last prompt and its sampled tokens: every earlier one is a prefix of it."""
        last = self.completions[-1]
        return last.prompt_token_ids + last.token_ids


def segments(completions: Sequence[Completion]) -> list[Segment]:
    """Return the segments of an episode's completions, in order of their first completion.

    Completions without sampled tokens take no part.
    """
    found: list[Segment] = []
    for completion in completions:
        if not completion.token_ids:
            continue
        parent = _parent(found, completion)
        if parent is None:
            found.append(Segment(completions=(completion,)))
        else:
            grown = Segment(completions=(*found[parent].completions, completion))
            found[parent] = grown
    return found


def _parent(found: Sequence[Segment], completion: Completion) -> int | None:
    """Return the index of the longest segment that the completion's prompt begins with."""
    best, best_length = None, -1
    for index, segment in enumerate(found):
        tokens = segment.token_ids
        if len(tokens) > best_length and completion.prompt_token_ids[: len(tokens)] == tokens:
            best, best_length = index, len(tokens)
    return best


def training_samples(episode: Episode, advantages: Mapping[str, float]) -> list[TrainingSample]:
    """Return the samples of an episode: one per segment that has something to learn.

    Args:
        episode: with its completions.
        advantages: by completion id, for the completions to train; the others give context only.
    """
    samples = []
    for segment in segments(episode.completions):
        trained = [
            c for c in segment.completions if c.completion_id in advantages and any(c.loss_mask)
        ]
        if trained:
            samples.append(_sample(episode.episode_id, trained, advantages))
    return samples


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatSequence:
    """A run of completions that continue each other, as one sequence."""

    token_ids: tuple[int, ...]
    """[T] the last prompt and its sampled tokens."""
    loss_mask: tuple[bool, ...]
    """[T] true on sampled tokens of the completions to train, but for constrained ones."""
    logprobs: tuple[float, ...]
    """[T] natural log, as sampled; 0.0 on tokens that none of the completions sampled."""
    policy_versions: tuple[int, ...]
    """[T] version that sampled the token; -1 on tokens that none of the completions sampled."""


def flatten(completions: Sequence[Completion], trained_ids: Container[str]) -> FlatSequence:
    """Return completions as one sequence.

    Args:
        completions: of one segment, in order, at least one.
        trained_ids: ids of the completions whose tokens the loss is on.
    """
    token_ids = completions[-1].prompt_token_ids + completions[-1].token_ids
    length = len(token_ids)
    loss_mask = [False] * length
    logprobs, policy_versions = [0.0] * length, [-1] * length
    for completion in completions:
        where = sampled_slice(completion)
        if completion.completion_id in trained_ids:
            loss_mask[where] = completion.loss_mask
        logprobs[where] = completion.logprobs
        policy_versions[where] = completion.policy_versions
    return FlatSequence(
        token_ids=token_ids,
        loss_mask=tuple(loss_mask),
        logprobs=tuple(logprobs),
        policy_versions=tuple(policy_versions),
    )


def sampled_slice(completion: Completion) -> slice:
    """Return where a completion's sampled tokens lie in the sequence of its segment."""
    start = len(completion.prompt_token_ids)
    return slice(start, start + len(completion.token_ids))


def _sample(
    episode_id: str, trained: Sequence[Completion], advantages: Mapping[str, float]
) -> TrainingSample:
    """Return one sample; it ends with the last trained token, what follows has no influence."""
    flat = flatten(trained, advantages)
    return TrainingSample(
        episode_id=episode_id,
        token_ids=flat.token_ids,
        loss_mask=flat.loss_mask,
        behavior_logprobs=flat.logprobs,
        policy_versions=flat.policy_versions,
        spans=tuple(
            SampledSpan(
                completion_id=completion.completion_id,
                start=len(completion.prompt_token_ids),
                num_tokens=sum(completion.loss_mask),
                advantage=advantages[completion.completion_id],
                temperature=_temperature(completion),
            )
            for completion in trained
        ),
    )


def _temperature(completion: Completion) -> float:
    """Return what the logits were divided by; a greedy completion's logprobs are undivided."""
    return float(completion.sampling.get("temperature") or 1.0)
