"""What all panes have in common: a title in the border, a scope, and actions by name."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from textual.content import Content
from textual.widget import Widget

from hermes_tui.actions import PANES, Scope
from hermes_tui.widgets.text import foreign


class Acts:
    """Does the actions of the registry: ``do('score_good')`` calls ``do_score_good``."""

    def action_do(self, action_id: str, *arguments: Any) -> Awaitable[None] | None:
        """Do an action of the registry that is this node's."""
        method = getattr(self, f"do_{action_id}")
        result: Awaitable[None] | None = method(*arguments)
        return result


def titled(widget: Widget, scope: Scope, detail: Content | str = "") -> None:
    """Write a pane's title, and what it is about, into its border."""
    title = foreign(PANES[scope], "bold")
    if detail:
        about = foreign(detail) if isinstance(detail, str) else detail
        title = Content.assemble(title, (" · ", "dim"), about)
    widget.border_title = title
