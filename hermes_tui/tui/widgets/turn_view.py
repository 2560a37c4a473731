"""One turn of the conversation: message, tool calls, replies, and its training status."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.reactive import var
from textual.widget import Widget
from textual.widgets import Static
from textual.widgets.markdown import MarkdownFence

from hermes_tui.core.changes import ChatTurn, Part, TextPart, ToolPart
from hermes_tui.core.models import EpisodeRow
from hermes_tui.core.reasons import reason_text, reasons_text
from hermes_tui.core.sanitize import one_line
from hermes_tui.tui.widgets.formatting import PART, by_parts, literal, signed_reward, state
from hermes_tui.tui.widgets.markdown_chunks import chunk_starts, next_chunk_start
from hermes_tui.tui.widgets.markdown_reply import ReplyChunk
from hermes_tui.tui.widgets.tool_block import FoldedBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStatus:
    """What a turn's badge shows."""

    episode: EpisodeRow | None
    """The episode that recorded it; None while unknown, or without a trainer."""
    training: bool = True
    """Whether the stack has a trainer."""
    waiting: str = ""
    """What its episode waits for once it is scored."""
    untrainable: str = ""
    """Why its episode can't be trained, whatever its score; empty when it can."""
    marked: bool = False
    """Whether a score is for its episode."""
    takes_keys: bool = False
    """Whether its badge names the keys that score: the last turn of the marked episode."""
    judged_by: str = ""
    """The keys that score it, as shown; empty without keys."""
    picked: bool = False
    """Whether it is picked as the best of those that are compared."""
    undo: str = ""
    """The key that undoes the score; empty without one."""
    asked: bool = False
    """Whether the agent waits for a person's answer in it."""
    answer: str = ""
    """The key that answers, as shown; empty without one."""
    now: float = 0.0
    """Seconds since the epoch."""


SLOW_TOKENS_PER_S = 10
"""Below this a speed has a decimal: nothing that moves is shown as 0."""

SCORE_KEYS = {1.0: "score_good", -1.0: "score_bad"}
"""The actions that give one reward each; pressed again they take it back."""

MARK = "▪ "
"""Stands before the badges of the marked episode, as before its row in the list."""


def badge(turn: ChatTurn, status: TurnStatus) -> Content:
    """Return a turn's badge: glyph, word, and the reason if there is one."""
    episode = status.episode
    if turn.state == "running" and status.asked:
        key = _dim(f" · {status.answer} answers") if status.answer else Content()
        return literal("◆ waits for you", "bold $text-warning") + key
    if turn.state == "running" and turn.reading:
        seconds = max(status.now - turn.reading_since, 0.0)
        return literal(f"◌ reading {turn.reading:,} tokens · {seconds:.0f} s", "dim")
    if turn.state == "running":
        return literal("◌ speaking", "dim")
    if turn.state == "failed":
        return literal(f"✗ failed: {one_line(turn.error)}", "$text-error")
    stopped = "✗ interrupted · " if turn.state == "interrupted" else ""
    if not status.training or episode is None:
        return literal(stopped.removesuffix(" · "), "$text-warning")
    mark = _dim(MARK) if status.marked else Content()
    return mark + literal(stopped, "$text-warning") + _episode_badge(turn, episode, status)


def _episode_badge(turn: ChatTurn, episode: EpisodeRow, status: TurnStatus) -> Content:
    why = reasons_text(turn.untrainable)
    if why and turn.num_trainable:
        return _status_badge(episode, status) + _dim(f" · not all of it: {why}")
    if why and episode.state not in ("claimed", "dropped"):
        return state("dropped", f"not trained: {why}")
    if status.untrainable and episode.state in ("open", "ended", "unscored"):
        return state("dropped", f"can't be trained: {status.untrainable}")
    return _status_badge(episode, status)


def _status_badge(episode: EpisodeRow, status: TurnStatus) -> Content:
    score = signed_reward(episode.reward)
    match episode.state:
        case "trained":
            return state("trained", f"trained at step {episode.step}") + _dim(f" · {score}")
        case "claimed":
            return state("claimed", "in the step that runs") + _dim(f" · {score}")
        case "dropped":
            reason = reason_text(episode.dropped_reason) or "dropped"
            return state("dropped", f"not trained: {reason}")
    if episode.state == "scored":
        taken_back = f" · {status.undo} takes it back" if status.undo else ""
        about = f" · “{one_line(episode.feedback)}”" if episode.feedback else ""
        return state("scored", f"scored {score}") + _dim(f"{about} · {status.waiting}{taken_back}")
    if episode.state == "unscored":
        return state("unscored", "not judged")
    return state("open", "picked, not scored yet" if status.picked else "not judged yet") + _dim(
        f" · {status.judged_by}" if status.judged_by else ""
    )


def _dim(text: str) -> Content:
    return Content.styled(text, "dim")


def cost(turn: ChatTurn) -> dict[str, str]:
    """Return tokens, time, speed and version of a turn, in the order shown."""
    parts: dict[str, str] = {}
    if turn.num_tokens:
        parts["tokens"] = f"{turn.num_tokens} tok"
    if turn.first_token_s is not None:
        parts["first"] = f"first {turn.first_token_s:.1f} s"
    if turn.num_tokens and turn.seconds > 0:
        parts["time"] = f"{turn.seconds:.1f} s"
        speed = turn.num_tokens / (turn.sampling_s or turn.seconds)
        parts["speed"] = f"{speed:.{int(speed < SLOW_TOKENS_PER_S)}f} tok/s"
    if turn.policy_version is not None:
        parts["version"] = f"v{turn.policy_version}"
    return parts


def words_of_part(part: Part) -> str:
    """Return all text of a part, to search in."""
    if isinstance(part, ToolPart):
        return "\n".join((part.name, part.arguments, part.result or ""))
    return part.text


class CostLine(Static):
    """The agent's name and the turn's cost; a narrow line drops the least important parts."""

    WHO = "hermes"
    DROP_ORDER = ("time", "first", "speed", "tokens")
    """Parts in the order in which a narrow line drops them."""

    def __init__(self) -> None:
        super().__init__(classes="who cost")
        self._cost: dict[str, str] = {}

    def show(self, turn: ChatTurn) -> None:
        """Show what a turn cost."""
        if (new := cost(turn)) != self._cost:
            self._cost = new
            self.refresh()

    def render(self) -> Content:
        """Draw the parts that fit."""
        parts = dict(self._cost)
        for dropped in self.DROP_ORDER:
            if sum(len(PART + part) for part in parts.values()) <= self.size.width - len(self.WHO):
                break
            parts.pop(dropped, None)
        words = "".join(PART + part for part in parts.values())
        return Content.styled(self.WHO, "bold $text-primary") + _dim(words)


class Badge(Static):
    """A turn's badge, wrapped between its parts."""

    def render(self) -> Content:
        """Draw it at the current width."""
        return self._broken(self.content_size.width)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return its number of lines."""
        return len(self._broken(width).wrap(width)) if width else 0

    def _broken(self, width: int) -> Content:
        assert isinstance(self.content, Content)
        return by_parts(self.content, width)


class TurnView(Vertical):
    """Draws one turn; call ``sync`` when it has changed."""

    virtual_size = var(
        Size(0, 0)
    )  # Textual's own (8.2.8) lays out the whole screen whenever it grows

    def __init__(self, turn: ChatTurn, status: TurnStatus) -> None:
        super().__init__(classes="turn")
        self.turn = turn
        self._fate = status
        self._parts: list[FoldedBlock | ReplyChunk] = []
        """The widget of each part of the turn; for a long reply that of its last chunk."""

    @property
    def chunks(self) -> list[ReplyChunk]:
        """The chunks of the agent's replies, in order."""
        return list(self.query_children(ReplyChunk))

    @property
    def pieces(self) -> list[Widget]:
        """What can be marked, in order: the turn, its tool calls, and its blocks of code.

        A chunk that sleeps stands for the code in it.
        """
        found: list[Widget] = [self]
        for widget in self.children:
            if isinstance(widget, FoldedBlock) or (
                isinstance(widget, ReplyChunk) and widget.asleep and "```" in widget.words
            ):
                found.append(widget)
            elif isinstance(widget, ReplyChunk):
                found += [f for f in widget.query(MarkdownFence) if not widget.goes_on(f)]
        return found

    def compose(self) -> ComposeResult:
        """Lay out the parts so far."""
        yield Static(_dim("you"), classes="who you")
        yield Static(literal(self.turn.user_text), classes="said")
        yield CostLine()
        for part in self.turn.parts:
            yield from self._new_part(part)
        yield Badge(Content(), classes="badge")

    def on_mount(self) -> None:
        """Show cost and badge, and how each call ended."""
        for number, part in enumerate(self.turn.parts[: len(self._parts)]):  # it may have grown
            self._sync_block(number, part)
        self._sync_lines()

    def _new_part(self, part: Part) -> list[ReplyChunk] | list[FoldedBlock]:
        widgets: list[ReplyChunk] | list[FoldedBlock]
        if isinstance(part, TextPart):
            starts = chunk_starts(part.text)
            ends = [start.offset for start in starts[1:]] + [len(part.text)]
            widgets = [
                ReplyChunk(start, part.text[:end], asleep=end < len(part.text))
                for start, end in zip(starts, ends, strict=True)
            ]
            for reply, following in pairwise(widgets):
                reply.end_at(following.start)
        else:
            widgets = [FoldedBlock(part)]
        self._parts.append(widgets[-1])
        return widgets

    async def sync(self, status: TurnStatus) -> None:
        """Show the turn as it is now."""
        self._fate = status
        if not self.is_mounted:
            return
        for number, part in enumerate(self.turn.parts):
            if number == len(self._parts):
                await self.mount(*self._new_part(part), before=".badge")
            widget = self._parts[number]
            if isinstance(widget, ReplyChunk) and isinstance(part, TextPart):
                await self._grow(number, widget, part.text)
            else:
                self._sync_block(number, part)
        self._sync_lines()

    def _sync_block(self, number: int, part: Part) -> None:
        block = self._parts[number]
        if isinstance(block, FoldedBlock) and not isinstance(part, TextPart):
            block.sync(part, over=self.turn.state != "running", asked=self._fate.asked)

    async def _grow(self, number: int, reply: ReplyChunk, text: str) -> None:
        """Show all text of a reply; each further chunk gets a widget of its own."""
        while (start := next_chunk_start(text, reply.start)) is not None:
            await reply.grow(text[: start.offset])
            reply.end_at(start)
            following = ReplyChunk(start)
            await self.mount(following, after=reply)
            self._parts[number] = reply = following
        await reply.grow(text)

    def _sync_lines(self) -> None:
        self.query_one(CostLine).show(self.turn)
        line = self.query_one(Badge)
        content = badge(self.turn, self._fate)
        if line.content != content:
            line.update(content)

    async def reveal(self, wanted: str) -> None:
        """Draw what holds a text: unfold a tool's output, wake a chunk that sleeps.

        Args:
            wanted: the text, casefolded.
        """
        for widget in list(self.children):
            if isinstance(widget, ReplyChunk) and wanted in widget.words.casefold():
                await widget.wake()
        if wanted not in self.turn.user_text.casefold() + self.turn.text.casefold():
            for block in self.query(FoldedBlock):
                if wanted in words_of_part(block.part).casefold():
                    block.fold(False)

    def __rich_repr__(self) -> Any:
        """Name the turn in Textual's developer tools."""
        yield "turn_id", self.turn.turn_id
