"""Texts for the trainer's reasons why something is not trained."""

from __future__ import annotations

from collections.abc import Iterable

from hermes_tui.core.changes import ChatTurn
from hermes_tui.core.models import EpisodeRow

_TEXTS = {
    "no_token_ids": "its upstream gave no tokens",
    "truncated": "cut off at services.agent.max_tokens",
    "client_left": "broken off before its end",
    "aux_call": "a call that the agent made beside its answer",
    "sampling_mismatch": "sampled in a way that can't be recomputed",
    "constrained": "forced by the form that was asked for",
    "other_choice": "another choice of the same request",
    "stale": "sampled by weights that are too old",
    "zero_advantage": "as good as was expected: nothing to learn",
    "engine_error": "the engine failed",
    "external_model": "another model said it",
    "lost": "lost when the trainer died",
    "incomplete": "a part of it was lost",
    "other_model": "another model than the served one sampled it: it waits for that one",
    "non_finite": "its step gave no finite numbers",
    "certain": "the model says this nearly always by now",
    "no_gradient": "its scores cancel each other out, or ask for nothing",
    "step_too_far": "no step was small enough for the bound on its own reply",
    "reference_drift": "any step would move the reference text too far",
}


def reason_text(reason: str) -> str:
    """Return the text of the trainer's reason; one that is not known here, as it is."""
    return _TEXTS.get(reason, reason)


_LIMIT_TEXTS = {
    "certain": "it is nearly certain already",
    "step_kl": "more would have changed too much else",
    "reference_drift": "more would have spoiled ordinary text",
    "not_finite": "the numbers were not finite",
    "search": "no longer step went further",
}


def limit_text(limit: str) -> str:
    """Return the text of why a step moved less than wanted; one not known here, as it is."""
    return _LIMIT_TEXTS.get(limit, limit)


CONTINUATION = "a continuation that the agent asked for"
"""Text of a call that the agent made because its reply had been cut off or broken off."""

_NO_ENDS = frozenset({"truncated", "client_left", "engine_error"})


def reasons_text(reasons: Iterable[str]) -> str:
    """Return the texts of several reasons, each once; empty for none.

    Args:
        reasons: of one turn's completions, in order: what the agent asked for after a reply that
            was cut off is its continuation.
    """
    texts: dict[str, None] = {}
    was_cut = False
    for reason in reasons:
        was_cut = was_cut or reason in _NO_ENDS
        texts[CONTINUATION if was_cut and reason == "aux_call" else reason_text(reason)] = None
    return ", ".join(texts)


def why_untrainable(episode: EpisodeRow, turns: Iterable[ChatTurn], max_staleness: int) -> str:
    """Return why an episode can't be trained, whatever its score; empty when it can.

    Args:
        episode: not dropped, claimed or trained.
        turns: those of its session; the ones of the episode know why a completion is left out.
        max_staleness: versions that an episode may be behind.
    """
    if episode.incomplete:
        return reason_text("incomplete")
    mine = [turn for turn in turns if turn.episode_id == episode.episode_id]
    reasons = [reason for turn in mine for reason in turn.untrainable]
    num_trainable = episode.num_trainable
    if num_trainable is None and reasons:
        num_trainable = sum(turn.num_trainable for turn in mine)
    if num_trainable == 0 and episode.num_completions != 0:
        return reasons_text(reasons) or "nothing of it can be trained"
    if episode.staleness is not None and episode.staleness > max_staleness:
        allowed = f"{episode.staleness} versions behind, {max_staleness} are allowed"
        return f"{reason_text('stale')} ({allowed})"
    return ""
