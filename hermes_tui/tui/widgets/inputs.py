"""Text fields that handle keys in the order of typing."""

from __future__ import annotations

from textual import events
from textual.widget import Widget
from textual.widgets import Input


async def act_in_order(field: Widget, event: events.Key) -> None:
    """Run a text field's binding for a key at once.

    Textual (8.2.8) runs it when the key has bubbled up to the app. By then letters that were typed
    after it are in the text: backspace would delete the wrong one. Reported as
    https://github.com/Textualize/textual/issues/6605.
    """
    active = field.screen.active_bindings.get(event.key)
    if not active or active.node is not field or not active.enabled or event.is_printable:
        return
    if await field.app.run_action(active.binding.action, default_namespace=field):
        event.prevent_default()
        event.stop()


class Field(Input):
    """A one-line text field."""

    async def on_key(self, event: events.Key) -> None:
        """Handle keys in the order of typing."""
        await act_in_order(self, event)
