"""One turn of the conversation: what was said, what the agent did, and what became of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markdown_it import MarkdownIt
from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from hermes_tui.core.events import Part, TextPart, ThoughtPart, ToolPart, Turn
from hermes_tui.core.rows import EpisodeRow
from hermes_tui.core.text import clean, one_line, shorten
from hermes_tui.widgets.text import foreign, signed, state

MAX_RESULT_LINES = 200
"""Lines of a tool's answer that are drawn; a file of 35,000 lines must not stall the screen."""

REASONS = {
    "no_token_ids": "its upstream gave no tokens",
    "truncated": "cut off by max_tokens",
    "client_left": "interrupted",
    "aux_call": "a call beside the turn",
    "sampling_mismatch": "sampled in a way that can't be recomputed",
    "stale": "sampled by weights that are too old",
    "zero_advantage": "it gave nothing to learn",
    "engine_error": "the engine failed",
    "incomplete": "a part of it was lost",
    "non_finite": "its step gave no finite numbers",
}
"""Why something is not trained, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What a turn's badge is made of."""

    episode: EpisodeRow | None
    """The episode it was recorded in; None while unknown, or in plain chat."""
    seconds_left: float = 0.0
    """Seconds in which the score can surely be undone."""
    training: bool = True
    """Whether the stack has a trainer."""
    waiting: str = ""
    """What the next step waits for."""
    judged_by: str = ""
    """How it is judged; empty where no key does."""
    undo: str = ""
    """The key that takes the score back; empty where none does."""


def badge(turn: Turn, fate: Fate) -> Content:
    """Return what became of a turn: a sign, a word, and the reason where there is one."""
    episode = fate.episode
    if turn.state == "running":
        return foreign("◌ speaking", "dim")
    if turn.state == "failed":
        return foreign(f"✗ failed: {one_line(turn.error)}", "$text-error")
    stopped = "✗ interrupted · " if turn.state == "interrupted" else ""
    if not fate.training or episode is None:
        return foreign(stopped.removesuffix(" · "), "$text-warning")
    return foreign(stopped, "$text-warning") + _episode_badge(turn, episode, fate)


def _episode_badge(turn: Turn, episode: EpisodeRow, fate: Fate) -> Content:
    why = ", ".join(REASONS.get(reason, reason) for reason in dict.fromkeys(turn.untrainable))
    score = f"{signed(episode.reward, 1)}"
    match episode.state:
        case "trained" if not why:
            return state("trained", f"trained at step {episode.step}") + _dim(f" · {score}")
        case "claimed":
            return state("claimed", "in the step that runs") + _dim(f" · {score}")
        case "dropped":
            reason = REASONS.get(episode.dropped_reason, episode.dropped_reason) or "dropped"
            return state("dropped", f"not trained: {reason}")
    if why:
        return state("dropped", f"not trained: {why}")
    if episode.state == "scored":
        when = f"for {fate.seconds_left:.1f} s" if fate.seconds_left > 0 else f"· {fate.waiting}"
        undo = f"{fate.undo} undoes it {when}" if fate.undo else when.removeprefix("· ")
        return state("scored", f"scored {score}") + _dim(f" · {undo}")
    if episode.state == "unscored":
        return state("unscored", "not judged")
    return state("open", "not judged yet") + _dim(f" · {fate.judged_by}" if fate.judged_by else "")


def _dim(text: str) -> Content:
    return Content.styled(text, "dim")


def cost(turn: Turn) -> str:
    """Return what a turn cost: tokens, seconds, tokens per second, version."""
    parts = [f"{turn.num_tokens} tok"] if turn.num_tokens else []
    if turn.num_tokens and turn.seconds > 0:
        parts += [f"{turn.seconds:.1f} s", f"{turn.num_tokens / turn.seconds:.0f} tok/s"]
    parts += [f"v{turn.policy_version}"] if turn.policy_version is not None else []
    return " · ".join(parts)


def _parser() -> MarkdownIt:
    # Tags in foreign text are text: as HTML they would vanish from the reply.
    return MarkdownIt("gfm-like", {"html": False})


PIECE_CHARS = 2_000
"""A reply goes on in another widget after this much: what arrives costs Textual a look at every
paragraph of the widget that it is added to."""

_BORDER = re.compile(r"\n\n+(?=[^\s\-*+>|\d])")
"""Where one paragraph ends and the next thing is surely no part of it: of a list, a quote."""


def piece_end(text: str, start: int) -> int | None:
    """Return where the piece of a reply that begins at ``start`` ends; None while it goes on."""
    for border in _BORDER.finditer(text, start + PIECE_CHARS):
        if text.count("```", start, border.start()) % 2 == 0:
            return border.end()
    return None


def piece_starts(text: str) -> list[int]:
    """Return where each piece of a reply begins."""
    starts = [0]
    while (end := piece_end(text, starts[-1])) is not None:
        starts.append(end)
    return starts


class Reply(Markdown):
    """Words of the agent as Markdown; grows without being parsed anew.

    Args:
        text: the words that are there already.
        start: where in its part of the turn it begins; a long part has several.
    """

    def __init__(self, text: str = "", start: int = 0) -> None:
        super().__init__(
            clean(text),
            parser_factory=_parser,
            open_links=False,
            classes="goes-on" if start else "",
        )
        self.start = start
        self._written = len(text)
        self._stream: MarkdownStream | None = None

    async def grow(self, text: str) -> None:
        """Show the whole text, of which a beginning is shown already."""
        if len(text) > self._written:
            self._stream = self._stream or Markdown.get_stream(self)
            delta, self._written = text[self._written :], len(text)
            await self._stream.write(clean(delta))

    async def finish(self) -> None:
        """Show what is still on its way; nothing comes after it."""
        if self._stream:
            stream, self._stream = self._stream, None
            await stream.stop()

    async def on_unmount(self) -> None:
        """End the task that writes."""
        await self.finish()

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Open links to the web only: a reply may name anything."""
        event.stop()
        if event.href.startswith(("https://", "http://")):
            self.app.open_url(event.href)


class FoldedBlock(Vertical):
    """A tool call with its result, or a thought: one line until it is clicked."""

    def __init__(self, part: ToolPart | ThoughtPart) -> None:
        super().__init__(classes="folded-block")
        self._part = part
        self.folded = True

    def compose(self) -> ComposeResult:
        """Lay out the heading and the body."""
        yield Static(classes="folded-head")
        body = Static(classes="folded-body")
        body.display = False
        yield body

    def on_mount(self) -> None:
        """Show what is there already."""
        self.sync(self._part)

    def sync(self, part: ToolPart | ThoughtPart) -> None:
        """Show the call or the thought as it is now."""
        self._part = part
        if not self.is_mounted:
            return
        head = foreign("▸ " if self.folded else "▾ ") + _folded_head(part)
        self.query_one(".folded-head", Static).update(head)
        if not self.folded:
            self.query_one(".folded-body", Static).update(_folded_body(part))

    def fold(self, folded: bool) -> None:
        """Hide or show the body."""
        self.folded = folded
        self.query_one(".folded-body").display = not folded
        self.sync(self._part)

    def on_click(self, event: events.Click) -> None:
        """Fold or unfold."""
        event.stop()
        self.fold(not self.folded)


def _num_lines(text: str) -> int:
    return text.count("\n") + 1 if text else 0


def _folded_head(part: ToolPart | ThoughtPart) -> Content:
    if isinstance(part, ThoughtPart):
        return _dim(f"thought · {_num_lines(part.text)} lines")
    arguments = shorten(one_line(part.arguments), 60)
    outcome = "running" if part.result is None else f"{_num_lines(part.result)} lines"
    return foreign(f"{one_line(part.name)} {arguments}") + _dim(f" · {outcome}")


def _folded_body(part: ToolPart | ThoughtPart) -> Content:
    if isinstance(part, ThoughtPart):
        return foreign(part.text)
    lines = [foreign(part.arguments)]
    if part.result is not None:
        shown = part.result.split("\n", MAX_RESULT_LINES)
        rest = shown.pop() if len(shown) > MAX_RESULT_LINES else ""
        lines += [_dim("answered"), foreign("\n".join(shown))]
        lines += [_dim(f"… {_num_lines(rest)} more lines")] if rest else []
    return Content("\n").join(lines)


class TurnView(Vertical):
    """Draws one turn; told to ``sync`` when it changes."""

    def __init__(self, turn: Turn, fate: Fate) -> None:
        super().__init__(classes="turn")
        self.turn = turn
        self._fate = fate
        self._parts: list[FoldedBlock | Reply] = []
        """For each part of the turn its widget, of a long reply the last one."""

    def compose(self) -> ComposeResult:
        """Lay out what is there already."""
        yield Static(_dim("you"), classes="who you")
        yield Static(foreign(self.turn.user_text), classes="said")
        yield Static(classes="who cost")
        with Vertical(classes="reply"):
            for part in self.turn.parts:
                yield from self._new_part(part)
        yield Static(classes="badge")

    def on_mount(self) -> None:
        """Show cost and badge."""
        self._sync_lines()

    def _new_part(self, part: Part) -> list[Reply | FoldedBlock]:
        widgets: list[Reply | FoldedBlock] = (
            [FoldedBlock(part)] if not isinstance(part, TextPart) else []
        )
        if isinstance(part, TextPart):
            borders = [*piece_starts(part.text), len(part.text)]
            widgets += [Reply(part.text[start:end], start) for start, end in pairwise(borders)]
        self._parts.append(widgets[-1])
        return widgets

    async def sync(self, fate: Fate) -> None:
        """Show the turn as it is now."""
        self._fate = fate
        if not self.is_mounted:
            return
        for number, part in enumerate(self.turn.parts):
            if number == len(self._parts):
                await self.query_one(".reply", Vertical).mount(*self._new_part(part))
            widget = self._parts[number]
            if isinstance(widget, Reply) and isinstance(part, TextPart):
                await self._grow(number, widget, part.text)
            elif isinstance(widget, FoldedBlock) and not isinstance(part, TextPart):
                widget.sync(part)
        if self.turn.state != "running":
            for widget in self._parts:
                if isinstance(widget, Reply):
                    await widget.finish()
        self._sync_lines()

    async def _grow(self, number: int, reply: Reply, text: str) -> None:
        """Have a part show the whole of its text, in a new widget where one has enough."""
        while (end := piece_end(text, reply.start)) is not None:
            await reply.grow(text[reply.start : end])
            await reply.finish()
            following = Reply(start=end)
            await self.query_one(".reply", Vertical).mount(following, after=reply)
            self._parts[number] = reply = following
        await reply.grow(text[reply.start :])

    def _sync_lines(self) -> None:
        line = cost(self.turn)
        who = Content.styled("hermes", "bold $text-primary")
        self._update(".cost", who + _dim(f" · {line}") if line else who)
        self._update(".badge", badge(self.turn, self._fate))

    def _update(self, selector: str, content: Content) -> None:
        widget = self.query_one(selector, Static)
        if widget.content != content:
            widget.update(content)

    def fold(self, folded: bool) -> None:
        """Hide or show what tools were given and answered."""
        for block in self.query(FoldedBlock):
            block.fold(folded)

    def __rich_repr__(self) -> Any:
        """Name the turn in Textual's developer tools."""
        yield "turn_id", self.turn.turn_id
