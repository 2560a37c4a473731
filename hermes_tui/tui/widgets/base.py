"""What all panes have in common: a title in the border, a scope, and actions by name."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from textual.content import Content
from textual.widget import Widget

from hermes_tui.core.actions import PANES, Scope
from hermes_tui.tui.widgets.formatting import literal


class ActionOwner:
    """Does the actions of the registry: ``do('score_good')`` calls ``do_score_good``."""

    def action_do(self, action_id: str, *arguments: Any) -> Awaitable[None] | None:
        """Do an action of the registry that is this node's."""
        method = getattr(self, f"do_{action_id}")
        result: Awaitable[None] | None = method(*arguments)
        return result


class ImmediateScroll:
    """Without animation: a key counts even if the next one, or more text, follows at once.

    What a scroll brings about, such as to hold the end again, would break its animation off in the
    last step, and Textual (8.2) ends with a KeyError.
    """

    def scroll_to(self, x: float | None = None, y: float | None = None, **how: Any) -> None:
        """Scroll to a column and a row, now."""
        how |= {"animate": False, "immediate": True}
        super().scroll_to(x, y, **how)  # type: ignore[misc]  # no widget, lest its style be theirs

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """Tell the bar where it stands: what was scrolled before it was shown it does not know."""
        if shown:
            widget = cast("Widget", self)
            widget.vertical_scrollbar.position = widget.scroll_y


def titled(widget: Widget, scope: Scope, detail: Content | str = "") -> None:
    """Write a pane's title, and what it is about, into its border."""
    title = literal(PANES[scope], "bold")
    if detail:
        about = literal(detail) if isinstance(detail, str) else detail
        title = Content.assemble(title, (" · ", "dim"), about)
    widget.border_title = title
