"""What the panes owe to somebody who judges: a map, words for figures, what serves, what is there.

Each test is named after a row of what a new user met.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.backend import make_step
from fakes.screen import (
    NARROW,
    WIDE,
    add_past,
    app_of,
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
from textual.widgets import OptionList, Static

from hermes_tui.core.actions import PANES, panes_of
from hermes_tui.core.models import (
    CanaryRow,
    EpisodeRow,
    SessionRow,
    StepRow,
    TrainerRow,
    sampled_tokens,
)
from hermes_tui.core.state import ViewState
from hermes_tui.core.step_words import sentence
from hermes_tui.core.units import signed
from hermes_tui.tui.keys import hints
from hermes_tui.tui.screens.compare_replies import CompareScreen, GroupSizeScreen
from hermes_tui.tui.screens.confirm import VersionScreen
from hermes_tui.tui.screens.dialogs import AskScreen
from hermes_tui.tui.screens.step_dialogs import AnswersScreen, EpisodesScreen
from hermes_tui.tui.widgets.canary_text import canaries
from hermes_tui.tui.widgets.formatting import change
from hermes_tui.tui.widgets.plot import TrendPlot
from hermes_tui.tui.widgets.sessions_pane import explain_row
from hermes_tui.tui.widgets.training_figures import FIGURES, MEANING_CELLS, WORDS, meaning
from hermes_tui.tui.widgets.training_pane import TrainingPane
from hermes_tui.tui.widgets.training_text import describe, waits_for
from hermes_tui_training.api.wire import CompletionRecord

VAST = (200, 60)
SIZES = [(60, 20), NARROW, WIDE, VAST]


def screen_lines(pilot: Pilot[None]) -> list[str]:
    """Return the screen as text."""
    strips = app_of(pilot).screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


def training(pilot: Pilot[None]) -> TrainingPane:
    """Return the training pane."""
    return main(app_of(pilot)).query_one(TrainingPane)


def words(pilot: Pilot[None], place: str = "#training-words") -> str:
    """Return what stands at the foot of a pane."""
    return str(main(app_of(pilot)).query_one(place, Static).content)


# A map in sight ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("pane", PANES)
async def test_row_14_the_tabs_and_their_keys_are_in_sight_at_every_size(
    tmp_path: Path, size: tuple[int, int], pane: str
) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, size) as pilot:
        main(app).press(f"pane_{pane}") if pane != "prompt" else main(app).go("prompt")
        await pilot.pause()
        map_ = screen_lines(pilot)[1]
        shown = [title for scope, title in PANES.items() if scope != "prompt"]
        keys = ["F5", "F6", "F7", "F8", "F9", "F12"]
        assert re.findall(r"(F\d+) (\w+)", map_) == list(zip(keys, shown, strict=True))


async def test_row_14_the_keys_of_the_tabs_work_from_the_prompt(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, WIDE) as pilot:
        for pane in panes_of(training=True):
            if pane == "prompt":
                continue
            main(app).go("prompt")
            await pilot.press(app.keys.anywhere(f"pane_{pane}").lower())
            assert main(app).scope == pane


@pytest.mark.parametrize("size", [NARROW, WIDE, VAST], ids=str)
async def test_row_14_system_and_logs_are_rooms_of_their_own(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app, backend = make_app(tmp_path)
    backend.write_log("supervisor", "ready")
    async with running(app, size) as pilot:
        for key, shown, hidden in (("p", "#system", "#logs"), ("L", "#logs", "#system")):
            await pilot.press("escape", key)
            await pilot.pause()
            assert main(app).query_one(shown).size.width > size[0] - 5
            assert not main(app).query_one(hidden).display


def test_row_14_the_footer_has_all_keys_of_the_pane() -> None:
    for pane in PANES:
        own = [a.id for a in hints(pane) if a.scope == pane]
        assert own == [a.id for a in hints(pane)][: len(own)], "its own come first"
        if pane in ("training", "system", "logs"):
            assert not [a for a in hints(pane) if a.section == "Judge"]
    assert [a.id for a in hints("training") if a.scope == "training"] == [
        "training_hold",
        "training_rollback",
        "training_episodes",
        "training_step_before",
        "training_step_after",
        "training_answers",
    ]


# What a number means -----------------------------------------------------------------------------


def test_item_4_every_figure_has_one_line_in_words() -> None:
    known = {name for name in make_step(1).values if name not in ("step", "policy_version")}
    told = {figure.name for figure in FIGURES} | {"logprob_before", "logprob_after"}
    assert known <= told | {"seconds.claim", "seconds.save"}
    for name in [*(figure.name for figure in FIGURES), *WORDS]:
        assert 0 < len(meaning(name)) <= MEANING_CELLS, name
    assert len({meaning(figure.name) for figure in FIGURES}) == len(FIGURES)


@pytest.mark.parametrize("size", [NARROW, WIDE], ids=str)
async def test_item_4_the_cursor_goes_over_the_figures_and_says_each(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, size) as pilot:
        await pilot.press("escape", "l")
        await until(pilot, lambda: training(pilot).at == "step")
        seen = {}
        for _ in range(30):
            await pilot.press("right")
            seen[training(pilot).at] = words(pilot)
            assert words(pilot) in screen_lines(pilot)[-6]
        assert {"kl_behavior", "gap_mean", "entropy", "flat", "canaries"} <= seen.keys()
        assert seen["kl_behavior"] == meaning("kl_behavior")
        for _ in range(30):
            await pilot.press("up")
        assert training(pilot).at == "next"
        assert training(pilot).scroll_y == 0
        main(app).go("prompt")
        await until(pilot, lambda: words(pilot) == "", "no cursor, no words")


async def test_item_4_a_click_on_a_figure_says_it(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, WIDE) as pilot:
        await pilot.press("escape", "l")
        await pilot.pause()
        rows = screen_lines(pilot)
        y = next(i for i, row in enumerate(rows) if "entropy  2.99" in row)
        await pilot.click(offset=(rows[y].index("entropy  2.99") + 2, y))
        await until(pilot, lambda: words(pilot) == meaning("entropy"))


def moved(before: float, after: float, **more: object) -> StepRow:
    """Return a step that moved a mean logprob."""
    step = make_step(4)
    values = {**step.values, "logprob_before": before, "logprob_after": after}
    return replace(step, values=values, **more)  # type: ignore[arg-type]


def pressed(nats: float, praised: int, punished: int) -> StepRow:
    """Return a step over several replies; in their plain mean nothing moved."""
    more = {"moved_nats": nats, "num_praised": praised, "num_punished": punished}
    step = moved(-1.0, -1.0, episode_ids=("a", "b", "c", "d"))
    return replace(step, values={**step.values, **more})


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (moved(-1.92, -1.71), "v5 says this more readily: +0.21 a token"),
        (moved(-1.0, -1.12), "v5 says this less readily: −0.12 a token"),
        (moved(-0.0021, -0.0019), "v5 says this more readily: +0.00020 a token"),
        (moved(-1.0, -1.0), "v5 says this as readily as before"),
        (
            moved(-0.01, -0.01, limit="certain"),
            "v5 says this as readily as before: it is nearly certain already",
        ),
        (
            moved(-1.0, -0.9, limit="step_kl"),
            "v5 says this more readily: +0.10 a token, not as far as wanted: "
            "more would have changed too much else",
        ),
        (
            moved(-1.0, -0.9, episode_ids=("a", "b")),
            "v5 says these more readily: +0.10 a token",
        ),
        (
            pressed(0.48, 1, 3),
            "v5 says 1 of these more readily, 3 less: +0.48 a token",
        ),
        (pressed(0.48, 0, 1), "v5 says these less readily: −0.48 a token"),
        (pressed(0.48, 2, 0), "v5 says these more readily: +0.48 a token"),
        (pressed(math.nan, 2, 0), "v5 was made; how far it moved is not known"),
    ],
)
def test_item_4_a_step_reads_as_a_sentence(step: StepRow, said: str) -> None:
    assert sentence(step) == said


def test_item_4_the_sentence_comes_first(tmp_path: Path) -> None:
    view = ViewState()
    view.put_steps([moved(-1.0, -1.12)])
    lines = str(describe(view)).splitlines()
    assert lines[1] == "step 4  v5 says this less readily"
    assert lines[2] == "logprob −1.00 → −1.12  ▼ −0.12 a token"


async def test_item_4_only_plots_that_say_something(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, WIDE) as pilot:
        await pilot.press("escape", "l")
        await pilot.pause()

        def drawn() -> list[str]:
            return [plot._title for plot in main(app).query(TrendPlot) if plot.display]

        assert drawn() == ["reward", "moved", "entropy", "length", "text kl"]
        assert "alike 0.3: the same in all 8 steps" in words(pilot, "#training-flat")
        late = make_step(9)
        backend.step_rows.append(replace(late, values={**late.values, "reply_alike_frac": 0.9}))
        backend.emit("step.finished", step=9, episode_ids=[])
        await until(pilot, lambda: "alike" in drawn())


async def test_item_4_the_steps_are_gone_through_and_enter_lists_their_episodes(
    tmp_path: Path,
) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    backend.step_rows[6] = replace(backend.step_rows[6], episode_ids=("ep-1", "ep-2", "gone"))
    async with running(app, WIDE) as pilot:
        await pilot.press("escape", "l", "left_square_bracket")
        await until(pilot, lambda: "step 7 " in words(pilot, "#training-numbers"))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, EpisodesScreen), "the episodes")
        listed = app.screen.query_one(OptionList)
        assert [str(option.prompt) for option in listed.options] == [
            "+1.00  episode 1 of “Greet Ada in one sentence.”",
            "−1.00  episode 2 of “Greet Ada in one sentence.”",
        ]
        assert any("1 of its episodes are not known" in row for row in screen_lines(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: tokens(app).episode_id == "ep-1", "its tokens")
        assert main(app).scope == "tokens"
        assert app.controller.state.selected == "sess-1"
        await pilot.press("l", "right_square_bracket")
        await until(pilot, lambda: "step 8 " in words(pilot, "#training-numbers"))


def answers() -> list[CanaryRow]:
    """Return the answers of eight versions."""
    said = ("Blue, of course.", "Blue, I think.")
    return [
        CanaryRow(policy_version=version, prompt="Sky?", text=said[version % 2])
        for version in range(8)
    ]


async def test_item_4_the_versions_whose_answers_are_compared_are_chosen(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    backend.canary_rows = answers()
    async with running(app, WIDE) as pilot:
        await pilot.press("escape", "l")
        await until(pilot, lambda: "answers of v6" in words(pilot, "#canaries"))
        await pilot.press("v")
        await until(pilot, lambda: isinstance(app.screen, AnswersScreen), "the question")
        listed = app.screen.query_one(OptionList)
        order = [int(str(option.id)) for option in listed.options]
        listed.highlighted = order.index(5)
        await pilot.press("enter", "enter")  # the same version twice is no choice
        assert isinstance(app.screen, AnswersScreen)
        listed.highlighted = order.index(2)
        await pilot.press("enter")
        await until(pilot, lambda: "answers of v2" in words(pilot, "#canaries"))
        assert "answers of v5" in words(pilot, "#canaries")
        backend.emit("canary.answered", policy_version=7)
        await until(pilot, lambda: not app.controller._sync._canaries_stale)
        assert "answers of v2" in words(pilot, "#canaries"), "what was chosen stays"


def test_item_4_what_differs_between_two_answers_is_marked() -> None:
    drawn = canaries([row for row in answers() if row.policy_version in (2, 5)], 60)
    marked = {
        drawn.plain[span.start : span.end] for span in drawn.spans if "underline" in str(span.style)
    }
    assert marked == {"of", "course.", "I", "think."}
    same = canaries([row for row in answers() if row.policy_version in (2, 4)], 60)
    assert "Sky? · the same words" in str(same)
    assert not [span for span in same.spans if "underline" in str(span.style)]


# Rows --------------------------------------------------------------------------------------------


async def test_row_8_a_filter_shows_new_sessions_and_names_the_key_that_clears_it(
    tmp_path: Path,
) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, WIDE) as pilot:
        state = app.controller.state
        await until(pilot, lambda: all(state.turns.get(name) for name in state.sessions), "names")
        await pilot.press("escape", "s", "slash", *"sky", "enter")
        pane = sessions(app)
        await until(pilot, lambda: len(pane.rows) == 3, "one session and the filter")
        assert str(pane.rows[0].left) == "“sky”"
        assert str(pane.rows[0].right) == f"{app.keys.label('sessions_clear')} clears"
        assert "1 of 2" in screen_lines(pilot)[2]
        await pilot.press("n")
        await say_and_hear(pilot, "tell a joke")
        await until(pilot, lambda: any("tell a joke" in row for row in screen_lines(pilot)))
        assert any("tell a joke" in str(row.left) for row in pane.rows), "the open one"
        await app.controller.open_session("sess-2")
        backend.add_session("sess-9", created_at=2_000)
        backend.emit("session.ended", session_id="sess-9")
        await until(pilot, lambda: any(row.key == "sess-9" for row in pane.rows), "a new one")
        await pilot.press("escape", "s", "backspace")
        await until(pilot, lambda: "“sky”" not in str(pane.rows[0].left), "no filter")
        assert {row.key for row in pane.rows if "\n" not in row.key} == set(state.sessions)


def narrow_figures() -> list[StepRow]:
    """Return steps whose figures are as wide as they get."""
    long = {"kl_behavior": 0.000123, "loss": -0.0000123, "grad_norm": 123_000.0}
    return [
        replace(step, values={**step.values, **{k: v * (1 + i) for k, v in long.items()}})
        for i, step in enumerate(map(make_step, range(1, 9)))
    ]


async def test_row_10_nothing_wraps_and_no_plot_runs_under_the_scrollbar(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    backend.step_rows = narrow_figures()
    async with running(app, WIDE) as pilot:
        summary = main(app).query_one("#training-text", Static)
        num_lines = str(summary.content).count("\n") + 1
        assert summary.size.height == num_lines, "no line of the summary wraps"
        await pilot.press("escape", "l")
        await pilot.pause()
        pane = training(pilot)
        plots = [plot for plot in main(app).query(TrendPlot) if plot.display]
        assert len(plots) == 4
        right = pane.scrollable_content_region.right + pane.region.x
        assert all(plot.region.right <= right for plot in plots)
        table = main(app).query_one("#training-numbers", Static)
        assert table.size.height == str(table.content).count("\n") + 1


async def test_row_11_after_a_rollback_titles_say_what_serves(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    backend.step_rows = [replace(make_step(i), policy_version=i) for i in range(1, 6)] + [
        StepRow(step=6, policy_version=6, values={"rolled_back_to": 2.0})
    ]
    backend.trainer_row = replace(backend.trainer_row, policy_version=6, kept_versions=(2, 5, 6))
    backend.canary_rows = [
        CanaryRow(policy_version=version, prompt="Sky?", text="Blue.") for version in (5, 6)
    ]
    async with running(app, WIDE) as pilot:
        rows = screen_lines(pilot)
        assert "policy v6 (v2 again)" in rows[0]
        assert any("Training · v6 (v2 again) serves" in row for row in rows)
        assert not any("made v5" in row for row in rows)
        await pilot.press("escape", "l")
        await until(pilot, lambda: "answers of v6 (v2 again)" in words(pilot, "#canaries"))
        assert "rolled  v6 serves: it is v2 again" in words(pilot, "#training-next")
        await pilot.press("b")
        await until(pilot, lambda: isinstance(app.screen, VersionScreen), "the versions")
        assert any("Roll back · v6 (v2 again) serves now" in row for row in screen_lines(pilot))


async def test_row_12_without_training_there_is_only_what_is_there(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path, training=False)
    backend.model = "qwen3-8b"
    async with running(app, WIDE) as pilot:
        rows = screen_lines(pilot)
        assert "qwen3-8b" in rows[0]
        assert "policy" not in rows[0]
        assert "Tokens" not in rows[1]
        assert "Training" not in rows[1]
        assert not main(app).query_one("#right").display
        chat = main(app).query_one("#chat")
        assert chat.outer_size.width == WIDE[0] - main(app).query_one("#sessions").outer_size.width
        for pane in panes_of(training=False):
            main(app).go(pane)
            await pilot.pause()
            footer = screen_lines(pilot)[-1]
            assert not re.search(r"F3|F4|F2|good|bad|exact|group", footer), pane
        scopes = set()
        for _ in range(len(PANES)):
            await pilot.press("tab")
            scopes.add(main(app).scope)
        assert scopes == set(panes_of(training=False))
        await pilot.press("escape", "t")
        await until(pilot, lambda: any("training is off" in text for text in notices(app)))


async def test_row_21_an_unscored_comparison_opens_again_after_a_restart(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    for number in (1, 2):
        name = f"sib-{number}"
        backend.add_session(name, created_at=20 + number)
        row = backend.session_rows[name]
        backend.session_rows[name] = replace(row, task_id="compare", group_id="g-sib")
        backend.add_episode(name, "Greet Ada", f"Hello number {number}", version=7)
    async with running(app, WIDE) as pilot:
        await pilot.press("escape", "g")
        await until(pilot, lambda: isinstance(app.screen, GroupSizeScreen), "the question")
        assert any("nothing goes back" in row for row in screen_lines(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, CompareScreen), "the comparison")
        await until(pilot, lambda: any("Hello number 2" in row for row in screen_lines(pilot)))
        assert any("Hello number 1" in row for row in screen_lines(pilot))
        await pilot.press("2", "enter")
        given = [("set_reward", "ep-4", -1.0), ("set_reward", "ep-5", 1.0)]
        await until(pilot, lambda: [c for c in backend.calls if c[0] == "set_reward"] == given)


def test_row_16_the_others_are_the_others() -> None:
    record = CompletionRecord.model_validate(
        {
            "completion_id": "c",
            "episode_id": "e",
            "turn_index": 0,
            "created_at": 1.0,
            "prompt_token_ids": [1],
            "token_ids": [7, 8],
            "texts": [" pleasure", "!"],
            "logprobs": [-1.9, -0.1],
            "policy_versions": [1, 1],
            "top_logprobs": [
                [
                    {"token_id": 7, "token": " pleasure", "logprob": -1.9},
                    {"token_id": 9, "token": " great", "logprob": -2.2},
                ],
                [{"token_id": 8, "token": "!", "logprob": -0.1}],
            ],
        }
    )
    first, second = sampled_tokens(record)
    assert first.alternatives == ((" great", -2.2),)
    assert second.alternatives == ()


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (-1.92, -1.71, "−1.92 → −1.71  ▲ +0.21"),
        (-0.0021, -0.0034, "−0.0021 → −0.0034  ▼ −0.0013"),
        (-0.0, -0.0, "+0.00, unchanged"),
        (-0.5, -0.5, "−0.50, unchanged"),
        (-0.00021, -0.00021, "−0.00021, unchanged"),
        (None, -0.5, "–"),
    ],
)
def test_row_16_a_change_has_the_digits_that_matter(
    before: float | None, after: float, said: str
) -> None:
    assert str(change(before, after)) == said
    assert "−0.00 " not in said


def test_row_16_no_number_is_minus_zero() -> None:
    assert [signed(value) for value in (-0.0, -0.001, -0.004, -0.006, -1e-9)] == [
        "+0.00",
        "−0.0010",
        "−0.0040",
        "−0.01",
        "+0.000000",
    ]


def test_row_16_marks_of_sessions_are_explained_at_the_cursor() -> None:
    view = ViewState(selected="s", shown="e2")
    view.sessions = {
        "s": SessionRow(session_id="s", task_id="chat", group_id="g"),
        "o": SessionRow(session_id="o", task_id="chat", group_id="g", ended=True),
        "i": SessionRow(session_id="i", task_id="chat", ended=True, timed_out=True),
    }

    def episode(name: str, **values: object) -> EpisodeRow:
        row = EpisodeRow(episode_id=name, session_id="s", state="open", policy_version=1)
        return replace(row, **values)  # type: ignore[arg-type]

    view.put_episodes(
        [
            episode("e1", state="trained", step=3, staleness=1, created_at=1.0),
            episode("e2", staleness=6, created_at=2.0),
            episode("e3", state="dropped", dropped_reason="stale", created_at=3.0),
        ]
    )
    assert explain_row(view, "s", 0.0) == "▸ the open session\nreply 1 of 2 to one message"
    assert explain_row(view, "o", 0.0).splitlines()[-1] == "ended: takes no more messages"
    assert explain_row(view, "i", 0.0).splitlines()[-1] == "timed out: takes no more messages"
    assert explain_row(view, "s\ne1", 0.0) == "trained in step 3\nby v1, 1 version behind"
    assert explain_row(view, "s\ne2", 0.0) == (
        "▪ its tokens are shown\nnot judged yet\nby v1, 6 versions behind"
    )
    assert explain_row(view, "s\ne3", 0.0).startswith("never trained: sampled by weights")
    assert explain_row(view, "gone", 0.0) == ""


async def test_row_16_the_words_stand_in_the_pane_while_it_has_the_focus(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    add_past(backend)
    async with running(app, WIDE) as pilot:
        await app.controller.open_session("sess-1")
        box = main(app).query_one("#sessions-words", Static)
        assert not box.display
        await pilot.press("escape", "s", "home")
        await until(pilot, lambda: "▸ the open session" in str(box.content) and box.display)
        await pilot.press("down")
        await until(pilot, lambda: "▪ its tokens are shown" in str(box.content))
        assert any("▪ its tokens are shown" in row for row in screen_lines(pilot))
        main(app).go("chat")
        await until(pilot, lambda: not box.display)


# Topics ------------------------------------------------------------------------------------------


async def test_the_topic_of_a_session_is_in_sight_and_can_be_set(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    backend.add_session("s", created_at=1, topic="writing")
    backend.add_episode("s", "hi", "Hello.")
    backend.add_session("t", created_at=2, topic="code")
    async with running(app, WIDE) as pilot:
        main(app).press("pane_sessions")
        await pilot.press("down")
        await until(pilot, lambda: "about writing" in words(pilot, "#sessions-words"))
        await pilot.press("T")
        await until(pilot, lambda: isinstance(app.screen, AskScreen))
        assert "there are: " in str(app.screen.query_one("#ask-hint", Static).content)
        await pilot.press("ctrl+u", *"rhymes", "enter")
        await until(pilot, lambda: "about rhymes" in words(pilot, "#sessions-words"))
        assert ("set_topic", "s", "rhymes") in backend.calls
        main(app).press("pane_training")
        await until(pilot, lambda: "rhymes 1" in "\n".join(screen_lines(pilot)))


# What the watch says, and what moved nothing -----------------------------------------------------


async def test_a_warning_of_the_watch_is_in_sight_beside_the_chat_and_on_the_page(
    tmp_path: Path,
) -> None:
    app, backend = make_app(tmp_path)
    warned = "9 of the last 10 replies begin with 'no', to 4 different questions"
    backend.step_rows = [make_step(1), replace(make_step(2), warnings=(warned,))]
    async with running(app, VAST) as pilot:
        await until(pilot, lambda: warned in str(describe(app.controller.state)))
        main(app).press("pane_training")
        await until(pilot, lambda: "9 of the last 10" in "\n".join(screen_lines(pilot)))
        backend.step_rows.append(make_step(3))
        backend.emit("step.finished")
        await until(pilot, lambda: warned not in str(describe(app.controller.state)))


async def test_scores_that_moved_nothing_say_why_until_a_step_moves_something(
    tmp_path: Path,
) -> None:
    app, backend = make_app(tmp_path)
    why = "the last scores moved nothing: the model says this nearly always by now"
    async with running(app, WIDE) as pilot:
        backend.emit("step.unmoved", reason="certain")
        await until(pilot, lambda: why in str(describe(app.controller.state)))
        assert any("a step moved nothing: the model says" in text for text in notices(app))
        backend.step_rows = [make_step(1)]
        backend.emit("step.finished")
        await until(pilot, lambda: why not in str(describe(app.controller.state)))


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        (TrainerRow(state="waiting"), "0 of 1 scored"),
        (TrainerRow(state="waiting", learner_lost=True), "the learner is not there"),
        (TrainerRow(state="waiting", problem="version 3 is not served: cut"), "is not served: cut"),
        (TrainerRow(state="paused", reason="too odd"), "held: too odd"),
        (TrainerRow(state="training", reason="version 4 from 1 episode"), "version 4 from"),
    ],
)
def test_a_step_that_waits_shows_its_reason(trainer: TrainerRow, said: str) -> None:
    assert said in waits_for(trainer)


async def test_a_broken_version_is_said_and_so_is_what_was_lost(tmp_path: Path) -> None:
    app, backend = make_app(tmp_path)
    lost = "the checkpoint of version 3 cannot be used: it is gone; version 2 serves"
    backend.trainer_row = replace(backend.trainer_row, problem="it is cut short", notices=(lost,))
    async with running(app, WIDE) as pilot:
        backend.emit("version.failed", policy_version=3, reason="it is cut short")
        why = "could not be served, the one before serves on: it is cut short"
        await until(pilot, lambda: any(why in text for text in notices(app)))
        said = str(describe(app.controller.state))
        assert "0 of 1 scored · it is cut short" in said
        assert lost in said
