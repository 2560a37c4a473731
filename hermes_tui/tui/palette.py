"""The command palette: actions with their keys in a column; sessions and versions to jump to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from textual.await_complete import AwaitComplete
from textual.binding import BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.widgets import Input

from hermes_tui.core.actions import ACTIONS
from hermes_tui.core.sanitize import clean
from hermes_tui.tui.messages import ActionPressed, EpisodePicked, VersionPicked
from hermes_tui.tui.screens.action_screen import ActionScreen
from hermes_tui.tui.screens.dialogs import PAGING, DismissOnce, PagedOptions

TITLE_CELLS = 44
"""Width of the titles; the keys stand in a column behind them."""

MAX_SESSIONS = 200
"""Newest sessions that are offered."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One line of the palette."""

    title: str
    """What is searched."""
    about: str
    """What stands behind it: keys, or what kind of thing it is."""
    choose: Callable[[], None]
    """Does it."""

    def drawn(self, title: Content) -> Content:
        """Return the line, with a title in which what was found is marked."""
        shown = title.truncate(TITLE_CELLS, ellipsis=True, pad=True)
        return Content.assemble(shown, "  ", (self.about, "dim"))


class ActionsProvider(Provider):
    """Offers what can be done on the screen that the palette was opened over, and gone to there."""

    _chosen = False
    """True once something was chosen. Each palette has a provider of its own."""

    async def discover(self) -> Hits:
        """Yield all actions, before anything is typed."""
        for offer in self._actions():
            yield DiscoveryHit(offer.drawn(Content(offer.title)), offer.choose, text=offer.title)

    async def search(self, query: str) -> Hits:
        """Yield the actions, sessions and versions whose names match."""
        matcher = self.matcher(query)
        for offer in (*self._actions(), *self._sessions(), *self._versions()):
            score = matcher.match(offer.title)
            if score > 0:
                title = Content(offer.title)  # not ``highlight``: that takes a title for markup
                for offset in matcher.fuzzy_search.match(query, offer.title)[1]:
                    title = title.stylize(matcher.match_style, offset, offset + 1)
                yield Hit(score, offer.drawn(title), offer.choose, text=offer.title)

    @property
    def _over(self) -> ActionScreen:
        assert isinstance(self.screen, ActionScreen)  # the app opens the palette over no other
        return self.screen

    def _actions(self) -> Iterator[Offer]:
        compare, keys = self._over.scope == "compare", self._over.context.keys
        for action in ACTIONS:
            fits = action.scope in ("app", "compare") if compare else action.scope != "compare"
            if fits and not action.numbered and action.id != "palette":
                press = partial(self._post, ActionPressed(action.id))
                yield Offer(title=action.title, about=keys.labels(action.id), choose=press)

    def _sessions(self) -> Iterator[Offer]:
        if self._over.scope == "compare":
            return
        state = self._over.controller.state
        newest = sorted(state.sessions.values(), key=lambda row: -row.created_at)[:MAX_SESSIONS]
        for row in newest:
            if row.session_id not in state.deleted:
                go = partial(self._post, EpisodePicked(row.session_id, ""))
                yield Offer(title=clean(state.title(row.session_id)), about="session", choose=go)

    def _versions(self) -> Iterator[Offer]:
        if self._over.scope == "compare":
            return
        state = self._over.controller.state
        for step in reversed(state.steps):
            go = partial(self._post, VersionPicked(step.step))
            name = state.version_name(step.policy_version)
            yield Offer(title=f"version {name}", about=f"step {step.step}", choose=go)

    def _post(self, message: ActionPressed | EpisodePicked | VersionPicked) -> None:
        """Do what was chosen once, even if enter is pressed again before the palette is gone."""
        if not self._chosen:
            self._chosen = True
            over = self.app if isinstance(message, ActionPressed) else self._over
            over.post_message(message)
