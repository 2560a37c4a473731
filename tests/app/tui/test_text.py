"""Foreign text is never obeyed, and numbers read well."""

from __future__ import annotations

import pytest
from textual.content import Content

from hermes_tui.core.sanitize import clean, one_line, shorten, visible
from hermes_tui.core.units import signed
from hermes_tui.tui.widgets.formatting import (
    age,
    by_parts,
    duration,
    literal,
    number,
    size,
    sparkline,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain [/INST] [link=x]", "plain [/INST] [link=x]"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]52;c;aGk=\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x1bPq#0\x1b\\b", "ab"),
        ("a\u202eb\u2066c", "abc"),
        ("a\x00b\x08c\x7fd\x9be", "abcde"),
        ("one\r\ntwo\tthree", "one\ntwo\tthree"),
        ("👩‍🚀 日本語 é", "👩‍🚀 日本語 é"),
        ("lone \ud800 surrogate", "lone  surrogate"),
        ("\x1b", ""),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected
    assert literal(text).plain == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb", "a⏎b"),
        ("\t", "⇥"),
        ("\x1b[0m", "\\x1b[0m"),
        ("\u202e", "\\u202e"),
        ("\ud800", "\\ud800"),
    ],
)
def test_visible_writes_out_what_cannot_be_seen(text: str, expected: str) -> None:
    assert visible(text) == expected


def test_lines_and_lengths() -> None:
    assert one_line(" a\n\n b\t c ") == "a b c"
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("abc", 3) == "abc"
    assert shorten("abc", 0) == "…"


def test_numbers() -> None:
    assert number(-0.63) == "−0.63"
    assert number(1.1e-5) == "1e−5"
    assert number(None) == number(float("nan")) == "–"
    assert signed(1.0, 1) == "+1.0"
    assert signed(-0.125) == "−0.12"
    assert size(1_546_178_560) == "1.5 GB"
    assert size(77_800_000) == "78 MB"
    assert duration(59.9) == "59 s"
    assert duration(3_900) == "1 h 05 m"
    assert duration(2 * 86_400 + 3 * 3600) == "2 d 03 h"
    assert [age(seconds) for seconds in (-1, 59, 60, 3_599, 86_399, 200_000)] == [
        "now", "now", "1m", "59m", "23h", "2d",
    ]  # fmt: skip
    assert [size(number) for number in (0, 300_000, 12_000_000)] == ["–", "300 kB", "12 MB"]


def test_sparklines() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([1.0, float("nan"), -1.0], -1.0, 1.0) == "█ ▁"
    assert sparkline([2.0, 2.0]) == "▅▅"
    assert sparkline([float("nan")]) == ""


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (38, ["◆ scored +1.0 · u undoes it for 0.9 s"]),
        (36, ["◆ scored +1.0", "u undoes it for 0.9 s"]),
        (21, ["◆ scored +1.0", "u undoes it for 0.9 s"]),
        (0, ["◆ scored +1.0", "u undoes it for 0.9 s"]),
    ],
)
def test_long_lines_break_between_their_parts(width: int, lines: list[str]) -> None:
    text = Content("◆ scored +1.0 · u undoes it for 0.9 s")
    assert by_parts(text, width).plain.split("\n") == lines
    assert by_parts(Content(), width).plain == ""
