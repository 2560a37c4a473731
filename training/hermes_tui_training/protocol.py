"""What the inference gateway says over HTTP: event kinds, request bodies, answers.

Free of torch: the app reads it too.
"""

from __future__ import annotations

from enum import StrEnum


class EventKind(StrEnum):
    """Kinds of events on ``/rl/events``."""

    SESSION_STARTED = "session.started"
    """A session key was minted or taken into use."""
    SESSION_ENDED = "session.ended"
    """A session key works no longer."""
    EPISODE_OPENED = "episode.opened"
    """The first completion of a new episode began."""
    EPISODE_ENDED = "episode.ended"
    """An episode takes no more completions; payload ``state`` is ended or unscored."""
    EPISODE_SCORED = "episode.scored"
    """An episode got a reward, a new one, or came back from a step that failed."""
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
