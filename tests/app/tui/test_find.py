"""Finding, filtering, jumping, writing out: what helps in a long session."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.backend import FakeBackend, make_tokens
from fakes.screen import (
    add_past,
    chat,
    main,
    make_app,
    notices,
    running,
    say_and_hear,
    sessions,
    tokens,
    until,
)
from textual.pilot import Pilot
from textual.widgets import Input, Static

from hermes_tui.core.changes import ToolPart
from hermes_tui.core.models import EpisodeDetail, Token
from hermes_tui.tui import clipboard
from hermes_tui.tui.app import HermesTui
from hermes_tui.tui.screens.dialogs import AskScreen
from hermes_tui.tui.widgets.token_layout import Break, TokenLayout, trajectory
from hermes_tui.tui.widgets.token_view import Legend, table
from hermes_tui.tui.widgets.tool_block import FoldedBlock
from hermes_tui.tui.widgets.turn_view import TurnView


async def ask_for(pilot: Pilot[None], app: HermesTui, text: str) -> None:
    """Press the key that finds, and answer."""
    await pilot.press("slash")
    await until(pilot, lambda: isinstance(app.screen, AskScreen), "the question")
    app.screen.query_one(Input).value = text
    await pilot.press("enter")
    await until(pilot, lambda: not isinstance(app.screen, AskScreen), "the answer")


def found(app: HermesTui) -> list[str]:
    """Return what the marked turn's user said."""
    return [view.turn.user_text for view in main(app).query(TurnView) if view.has_class("-found")]


async def test_find_in_chat_mounts_old_turns_and_goes_on(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.add_session("sess-1", created_at=1)
    for number in range(40):
        said = "a needle" if number in (2, 30) else f"straw {number}"
        backend.add_episode("sess-1", said, "yes", state="unscored")
    async with running(app) as pilot:
        await pilot.press("escape", "s", "enter")
        await until(pilot, lambda: len(chat(app).view.turns) == 40)
        await pilot.press("c")
        assert len(main(app).query(TurnView)) < 40
        await ask_for(pilot, app, "NEEDLE")
        await until(pilot, lambda: found(app) == ["a needle"])
        newest = next(v for v in main(app).query(TurnView) if v.has_class("-found"))
        assert newest.turn is chat(app).view.turns[30]
        await ask_for(pilot, app, "NEEDLE")
        await until(
            pilot,
            lambda: any(
                v.has_class("-found") and v.turn is chat(app).view.turns[2]
                for v in main(app).query(TurnView)
            ),
        )
        assert not chat(app).view.following
        await ask_for(pilot, app, "[/INST]")
        await until(pilot, lambda: "“[/INST]” is not there" in notices(app))


async def test_find_unfolds_the_tool_that_said_it(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        turn = chat(app).view.turns[0]
        turn.parts.append(ToolPart(call_id="c", name="read", arguments="{}", result="a needle"))
        await chat(app).view.sync()
        await pilot.press("escape", "c")
        await ask_for(pilot, app, "needle")
        await until(pilot, lambda: not main(app).query_one(FoldedBlock).folded)


async def test_the_sessions_are_filtered_by_what_their_rows_say(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)

    def listed() -> list[str]:
        return [row.key for row in sessions(app).rows if row.key and "\n" not in row.key]

    async with running(app) as pilot:
        await pilot.press("escape", "s")
        for text, expected in (
            ("trained", ["sess-1"]),
            ("SKY", ["sess-2"]),
            ("-1.0", ["sess-1"]),
            ("nothing", []),
            ("", ["sess-1", "sess-2"]),
        ):
            await ask_for(pilot, app, text)
            await until(pilot, lambda e=expected: listed() == e, text)


def test_jumps_go_to_unlikely_tokens_only_and_wrap() -> None:
    lines = TokenLayout()
    probabilities = (0.9, 0.1, 0.5, 0.03, 0.2)
    prompt = Token(token_id=1, text="p")
    lines.extend([prompt, *make_tokens("abcde", [math.log(p) for p in probabilities])])
    assert lines.surprise(-1) == 2
    assert lines.surprise(2) == 4
    assert lines.surprise(4) == 2
    assert lines.surprise(2, -1) == 4
    lines.replace([prompt])
    assert lines.surprise(-1) is None


async def test_the_bracket_keys_jump(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await say_and_hear(pilot)
        await pilot.press("escape", "t", "right_square_bracket")
        assert tokens(app).current is not None
        assert tokens(app).current.text == " pleasure"  # type: ignore[union-attr]
        legend = str(main(app).query_one(Legend).content)
        assert legend.split()[:4] == ["p", "█", "≥.8", "▅"]


def broken(backend: FakeBackend) -> EpisodeDetail:
    """Return an episode whose second completion does not go on where the first ended."""
    backend.add_session("sess-1", created_at=1)
    episode_id = backend.add_episode("sess-1", "one two", "yes sir", state="unscored")
    detail = backend.details[episode_id]
    first = detail.completions[0]
    second = replace(
        first, completion_id="second", shared_tokens=4, difference="the text was edited [/b]"
    )
    backend.details[episode_id] = replace(detail, completions=(first, second))
    return backend.details[episode_id]


def test_a_break_says_why_and_marks_the_first_token_that_differs(tmp_path: Path) -> None:
    detail = broken(make_app(tmp_path)[1])
    lines = TokenLayout()
    lines.extend(trajectory(detail, {}))
    breaks = [i for i, item in enumerate(lines.items) if isinstance(item, Break)]
    [at] = breaks
    assert lines.items[at] == Break(
        label="new segment after 4 tokens: the text was edited [/b]", differs=True
    )
    assert [i for i in range(len(lines.items)) if lines.differs(i)] == [at + 1]
    assert lines.items[at + 1] == detail.completions[1].prompt[4]
    rows = [row.split("\t") for row in table(lines.items).splitlines()]
    assert rows[0][0] == "segment"
    assert {row[0] for row in rows[1:]} == {"1", "2"}


async def test_the_first_difference_is_said_as_text_too(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    broken(backend)
    async with running(app) as pilot:
        await pilot.press("escape", "s", "enter")
        await until(pilot, lambda: len(tokens(app).content.items) > 10)
        place = next(i for i in range(99) if tokens(app).content.differs(i))
        tokens(app).move_cursor(place)
        detail = main(app).query_one("#token-detail", Static)
        await until(pilot, lambda: "first that differs" in str(detail.content))


def test_a_table_has_what_the_training_step_changed() -> None:
    token = Token(
        token_id=7, text="a\tb", logprob=-0.5, policy_version=3, advantage=1.5,
        logprob_before=-0.5, logprob_after=-0.25,
    )  # fmt: skip
    assert table([token]).splitlines()[1].split("\t") == [
        "1", "7", "'a\\tb'", "-0.500000", "3", "1.500000", "-0.500000", "-0.250000",
    ]  # fmt: skip


async def test_the_shown_trajectory_is_written_to_a_file(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("escape", "t", "E")
        await until(pilot, lambda: any("no episode is shown" in text for text in notices(app)))
        await say_and_hear(pilot)
        await pilot.press("escape", "t", "E")
        path = tmp_path / "exports" / "ep-1.jsonl"
        await until(pilot, lambda: f"1 sequence written to {path}" in notices(app))
        assert json.loads(path.read_text()) == {"episode_id": "ep-1"}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"TMUX": "x"}, "to tmux (unconfirmed)"),
        ({"STY": "x"}, "to screen (unconfirmed)"),
        ({"SSH_TTY": "x"}, "to the terminal (unconfirmed)"),
    ],
)
async def test_the_toast_claims_no_copy_that_nobody_confirmed(
    tmp_path: Path, environ: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TMUX", "STY", "SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    # A tool that would take the text: over SSH its clipboard is not the person's.
    monkeypatch.setattr(clipboard, "TOOLS", (("cat",),) if "SSH_TTY" in environ else ())
    app, _ = make_app(tmp_path)
    async with running(app):
        where = await clipboard.copy(app, "words", tmp_path / "copied")
    assert where.startswith(said)
    [file] = (tmp_path / "copied").glob("*.txt")
    assert f"copied/{file.name}" in where
    assert file.read_text() == "words"
