"""The list of sessions and their episodes: state, reward, version, age."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from hermes_tui.core.models import EpisodeRow, SessionRow
from hermes_tui.core.reasons import reason_text
from hermes_tui.core.reward_text import reward_text
from hermes_tui.core.sanitize import one_line
from hermes_tui.core.state import ViewState
from hermes_tui.core.waiting import when_trained
from hermes_tui.tui.keys import Keys, bindings
from hermes_tui.tui.messages import (
    ComparisonRequested,
    DeleteRequested,
    EpisodePicked,
    FilterRequested,
    RenameRequested,
)
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
        keys: the keys in force.
        on_moved: called when the cursor stands on another row.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings("sessions")]

    def __init__(
        self, clock: Callable[[], float], keys: Keys, on_moved: Callable[[], None]
    ) -> None:
        super().__init__(id="sessions-list")
        self._clock = clock
        self._on_moved = on_moved
        self._in_force = keys
        self._filter = ""
        self._filtered: frozenset[str] = frozenset()
        """The sessions that there were when the filter was set; it hides no newer one."""
        self._view = ViewState()
        self._unfolded: set[str] = set()
        """Groups whose siblings are listed one by one."""

    def on_mount(self) -> None:
        """Show the empty list."""
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
        kept = [
            session for session in view.sessions.values() if session.session_id not in view.deleted
        ]
        ordered = sorted(kept, key=lambda s: s.created_at, reverse=True)
        listed = [session for session in ordered if self._matches(view, session.session_id)]
        folded = self._folded(view, listed)
        for session in listed:
            if session.group_id in folded:
                if members := folded[session.group_id]:
                    rows.append(_group_row(view, session.group_id, members, self._clock()))
                    folded[session.group_id] = []  # its row is there
                continue
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
            marked = view.marked_episode
            rows += [_episode_row(view, row, self._roomy, marked) for row in reversed(shown)]
        self.show([*self._about_filter(), *rows] or [_EMPTY])
        if isinstance(self.parent, SessionsBox):
            self.parent.say(len(listed), len(ordered), view)

    def _folded(self, view: ViewState, listed: Sequence[SessionRow]) -> dict[str, list[SessionRow]]:
        """Return the siblings of each group that is one row: none of them is open, nor unfolded."""
        groups: dict[str, list[SessionRow]] = {}
        for session in listed:
            groups.setdefault(session.group_id, []).append(session)
        return {
            group_id: members
            for group_id, members in groups.items()
            if group_id
            and len(members) > 1
            and group_id not in self._unfolded
            and all(member.session_id != view.selected for member in members)
        }

    def _about_filter(self) -> list[Row]:
        """Return the row that names the filter, and the key that clears it."""
        if not self._filter:
            return []
        key = self._in_force.label("sessions_clear")
        left = literal(f"“{one_line(self._filter)}”", "bold")
        right = Content.styled(f"{key} clears" if key else "", "dim")
        return [Row(key="", left=left, right=right, selectable=False)]

    def _matches(self, view: ViewState, session_id: str) -> bool:
        """True when a session's rows contain the filter, or when it is open or newer than that."""
        if not self._filter or session_id == view.selected or session_id not in self._filtered:
            return True
        said = [view.title(session_id), session_id, view.sessions[session_id].group_id]
        said.append(view.sessions[session_id].topic)
        said.append(view.sessions[session_id].end_word)
        for row in view.episodes_of(session_id):
            given = "" if row.reward is None else reward_text(row.reward)
            said += [row.state, given, f"v{row.policy_version}"]
        return self._filter.casefold() in " ".join(said).casefold()

    def do_sessions_filter(self) -> None:
        """Ask what to list."""
        self.post_message(FilterRequested(self._filter))

    def do_sessions_clear(self) -> None:
        """List all sessions again."""
        self.filter("", self._view)

    def do_sessions_rename(self) -> None:
        """Ask for a name."""
        self.post_message(RenameRequested())

    def do_sessions_delete(self) -> None:
        """Delete what the cursor is on."""
        self.post_message(DeleteRequested())

    def do_compare_again(self) -> None:
        """Open the comparison of the session under the cursor again."""
        self.post_message(ComparisonRequested())

    @property
    def cursor_session(self) -> str:
        """The session that the cursor is on, of a group the first; empty for none."""
        if group_id := _group_of(self.cursor_key):
            members = (s for s in self._view.sessions.values() if s.group_id == group_id)
            return next((session.session_id for session in members), "")
        return self.cursor_key.partition("\n")[0]

    def filter(self, text: str, view: ViewState) -> None:
        """List only the sessions whose rows contain a text, and new ones; empty lists all."""
        self._filter = text.strip()
        self._filtered = frozenset(view.sessions)
        self.sync(view)

    def do_sessions_open(self) -> None:
        """Open what the cursor is on."""
        self.picked()

    @property
    def under_cursor(self) -> tuple[str, str]:
        """(session, episode) of the row under the cursor; empty where there is none."""
        if _group_of(self.cursor_key):
            return "", ""
        session_id, _, episode_id = self.cursor_key.partition("\n")
        return session_id, episode_id

    def picked(self) -> None:
        """Open what the cursor is on; of a group list the siblings."""
        if group_id := _group_of(self.cursor_key):
            self._unfolded.add(group_id)
            self.sync(self._view)
            self.action_move(0)
            return
        session_id, episode_id = self.under_cursor
        if session_id:
            self.post_message(EpisodePicked(session_id, episode_id))

    def moved(self) -> None:
        """Say what the row under the cursor means."""
        if isinstance(self.parent, SessionsBox):
            self.parent.explain(self._view)
        self._on_moved()


class SessionsBox(Vertical):
    """The list of sessions, and while it has the focus what the row under the cursor means.

    Args:
        clock: seconds since the epoch.
        keys: the keys in force.
        on_moved: called when the cursor stands on another row.
    """

    def __init__(
        self, clock: Callable[[], float], keys: Keys, on_moved: Callable[[], None]
    ) -> None:
        super().__init__(id="sessions")
        self._clock, self._in_force, self._on_moved = clock, keys, on_moved

    def compose(self) -> ComposeResult:
        """Lay out the pane."""
        yield SessionsPane(self._clock, self._in_force, self._on_moved)
        yield Static(id="sessions-words")

    def on_mount(self) -> None:
        """Show the empty pane."""
        titled(self, "sessions")

    def say(self, num_listed: int, num_sessions: int, view: ViewState) -> None:
        """Show how many sessions are listed, of how many."""
        some = f"{num_listed} of {num_sessions}" if num_listed < num_sessions else num_sessions
        titled(self, "sessions", str(some) if num_sessions else "")
        self.explain(view)

    def explain(self, view: ViewState) -> None:
        """Say what the row under the cursor means."""
        key = self.query_one(SessionsPane).cursor_key
        words = Content.styled(explain_row(view, key, self._clock()), "dim")
        text = self.query_one("#sessions-words", Static)
        if text.content != words:
            text.update(words)


_GROUP = "\n\n"
"""Begins the key of a group's row; a session's key begins with its id."""


def _group_of(key: str) -> str:
    """Return the group that a row stands for; empty for the row of a session or an episode."""
    return key.removeprefix(_GROUP) if key.startswith(_GROUP) else ""


def _group_row(view: ViewState, group_id: str, members: Sequence[SessionRow], now: float) -> Row:
    """Return the one row of siblings: how many there are, and how many are judged."""
    rows = [view.latest(member.session_id) for member in members]
    judged = sum(row is not None and row.reward is not None for row in rows)
    best = max((row.reward for row in rows if row and row.reward is not None), default=None)
    word = f"{judged} judged" if judged < len(members) else f"best {signed_reward(best)}"
    ago = age(now - max(member.created_at for member in members))
    return Row(
        key=f"{_GROUP}{group_id}",
        left=literal(f"⊞ {view.title(members[-1].session_id)}"),  # the oldest: no branch's name
        right=Content.styled(f"×{len(members)} {word} {ago}", "dim"),
    )


_EMPTY = Row(key="", left=Content.styled("  none yet", "dim"), selectable=False)


def explain_row(view: ViewState, key: str, now: float) -> str:
    """Return what the marks of a row mean, a line for each; empty for none.

    Args:
        view: what is known.
        key: the row's key: a session's id, and for an episode its id after a newline.
        now: seconds since the epoch.
    """
    if group_id := _group_of(key):
        num = sum(session.group_id == group_id for session in view.sessions.values())
        return f"{num} replies to one message\nenter lists them"
    session_id, _, episode_id = key.partition("\n")
    if session_id not in view.sessions:
        return ""
    row = view.episodes.get(session_id, {}).get(episode_id)
    parts = _session_words(view, session_id) if row is None else _episode_words(view, row, now)
    return "\n".join(parts)


def _session_words(view: ViewState, session_id: str) -> Sequence[str]:
    sign, _ = _now(view, view.sessions[session_id])
    words = {
        "◆": "◆ the agent asks something",
        "◌": "◌ the agent is replying",
        "▸": "▸ the open session",
    }
    parts = [words.get(sign, "enter opens it")]
    if topic := one_line(view.sessions[session_id].topic):
        parts.append(f"about {topic}")
    if session_id in (siblings := view.siblings()):
        parts.append("reply {} of {} to one message".format(*siblings[session_id]))
    ended = view.sessions[session_id].end_word
    return [*parts, f"{ended}: takes no more messages"] if ended else parts


_EPISODE_WORDS = {
    "open": "not judged yet",
    "ended": "over, not judged yet",
    "unscored": "over, not judged",
    "claimed": "in the step that runs",
}


def _episode_words(view: ViewState, row: EpisodeRow, now: float) -> Sequence[str]:
    parts = ["▪ its tokens are shown"] if row.episode_id == view.shown else []
    if row.state == "trained":
        parts.append(f"trained in step {row.step}")
    elif row.state == "dropped":
        parts.append(f"never trained: {reason_text(row.dropped_reason)}")
    elif row.state == "scored":
        parts.append(f"judged, {when_trained(view, row, now)}")
    else:
        parts.append(_EPISODE_WORDS.get(row.state, row.state))
    if row.policy_version is None:
        return parts
    by = f"by v{row.policy_version}"
    if row.staleness:
        by += f", {row.staleness} version{'' if row.staleness == 1 else 's'} behind"
    return [*parts, by]


def _now(view: ViewState, session: SessionRow) -> tuple[str, str]:
    """Return the glyph and the word of a session's state."""
    if any(ask.session_id == session.session_id for ask in view.pending_approvals.values()):
        return "◆", "asks"
    if view.running_turn(session.session_id) is not None:
        return "◌", "speaks"
    opened = "▸" if session.session_id == view.selected else " "
    return opened, session.end_word


def _episode_row(view: ViewState, row: EpisodeRow, roomy: bool, marked: EpisodeRow | None) -> Row:
    marker = "▪" if row == marked else " "
    left = Content.assemble(f" {marker}{view.ordinal(row):>2} ", state(row.state))
    score = signed_reward(row.reward) if row.reward is not None else ""
    version = "" if row.policy_version is None else f"v{row.policy_version}"
    if row.staleness and row.state not in ("trained", "dropped"):
        version += f" {row.staleness} behind" if roomy else f"-{row.staleness}"
    right = Content.assemble(score, (f"{version:>6}" if version else "", "dim"))
    return Row(key=f"{row.session_id}\n{row.episode_id}", left=left, right=right)
