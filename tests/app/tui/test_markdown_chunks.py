"""A long reply is drawn in chunks, and looks as if it were one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.screen import app_of, badges, chat, make_app, running, until
from textual.pilot import Pilot

from hermes_tui.tui.widgets import markdown_chunks as chunks_module
from hermes_tui.tui.widgets.markdown_chunks import (
    BLOCK_CHARS,
    CHUNK_CHARS,
    LIST_CHARS,
    STUBBORN_CHARS,
    ChunkStart,
    chunk_starts,
    next_chunk_start,
)
from hermes_tui.tui.widgets.markdown_reply import ReplyChunk

WORDS = "word " * (CHUNK_CHARS // 5)
CODE = "```python\n" + "x = 1\n\n" * 800 + "```\n"
LIST = "".join(f"- item {i} with words\n" for i in range(200))
NUMBERED = "".join(f"{i}. item with words\n" for i in range(1, 200))
TABLE = "| a | b |\n|---|---|\n" + "".join(f"| {i} | {i * i} |\n" for i in range(400))
SENTENCES = "This is a sentence with `code` and **bold words**. " * 400
LINES = "A line of a paragraph that goes on.\n" * 200
PARAGRAPHS = "".join(f"Paragraph {i}, some words.\n\n" for i in range(200))


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("", [0]),
        ("a\n\nb", [0]),
        (f"{WORDS}\n\nThe next one.", [0, len(WORDS) + 2]),
        (f"{WORDS}\n\nb", [0]),  # how its line begins is not known yet
        (f"{WORDS}\n\n> a quote that stays\n\n| a table that stays |", [0]),
        (f"```\n{WORDS}\n\n{WORDS[:500]}\n```\n\nThe next one.", [0, len(WORDS) + 512]),
    ],
)
def test_where_chunks_start(text: str, starts: list[int]) -> None:
    assert [start.offset for start in chunk_starts(text)] == starts


@pytest.mark.parametrize(
    ("text", "kind", "prefix", "most"),
    [
        (CODE, "code", "```python\n", BLOCK_CHARS + 10),
        (LIST, "item", "", LIST_CHARS + 30),
        (NUMBERED, "item", "", LIST_CHARS + 30),
        (TABLE, "line", "| a | b |\n|---|---|\n", BLOCK_CHARS + 20),
        (SENTENCES, "line", "", BLOCK_CHARS + 60),
        (LINES, "line", "", BLOCK_CHARS + 40),
        (PARAGRAPHS, "paragraph", "", CHUNK_CHARS + 40),
        ("x" * 40_000, "line", "", STUBBORN_CHARS),
        ("```\n" + "x" * 40_000, "code", "```\n", STUBBORN_CHARS),
        ("字" * 40_000, "line", "", STUBBORN_CHARS),
    ],
)
def test_nothing_makes_a_chunk_grow_without_end(
    text: str, kind: str, prefix: str, most: int
) -> None:
    found = chunk_starts(text)
    assert len(found) > 2
    assert {(start.kind, start.prefix) for start in found[1:]} == {(kind, prefix)}
    starts = [start.offset for start in found]
    assert max(b - a for a, b in zip(starts, [*starts[1:], len(text)], strict=True)) <= most


@pytest.mark.parametrize("text", [CODE, LIST, TABLE, SENTENCES, LINES, PARAGRAPHS])
def test_a_chunk_ends_where_it_ended_while_it_grew(text: str) -> None:
    text = f"# Heading\n\n{text}\nThe end of it all.\n\n{text}"
    final = chunk_starts(text)
    chunk = final[0]
    for length in range(0, len(text), 37):
        while (start := next_chunk_start(text[:length], chunk)) is not None:
            chunk = start
            assert start in final


def test_a_fence_is_never_cut_before_the_line_that_closes_it() -> None:
    body = "x" * (BLOCK_CHARS + 10) + "\n"
    assert chunk_starts(f"```\n{body}```\n") == [ChunkStart()]


def test_a_link_or_bold_words_are_not_cut() -> None:
    filler = "a " * (BLOCK_CHARS // 2)
    text = f"{filler}**bold. And bold** [a. Link](https://x.y) end. Then more. " + filler
    assert [text[b.offset : b.offset + 4] for b in chunk_starts(text)[1:]] == ["Then"]


async def picture(folder: Path, text: str, *, streamed: bool) -> tuple[int, str]:
    """Return how many widgets draw a reply, and what is seen of it."""
    app, backend = make_app(folder)
    backend.reply = [text[i : i + 50] for i in range(0, len(text), 50)] if streamed else [text]
    backend.logprobs = [-0.1] * len(backend.reply)
    async with running(app, (120, 180)) as pilot:
        await app.controller.send("hi")
        await until(pilot, lambda: bool(badges(app)) and "judged" in badges(app)[-1])
        view = chat(app).view
        await until(pilot, lambda: not any(reply.asleep for reply in view.query(ReplyChunk)))
        await until(pilot, lambda: view.scroll_y == view.max_scroll_y)
        await pilot.pause(0.2)  # it has been drawn there
        return len(view.query(ReplyChunk)), seen(pilot)


def seen(pilot: Pilot[None]) -> str:
    """Return the lines of the chat."""
    rows = app_of(pilot).screen._compositor.render_strips()
    lines = ["".join(segment.text for segment in row) for row in rows]
    return "\n".join(line[25:72] for line in lines if " tok" not in line)


BLOCKS = "".join(
    f"Paragraph {i} with **words** in it.\n\n## Heading {i}\n\n- one\n- two\n- three\n\n"
    f"```python\nx = {i}\ny = {i}\n```\n\n"
    for i in range(8)
)
BIG_CODE = "Look:\n\n```python\n" + "x = 1\n" * 60 + "```\n\nThat was it.\n"


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize(
    ("text", "limit", "size"),
    [
        (PARAGRAPHS[:2_000], "CHUNK_CHARS", 300),
        (BLOCKS, "CHUNK_CHARS", 100),
        (BIG_CODE, "BLOCK_CHARS", 100),
        (LIST[:1_200], "LIST_CHARS", 100),
        (LINES[:1_080], "BLOCK_CHARS", 200),
    ],
)
async def test_chunks_look_like_one(
    tmp_path: Path,
    text: str,
    limit: str,
    size: int,
    streamed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunks_module, limit, size)
    chunks, cut = await picture(tmp_path, text, streamed=streamed)
    assert chunks >= 4
    for name in ("CHUNK_CHARS", "LIST_CHARS", "BLOCK_CHARS"):
        monkeypatch.setattr(chunks_module, name, 1_000_000)
    chunks, whole = await picture(tmp_path, text, streamed=streamed)
    assert chunks == 1
    assert cut == whole


@pytest.mark.parametrize("streamed", [True, False])
async def test_verses_stay_lines(tmp_path: Path, streamed: bool) -> None:
    verses = ["Roses are red,", "**violets** are blue,", "sugar is sweet."]
    _, shown = await picture(tmp_path, "\n".join(verses) + "\n", streamed=streamed)
    lines = [line.strip(" │") for line in shown.split("\n")]
    begin = lines.index("Roses are red,")
    assert lines[begin : begin + 3] == ["Roses are red,", "violets are blue,", "sugar is sweet."]
