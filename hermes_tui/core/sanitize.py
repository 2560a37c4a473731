"""Text of others (models, tools, users, logs, paths) made safe to draw."""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(  # what names its end goes with all it holds only if it comes to that end
    r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC: titles, links, clipboard
    r"|\x1b[PX^_][^\x1b\n]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor, screen
    r"|\x1b[ -/]*[0-~]?"
)
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks and overrides
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # separators, BOM, annotations
    "\ud800-\udfff\U000e0000-\U000e007f]"  # lone surrogates, tag characters
)
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's categories of characters that show nothing: they steer, mark or are half of one."""

_JOINERS = frozenset("\u200c\u200d")
"""They show in how their neighbours look: one emoji instead of three, a letter's other form."""

_NAMES = {"\n": "⏎", "\t": "⇥", "\r": "␍"}


def clean(text: str) -> str:
    """Return foreign text without anything that a terminal obeys or that reorders it.

    Escape sequences go as a whole; other control and bidirectional characters one by one.
    Newlines and tabs stay, and carriage returns before a newline are dropped.
    """
    return _UNSEEN.sub("", _ESCAPES.sub("", text.replace("\r\n", "\n")))


def exposed(text: str) -> str:
    """Return foreign text with what ``clean`` would take out written out instead.

    For what a person is asked to allow: nothing of it may be hidden.
    """
    text = text.replace("\r\n", "\n")
    return "".join(c if c in "\n\t" else _visible_character(c) for c in text)


def one_line(text: str) -> str:
    """Return foreign text cleaned and on one line; runs of white space become one space."""
    return " ".join(clean(text).split())


def shorten(text: str, width: int) -> str:
    """Return text of at most ``width`` characters; a cut shows as ``…``."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def visible(text: str) -> str:
    """Return text with every character that could not be seen written out.

    Newline is ``⏎``, tab ``⇥``; other control, format and direction characters are escaped as in
    Python source, so that a token's exact text can be read.
    """
    if text.isprintable():  # no control, format or separator character: nearly every token
        return text
    return "".join(_visible_character(character) for character in text)


def _visible_character(character: str) -> str:
    if name := _NAMES.get(character):
        return name
    if unicodedata.category(character) in _HIDDEN and character not in _JOINERS:
        return character.encode("unicode_escape", "surrogatepass").decode()
    return character
