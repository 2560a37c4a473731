"""The list of sessions and their episodes: state, reward, version, age."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content

from hermes_tui.core.models import EpisodeRow, SessionRow
from hermes_tui.core.reward_text import reward_text
from hermes_tui.core.sanitize import one_line, shorten
from hermes_tui.core.state import ViewState
from hermes_tui.tui.keys import bindings
from hermes_tui.tui.messages import EpisodePicked, FilterRequested
from hermes_tui.tui.widgets.base import ActionOwner, titled
from hermes_tui.tui.widgets.formatting import age, literal, signed_reward, state
from hermes_tui.tui.widgets.row_list import Row, RowList

MAX_EPISODES = 3
"""Newest episodes to show of a session that is not open."""


ROOMY_CELLS = 32
"""Least width that has room for a session's age beside its state, and for words like “behind”."""

AGES_S = 30.0
"""Seconds between updates of ages, whose smallest unit is a minute."""


class SessionsPane(ActionOwner, RowList):
    """The list of sessions, newest first; the open one shows all its episodes.

    Args:
        clock: seconds since the epoch.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("sessions")]

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(id="sessions")
        self._clock = clock
        self._filter = ""
        self._view = ViewState()

    def on_mount(self) -> None:
        """Show the empty list."""
        titled(self, "sessions")
        self.set_interval(AGES_S, lambda: self.sync(self._view))

    def on_resize(self) -> None:
        """Use the room there is."""
        self.sync(self._view)

    @property
    def _roomy(self) -> bool:
        return self.size.width >= ROOMY_CELLS

    def sync(self, view: ViewState) -> None:
        """Show the sessions as they are now."""
        self._view = view
        rows: list[Row] = []
        siblings = view.siblings()
        ordered = sorted(view.sessions.values(), key=lambda s: s.created_at, reverse=True)
        listed = [session for session in ordered if self._matches(view, session.session_id)]
        for session in listed:
            session_id = session.session_id
            opened = session_id == view.selected
            episodes = view.episodes_of(session_id)
            sign, word = _now(view, session)
            sibling = "{}/{}".format(*siblings[session_id]) if session_id in siblings else ""
            since = episodes[-1].created_at if episodes else session.created_at
            ago = age(self._clock() - since) if self._roomy or not word else ""
            title = literal(view.title(session_id), "bold" if opened else "")
            rows.append(
                Row(
                    key=session_id,
                    left=Content.assemble(f"{sign} ", title),
                    right=Content.styled(" ".join(filter(None, (sibling, word, ago))), "dim"),
                )
            )
            shown = episodes if opened else episodes[-MAX_EPISODES:]
            rows += [_episode_row(view, row, self._roomy) for row in reversed(shown)]
        self.show(rows or [_NONE_MATCH if self._filter else _EMPTY])
        count = f"{len(listed)} of {len(ordered)}" if self._filter else str(len(ordered))
        about = f" “{shorten(one_line(self._filter), 8)}”" if self._filter else ""
        titled(self, "sessions", count + about if ordered else "")

    def _matches(self, view: ViewState, session_id: str) -> bool:
        """True when the text of a session's rows contains the filter."""
        if not self._filter:
            return True
        said = [view.title(session_id), session_id, view.sessions[session_id].group_id]
        said += ["ended" if view.sessions[session_id].ended else ""]
        for row in view.episodes_of(session_id):
            given = "" if row.reward is None else reward_text(row.reward)
            said += [row.state, given, f"v{row.policy_version}"]
        return self._filter.casefold() in " ".join(said).casefold()

    def do_sessions_filter(self) -> None:
        """Ask what to list."""
        self.post_message(FilterRequested(self._filter))

    def filter(self, text: str, view: ViewState) -> None:
        """List only the sessions whose rows contain a text; empty lists all."""
        self._filter = text.strip()
        self.sync(view)

    def do_sessions_open(self) -> None:
        """Open what the cursor is on."""
        self.picked()

    def picked(self) -> None:
        """Open what the cursor is on."""
        session_id, _, episode_id = self.cursor_key.partition("\n")
        if session_id:
            self.post_message(EpisodePicked(session_id, episode_id))


_NONE_MATCH = Row(key="", left=Content.styled("  none match; / clears", "dim"), selectable=False)
_EMPTY = Row(key="", left=Content.styled("  none yet", "dim"), selectable=False)


def _now(view: ViewState, session: SessionRow) -> tuple[str, str]:
    """Return the glyph and the word of a session's state."""
    if any(ask.session_id == session.session_id for ask in view.pending_approvals.values()):
        return "◆", "asks"
    if view.running_turn(session.session_id) is not None:
        return "◌", "speaks"
    opened = "▸" if session.session_id == view.selected else " "
    return opened, "ended" if session.ended else ""


def _episode_row(view: ViewState, row: EpisodeRow, roomy: bool) -> Row:
    marker = "▪" if row.episode_id == view.shown else " "
    left = Content.assemble(f" {marker}{view.ordinal(row):>2} ", state(row.state))
    score = signed_reward(row.reward) if row.reward is not None else ""
    version = "" if row.policy_version is None else f"v{row.policy_version}"
    if row.staleness and row.state not in ("trained", "dropped"):
        version += f" {row.staleness} behind" if roomy else f"-{row.staleness}"
    right = Content.assemble(score, (f"{version:>6}" if version else "", "dim"))
    return Row(key=f"{row.session_id}\n{row.episode_id}", left=left, right=right)
