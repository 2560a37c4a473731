"""Every session and its episodes: state, reward, version."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.content import Content

from hermes_tui.core.rows import EpisodeRow, SessionRow
from hermes_tui.core.state import ViewState
from hermes_tui.core.text import one_line, shorten
from hermes_tui.keys import bindings
from hermes_tui.messages import EpisodePicked, FilterWanted
from hermes_tui.widgets.panes import Acts, titled
from hermes_tui.widgets.rows_view import Row, RowsView
from hermes_tui.widgets.text import foreign, signed, state

MAX_EPISODES = 3
"""Episodes that a session shows which is not the open one."""


class SessionsPane(Acts, RowsView):
    """The list of sessions, newest first; the open one shows all its episodes."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("sessions", "")]

    def __init__(self) -> None:
        super().__init__(id="sessions")
        self._filter = ""

    def on_mount(self) -> None:
        """Show the empty list."""
        titled(self, "sessions")

    def sync(self, view: ViewState) -> None:
        """Show the sessions as they are now."""
        rows: list[Row] = []
        siblings = view.siblings()
        ordered = sorted(view.sessions.values(), key=lambda s: s.created_at, reverse=True)
        listed = [session for session in ordered if self._matches(view, session.session_id)]
        for session in listed:
            session_id = session.session_id
            opened = session_id == view.selected
            sign, word = _now(view, session)
            if session_id in siblings:
                word = "{}/{} ".format(*siblings[session_id]) + word
            title = foreign(view.title(session_id), "bold" if opened else "")
            rows.append(
                Row(
                    key=session_id,
                    left=Content.assemble(f"{sign} ", title),
                    right=Content.styled(word.strip(), "dim"),
                )
            )
            episodes = view.episodes_of(session_id)
            shown = episodes if opened else episodes[-MAX_EPISODES:]
            rows += [_episode_row(view, row) for row in reversed(shown)]
        self.show(rows or [_NONE_MATCH if self._filter else _EMPTY])
        count = f"{len(listed)} of {len(ordered)}" if self._filter else str(len(ordered))
        about = f" “{shorten(one_line(self._filter), 8)}”" if self._filter else ""
        titled(self, "sessions", count + about if ordered else "")

    def _matches(self, view: ViewState, session_id: str) -> bool:
        """Whether a session, by what its rows say, is listed."""
        if not self._filter:
            return True
        said = [view.title(session_id), session_id, view.sessions[session_id].group_id]
        said += ["ended" if view.sessions[session_id].ended else ""]
        for row in view.episodes_of(session_id):
            reward = "" if row.reward is None else f"{row.reward:+.1f}"
            said += [row.state, reward, f"v{row.policy_version}"]
        return self._filter.casefold() in " ".join(said).casefold()

    def do_sessions_filter(self) -> None:
        """Ask what to list."""
        self.post_message(FilterWanted(self._filter))

    def filter(self, text: str, view: ViewState) -> None:
        """List only the sessions whose rows hold a text; an empty one lists all."""
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
    """Return the sign and the word of what a session does now."""
    if any(ask.session_id == session.session_id for ask in view.asked.values()):
        return "◆", "asks"
    if view.running_turn(session.session_id) is not None:
        return "◌", "speaks"
    opened = "▸" if session.session_id == view.selected else " "
    return opened, "ended" if session.ended else ""


def _episode_row(view: ViewState, row: EpisodeRow) -> Row:
    marker = "▪" if row.episode_id == view.shown else " "
    left = Content.assemble(f" {marker}{view.ordinal(row):>2} ", state(row.state))
    score = signed(row.reward, 1) if row.reward is not None else ""
    version = "" if row.policy_version is None else f"v{row.policy_version}"
    behind = (
        f"-{row.staleness}" if row.staleness and row.state not in ("trained", "dropped") else ""
    )
    right = Content.assemble(score, (f"{version + behind:>6}", "dim"))
    return Row(key=f"{row.session_id}\n{row.episode_id}", left=left, right=right)
