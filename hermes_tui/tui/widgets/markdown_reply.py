"""One chunk of the agent's reply, drawn as Markdown."""

from __future__ import annotations

import asyncio

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.await_complete import AwaitComplete
from textual.geometry import Size
from textual.reactive import var
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownFence

from hermes_tui.core.sanitize import clean
from hermes_tui.tui.widgets.markdown_chunks import ChunkStart

GUESSED_WIDTH = 60
"""Assumed characters per line of a chunk that was never drawn."""

MERGED_CHARS = 8_000
"""Sleeping chunks are merged up to this many characters."""


def _parser() -> MarkdownIt:
    # HTML tags in a reply are shown as text: as HTML they would vanish.
    parser = MarkdownIt("gfm-like", {"html": False})
    parser.core.ruler.push("kept_lines", _keep_lines)
    return parser


def _keep_lines(state: StateCore) -> None:
    """Keep line breaks within a paragraph: models write verses, and do not wrap lines by hand."""
    for token in state.tokens:
        for part in token.children or ():
            if part.type == "softbreak":
                part.type = "hardbreak"


_Paragraph = Markdown.BLOCKS["paragraph_open"]


class Paragraph(_Paragraph):  # type: ignore[valid-type, misc]
    """A paragraph that does not lay out the screen when it grows."""

    virtual_size = var(
        Size(0, 0)
    )  # Textual's own (8.2.8) lays out the whole screen whenever it grows


def code_around(code: str, text: str) -> str:
    """Return the whole block of code of a reply that a part of it is drawn from."""
    blocks = [token.content for token in _parser().parse(clean(text)) if token.type == "fence"]
    return next((block for block in blocks if code.strip("\n") in block), code)


class ReplyChunk(Markdown):
    """One chunk of a reply. Text is appended without parsing it all again.

    Out of sight it can sleep: its paragraphs are removed, and their height is kept.

    Args:
        start: where it begins in its part of the turn.
        text: that part's text so far, from its beginning to the end of this chunk.
        asleep: True to start asleep; the height is then estimated.
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
        """Index in its part at which it ends."""
        self.asleep = asleep
        """True while its paragraphs are removed."""
        self.words = words
        """Its Markdown source, asleep or not."""
        self._turning = asyncio.Lock()
        self._ended = False
        self._rows = 0
        """Its height while it sleeps."""
        if asleep:
            lines = words.rstrip().split("\n")
            self._rows = sum(1 + len(line) // GUESSED_WIDTH for line in lines)
            self.styles.height = self._rows

    def update(self, markdown: str) -> AwaitComplete:
        """Replace the text, by clearing it and appending.

        After Textual's own update (8.2.8) it does not know where the last block begins, and the
        next append cuts off the beginning of a list or table. We know of no report of this;
        https://github.com/Textualize/textual/issues/5988 was its like, for the constructor.
        """

        async def draw() -> None:
            await super(ReplyChunk, self).update("")
            await self.append(markdown)

        return AwaitComplete(draw())

    async def grow(self, text: str) -> None:
        """Append what the part's text has beyond the end of this chunk."""
        async with self._turning:
            delta, self.end = clean(text[self.end :]), max(self.end, len(text))
            self.words += delta
            if delta and not self.asleep:
                await self.append(delta)

    def goes_on(self, fence: MarkdownFence) -> bool:
        """Whether a block of code goes on with the one that the chunk before ends with."""
        return self.start.kind == "code" and fence is next(iter(self.query(MarkdownFence)), None)

    def end_at(self, start: ChunkStart) -> None:
        """Note that it is complete, and which chunk follows."""
        self._ended = True
        self.refresh(layout=True)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the height without the margin below the last block: the next chunk has its own."""
        height = super().get_content_height(container, viewport, width)
        last = next(iter(self.children[-1:]), None)
        room = last.styles.margin.bottom if last else 0
        return max(height - room, 0)

    async def sleep(self) -> None:
        """Remove the paragraphs, and keep their height."""
        async with self._turning:
            width = self.content_size.width
            if self.asleep or not width:
                return
            self.asleep = True
            with self.app.batch_update():
                # The size is that of the last layout; it may have grown since.
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
        """True if it may take over the text of the following chunk."""
        asleep = self.asleep and following.asleep
        ended = self._ended and following._ended  # the last chunk of a part may still grow
        return asleep and ended and following.end - self.start.offset <= MERGED_CHARS

    async def merge(self, following: ReplyChunk) -> None:
        """Take over the following chunk's text, and remove it; both are asleep."""
        self.words += following.words.removeprefix(clean(following.start.prefix))
        self.end = following.end
        self._rows += following._rows + (following.start.kind == "paragraph")
        with self.app.batch_update():
            self.styles.height = self._rows
            await following.remove()

    def on_markdown_link_clicked(self, event: Markdown.LinkClicked) -> None:
        """Open web links only: a reply may contain any URL scheme."""
        event.stop()
        if event.href.startswith(("https://", "http://")):
            self.app.open_url(event.href)
