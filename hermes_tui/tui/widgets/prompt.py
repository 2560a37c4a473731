"""The prompt: where the person types to the agent."""

from __future__ import annotations

import re
from collections.abc import Callable

from textual import events
from textual.geometry import Offset
from textual.widgets import TextArea

from hermes_tui.core.commands import BY_WORD
from hermes_tui.tui.keys import Keys
from hermes_tui.tui.messages import MessageTyped
from hermes_tui.tui.widgets.base import ActionOwner
from hermes_tui.tui.widgets.inputs import act_in_order

MAX_HISTORY = 100
"""Messages that the up key can recall."""

PASTE_LINES, PASTE_CHARS = 15, 1_000
"""A paste of more than either stands in the prompt as one word, until it is sent."""

_PASTED = re.compile(r"\[paste \d+: [^\]\n]*\]$")


class Prompt(ActionOwner, TextArea):
    """A message of one or more lines: enter sends, a backslash at the end of a line goes on.

    A long paste is shown as ``[paste 1: 120 lines]``; backspace removes it as a whole.

    Args:
        keys: those in force.
        leave: moves the focus away, at once: the next key is not for the prompt.
        take_queued: takes a message that waits out of its queue, to be edited, and returns its
            text; empty when none waits.
    """

    def __init__(
        self, keys: Keys, leave: Callable[[], None], take_queued: Callable[[], str] = str
    ) -> None:
        super().__init__(
            id="prompt",
            soft_wrap=True,
            show_line_numbers=False,
            tab_behavior="focus",
            compact=True,
            highlight_cursor_line=False,
            placeholder="Say something to the agent …",
        )
        self._keys = keys
        self._leave = leave
        self._take_queued = take_queued
        self._history: list[str] = []
        self._recalled = 0
        self._pastes: dict[str, str] = {}
        """What the words that stand for long pastes mean."""

    @property
    def message(self) -> str:
        """What is typed, with long pastes in full."""
        text = self.text
        for word, pasted in self._pastes.items():
            text = text.replace(word, pasted)
        return text

    def on_paste(self, event: events.Paste) -> None:
        """Show a long paste as one word."""
        lines = event.text.count("\n") + 1
        if lines <= PASTE_LINES and len(event.text) <= PASTE_CHARS:
            return
        size = f"{lines} lines" if lines > 1 else f"{len(event.text)} characters"
        word = f"[paste {len(self._pastes) + 1}: {size}]"
        self._pastes[word] = event.text
        event.text = word  # TextArea's own handler, which comes next, inserts it

    def _removed_paste(self) -> bool:
        """Remove the pasted word before the cursor; return whether there was one."""
        row, column = self.cursor_location
        word = _PASTED.search(self.document.get_line(row)[:column])
        if not word or word[0] not in self._pastes or self.selected_text:
            return False
        self.delete((row, word.start()), (row, column))
        return True

    def update_suggestion(self) -> None:
        """Suggest the command that a slash and some letters begin; the right key takes it."""
        text = self.text
        word = text[1:] if text.startswith("/") else ""
        self.suggestion = next((w[len(word) :] for w in BY_WORD if word and w.startswith(word)), "")

    def do_prompt_clear(self) -> None:
        """Empty the prompt; the up key brings the text back."""
        if text := self.message.strip():
            self.sent(text)

    def do_prompt_send(self) -> None:
        """Send the text, unless it is blank or the line ends in a backslash."""
        row, column = self.cursor_location
        if self.document.get_line(row)[:column].endswith("\\"):
            self.replace("\n", (row, column - 1), (row, column))
        elif text := self.message.strip():
            self.sent(text)
            self.post_message(MessageTyped(text))

    def do_prompt_newline(self) -> None:
        """Go on in a new line."""
        self.insert("\n")

    def do_prompt_leave(self) -> None:
        """Give the keys back to the panes."""
        self._leave()

    def sent(self, text: str) -> None:
        """Clear the prompt after its text was sent, and remember the text."""
        self._history = [*self._history[-MAX_HISTORY + 1 :], text]
        self._recalled = 0
        self.clear()

    def begin_with(self, draft: str, *, aside: bool) -> None:
        """Show what was typed before the last view left.

        Args:
            draft: the text; empty for none.
            aside: leave the prompt empty, as something else is about to be typed; the up key
                recalls the draft.
        """
        if draft and aside:
            self._history.append(draft)
        elif draft:
            self.load_text(draft)
            self.move_cursor(self.document.end)

    def take_back(self, text: str) -> None:
        """Put back a text that could not be sent, before what was typed since."""
        if self._history[-1:] == [text]:
            self._history.pop()
        self.insert(text, (0, 0))

    def scroll_cursor_visible(self, center: bool = False, animate: bool = False) -> Offset:
        """Scroll to the cursor, unless its line is gone.

        Undo in Textual 8.2.8 updates the size before it moves the cursor back, and then raises
        ValueError: https://github.com/Textualize/textual/issues/6686.
        """
        if self.cursor_location[0] >= self.document.line_count:
            return Offset()
        return super().scroll_cursor_visible(center, animate)

    async def on_key(self, event: events.Key) -> None:
        """Do the prompt's actions; at the first and last line, recall earlier messages.

        Bindings would run too late: see ``act_in_order``.
        """
        if action := self._keys.action("prompt", event.key):
            self.action_do(action.id)
        elif not (event.key == "backspace" and self._removed_paste()) and not self._recall(
            event.key
        ):
            await act_in_order(self, event)
            return
        event.prevent_default()
        event.stop()

    def _recall(self, key: str) -> bool:
        """Recall a queued, an earlier or a later message; return whether the key did."""
        row, last_row = self.cursor_location[0], self.document.line_count - 1
        if key == "up" and row == 0:
            by = 1
        elif key == "down" and row == last_row and self._recalled:
            by = -1
        else:
            return False
        if self._recalled == 0 and self.text:
            return False
        if by == 1 and not self._recalled and (queued := self._take_queued()):
            if self._history[-1:] == [queued]:
                self._history.pop()  # it is remembered once it is sent
            self.load_text(queued)
            self.move_cursor(self.document.end)
            return True
        self._recalled = min(max(self._recalled + by, 0), len(self._history))
        self.load_text(self._history[-self._recalled] if self._recalled else "")
        self.move_cursor(self.document.end)
        return True
