"""Several replies to one message: side by side as they stream, picked, scored, taken back."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.backend import FakeBackend
from fakes.screen import NARROW, WIDE, badges, main, make_app, notices, running, until
from textual.command import CommandList
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Static

from hermes_tui.core.actions import ACTIONS
from hermes_tui.core.compare_replies import group_to_judge
from hermes_tui.core.models import EpisodeRow, GroupRow, SessionRow
from hermes_tui.core.state import ViewState
from hermes_tui.tui.app import HermesTui
from hermes_tui.tui.palette import Palette
from hermes_tui.tui.screens.approval import ApprovalScreen
from hermes_tui.tui.screens.compare_replies import CompareScreen, GroupSizeScreen
from hermes_tui.tui.screens.help import HelpScreen
from hermes_tui.tui.screens.main import MainScreen
from hermes_tui.tui.widgets.approval_bar import ApprovalBar
from hermes_tui.tui.widgets.chrome import Hints
from hermes_tui.tui.widgets.markdown_reply import ReplyChunk
from hermes_tui.tui.widgets.prompt import Prompt
from hermes_tui.tui.widgets.reply_column import ReplyColumn
from hermes_tui.tui.widgets.turn_view import Badge, CostLine, TurnView
from hermes_tui_services.api.events import ApprovalRequested


def siblings(app: HermesTui) -> list[ReplyColumn]:
    """Return the replies' widgets."""
    return list(app.screen.query(ReplyColumn))


def titles(app: HermesTui) -> list[str]:
    """Return what the replies' chunk_starts say."""
    return [f"{view._border_title} {view._border_subtitle or ''}".strip() for view in siblings(app)]


async def compare(pilot: Pilot[None], app: HermesTui, size: int = 3) -> None:
    """Open a comparison."""
    await pilot.press("escape", "g")
    await until(pilot, lambda: isinstance(app.screen, GroupSizeScreen), "the question")
    await pilot.press("backspace", str(size), "enter")
    await until(pilot, lambda: isinstance(app.focused, Prompt), "the prompt of the comparison")
    assert isinstance(app.screen, CompareScreen)


async def hear(pilot: Pilot[None], app: HermesTui) -> None:
    """Say something and wait until every sibling has spoken."""
    await pilot.press("h", "i", "enter")
    await until(pilot, lambda: all("ended" in title for title in titles(app)), "the replies")


def rewards(backend: FakeBackend) -> dict[str, float | None]:
    """Return the reward of every episode, by its session."""
    return {d.row.session_id: d.row.reward for d in backend.details.values()}


async def test_replies_stream_side_by_side(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 4
    async with running(app) as pilot:
        await compare(pilot, app)
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: len(app.screen.query(ReplyChunk)) == 3)
        assert [title[:10] for title in titles(app)] == ["1 ◌ speaki", "2 ◌ speaki", "3 ◌ speaki"]
        xs = {view.region.x for view in siblings(app)}
        assert len(xs) == 3
        await pilot.press("enter")
        await until(pilot, lambda: "3 of 3 are still replying: x stops them" in notices(app))
        backend.gate.set()
        await until(pilot, lambda: all("ended" in title for title in titles(app)))
        texts = {reply.source for reply in app.screen.query(ReplyChunk)}
        assert texts == {"Hello Ada, it's a pleasure to meet you!"}
    assert ("start_siblings", "compare", 3) in backend.calls
    assert [call for call in backend.calls if call[0] == "turn"] == [
        ("turn", f"sess-{i}", "hi") for i in (1, 2, 3)
    ]


async def test_the_picked_get_plus_one_the_others_minus_one_and_undo_takes_all(
    tmp_path: Path,
) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await compare(pilot, app)
        await hear(pilot, app)
        await pilot.press("enter")
        await until(pilot, lambda: any("pick the best first" in text for text in notices(app)))
        await pilot.press("1", "3", "1", "2")  # 1 is taken back; 2 and 3 are a tie
        await until(
            pilot, lambda: [t.endswith("✓ picked") for t in titles(app)] == [False, True, True]
        )
        await until(
            pilot, lambda: "picked, not scored yet · enter scores, 2 unpicks it" in badge(app, 1)
        )
        assert "not judged yet · 1 picks it" in badge(app, 0)
        await pilot.press("enter")
        await until(pilot, lambda: None not in rewards(backend).values())
        assert rewards(backend) == {"sess-1": -1.0, "sess-2": 1.0, "sess-3": 1.0}
        await until(pilot, lambda: "◆ scored −1.0" in badge(app, 0))
        assert "u takes it back" in badge(app, 1)
        assert any("2 of 3 picked: +1.0, the others -1.0" in text for text in notices(app))
        await pilot.press("u")
        await until(pilot, lambda: set(rewards(backend).values()) == {None})
        await until(pilot, lambda: "not judged yet · 1 picks it" in badge(app, 0))
        await until(pilot, lambda: notices(app) == ["3 scores taken back"], "the newest toast only")


def badge(app: HermesTui, place: int) -> str:
    """Return what became of a reply."""
    return str(siblings(app)[place].query_one(".badge", Static).content)


async def test_a_claimed_group_can_not_be_undone(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await compare(pilot, app, 2)
        await hear(pilot, app)
        await pilot.press("2", "enter")
        await until(pilot, lambda: None not in rewards(backend).values())
        for episode_id in list(backend.details):
            backend.set_state(episode_id, "trained", step=3)
        await until(pilot, lambda: "trained at step 3" in badge(app, 1))
        await pilot.press("u")
        await until(pilot, lambda: any("too late to undo" in text for text in notices(app)))


async def test_narrow_terminals_show_one_reply_at_a_time(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app, NARROW) as pilot:
        await compare(pilot, app)
        await hear(pilot, app)
        assert [view.display for view in siblings(app)] == [True, False, False]
        await pilot.press("right")
        await until(pilot, lambda: [v.display for v in siblings(app)] == [False, True, False])
        await pilot.press("3")
        await until(pilot, lambda: [v.display for v in siblings(app)] == [False, False, True])
        assert "3 ✓" in str(app.screen.query_one("#compare-tabs", Static).content)


@pytest.mark.parametrize(("size", "columns"), [(2, 2), (3, 3), (4, 2), (9, 3)])
async def test_many_replies_get_rows_of_readable_columns(
    tmp_path: Path, size: int, columns: int
) -> None:
    app, _ = make_app(tmp_path)
    async with running(app, WIDE) as pilot:
        await compare(pilot, app, size)
        await pilot.pause()
        assert len({view.region.x for view in siblings(app)}) == columns
        assert min(view.size.height for view in siblings(app)) >= 6


async def test_what_a_reply_cost_and_became_reads_well_in_a_narrow_column(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app, (110, 40)) as pilot:
        await compare(pilot, app)
        await hear(pilot, app)
        cost = siblings(app)[0].query_one(CostLine)
        turn = app.screen.query_one(TurnView).turn
        for seconds, version, shown in (
            (1.8, 7, "hermes · 11 tok · 22 tok/s · v7"),
            (1234.5, 12_345, "hermes · 11 tok · v12345"),
            (1234.5, 10**20, "hermes · v100000000000000000000"),
        ):
            turn.num_tokens, turn.seconds, turn.policy_version = 11, seconds, version
            turn.sampling_s = 0.5
            cost.show(turn)
            await until(pilot, lambda words=shown: drawn(cost) == [words])
        await pilot.press("2", "enter")
        await until(pilot, lambda: "scored" in badge(app, 1))
        lines = drawn(siblings(app)[1].query_one(Badge))
        assert lines == ["◆ scored +1.0 · trains next", "u takes it back"]


def drawn(widget: Widget) -> list[str]:
    """Return the lines that a widget shows."""
    return [widget.render_line(y).text.strip() for y in range(widget.size.height)]


async def test_leaving_ends_nothing_and_g_comes_back(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.hold = 2
    async with running(app) as pilot:
        await compare(pilot, app, 2)
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: len(app.screen.query(ReplyChunk)) == 2)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        backend.gate.set()
        await pilot.press("escape", "g")
        await until(pilot, lambda: isinstance(app.screen, GroupSizeScreen))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        await until(pilot, lambda: all("ended" in title for title in titles(app)))
        assert len(main(app).controller.state.sessions) == 2
    assert ("interrupt", "sess-1") not in backend.calls


async def test_siblings_that_can_not_start_give_the_text_back(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await compare(pilot, app)
        backend.refuse = "no capacity"
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: "no capacity" in notices(app))
        await until(pilot, lambda: app.screen.query_one(Prompt).text == "hi")


async def test_the_number_of_replies_is_checked(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("escape", "g")
        await until(pilot, lambda: isinstance(app.screen, GroupSizeScreen))
        await pilot.press("backspace", "1", "enter")
        await until(
            pilot,
            lambda: "from 2 to 9" in str(app.screen.query_one("#ask-hint", Static).content),
        )
        assert isinstance(app.screen, GroupSizeScreen)


async def test_questions_help_and_interrupt_work_there_too(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.turn_events = [
        ApprovalRequested(approval_id="a1", description="rm x", choices=("once",))
    ]
    backend.hold = 1
    async with running(app) as pilot:
        await compare(pilot, app, 2)
        await pilot.press("h", "i", "enter")
        await until(pilot, lambda: app.screen.query_one(ApprovalBar).display)
        await pilot.press("ctrl+o")
        await until(pilot, lambda: isinstance(app.screen, ApprovalScreen))
        await pilot.press("o")
        await until(pilot, lambda: any(call[0] == "approve" for call in backend.calls))
        await pilot.press("f1")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.press("escape", "x")
        await until(pilot, lambda: all("interrupted" in title for title in titles(app)))


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_every_key_in_no_order_ends_nothing(tmp_path: Path, size: tuple[int, int]) -> None:
    app, backend = make_app(tmp_path)
    chance = random.Random(3)
    keys = [key for action in ACTIONS if action.scope == "compare" for key in action.keys]
    keys = [key for key in keys if key != "escape"] * 2 + ["up", "pageup", "pagedown", "f3", "n"]
    chance.shuffle(keys)
    async with running(app, size) as pilot:
        await compare(pilot, app)
        await hear(pilot, app)
        await pilot.press(*keys)
        assert isinstance(app.screen, CompareScreen)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
    assert ("shutdown",) not in backend.calls


async def test_a_scored_sibling_counts_down_to_its_group(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    async with running(app) as pilot:
        await compare(pilot, app)
        await hear(pilot, app)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        controller = main(app).controller
        await controller.open_session("sess-1", "ep-1")
        group_id = controller.state.sessions["sess-1"].group_id
        ready_at = backend.clock.now + 48.0
        group = GroupRow(group_id=group_id, num_missing=2, ready_at=ready_at)
        backend.trainer_row = replace(backend.trainer_row, groups=(group,))
        await pilot.press("f3")
        await controller.rows.read_trainer()
        await until(
            pilot, lambda: "waits for 2 siblings, at most 48 s more" in badges(app)[0], "the wait"
        )
        backend.clock.now += 10.0
        await until(pilot, lambda: "at most 38 s more" in badges(app)[0], "a moving countdown")
        backend.clock.now += 38.5
        await until(pilot, lambda: "scored +1.0 · trains next" in badges(app)[0])


async def test_a_comparison_that_was_left_is_found_in_sessions_and_in_the_palette(
    tmp_path: Path,
) -> None:
    app, _ = make_app(tmp_path)
    async with running(app) as pilot:
        await pilot.press("escape", "f5")
        assert "compare again" not in main(app).query_one(Hints).render().plain
        await pilot.press("G")
        await until(pilot, lambda: "no comparison waits for a score" in notices(app))
        await compare(pilot, app)
        await hear(pilot, app)
        await pilot.press("2", "escape")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        main(app).go("sessions")
        await until(
            pilot, lambda: "G compare again" in main(app).query_one(Hints).render().plain, "footer"
        )
        await pilot.press("G")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen))
        await until(pilot, lambda: titles(app)[1].endswith("✓ picked"), "what was picked")
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(app.screen, MainScreen))
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, Palette))
        await pilot.press(*"compar")
        await until(
            pilot,
            lambda: any(
                "Open the comparison again" in str(hit.prompt)
                for hit in app.screen.query_one(CommandList)._options
            ),
            "the palette's action",
        )


def test_the_group_of_the_marked_session_comes_first() -> None:
    view = ViewState()
    for group in ("a", "b", "done"):
        for i in range(2):
            name = f"{group}{i}"
            view.sessions[name] = SessionRow(session_id=name, task_id="compare", group_id=group)
            state, reward = ("trained", 1.0) if group == "done" else ("open", None)
            view.put_episodes(
                [EpisodeRow(episode_id=f"e-{name}", session_id=name, state=state, reward=reward)]
            )
    assert group_to_judge(view, "a1") == "a"
    assert group_to_judge(view, "done0", "b0") == "b"
    assert group_to_judge(view, "done0") == "b"
    view.put_episodes([replace(view.episodes["a0"]["e-a0"], state="scored", reward=1.0)])
    assert group_to_judge(view, "a1") == "a"
    for name in ("a0", "a1", "b0", "b1"):
        row = view.episodes[name][f"e-{name}"]
        view.put_episodes([replace(row, state="trained", reward=1.0)])
    assert group_to_judge(view, "a1") == ""
