"""Fields that do what is typed in the order in which it was typed."""

from __future__ import annotations

from textual import events
from textual.widget import Widget
from textual.widgets import Input


async def act_in_order(field: Widget, event: events.Key) -> None:
    """Do at once what a text field has bound a key to.

    Textual does it when the key has bubbled up to the app, and by then letters that were typed
    after it are in the text. While the screen is busy, or over a slow line, backspace would take
    the wrong one.
    """
    active = field.screen.active_bindings.get(event.key)
    if not active or active.node is not field or not active.enabled or event.is_printable:
        return
    if await field.app.run_action(active.binding.action, default_namespace=field):
        event.prevent_default()
        event.stop()


class Field(Input):
    """A line of text."""

    async def on_key(self, event: events.Key) -> None:
        """Keep the order of keys."""
        await act_in_order(self, event)
