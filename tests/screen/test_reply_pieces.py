"""A long reply is drawn in pieces, and looks as if it were one."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.screen import app_of, badges, main, make_app, running, until
from textual.pilot import Pilot

from hermes_tui.widgets import turn as turn_module
from hermes_tui.widgets.turn import Reply, piece_end, piece_starts

FENCE = "```python\n" + "x = 1\n\n" * 400 + "```\n"


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("", [0]),
        ("a\n\nb", [0]),
        (f"{'a' * 2_000}\n\nb", [0, 2_002]),
        (f"{'a' * 2_000}\n\n", [0]),  # what follows is not known yet
        (f"{'a' * 2_000}\n\n- b\n\n  c\n\n1. d\n\n> e\n\n| f", [0]),  # it may go on with a list
        (f"{FENCE}\n{'a' * 10}\n\nb", [0, len(FENCE) + 1]),  # never within a fence
    ],
)
def test_where_pieces_begin(text: str, starts: list[int]) -> None:
    assert piece_starts(text) == starts


def test_a_piece_ends_where_it_ended_while_it_grew() -> None:
    text = "".join(f"paragraph {i}, some words.\n\n" for i in range(400))
    for length in range(2_000, len(text), 97):
        end = piece_end(text[:length], 0)
        assert end in (None, piece_end(text, 0))
    assert len(piece_starts(text)) == 6


async def picture(folder: Path, text: str, *, streamed: bool) -> tuple[int, str]:
    """Return how many widgets draw a reply, and what is seen of it."""
    app, backend = make_app(folder)
    backend.reply = [text[i : i + 50] for i in range(0, len(text), 50)] if streamed else [text]
    backend.logprobs = [-0.1] * len(backend.reply)
    async with running(app, (120, 120)) as pilot:
        await app.controller.send("hi")
        await until(pilot, lambda: bool(badges(app)) and "judged" in badges(app)[-1])
        await pilot.pause(0.2)
        return len(main(app).query(Reply)), seen(pilot)


def seen(pilot: Pilot[None]) -> str:
    """Return the lines of the chat."""
    rows = app_of(pilot).screen._compositor.render_strips()
    lines = ["".join(segment.text for segment in row) for row in rows]
    return "\n".join(line[25:72] for line in lines if " tok" not in line)


@pytest.mark.parametrize("streamed", [True, False])
async def test_pieces_look_like_one(
    tmp_path: Path, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"Paragraph {i} with **words** in it.\n\n" for i in range(60))
    monkeypatch.setattr(turn_module, "PIECE_CHARS", 600)
    pieces, cut = await picture(tmp_path, text, streamed=streamed)
    assert pieces == 4
    monkeypatch.setattr(turn_module, "PIECE_CHARS", 1_000_000)
    pieces, whole = await picture(tmp_path, text, streamed=streamed)
    assert pieces == 1
    assert "Paragraph 59" in cut
    assert cut == whole
