"""Laying tokens out: wrapping, rows of bars, places, the bounded buffer, segments."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from fakes.backend import FakeBackend, FakeClock, make_tokens, prompt_for

from hermes_tui.core.models import Token
from hermes_tui.tui.widgets.token_layout import Break, TokenLayout, bar, level, trajectory


def shown(lines: TokenLayout) -> list[str]:
    """Return every row as text; bars as ``|``-prefixed."""
    rows = []
    for line, is_bars in lines.rows:
        runs = lines.lines[line].runs
        text = "".join(run.text for run in runs)
        rows.append(f"|{len(text)}" if is_bars else lines.lines[line].label or text)
    return rows


def counts(lines: TokenLayout) -> tuple[int, int, int]:
    """Return how many are prompt tokens, sampled tokens and breaks."""
    return lines.num_prompt, lines.num_sampled, lines.num_breaks


def test_tokens_wrap_between_tokens_and_break_at_newlines() -> None:
    lines = TokenLayout(width=10)
    lines.extend(prompt_for("Hi there"))
    assert shown(lines) == [
        "<|im_start",
        "|>user⏎",
        "Hithere",
        "<|im_end|>",
        "⏎",
        "<|im_start",
        "|>",
        "assistant⏎",
    ]


def test_bars_stand_under_lines_with_sampled_tokens_only() -> None:
    lines = TokenLayout(width=12)
    lines.extend(
        [Token(token_id=1, text="ask\n"), *make_tokens(["one", " two", " three"], [-1] * 3)]
    )
    assert shown(lines) == ["ask⏎", "one two", "|7", " three", "|6"]
    lines.show_bars(False)
    assert shown(lines) == ["ask⏎", "one two", " three"]


def test_wide_characters_take_two_cells() -> None:
    lines = TokenLayout(width=5)
    lines.extend(make_tokens(["日本", "語", "a"], [-1] * 3))
    assert shown(lines) == ["日本", "|2", "語a", "|2"]
    assert [run.column for run in lines.lines[1].runs] == [0, 2]


def test_places_and_rows_agree() -> None:
    lines = TokenLayout(width=20)
    lines.extend([*prompt_for("a b c d e f"), Break(label="new segment"), *make_tokens()])
    for index, item in enumerate(lines.items):
        row = lines.row_of(index)
        if isinstance(item, Break):
            assert lines.lines[lines.rows[row][0]].label == "new segment"
            continue
        runs = lines.lines[lines.rows[row][0]].runs
        column = next(run.column for run in runs if run.index == index)
        assert lines.index_at(row, column) == index


def test_arrow_keys_step_over_rules() -> None:
    lines = TokenLayout()
    lines.extend([*make_tokens(["a"], [-1]), Break(label="x"), *make_tokens(["b"], [-1])])
    assert lines.step(0, 1) == 2
    assert lines.step(2, -1) == 0
    assert lines.step(2, 1) == 2


def test_a_full_buffer_drops_the_oldest_and_counts_them() -> None:
    lines = TokenLayout(capacity=100)
    lines.extend(make_tokens([str(i) for i in range(105)], [-1.0] * 105))
    assert lines.num_dropped == 15
    assert len(lines.items) == 90
    first = lines.items[0]
    assert isinstance(first, Token)
    assert first.text == "15"


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_after_older_ones_went_is_laid_out_as_if_it_came_alone(seed: int) -> None:
    rng = random.Random(seed)
    words = [" the", "a", " of\n", "\n\n", "x\ny", " ünï", "漢字", " w" * 20, "", ".\n"]
    lines = TokenLayout(width=rng.randint(5, 40), capacity=rng.choice([30, 100]))
    for _ in range(20):
        texts = rng.choices(words, k=rng.randint(1, 30))
        breaks = [Break(label="new segment")] if rng.random() < 0.5 else []
        lines.extend([*breaks, *make_tokens(texts, [-1.0] * len(texts))])
        alone = TokenLayout(width=lines.width)
        alone.extend(lines.items)
        assert (lines.lines, lines.rows) == (alone.lines, alone.rows)
        assert counts(lines) == counts(alone)
    assert lines.num_dropped


def test_replace_keeps_what_is_laid_out_when_only_numbers_changed() -> None:
    lines = TokenLayout()
    tokens = make_tokens()
    lines.extend(tokens)
    laid_out = lines.lines
    lines.replace([replace(token, logprob_after=-0.5) for token in tokens])
    assert lines.lines is laid_out
    first = lines.items[0]
    assert isinstance(first, Token)
    assert first.logprob_after == -0.5
    assert counts(lines) == (0, len(tokens), 0)
    prompt = prompt_for("x")
    lines.replace([*prompt, Break(label="new segment"), *tokens])
    assert lines.lines is not laid_out
    assert counts(lines) == (len(prompt), len(tokens), 1)
    lines.clear()
    assert counts(lines) == (0, 0, 0)


def test_find_reads_over_token_borders_and_wraps() -> None:
    lines = TokenLayout()
    lines.extend(make_tokens())
    assert lines.find("A PLEASURE", -1) == 5
    assert lines.find("hello", 5) == 0
    assert lines.find("nothing", -1) is None
    assert lines.find("", -1) is None


@pytest.mark.parametrize(
    ("logprob", "expected_level", "expected_bar"),
    [
        (0.0, 0, "█"),
        (-0.2, 0, "▇"),
        (-0.7, 1, "▄"),
        (-1.5, 2, "▂"),
        (-2.5, 3, "▁"),
        (-9.0, 4, "·"),
        (float("nan"), 4, "?"),
        (float("-inf"), 4, "·"),
        (None, -1, " "),
    ],
)
def test_colour_and_bar_say_the_same(
    logprob: float | None, expected_level: int, expected_bar: str
) -> None:
    token = Token(token_id=1, text="x", logprob=logprob)
    assert (level(token), bar(token)) == (expected_level, expected_bar)


def test_a_trajectory_shows_each_token_once_and_marks_breaks() -> None:
    backend = FakeBackend(FakeClock())
    backend.add_session("s", created_at=0)
    episode_id = backend.add_episode("s", "hi", "hello")
    detail = backend.details[episode_id]
    first = detail.completions[0]
    known = (*first.prompt, *first.tokens)
    grown = replace(
        first,
        completion_id="two",
        prompt=(*known, *prompt_for("more")),
        shared_tokens=len(known),
        tokens=make_tokens(["yes"], [-1.0]),
    )
    whole = replace(detail, completions=(first, grown))
    items = trajectory(whole, {})
    assert items == [*grown.prompt, *grown.tokens]
    changed = replace(grown, shared_tokens=2)
    broken = trajectory(replace(detail, completions=(first, changed)), {})
    rules = [item for item in broken if isinstance(item, Break)]
    assert rules == [Break(label="new segment after 2 tokens", differs=True)]


def test_live_tokens_show_until_theirs_are_recorded() -> None:
    backend = FakeBackend(FakeClock())
    backend.add_session("s", created_at=0)
    detail = backend.details[backend.add_episode("s", "hi", "hello")]
    completion = detail.completions[0]
    open_ = replace(completion, tokens=(), finish_reason=None)
    heard = list(make_tokens(["a", "b"], [-1, -1]))
    items = trajectory(replace(detail, completions=(open_,)), {completion.completion_id: heard})
    assert items == [*completion.prompt, *heard]
    items = trajectory(detail, {completion.completion_id: []})
    assert items == [*completion.prompt, *completion.tokens]
