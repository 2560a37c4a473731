"""Telling the front ends what changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

from hermes_tui.core.changes import Change, Notice
from hermes_tui_common.errors import HermesTuiError


class Notifier:
    """Hands every change to the front end's listeners, in the event loop."""

    def __init__(self) -> None:
        self.action_label: Callable[[str], str] = str
        """Returns what a person types for an action's id: a key, or a command."""
        self._listeners: list[Callable[[Change], None]] = []

    def listen(self, listener: Callable[[Change], None]) -> None:
        """Call a function with every change from now on; it must not block."""
        self._listeners.append(listener)

    def unlisten(self, listener: Callable[[Change], None]) -> None:
        """Stop calling a function."""
        self._listeners.remove(listener)

    def notify(self, change: Change) -> None:
        """Call every listener with a change."""
        for listener in list(self._listeners):
            listener(change)

    def say(
        self, text: str, severity: Literal["information", "warning", "error"] = "information"
    ) -> None:
        """Show the person a sentence."""
        self.notify(Notice(text=text, severity=severity))

    async def attempt(self, work: Awaitable[object]) -> bool:
        """Await something; show an error of the stack to the person.

        Returns: whether it succeeded.
        """
        try:
            await work
        except HermesTuiError as error:
            self.say(str(error), "error")
            return False
        return True
