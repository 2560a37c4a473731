"""Questions that the agent asks a person while its turn waits: asked, answered, expired."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from hermes_tui_common.errors import ApiError
from hermes_tui_services.api.events import ApprovalRequested

COMMAND_CHOICES = ("once", "session", "deny")
"""Run it this once; allow this kind of command for the rest of the session; do not run it."""

_REMEMBERED = 1000
"""Past questions that are remembered: a late answer (410) is not a wrong id (404)."""

_POLL_S = 0.1
"""How often a waiting turn checks for an interrupt."""


@dataclass(slots=True, kw_only=True)
class Question:
    """One question."""

    approval_id: str
    """Without it nobody can answer: only who follows the turn learns it, and no tool does."""
    session_key: str
    choices: tuple[str, ...]
    """What may be answered; empty takes any text."""
    deadline: float
    """When it runs out, on the monotonic clock, in seconds."""
    answered: threading.Event = field(default_factory=threading.Event)
    choice: str | None = None
    reason: str | None = None
    closed: bool = False
    """Whether nobody waits for the answer any more."""
    on_answer: Callable[[str, str | None], None] | None = None
    """Called with the choice and the reason, in the thread of whoever answers."""

    def wait(self, interrupted: Callable[[], bool]) -> str | None:
        """Return the answer, or None when it ran out or the turn was interrupted. Blocks."""
        while not self.answered.wait(_POLL_S):
            if interrupted() or time.monotonic() > self.deadline:
                break
        self.closed = True
        return self.choice


class Questions:
    """The open questions of all sessions; safe to use from any thread."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._questions: OrderedDict[str, Question] = OrderedDict()
        self._lock = threading.Lock()

    def ask(
        self,
        session_key: str,
        push: Callable[[ApprovalRequested], None],
        *,
        kind: str,
        description: str,
        choices: tuple[str, ...],
        command: str | None = None,
        suggestions: tuple[str, ...] = (),
        on_answer: Callable[[str, str | None], None] | None = None,
    ) -> Question:
        """Put a question into the turn's events and return it.

        Args:
            choices: what may be answered; empty takes any text.
            suggestions: shown as choices where any text may be answered.
        """
        question = Question(
            approval_id=f"appr-{secrets.token_hex(16)}",
            session_key=session_key,
            choices=choices,
            deadline=time.monotonic() + self._timeout_s,
            on_answer=on_answer,
        )
        with self._lock:
            self._questions[question.approval_id] = question
            while len(self._questions) > _REMEMBERED:
                self._questions.popitem(last=False)
        push(
            ApprovalRequested(
                approval_id=question.approval_id,
                kind=kind,
                command=command,
                description=description,
                choices=choices or suggestions,
                expires_at=time.time() + self._timeout_s,
            )
        )
        return question

    def answer(
        self, session_key: str, approval_id: str, choice: str, reason: str | None = None
    ) -> None:
        """Answer a question.

        Raises: ApiError: 404 unknown; 410 answered already or run out; 400 no such choice.
        """
        with self._lock:
            question = self._questions.get(approval_id)
            if question is None or question.session_key != session_key:
                raise ApiError(404, f"This session has no approval request {approval_id}.")
            if question.choices and choice not in question.choices:
                allowed = ", ".join(question.choices)
                raise ApiError(400, f"choice must be one of: {allowed}.", param="choice")
            if question.choice is not None:
                raise ApiError(410, f"The question was answered already: {question.choice}.")
            if question.closed or time.monotonic() > question.deadline:
                raise ApiError(410, "The approval request has run out; it counted as a no.")
            question.closed = True
            question.choice, question.reason = choice, reason
        question.answered.set()
        if question.on_answer:
            question.on_answer(choice, reason)

    def close(self, session_key: str) -> None:
        """Expire the session's open questions: their turn is over."""
        with self._lock:
            for question in self._questions.values():
                if question.session_key == session_key:
                    question.closed = True
