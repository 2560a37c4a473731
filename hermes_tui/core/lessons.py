"""What a training step changed: what it trained, and the same questions before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_tui.core.context import ViewContext
from hermes_tui.core.models import CanaryRow, EpisodeDetail, StepRow, Token
from hermes_tui_common.errors import RefusedError

MAX_EPISODES = 3
"""Episodes of a step that are looked at: a card has room for few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """One step, as far as it can be seen."""

    step: StepRow
    """The step."""
    before: int
    """The version that it was made from."""
    episodes: tuple[EpisodeDetail, ...] = ()
    """The first of what it trained; empty where nothing is kept."""
    answers: tuple[CanaryRow, ...] = ()
    """What both versions said to the canary's questions."""

    @property
    def can_show(self) -> bool:
        """Whether any token's logprob before and after is known."""
        return any(moved(token) is not None for token in self.tokens)

    @property
    def tokens(self) -> list[Token]:
        """The sampled tokens of its episodes, in order."""
        return [
            token
            for episode in self.episodes
            for completion in episode.completions
            for token in completion.tokens
        ]

    @property
    def most_moved(self) -> list[Token]:
        """The tokens whose logprob moved, the farthest first."""
        known = [token for token in self.tokens if moved(token)]
        return sorted(known, key=lambda token: -abs(moved(token) or 0.0))


def moved(token: Token) -> float | None:
    """Return how far a step moved a token's logprob, in nats; None where it trained none."""
    if token.logprob_before is None or token.logprob_after is None:
        return None
    return token.logprob_after - token.logprob_before


def is_lesson(step: StepRow) -> bool:
    """Return whether a row is a step that trained; one is also written for a rollback."""
    return bool(step.episode_ids) and "rolled_back_to" not in step.values


def version_before(steps: Sequence[StepRow], step: StepRow) -> int:
    """Return the version that a step was made from; 0 is the model as training found it."""
    return max((s.policy_version for s in steps if s.step < step.step), default=0)


class Lessons:
    """Reads what steps changed.

    Args:
        context: what is read.
    """

    def __init__(self, context: ViewContext) -> None:
        self._backend = context.backend
        self._state = context.state

    async def of(self, step: StepRow) -> Lesson:
        """Return what a step changed.

        Raises: HermesTuiError: the stack does not answer.
        """
        before = version_before(self._state.steps, step)
        episodes: list[EpisodeDetail] = []
        for episode_id in step.episode_ids[:MAX_EPISODES]:
            try:
                episodes.append(await self._backend.episode(episode_id))
            except RefusedError as error:
                if error.status != 404:
                    raise  # else it was forgotten or deleted since
        answers = await self._backend.canaries((before, step.policy_version))
        return Lesson(step=step, before=before, episodes=tuple(episodes), answers=tuple(answers))
