"""The conversation. Only the turns near the visible part are mounted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static
from textual.widgets.markdown import MarkdownFence

from hermes_tui.core.changes import ChatTurn
from hermes_tui.core.state import ViewState
from hermes_tui.tui.context import AppContext
from hermes_tui.tui.keys import Keys, bindings
from hermes_tui.tui.messages import CopyRequested, EditRequested, FindRequested, RetryRequested
from hermes_tui.tui.widgets.base import ActionOwner, titled
from hermes_tui.tui.widgets.formatting import literal, path
from hermes_tui.tui.widgets.hits import Hits
from hermes_tui.tui.widgets.markdown_reply import ReplyChunk, code_around
from hermes_tui.tui.widgets.tool_block import FoldedBlock
from hermes_tui.tui.widgets.transcript import NEAR, TranscriptScroll
from hermes_tui.tui.widgets.turn_view import SCORE_KEYS, TurnStatus, TurnView, words_of_part
from hermes_tui.tui.widgets.unread_bar import UnreadBar
from hermes_tui_services.api.wire import SearchHit

BATCH = 10
"""Turns to mount at a time: at first, and when the person scrolls to an edge."""

BORDER_CELLS = 2
"""Cells of a line in the border that are no text."""

HIT_TRIES = 3
"""Layouts after which what was found is in its place."""

MAX_MOUNTED = 3 * BATCH
"""Most turns that stay mounted."""

WELCOME = "Talk to your agent."
LEARNS = " Its model runs here,\nand learns from what you think of it."

FIRST_KEYS = (
    ("prompt_send", "say it"),
    ("score_good", "good: likelier from now on"),
    ("score_bad", "bad: less likely"),
    ("score_exact", "any number from −1 to 1"),
    ("prompt_leave", "leave the prompt"),
    ("help", "all keys"),
)
"""The first actions that a newcomer needs, each with a few words."""


def welcome(keys: Keys, *, training: bool) -> Content:
    """Return the text of an empty conversation, with the keys in force."""
    rows = [
        Content.assemble((f"  {label:<8} ", "bold"), word)
        for action, word in FIRST_KEYS
        if (label := keys.label(action)) and (training or not action.startswith("score_"))
    ]
    lead = WELCOME + (LEARNS if training else "")
    return Content("\n").join([Content(lead), Content(), *rows])


class ChatView(ActionOwner, TranscriptScroll):
    """The scrolled turns. Stays at the end until the person scrolls up; ``end`` follows again.

    Only part of a long conversation is mounted; scrolling to an edge mounts more.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("chat")]

    def __init__(self, context: AppContext, status_of: Callable[[ChatTurn], TurnStatus]) -> None:
        super().__init__(id="chat-view")
        self.context = context
        self._status_of = status_of
        self._turns: Sequence[ChatTurn] = ()
        self._first = 0
        self._end = 0
        """``turns[_first:_end]`` are mounted."""
        self._found = 0
        self._last_find = ""
        self._hits = Hits()

    def compose(self) -> ComposeResult:
        """Lay out the empty conversation."""
        greeting = welcome(self.context.keys, training=self.context.training)
        yield Static(greeting, id="welcome")
        yield Static(id="earlier", classes="edge")
        yield Static(id="later", classes="edge")

    @property
    def turns(self) -> Sequence[ChatTurn]:
        """The conversation that is shown."""
        return self._turns

    async def show(self, turns: Sequence[ChatTurn]) -> None:
        """Show another conversation from its end.

        Args:
            turns: the conversation; ``sync`` mounts turns that are appended later.
        """
        async with self.changing():
            self._turns = turns
            await self._open(max(len(turns) - BATCH, 0), len(turns))
        self.follow()

    def _status(self, turn: ChatTurn) -> TurnStatus:
        keys, status = self.context.keys, self._status_of(turn)
        if not status.takes_keys:
            return status
        judged = [("score_good", "good"), ("score_bad", "bad"), ("score_exact", "exact")]
        labels = [f"{keys.label(action)} {word}" for action, word in judged if keys.label(action)]
        given = status.episode.reward if status.episode else None
        again = keys.label(SCORE_KEYS.get(given or 0.0, "score_exact"))
        return replace(status, judged_by=" · ".join(labels), undo=again)

    async def sync(self, changed: set[str] | None = None) -> None:
        """Show turns as they are now.

        Args:
            changed: ids of the turns to update; None updates all that are mounted.
        """
        async with self.changing():
            views = list(self.views())
            if not self.has_later_turns and self._end < len(self._turns):
                await self._mount_until(len(self._turns))
            for view in views:
                if changed is None or view.turn.turn_id in changed:
                    await view.sync(self._status(view.turn))
            if self.following and self._end - self._first > 2 * BATCH:
                await self._keep(self._end - BATCH, self._end)
            if self.has_later_turns:
                self._mark_edges()

    # The part that is mounted ------------------------------------------------------------------

    async def _open(self, first: int, end: int) -> None:
        """Mount ``turns[first:end]`` instead of what is mounted."""
        with self.app.batch_update():
            self.anchor(False)
            await self.query_children(TurnView).remove()
            self._first = self._end = first
            await self._mount_until(end)

    async def _mount_until(self, end: int) -> None:
        turns, self._end = self._turns[self._end : end], end
        await self.mount_all([self._view(turn) for turn in turns], before="#later")
        self._mark_edges()

    async def _mount_from(self, first: int) -> None:
        turns, self._first = self._turns[first : self._first], first
        await self.mount_all([self._view(turn) for turn in turns], after="#earlier")
        self._mark_edges()

    async def _keep(self, first: int, end: int) -> None:
        """Unmount all but ``turns[first:end]``."""
        views = list(self.views())
        excess = views[: max(first - self._first, 0)] + views[end - self._first :]
        self._first, self._end = max(first, self._first), min(end, self._end)
        for view in excess:
            await view.remove()
        self._mark_edges()

    def _view(self, turn: ChatTurn) -> TurnView:
        return TurnView(turn, self._status(turn))

    def _mark_edges(self) -> None:
        self.query_one("#welcome").display = not self._turns
        later = len(self._turns) - self._end
        self.has_later_turns = later > 0
        for edge, text, count in (
            ("#earlier", f"▲ {self._first} earlier turns", self._first),
            ("#later", f"▼ {later} later turns", later),
        ):
            line = self.query_one(edge, Static)
            line.display = count > 0
            line.update(text)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Mount more turns when the person scrolls near an edge of the mounted ones."""
        super().watch_scroll_y(old_value, new_value)
        rows = self.size.height * NEAR
        up = new_value < old_value and new_value <= rows and self._first > 0
        down = new_value > old_value and self.max_scroll_y - new_value <= rows
        if (up and not self.following) or (down and self.has_later_turns):
            self.run_worker(self._go_on(up), group="edge")

    async def _go_on(self, up: bool) -> None:
        if self.is_changing:
            return
        async with self.changing():
            if up:
                await self._mount_from(max(self._first - BATCH, 0))
                await self._keep(self._first, self._first + MAX_MOUNTED)
            else:
                await self._mount_until(min(self._end + BATCH, len(self._turns)))
                await self._keep(self._end - MAX_MOUNTED, self._end)

    def do_chat_find(self) -> None:
        """Ask what to find."""
        self.post_message(FindRequested(self._last_find, "chat"))

    def find(self, text: str) -> bool:
        """Go to the newest turn that holds a text, then to older ones; return whether one does."""
        number = len(self._turns)
        begin = self._found if text == self._last_find else number
        self._last_find, wanted = text, text.casefold()
        for distance in range(1, number + 1):
            index = (begin - distance) % number
            if wanted in words_of(self._turns[index]).casefold():
                self._found = index
                self.run_worker(self._go_to(index, wanted), group="find")
                return True
        return False

    def find_at(self, hit: SearchHit, text: str) -> bool:
        """Go to a text in the turn in which a search found it; return whether the turn is there.

        A turn that the trainer recorded has no run: it is known by when it ran.
        """
        for index, turn in enumerate(self._turns):
            ran = hit.started_at <= turn.started_at <= hit.finished_at
            if turn.run_id == hit.run_id if turn.run_id else ran:
                self._found, self._last_find = index, text
                self.run_worker(self._go_to(index, text.casefold()), group="find")
                return True
        return False

    async def _go_to(self, index: int, wanted: str) -> None:
        self.following = False
        async with self.changing():
            if not self._first <= index < self._end:
                first = max(index - BATCH // 2, 0)
                await self._open(first, min(first + BATCH, len(self._turns)))
            view = next(view for view in self.views() if view.turn is self._turns[index])
            await view.reveal(wanted)
        for other in self.views():
            other.set_class(other is view, "-found")
        self._hits.mark(view, wanted)
        self.call_after_refresh(self._show_hit, view, HIT_TRIES)

    def _show_hit(self, view: TurnView, tries: int) -> None:
        """Scroll to the first hit; where Markdown drew nothing of what was searched, to the turn.

        Args:
            view: the turn.
            tries: how often to do it, a layout later each: what comes in sight wakes, and moves it.
        """
        row = self._hits.first_row
        y = view.region.y if row is None else row
        self.scroll_to(y=self.scroll_y + y - self.region.y - self.size.height // 3)
        if tries > 1:
            self.call_after_refresh(self._show_hit, view, tries - 1)

    def do_chat_follow(self) -> None:
        """Follow the newest text."""
        if self.has_later_turns:
            self.run_worker(self.show(self._turns), group="edge")
        else:
            self.follow()

    def do_chat_retry(self) -> None:
        """Ask for another reply."""
        self.post_message(RetryRequested())

    def do_chat_edit(self) -> None:
        """Ask for other words."""
        self.post_message(EditRequested())

    # The piece that is marked ------------------------------------------------------------------

    def do_chat_before(self) -> None:
        """Mark the piece before: a tool call, a code block, or a turn."""
        self.run_worker(self._mark_next(-1), group="mark")

    def do_chat_after(self) -> None:
        """Mark the next piece."""
        self.run_worker(self._mark_next(1), group="mark")

    @property
    def marked(self) -> Widget | None:
        """The tool call, code block or turn that keys are about; None for none."""
        return next(iter(self.query(".-marked")), None)

    async def _mark_next(self, by: int) -> None:
        async with self.changing():
            piece = self._piece_beyond(by)
            if piece is None and by < 0 and self._first > 0:
                await self._mount_from(max(self._first - BATCH, 0))
                piece = self._piece_beyond(by)
            if isinstance(piece, ReplyChunk):  # asleep: its code has no widget yet
                await piece.wake()
                code = list(piece.query(MarkdownFence))
                piece = code[0 if by > 0 else -1] if code else piece
        if piece is not None:
            self.query(".-marked").remove_class("-marked")
            piece.add_class("-marked")
            self.following = False
            self.call_after_refresh(piece.scroll_visible, animate=False, force=True)

    def _piece_beyond(self, by: int) -> Widget | None:
        """Return the piece before or after the marked one; None where there is none.

        Without a mark: the last piece, or the first one in sight.
        """
        pieces = [piece for view in self.views() for piece in view.pieces]
        marked = self.marked
        if marked in pieces:
            index = pieces.index(marked) + by
            return pieces[index] if 0 <= index < len(pieces) else None
        if by < 0:
            return pieces[-1] if pieces else None
        return next((piece for piece in pieces if piece.region.y >= self.region.y), None)

    def do_chat_fold(self) -> None:
        """Fold or unfold the marked tool call; without a mark the newest."""
        blocks = list(self.query(FoldedBlock))
        if isinstance(self.marked, FoldedBlock):
            blocks = [self.marked]
        if blocks:
            blocks[-1].fold(not blocks[-1].folded)

    def do_chat_fold_all(self) -> None:
        """Fold all tool calls, or unfold them when all are folded."""
        blocks = list(self.query(FoldedBlock))
        fold = any(not block.folded for block in blocks)
        for block in blocks:
            block.fold(fold)

    def do_chat_copy(self) -> None:
        """Copy what is marked; without a mark the agent's last reply."""
        match self.marked:
            case FoldedBlock() as block:
                text, what = block.words, "the tool's output"
            case MarkdownFence() as fence:
                text, what = self._whole_code(fence), "the code"
            case TurnView(turn=turn):
                text, what = f"{turn.user_text}\n\n{turn.text}".strip(), "the turn"
            case _:
                text = next((turn.text for turn in reversed(self._turns) if turn.text), "")
                what = "the last reply"
        self.post_message(CopyRequested(text, what))

    def _whole_code(self, fence: MarkdownFence) -> str:
        """Return all of a block of code; a long one is drawn in several chunks."""
        view = next(view for view in self.views() if view in fence.ancestors)
        return code_around(fence.code, view.turn.text)


def words_of(turn: ChatTurn) -> str:
    """Return all text of a turn, folded or not, to search in."""
    return "\n".join([turn.user_text, *map(words_of_part, turn.parts), turn.error])


class ChatPane(Vertical):
    """The conversation, and how much has arrived out of sight."""

    def __init__(self, context: AppContext, status_of: Callable[[ChatTurn], TurnStatus]) -> None:
        super().__init__(id="chat")
        self.context = context
        self._status_of = status_of
        self._directory = ""

    def compose(self) -> ComposeResult:
        """Lay out the pane."""
        yield ChatView(self.context, self._status_of)
        yield UnreadBar("words")

    def on_mount(self) -> None:
        """Show the empty pane."""
        titled(self, "chat")
        self.watch(self.view, "following", lambda: self.count_unread(0))

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
        self._directory = state.directory(state.selected)
        self._show_directory()

    def on_resize(self) -> None:
        """Use the room there is."""
        self._show_directory()

    def _show_directory(self) -> None:
        words = "commands run in "
        room = max(self.size.width - len(words) - BORDER_CELLS, 8)
        about = words + path(self._directory, room) if self._directory else ""
        self.border_subtitle = literal(about)

    def count_unread(self, count: int) -> None:
        """Add to the count of what arrived out of sight; following resets it."""
        unread = self.query_one(UnreadBar)
        if self.view.following:
            unread.reset()
        else:
            unread.add(count)
