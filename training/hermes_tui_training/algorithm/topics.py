"""What a session is about, by a rule that a person can read and change. Free of torch."""

from __future__ import annotations

import re

from hermes_tui_training.api.config import TopicsConfig

_WORD = re.compile(r"\w+")


def topic_of(task_id: str, first_message: str, config: TopicsConfig) -> str:
    """Return the topic of a session: its task, or what its first message is about.

    Args:
        task_id: the task that the session was started with.
        first_message: what was said first in it; empty for nothing.
        config: whose sessions get a topic by their words, and which words mean what.
    """
    if task_id not in config.tasks:
        return task_id
    said = _spaced(first_message)
    for topic, words in config.words.items():
        if any(_spaced(word) in said for word in words):
            return topic
    return task_id


def _spaced(text: str) -> str:
    """Return the words of a text in lower case, with a blank around each."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "
