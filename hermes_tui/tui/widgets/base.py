"""What panes share: actions by name, scrolling without animation, a title in the border."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from textual.content import Content
from textual.widget import Widget

from hermes_tui.core.actions import PANES, Scope
from hermes_tui.tui.widgets.formatting import literal


class ActionOwner:
    """A mixin for actions of the registry: ``do('score_good')`` calls ``do_score_good``."""

    def action_do(self, action_id: str, *arguments: Any) -> Awaitable[None] | None:
        """Do one of this node's actions."""
        method = getattr(self, f"do_{action_id}")
        result: Awaitable[None] | None = method(*arguments)
        return result


class ImmediateScroll:
    """A mixin that scrolls without animation, so that every key counts at once.

    An animation could also crash: when its last step anchors the view again, that stops the
    animation, and Textual (8.2.8) raises KeyError. We know of no public report.
    """

    def scroll_to(self, x: float | None = None, y: float | None = None, **how: Any) -> None:
        """Scroll to a column and a row, now."""
        how |= {"animate": False, "immediate": True}
        super().scroll_to(x, y, **how)  # type: ignore[misc]  # a mixin: a Widget base would bring its CSS along

    def watch_show_vertical_scrollbar(self, shown: bool) -> None:
        """Set the scrollbar's position: while hidden it misses scrolls (Textual 8.2.8)."""
        if shown:
            widget = cast("Widget", self)
            widget.vertical_scrollbar.position = widget.scroll_y


def titled(widget: Widget, scope: Scope, detail: Content | str = "") -> None:
    """Show a pane's title and some detail in its border."""
    title = literal(PANES[scope], "bold")
    if detail:
        about = literal(detail) if isinstance(detail, str) else detail
        title = Content.assemble(title, (" · ", "dim"), about)
    widget.border_title = title
