"""What a view knows of the stack at one moment."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path

from hermes_tui.core.changes import ChatTurn, PendingApproval
from hermes_tui.core.log_buffer import LogLines
from hermes_tui.core.models import (
    CanaryRow,
    EpisodeRow,
    SessionRow,
    StackInfo,
    StepRow,
    TrainerRow,
)
from hermes_tui.core.sanitize import one_line
from hermes_tui.core.stack_status import ProcessStatus, SystemSample
from hermes_tui_services.api.workdirs import session_dir

MAX_SAMPLES = 600
"""Samples of the machine kept for the screen: twenty minutes of them, more than a line can show."""

MAX_STEPS = 500
"""Step rows kept for the screen; the store keeps all."""


@dataclass(slots=True, kw_only=True)
class ViewState:
    """Everything that the panes draw; only the controller and its parts write it."""

    info: StackInfo = field(default_factory=lambda: StackInfo(run_dir="", training=True, model=""))
    """The stack that the view is attached to."""
    processes: dict[str, ProcessStatus] = field(default_factory=dict)
    """By name."""
    sessions: dict[str, SessionRow] = field(default_factory=dict)
    """By id, oldest first."""
    episodes: dict[str, dict[str, EpisodeRow]] = field(default_factory=dict)
    """By session id, then by episode id, oldest first."""
    turns: dict[str, list[ChatTurn]] = field(default_factory=dict)
    """By session id, oldest first."""
    steps: list[StepRow] = field(default_factory=list)
    """The newest steps, oldest first."""
    trainer: TrainerRow = field(default_factory=TrainerRow)
    """What the trainer does now."""
    canaries: list[CanaryRow] = field(default_factory=list)
    """What the two newest versions that answered said to the canary's questions."""
    canary_choice: tuple[int, int] | None = None
    """The versions whose answers the person wants to see, the older first; None is the newest."""
    samples: deque[SystemSample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    """The machine lately, oldest first; empty while nobody looks."""
    log: LogLines = field(default_factory=LogLines)
    """The newest lines of the process whose log is read."""
    unmoved: str = ""
    """Why the newest scores moved nothing; empty once a step moved something."""
    step_started_at: float | None = None
    """When the running step began, seconds since the epoch; None between steps."""
    deleted: dict[str, float] = field(default_factory=dict)
    """Sessions that are hidden, and when the stack forgets them, by the event loop's clock; the
    last one was deleted last."""
    selected: str = ""
    """The session that chat and score keys are about; empty is one that is not started yet."""
    shown: str = ""
    """The episode whose tokens are shown; empty is none."""
    pinned: bool = False
    """Whether the person chose the shown episode, so that a new one does not replace it."""
    pointed: tuple[str, str] = ("", "")
    """(session, episode) that the cursor of a list stands on while keys are about that; the episode
    is empty on a session's own row, both are while keys are about what is open."""
    pending_approvals: dict[str, PendingApproval] = field(default_factory=dict)
    """Questions of the agent that nobody has answered, by approval id, oldest first."""
    lost: str = ""
    """Why the stack can't be reached; empty while it can."""
    stopped: bool = False
    """Whether that is since somebody stopped it."""

    def episodes_of(self, session_id: str) -> list[EpisodeRow]:
        """Return a session's episodes, oldest first."""
        return list(self.episodes.get(session_id, {}).values())

    def episode(self, episode_id: str) -> EpisodeRow | None:
        """Return an episode by its id, or None."""
        return next(
            (rows[episode_id] for rows in self.episodes.values() if episode_id in rows), None
        )

    def latest(self, session_id: str) -> EpisodeRow | None:
        """Return the newest episode of a session, or None."""
        return next(reversed(self.episodes.get(session_id, {}).values()), None)

    @property
    def open_episode(self) -> EpisodeRow | None:
        """The episode that the view shows; None for none."""
        shown = self.episode(self.shown) if self.shown else None
        if shown is not None and shown.session_id == self.selected:
            return shown
        return self.latest(self.selected)

    @property
    def marked_session(self) -> str:
        """The session that keys are about: the one under the cursor, else the open one."""
        return self.pointed[0] or self.selected

    @property
    def marked_episode(self) -> EpisodeRow | None:
        """The episode that the view marks; a score is for it. None for none."""
        session_id, episode_id = self.pointed
        if episode_id:
            return self.episode(episode_id)
        if self.marked_session == self.selected:
            return self.open_episode
        return self.latest(session_id)

    def ordinal(self, episode: EpisodeRow) -> int:
        """Return the number of an episode within its session, from 1."""
        return list(self.episodes.get(episode.session_id, {})).index(episode.episode_id) + 1

    def episode_name(self, episode: EpisodeRow) -> str:
        """Return what an episode is called, such as ``episode 2 of “Greet Ada”``."""
        return f"episode {self.ordinal(episode)} of “{self.title(episode.session_id)}”"

    def running_turn(self, session_id: str) -> ChatTurn | None:
        """Return the turn of a session that is in flight, or None."""
        return next((t for t in self.turns.get(session_id, ()) if t.state == "running"), None)

    def title(self, session_id: str) -> str:
        """Return a session's title: its name, else its first message, else its task."""
        session = self.sessions.get(session_id)
        title = one_line(session.title) if session else ""
        if not title and (turns := self.turns.get(session_id)):
            title = one_line(turns[0].user_text)
        if session is None:
            return title or "new session"
        branch = "↳ " if session.branch_of else ""
        return branch + (title or one_line(session.task_id) or session_id)

    def topics(self) -> dict[str, int]:
        """Return how many sessions each topic has, those with most first."""
        counts = Counter(row.topic for row in self.sessions.values() if row.topic)
        return dict(counts.most_common())

    def version_name(self, policy_version: int | None) -> str:
        """Return what a version is called: ``v6``, or ``v6 (v2 again)`` after a rollback to v2."""
        made = (step for step in reversed(self.steps) if step.policy_version == policy_version)
        back = next((step.values.get("rolled_back_to") for step in made), None)
        return f"v{policy_version}" + ("" if back is None else f" (v{back:.0f} again)")

    def put_episodes(self, rows: Iterable[EpisodeRow]) -> None:
        """Take rows, new or changed; a session's episodes stay in order of their making."""
        touched = set()
        for row in rows:
            self.episodes.setdefault(row.session_id, {})[row.episode_id] = row
            touched.add(row.session_id)
        for session_id in touched:
            ordered = sorted(self.episodes[session_id].values(), key=lambda row: row.created_at)
            self.episodes[session_id] = {row.episode_id: row for row in ordered}

    def put_steps(self, rows: Iterable[StepRow]) -> None:
        """Take step rows; only the newest are kept."""
        by_step = {row.step: row for row in [*self.steps, *rows]}
        self.steps = [by_step[step] for step in sorted(by_step)][-MAX_STEPS:]

    def forget(self, session_id: str) -> None:
        """Drop a session that the trainer has deleted; the open one stays as it was read."""
        if session_id != self.selected:
            for rows in (self.sessions, self.episodes, self.turns):
                rows.pop(session_id, None)

    def put_turn(self, turn: ChatTurn) -> bool:
        """Add a running turn; return whether it was appended and no other turn changed.

        A recorded copy of the same turn is replaced: the running one says more.
        """
        known = self.turns.setdefault(turn.session_id, [])
        before = [other for other in known if other is not turn]
        known[:] = [other for other in before if not turn.covers(other)] + [turn]
        known.sort(key=_started_at)
        return known == [*before, turn]

    def put_turns(self, session_id: str, read: list[ChatTurn]) -> list[ChatTurn]:
        """Add recorded turns; return those that are new or changed.

        A turn that this view saw while it ran stays as it was seen.
        """
        known = self.turns.setdefault(session_id, [])
        by_id = {turn.turn_id: turn for turn in known}
        live = [turn for turn in known if turn.source != "read"]
        starts, runs = [turn.started_at for turn in live], {turn.run_id for turn in live}

        def seen(turn: ChatTurn) -> bool:
            if turn.run_id:
                return turn.run_id in runs
            index = bisect_right(starts, turn.started_at)
            return index > 0 and live[index - 1].covers(turn)

        changed: list[ChatTurn] = []
        for turn in read:
            old = by_id.get(turn.turn_id)
            if old is None and not seen(turn):
                known.append(turn)
                changed.append(turn)
            elif old is not None and old.source == "read" and old != turn:
                for field_ in fields(turn):  # whoever draws it holds it
                    setattr(old, field_.name, getattr(turn, field_.name))
                changed.append(old)
        known.sort(key=_started_at)
        return changed

    @property
    def approval_queue(self) -> list[PendingApproval]:
        """The pending approvals: those of the selected session first, then the oldest."""
        return sorted(
            self.pending_approvals.values(), key=lambda ask: ask.session_id != self.selected
        )

    def where(self, request: PendingApproval) -> str:
        """Return the session of an approval, as ``“title”``; empty for the open one."""
        other = request.session_id != self.selected
        return f"“{self.title(request.session_id)}”" if other else ""

    def directory(self, session_id: str) -> str:
        """Return where a session's commands run; empty when the agent runs none."""
        if not self.info.workdir or not session_id:
            return self.info.workdir
        return str(session_dir(Path(self.info.workdir), session_id))

    def siblings(self) -> dict[str, tuple[int, int]]:
        """Return (number, from 1; how many) of each session that has siblings."""
        groups: dict[str, list[str]] = {}
        for session in self.sessions.values():
            if session.group_id:
                groups.setdefault(session.group_id, []).append(session.session_id)
        return {
            session_id: (number, len(group))
            for group in groups.values()
            if len(group) > 1
            for number, session_id in enumerate(group, 1)
        }


def _started_at(turn: ChatTurn) -> float:
    return turn.started_at
