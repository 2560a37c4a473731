"""A screen that does actions of the registry."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable

from hermes_tui.core.actions import Scope
from hermes_tui.core.controller import Controller
from hermes_tui.tui.context import AppContext
from hermes_tui.tui.screens.throttled import ThrottledScreen
from hermes_tui.tui.widgets.base import ActionOwner


class ActionScreen(ActionOwner, ThrottledScreen):
    """What the app, the palette and the help know of a screen.

    Args:
        controller: the use cases.
        context: the keys in force, the run directory, whether there is a trainer.
        id: name in the style sheet.
    """

    def __init__(self, controller: Controller, context: AppContext, *, id: str) -> None:
        super().__init__(id)
        self.controller = controller
        self.context = context

    @property
    @abstractmethod
    def scope(self) -> Scope:
        """The pane that has the focus, or ``compare`` on that screen."""

    @abstractmethod
    def interrupt(self) -> bool:
        """Interrupt what speaks; return False when nothing does that was not interrupted before."""

    @abstractmethod
    def press(self, action_id: str) -> Awaitable[None] | None:
        """Do an action of this screen or of one of its widgets."""
