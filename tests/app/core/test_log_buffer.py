"""The ring of log lines: bounded, numbered, harmless."""

from __future__ import annotations

from hermes_tui.core.log_buffer import MAX_LINE_CHARS, MAX_LINES, LogLines


def test_numbers_stay_while_old_lines_fall_out() -> None:
    lines = LogLines(process="worker-0")
    for number in range(MAX_LINES + 3):
        lines.append(f"line {number}")
    assert (len(lines), lines.num_dropped, lines.end) == (MAX_LINES, 3, MAX_LINES + 3)
    assert lines[3] == "line 3"
    assert [text for _, text in lines.since(MAX_LINES)] == [
        f"line {MAX_LINES + i}" for i in (0, 1, 2)
    ]
    assert next(iter(lines.since(0))) == (3, "line 3")


def test_lines_keep_their_indentation_and_lose_what_terminals_obey() -> None:
    lines = LogLines()
    lines.append("\t  File \x1b[31m“x.py”\x1b[0m\x07\u202e  ")
    lines.append("x" * (MAX_LINE_CHARS + 1))
    assert lines[0] == "      File “x.py”"
    assert len(lines[1]) == MAX_LINE_CHARS


def test_lines_that_are_not_kept_are_empty() -> None:
    lines = LogLines()
    for _ in range(MAX_LINES + 1):
        lines.append("x")
    assert (lines[0], lines[1], lines[lines.end]) == ("", "x", "")
