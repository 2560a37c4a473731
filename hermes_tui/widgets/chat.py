"""The conversation: turns, mounted as they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.reactive import var
from textual.widgets import Static

from hermes_tui.core.events import ToolPart, Turn
from hermes_tui.core.state import ViewState
from hermes_tui.keys import Keys, bindings
from hermes_tui.messages import CopyWanted, FindWanted
from hermes_tui.widgets.below import NewBelow
from hermes_tui.widgets.panes import Acts, titled
from hermes_tui.widgets.turn import Fate, FoldedBlock, TurnView

if TYPE_CHECKING:
    from hermes_tui.app import HermesTui

BATCH = 10
"""Turns that are mounted at once, at the end and whenever the person scrolls to the top."""

MAX_MOUNTED = 3 * BATCH
"""Turns that stay mounted while the conversation is followed."""

WELCOME = "Talk to your agent. Its model runs here,\nand learns from what you think of it.\n"

FIRST_KEYS = (
    ("prompt_send", "say it"),
    ("score_good", "good: likelier from now on"),
    ("score_bad", "bad: less likely"),
    ("score_exact", "any number from −1 to 1"),
    ("prompt_leave", "leave the prompt"),
    ("help", "all keys"),
)
"""What a newcomer needs: actions, and what they do in a few words."""


def welcome(keys: Keys) -> Content:
    """Return what stands where a conversation will be, with the keys in force."""
    rows = [
        Content.assemble((f"  {label:<8} ", "bold"), word)
        for action, word in FIRST_KEYS
        if (label := keys.label(action))
    ]
    return Content("\n").join([Content(WELCOME), *rows])


class ChatView(Acts, VerticalScroll, can_focus=True):
    """The scrolled turns. Stays at the end until the person scrolls up; ``end`` follows again."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("chat", "")]

    following: var[bool] = var(True)
    """Whether the view stays with the newest words."""

    def __init__(self, fate_of: Callable[[Turn], Fate]) -> None:
        super().__init__(id="chat-view")
        self._fate_of = fate_of
        self._turns: Sequence[Turn] = ()
        self._first = 0
        self._mounting = False
        self._found = 0
        self._last_find = ""

    def compose(self) -> ComposeResult:
        """Lay out the empty conversation."""
        yield Static(welcome(cast("HermesTui", self.app).keys), id="welcome")
        yield Static(id="earlier")

    @property
    def turns(self) -> Sequence[Turn]:
        """The conversation that is shown."""
        return self._turns

    async def show(self, turns: Sequence[Turn]) -> None:
        """Show another conversation from its end.

        Args:
            turns: the conversation; the list may grow, ``sync`` then mounts what is new.
        """
        async with self.batch():
            await self.query(TurnView).remove()
            self._turns = turns
            self._first = max(len(turns) - BATCH, 0)
            await self.mount_all([self._view(turn) for turn in turns[self._first :]])
            self._mark_ends()
        self._to_end()

    def _fate(self, turn: Turn) -> Fate:
        keys = cast("HermesTui", self.app).keys
        judged = [("score_good", "good"), ("score_bad", "bad")]
        labels = [f"{keys.label(action)} {word}" for action, word in judged if keys.label(action)]
        return replace(
            self._fate_of(turn), judged_by=" · ".join(labels), undo=keys.label("score_undo")
        )

    def _view(self, turn: Turn) -> TurnView:
        return TurnView(turn, self._fate(turn))

    def _mark_ends(self) -> None:
        self.query_one("#welcome").display = not self._turns
        earlier = self.query_one("#earlier", Static)
        earlier.display = self._first > 0
        earlier.update(f"▲ {self._first} earlier turns")

    async def sync(self, changed: set[str] | None = None) -> None:
        """Show turns as they are now.

        Args:
            changed: ids of the turns to look at; None looks at all that are mounted.
        """
        views = {view.turn.turn_id: view for view in self.query(TurnView)}
        new = [t for t in self._turns[self._first :] if t.turn_id not in views]
        if new:
            await self.mount_all([self._view(turn) for turn in new])
            self._mark_ends()
        for turn_id, view in views.items():
            if changed is None or turn_id in changed:
                await view.sync(self._fate(view.turn))
        if len(views) > MAX_MOUNTED and self.following:
            await self._unmount_oldest(list(views.values()))

    async def _unmount_oldest(self, views: list[TurnView]) -> None:
        excess = views[: len(views) - 2 * BATCH]
        self._first += len(excess)
        for view in excess:
            await view.remove()
        self._mark_ends()

    def _to_end(self) -> None:
        self.following = True
        self.scroll_to(y=self.max_scroll_y, animate=False, immediate=True)

    def watch_virtual_size(self) -> None:
        """Stay at the end while following."""
        if self.following:
            self._to_end()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Mount earlier turns when the person comes to the top."""
        super().watch_scroll_y(old_value, new_value)
        if new_value <= 0 < old_value and self._first > 0 and not self._mounting:
            self._mounting = True
            self.run_worker(self._mount_earlier(), exclusive=True, group="earlier")
        if new_value >= self.max_scroll_y:
            self.following = True
        elif new_value < old_value:
            self.following = False

    async def _mount_earlier(self) -> None:
        first = max(self._first - BATCH, 0)
        turns = self._turns[first : self._first]
        height = self.virtual_size.height
        self._first = first
        await self.mount_all([self._view(turn) for turn in turns], after="#earlier")
        self._mark_ends()

        def stay() -> None:
            self.scroll_to(y=self.virtual_size.height - height, animate=False, force=True)
            self._mounting = False

        self.call_after_refresh(stay)

    def do_chat_find(self) -> None:
        """Ask what to find."""
        self.post_message(FindWanted(self._last_find, "chat"))

    def find(self, text: str) -> bool:
        """Go to the newest turn that holds a text, then to older ones; return whether one does."""
        number = len(self._turns)
        begin = self._found if text == self._last_find else number
        self._last_find, wanted = text, text.casefold()
        for distance in range(1, number + 1):
            place = (begin - distance) % number
            if wanted in words_of(self._turns[place]).casefold():
                self._found = place
                self.run_worker(self._go_to(self._turns[place], wanted), group="find")
                return True
        return False

    async def _go_to(self, turn: Turn, wanted: str) -> None:
        self.following = False
        while self._first > 0 and turn not in self._turns[self._first :]:
            await self._mount_earlier()
        for view in self.query(TurnView):
            view.set_class(view.turn is turn, "-found")
            if view.turn is turn:
                if wanted not in f"{turn.user_text}\n{turn.text}".casefold():
                    view.fold(False)  # it stands in what is folded away
                self.call_after_refresh(view.scroll_visible, animate=False, top=True, force=True)

    def do_chat_follow(self) -> None:
        """Go to the newest words and stay there."""
        self._to_end()

    def do_chat_fold(self) -> None:
        """Fold all tool calls, or unfold them when all are folded."""
        blocks = list(self.query(FoldedBlock))
        fold = any(not block.folded for block in blocks)
        for block in blocks:
            block.fold(fold)

    def do_chat_copy(self) -> None:
        """Copy the agent's last words."""
        text = next((turn.text for turn in reversed(self._turns) if turn.text), "")
        self.post_message(CopyWanted(text, "the last reply"))


def words_of(turn: Turn) -> str:
    """Return everything that was said and done in a turn, folded or not."""
    said = [turn.user_text]
    for part in turn.parts:
        if isinstance(part, ToolPart):
            said += [part.name, part.arguments, part.result or ""]
        else:
            said.append(part.text)
    return "\n".join([*said, turn.error])


class ChatPane(Vertical):
    """The conversation and what is below its visible part."""

    def __init__(self, fate_of: Callable[[Turn], Fate]) -> None:
        super().__init__(id="chat")
        self._fate_of = fate_of

    def compose(self) -> ComposeResult:
        """Lay out the pane."""
        yield ChatView(self._fate_of)
        yield NewBelow("words")

    def on_mount(self) -> None:
        """Show the empty pane."""
        titled(self, "chat")
        self.watch(self.view, "following", lambda: self.count_below(0))

    @property
    def view(self) -> ChatView:
        """The scrolled turns."""
        return self.query_one(ChatView)

    def sync_title(self, state: ViewState) -> None:
        """Name the session that is open."""
        title = state.title(state.selected) if state.selected else "new session"
        latest = state.latest(state.selected)
        episode = f"episode {state.ordinal(latest)} · " if latest else ""
        titled(self, "chat", episode + title)

    def count_below(self, count: int) -> None:
        """Say how much has arrived out of sight."""
        below = self.query_one(NewBelow)
        if self.view.following:
            below.reset()
        else:
            below.add(count)
