"""The command palette: every action of the registry, by its title."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.widgets import Input

from hermes_tui.core.actions import ACTIONS, Action
from hermes_tui.tui.messages import ActionPressed
from hermes_tui.tui.screens.action_screen import ActionScreen
from hermes_tui.tui.screens.dialogs import PAGING, DismissOnce, PagedOptions


class Palette(DismissOnce, PagedOptions, CommandPalette):
    """Textual's command palette, made safe to leave."""

    BINDINGS: ClassVar[list[BindingType]] = [*PAGING]

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Cancel the search, and leave."""
        self.workers.cancel_node(self)
        return super().dismiss(result)

    def on_input_changed(self, event: Input.Changed) -> None:
        """Ignore what is typed while the palette closes.

        Textual (8.2.8) would search for it and raise NoMatches in ``_gather_commands``, as its list
        is gone. We know of no public report.
        """
        if not self.is_active:
            event.prevent_default()


class ActionsProvider(Provider):
    """Offers the actions of the screen that the palette was opened over."""

    _chosen = False
    """True once an action was chosen. Each palette has a provider of its own."""

    async def discover(self) -> Hits:
        """Yield all actions, before anything is typed."""
        for action in self._offered():
            yield DiscoveryHit(
                action.title,
                partial(self._press, action),
                text=action.title,
                help=self._help(action),
            )

    async def search(self, query: str) -> Hits:
        """Yield the actions whose titles match."""
        matcher = self.matcher(query)
        for action in self._offered():
            score = matcher.match(action.title)
            if score > 0:
                title = matcher.highlight(action.title)
                yield Hit(score, title, partial(self._press, action), help=self._help(action))

    @property
    def _over(self) -> ActionScreen:
        assert isinstance(self.screen, ActionScreen)  # the app opens the palette over no other
        return self.screen

    def _offered(self) -> list[Action]:
        compare = self._over.scope == "compare"
        return [
            action
            for action in ACTIONS
            if not action.numbered
            and action.id != "palette"
            and (action.scope in ("app", "compare") if compare else action.scope != "compare")
        ]

    def _help(self, action: Action) -> str:
        keys = self._over.context.keys.labels(action.id)
        return f"{action.help} {f'({keys})' if keys else ''}"

    def _press(self, action: Action) -> None:
        """Do the chosen action once, even if enter is pressed again before the palette is gone."""
        if not self._chosen:
            self._chosen = True
            self.app.post_message(ActionPressed(action.id))
