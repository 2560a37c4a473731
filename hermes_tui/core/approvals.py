"""The questions of the agent that wait for a person's answer."""

from __future__ import annotations

from hermes_tui.core.changes import PendingApproval, RowsChanged
from hermes_tui.core.context import ViewContext
from hermes_tui.core.sanitize import exposed
from hermes_tui_common.errors import HermesTuiError, RefusedError
from hermes_tui_services.api import events

_GONE = (404, 410)
"""HTTP statuses that mean that nobody waits for the answer any more."""


class Approvals:
    """Keeps the pending approvals of all turns, and sends the answers.

    Args:
        context: where the answers go, and where the approvals are kept.
    """

    def __init__(self, context: ViewContext) -> None:
        self._backend = context.backend
        self._state = context.state
        self._notifier = context.notifier
        self._clock = context.clock

    def add(self, session_id: str, event: events.ApprovalRequested) -> None:
        """Keep a question that the agent asks in a session."""
        approval = PendingApproval(
            session_id=session_id,
            approval_id=event.approval_id,
            question=exposed("\n\n".join(filter(None, (event.description, event.command)))),
            choices=event.choices,
            free=event.kind == "clarify" or not event.choices,
            expires_at=event.expires_at,
        )
        self._state.pending_approvals[approval.approval_id] = approval
        self._notifier.notify(approval)

    def withdraw(self, session_id: str) -> None:
        """Drop the questions of a session's turn: it has ended, or asks them again."""
        for approval in list(self._state.pending_approvals.values()):
            if approval.session_id == session_id:
                del self._state.pending_approvals[approval.approval_id]

    def on_answered(self, event: events.ApprovalAnswered) -> None:
        """Drop a question that was answered. Those that this view answered are gone already."""
        if self._state.pending_approvals.pop(event.approval_id, None):
            self._notifier.say(f"answered in another view: {event.choice}")
            self._notifier.notify(RowsChanged())

    def drop_expired(self) -> None:
        """Drop the questions whose deadline has passed: the agent takes silence for a no."""
        now = self._clock()
        for approval in list(self._state.pending_approvals.values()):
            if approval.expires_at is not None and approval.expires_at <= now:
                del self._state.pending_approvals[approval.approval_id]
                self._notifier.say("nobody answered the agent in time: that is a no", "warning")
                self._notifier.notify(RowsChanged())

    async def answer(self, approval: PendingApproval, choice: str) -> None:
        """Send an answer; the question comes back when the answer did not arrive."""
        self._state.pending_approvals.pop(approval.approval_id, None)
        self._notifier.notify(RowsChanged())
        try:
            await self._backend.approve(approval.session_id, approval.approval_id, choice)
        except HermesTuiError as error:
            late = isinstance(error, RefusedError) and error.status in _GONE
            self._notifier.say(str(error), "warning" if late else "error")
            if not late and self._state.running_turn(approval.session_id):
                self._state.pending_approvals[approval.approval_id] = approval
                self._notifier.notify(approval)
