"""One chunk of the agent's reply, drawn as Markdown."""

from __future__ import annotations

import asyncio

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.await_complete import AwaitComplete
from textual.geometry import Size
from textual.reactive import var
from textual.widgets import Markdown

from hermes_tui.core.sanitize import clean
from hermes_tui.tui.widgets.markdown_chunks import ChunkStart

GUESSED_WIDTH = 60
"""Characters that a line is taken to have as long as it has not been drawn."""

MERGED_CHARS = 8_000
"""Sleeping chunks are joined to one until it has this much."""


def _parser() -> MarkdownIt:
    # Tags in literal text are text: as HTML they would vanish from the reply.
    parser = MarkdownIt("gfm-like", {"html": False})
    parser.core.ruler.push("kept_lines", _keep_lines)
    return parser


def _keep_lines(state: StateCore) -> None:
    """Have each line of a paragraph stay one: models write verses, and wrap nothing by hand."""
    for token in state.tokens:
        for part in token.children or ():
            if part.type == "softbreak":
                part.type = "hardbreak"


_Paragraph = Markdown.BLOCKS["paragraph_open"]


class Paragraph(_Paragraph):  # type: ignore[valid-type, misc]
    """Words between two blank lines."""

    virtual_size = var(Size(0, 0))  # Textual's own has all laid out again when it grows


class ReplyChunk(Markdown):
    """A chunk of a reply; grows without being parsed anew, and can sleep while out of sight.

    While it sleeps it has no paragraphs, only their height.

    Args:
        start: where in its part of the turn it begins.
        text: the words of that part that are there already, from its beginning to the chunk's end.
        asleep: whether it begins asleep; its height is then a guess.
    """

    BLOCKS = {**Markdown.BLOCKS, "paragraph_open": Paragraph}  # noqa: RUF012  (Textual's own)
    virtual_size = var(Size(0, 0))

    def __init__(self, start: ChunkStart, text: str = "", *, asleep: bool = False) -> None:
        words = clean(start.prefix + text[start.offset :])
        super().__init__(
            None if asleep else words,
            parser_factory=_parser,
            open_links=False,
            classes=f"reply -{start.kind}",
        )
        self.start = start
        self.end = max(len(text), start.offset)
        """Where in its part it ends."""
        self.asleep = asleep
        """Whether its paragraphs are left out."""
        self.words = words
        """What it draws, whether it sleeps or not."""
        self._turning = asyncio.Lock()
        self._ended = False
        self._cut_code = False
        self._rows = 0
        """Its height while it sleeps."""
        if asleep:
            lines = words.rstrip().split("\n")
            self._rows = sum(1 + len(line) // GUESSED_WIDTH for line in lines)
            self.styles.height = self._rows

    def update(self, markdown: str) -> AwaitComplete:
        """Draw other words, by appending them to none.

        After an update of its own Textual (8.2) does not know where the last block begins: what is
        appended then takes the beginning of a list or table away.
        """

        async def draw() -> None:
            await super(ReplyChunk, self).update("")
            await self.append(markdown)

        return AwaitComplete(draw())

    async def grow(self, text: str) -> None:
        """Show its part of the turn up to where the text ends; a beginning is shown already."""
        async with self._turning:
            delta, self.end = clean(text[self.end :]), max(self.end, len(text))
            self.words += delta
            if delta and not self.asleep:
                await self.append(delta)

    def end_at(self, start: ChunkStart) -> None:
        """Take note of what comes after it."""
        self._ended, self._cut_code = True, start.kind == "code"
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the height without the room below the last block: what follows has its own."""
        height = super().get_content_height(container, viewport, width)
        last = next(iter(self.children[-1:]), None)
        room = last.styles.margin.bottom if last else 0
        return max(height - room - self._cut_code, 0)

    async def sleep(self) -> None:
        """Leave the paragraphs out, and keep their room."""
        async with self._turning:
            width = self.content_size.width
            if self.asleep or not width:
                return
            self.asleep = True
            with self.app.batch_update():
                # Its size is of the last layout; it may have grown since.
                self._rows = self.get_content_height(self.container_size, self.app.size, width)
                self.styles.height = self._rows
                await self.remove_children()

    async def wake(self) -> None:
        """Draw the paragraphs again."""
        async with self._turning:
            if not self.asleep:
                return
            with self.app.batch_update():
                await self.update(self.words)
                self.styles.height = "auto"
            self.asleep = False

    def can_merge(self, following: ReplyChunk) -> bool:
        """Return whether it can draw what the following chunk of its part draws, too."""
        asleep = self.asleep and following.asleep
        ended = self._ended and following._ended  # the last chunk of a part stays: it may grow
        return asleep and ended and following.end - self.start.offset <= MERGED_CHARS

    async def merge(self, following: ReplyChunk) -> None:
        """Draw what the following chunk draws, and remove that; both are asleep."""
        self.words += following.words.removeprefix(clean(following.start.prefix))
        self.end, self._cut_code = following.end, following._cut_code
        self._rows += following._rows + (following.start.kind == "paragraph")
        with self.app.batch_update():
            self.styles.height = self._rows
            await following.remove()

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Open links to the web only: a reply may name anything."""
        event.stop()
        if event.href.startswith(("https://", "http://")):
            self.app.open_url(event.href)
