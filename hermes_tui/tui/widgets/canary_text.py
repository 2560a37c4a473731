"""The canary's answers of two versions side by side, with what differs marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher

from textual.content import Content

from hermes_tui.core.models import CanaryRow
from hermes_tui.core.repetition import repeats
from hermes_tui.core.sanitize import clean, one_line, shorten
from hermes_tui.tui.widgets.formatting import line

ANSWER_LINES = 6
"""Most lines of an answer."""

DIFFERS = "bold underline $text-accent"
"""Marks the words that the other version did not say; the underline is there without colours."""

Word = tuple[str, bool]
"""A word, and whether the other version did not say it there."""


def shown_versions(rows: Sequence[CanaryRow], chosen: tuple[int, int] | None) -> tuple[int, ...]:
    """Return the versions to compare, the older first: the chosen ones, else the two newest."""
    return chosen or tuple(sorted({row.policy_version for row in rows})[-2:])


def canaries(
    rows: Sequence[CanaryRow],
    width: int,
    chosen: tuple[int, int] | None = None,
    name: Callable[[int], str] = "v{}".format,
) -> Content:
    """Return the canary's answers of two versions side by side, the older at the left.

    Args:
        rows: the answers.
        width: in cells.
        chosen: the versions to show; None shows the two newest that answered.
        name: names a version.
    """
    versions = shown_versions(rows, chosen)
    if not versions:
        text = "no answers yet: after each step a few fixed questions are asked"
        return Content.styled(text, "dim")
    column = max((width - 3) // 2, 10)
    answers = {(row.policy_version, row.prompt): row for row in rows}
    lines = [_beside([line(f"answers of {name(v)}", "bold") for v in versions], column)]
    for prompt in dict.fromkeys(row.prompt for row in rows):
        pair = [answers.get((version, prompt)) for version in versions]
        lines.append(_question(prompt, pair, width))
        columns = [_lines(words, column) for words in _words(pair)]
        for number in range(max(map(len, columns))):
            lines.append(_beside([_at(text, number) for text in columns], column))
        if pair[-1] is not None and repeats(pair[-1].text):
            warning = f"▲ {name(versions[-1])} repeats itself here"
            lines.append(line(warning, "$text-warning"))
    return Content("\n").join(lines)


def _question(prompt: str, pair: Sequence[CanaryRow | None], width: int) -> Content:
    texts = {one_line(row.text) for row in pair if row is not None and not row.reason}
    answered = len(pair) == 2 and all(row is not None and not row.reason for row in pair)
    same = " · the same words" if answered and len(texts) == 1 else ""
    return line(shorten(clean(prompt), max(width - len(same), 0)) + same, "dim")


def _words(pair: Sequence[CanaryRow | None]) -> list[list[Word]]:
    """Return the words of each answer; those that differ are marked if there are two answers."""
    texts = [_text(row) for row in pair]
    said = [row is not None and not row.reason and bool(row.text.strip()) for row in pair]
    if len(texts) != 2 or not all(said):
        return [[(word, False) for word in text] for text in texts]
    marks = [[True] * len(text) for text in texts]
    older, newer = texts
    for block in SequenceMatcher(None, older, newer, autojunk=False).get_matching_blocks():
        for side, begin in enumerate((block.a, block.b)):
            marks[side][begin : begin + block.size] = [False] * block.size
    return [list(zip(*both, strict=True)) for both in zip(texts, marks, strict=True)]


def _text(row: CanaryRow | None) -> list[str]:
    if row is None:
        return ["(not", "asked)"]
    if row.reason:
        return ["✗", *one_line(row.reason).split()]
    return one_line(row.text).split() or ["(an", "empty", "reply)"]


def _lines(words: Sequence[Word], width: int) -> list[Content]:
    """Return words as lines, at most ``ANSWER_LINES``; a cut shows as ``…``."""
    parts = [Content.styled(word, DIFFERS if differs else "") for word, differs in words]
    lines = Content(" ").join(parts).wrap(width)
    if len(lines) > ANSWER_LINES:
        last = lines[ANSWER_LINES - 1].rstrip().truncate(width - 2) + Content(" …")
        lines = [*lines[: ANSWER_LINES - 1], last]
    return lines


def _at(lines: Sequence[Content], number: int) -> Content:
    return lines[number] if number < len(lines) else Content()


def _beside(cells: Sequence[Content], width: int) -> Content:
    columns = [cell.truncate(width, ellipsis=True, pad=True) for cell in cells]
    return Content.styled(" │ ", "dim").join(columns)
