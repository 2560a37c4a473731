"""Replies that are other choices of a turn's request (``n``): each is an episode of its own.

A score that names such a reply is its own alone. Neither the turn that was taken in its place nor
the turns before it inherit it: these led to the other choices just as well.
"""

from __future__ import annotations

from dataclasses import replace

from hermes_tui_training.api.types import Episode


def without_choices(episode: Episode) -> Episode:
    """Return an episode with the completions that the conversation went on with.

    Its reward is None when only other choices were scored.
    """
    kept = tuple(c for c in episode.completions if c.kind != "choice")
    if len(kept) == len(episode.completions):
        return episode
    is_scored = any(c.reward is not None for c in kept) or any(
        entry.interaction_id is None and entry.taken_back_at is None for entry in episode.reward_log
    )
    return replace(episode, completions=kept, reward=episode.reward if is_scored else None)


def scored_choices(episode: Episode) -> list[Episode]:
    """Return an episode per other choice with a score of its own."""
    return [
        replace(episode, completions=(completion,), reward=completion.reward)
        for completion in episode.completions
        if completion.kind == "choice" and completion.reward is not None
    ]
