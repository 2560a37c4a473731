"""The real stack behind ``core.backend.Backend``: three HTTP services and the launcher."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from pydantic import SecretStr, TypeAdapter, ValidationError

from hermes_tui.config.paths import RunDir
from hermes_tui.config.secrets import read_keys
from hermes_tui.config.settings import Config
from hermes_tui.core.changes import TrainerEvent
from hermes_tui.core.control_api import ControlEvent, ProcessChanged, StackStarting
from hermes_tui.core.controller import Controller
from hermes_tui.core.errors import NotRunningError, StackStoppedError
from hermes_tui.core.models import (
    HELD_BY_PERSON,
    CanaryRow,
    EpisodeDetail,
    EpisodeRow,
    SessionRow,
    StackInfo,
    StartStage,
    StepRow,
    TrainerRow,
    ViewMemory,
)
from hermes_tui.core.stack_status import ProcessStatus, StackStatus, SystemSample
from hermes_tui.stack_client.control import ControlClient
from hermes_tui.stack_client.launch import ensure_supervisor, find_supervisor, stop_supervisor
from hermes_tui.supervisor.specs import StackPlan
from hermes_tui_common.errors import RefusedError, ServiceError, UnreachableError
from hermes_tui_common.http import SkippedEvents
from hermes_tui_common.serving import write_private
from hermes_tui_services.api.client import AgentClient, PastTurn
from hermes_tui_services.api.events import TurnEvent
from hermes_tui_services.api.wire import SearchHit
from hermes_tui_training.api.client import InferenceClient
from hermes_tui_training.api.wire import EpisodeRecord, EpisodeSummary

logger = logging.getLogger(__name__)

Client = TypeVar("Client")

_MEMORY = TypeAdapter(ViewMemory)

PLAIN_TASK_ID = "chat"
"""Task of the sessions without a trainer: it would be the one to tell them apart."""

PAGE = 1000
"""Episodes that are asked for at once; the gateway gives no more."""


def make_controller(config: Config) -> Controller:
    """Return the use cases over the real stack; makes the run directory, and starts nothing."""
    RunDir.of(config).create()
    return Controller(RemoteBackend(config), training=config.training)


class RemoteBackend:
    """Attaches to the stack of a configuration's run directory, and starts it when none runs.

    Args:
        config: the resolved configuration.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._run_dir = RunDir.of(config)
        self._control: ControlClient | None = None
        self._agent: AgentClient | None = None
        self._inference: InferenceClient | None = None
        self._inference_url = ""
        self.skipped_events = SkippedEvents("the inference gateway")
        self._session_keys: dict[str, SecretStr] = {}
        self._unspoken: dict[str, SessionRow] = {}
        """Conversations without a trainer in which nothing is kept yet: nobody else lists them."""

    # The stack -----------------------------------------------------------------------------

    async def start(self, report: Callable[[StartStage], None]) -> StackInfo:
        """Attach, starting the stack when none runs."""

        def on_event(event: ControlEvent) -> None:
            if isinstance(event, StackStarting) and (keys := read_keys(self._run_dir)):
                plan = StackPlan(config=self._config, run_dir=self._run_dir, keys=keys)
                for spec in plan.specs():  # those that wait for others have no event yet
                    report(StartStage(process=spec.name, state="waiting"))
            if isinstance(event, ProcessChanged):
                text = "" if event.reason == event.state else event.reason or ""
                report(StartStage(process=event.name, state=event.state, text=text))

        status = await self._attach(await ensure_supervisor(self._config, on_event))
        models = await self._inference.models() if self._inference else []
        has_tools = bool(self._config.services.agent.enabled_toolsets)
        return StackInfo(
            run_dir=str(self._run_dir.root),
            training=self._inference is not None,
            model=self._model_name(),
            context_tokens=models[0].max_model_len if models else 0,
            workdir=str(self._run_dir.workdir(self._config)) if has_tools else "",
            cage=status.cage if has_tools else "",
        )

    def _model_name(self) -> str:
        """Return the short name of the model that answers: ours, or without a trainer another's."""
        if self._inference is None:
            upstream = self._config.upstream
            return upstream.model or urlsplit(upstream.base_url).hostname or ""
        return Path(self._config.model.path).name or self._config.model.path

    async def _attach(self, control: ControlClient) -> StackStatus:
        """Talk to the gateways that a supervisor names; return what it says of the stack."""
        await self.close()
        self._control = control
        status = await control.status()
        keys = read_keys(self._run_dir)
        if keys is None or status.agent_gateway is None:
            raise ServiceError(f"the stack in {self._run_dir.root} is not ready")
        self._agent = AgentClient(status.agent_gateway, keys.agent_admin_key)
        if status.inference_gateway:
            self._inference_url = status.inference_gateway
            self._inference = InferenceClient(status.inference_gateway, keys.inference_admin_key)
        return status

    async def close(self) -> None:
        """Let go of the stack; it runs on."""
        clients = (self._control, self._agent, self._inference)
        self._control = self._agent = self._inference = None
        for client in clients:
            if client is not None:
                await client.aclose()

    async def shutdown(self) -> None:
        """Stop the whole stack."""
        try:
            await stop_supervisor(self._run_dir, self._config.run.stop_timeout_s)
        except NotRunningError:
            return  # somebody else stopped it

    async def control_events(self) -> AsyncIterator[ControlEvent]:
        """Yield the supervisor's events; after a loss, those of the one that took its place."""
        control = self._control
        if control is None or not await _answers(control):
            try:
                control = await find_supervisor(self._run_dir)
            except NotRunningError as error:
                if not self._run_dir.supervisor.exists():  # it has put its things in order
                    raise StackStoppedError from error
                raise
            await self._attach(control)
        async for event in control.events():
            yield event

    async def learning_events(self) -> AsyncIterator[TrainerEvent]:
        """Yield the trainer's events from now on; skips what cannot be read."""
        async for event in self._trainer.events():
            try:
                known = TrainerEvent.of(event)
            except ValueError as error:
                self.skipped_events.add(event.kind, error)
                continue
            yield known

    async def processes(self) -> list[ProcessStatus]:
        """Return the processes in the supervisor's order."""
        return list((await self._supervisor.status()).processes)

    async def restart(self, process: str) -> None:
        """Restart one process."""
        await self._supervisor.restart(process)

    async def system(self) -> SystemSample:
        """Return what the machine does, as the supervisor sees it."""
        return await self._supervisor.system()

    def log(self, process: str, tail: int) -> AsyncIterator[str]:
        """Yield the last lines of a process's log, then each new one."""
        return self._supervisor.follow_logs(process, tail)

    # Sessions and turns --------------------------------------------------------------------

    async def sessions(self) -> list[SessionRow]:
        """Return all sessions."""
        if self._inference is None:
            return await self._plain_sessions()
        return [SessionRow.of(session) for session in await self._inference.sessions()]

    async def _plain_sessions(self) -> list[SessionRow]:
        """Return the agent service's conversations, oldest first."""
        rows = {
            row.session_key: SessionRow(
                session_id=row.session_key,
                task_id=PLAIN_TASK_ID,
                created_at=row.created_at,
                num_turns=row.num_turns,
            )
            for row in await self._gateway.sessions()
        }
        for session_id in [row.session_id for row in rows.values() if row.num_turns]:
            self._unspoken.pop(session_id, None)
        return sorted((self._unspoken | rows).values(), key=lambda row: row.created_at)

    async def start_session(self, task_id: str) -> SessionRow:
        """Start a session."""
        if self._inference is None:
            session_id = f"chat-{secrets.token_hex(8)}"
            row = SessionRow(session_id=session_id, task_id=task_id, created_at=time.time())
            self._unspoken[session_id] = row
            return row
        answer = await self._inference.start_session(task_id)
        session_id = answer.session_id
        self._session_keys[session_id] = SecretStr(answer.api_key)
        return SessionRow(
            session_id=session_id,
            task_id=task_id,
            group_id=answer.group_id,
            created_at=time.time(),
        )

    async def start_siblings(self, task_id: str, size: int) -> list[SessionRow]:
        """Start several sessions of one group."""
        if self._inference is None:
            return [await self.start_session(task_id) for _ in range(size)]
        answer = await self._inference.start_session(task_id, group_size=size)
        rows: list[SessionRow] = []
        for sibling in answer.sessions:
            session_id = sibling.session_id
            self._session_keys[session_id] = SecretStr(sibling.session_api_key)
            rows.append(
                SessionRow(
                    session_id=session_id,
                    task_id=task_id,
                    group_id=answer.group_id,
                    created_at=time.time(),
                )
            )
        return rows

    async def start_branch(
        self, session: SessionRow, *, until: float, beside: str = ""
    ) -> SessionRow:
        """Start a session that goes on with another one's conversation."""
        if self._inference is None:
            row = await self.start_session(PLAIN_TASK_ID)
        else:
            answer = await self._inference.start_session(
                session.task_id, branch_of=session.session_id, beside=beside or None
            )
            self._session_keys[answer.session_id] = SecretStr(answer.api_key)
            row = SessionRow(
                session_id=answer.session_id,
                task_id=session.task_id,
                group_id=answer.group_id,
                branch_of=session.session_id,
                created_at=time.time(),
            )
        try:
            await self._gateway.fork(session.session_id, row.session_id, until)
        except RefusedError as error:
            if error.status != 404:  # nothing is kept of it: the branch begins with nothing
                raise
        return row

    async def rename_session(self, session_id: str, title: str) -> None:
        """Give a session a name."""
        await self._trainer.rename_session(session_id, title)

    async def delete_session(self, session_id: str) -> None:
        """Forget a session: its conversation, and what was recorded in it."""
        if self._inference is not None:  # it may say no
            await self._inference.delete_session(session_id)
        await self._gateway.close(session_id)
        self._unspoken.pop(session_id, None)

    async def end_session(self, session_id: str) -> None:
        """End a session: its key works no longer."""
        if self._inference is None:
            await self._gateway.close(session_id)
            self._unspoken.pop(session_id, None)
        else:
            await self._inference.end_session(session_id)

    async def set_topic(self, session_id: str, topic: str) -> None:
        """Say what a session and its siblings are about."""
        await self._trainer.set_topic(session_id, topic)

    def recall(self) -> ViewMemory:
        """Return what the view before this one left behind."""
        try:
            return _MEMORY.validate_json(self._run_dir.view.read_bytes())
        except (OSError, ValidationError):
            return ViewMemory()  # none, or one that another version wrote

    def remember(self, memory: ViewMemory) -> None:
        """Keep what the next view is to find."""
        try:
            write_private(self._run_dir.view, _MEMORY.dump_json(memory).decode())
        except OSError as error:
            logger.warning("not remembered path=%s error=%s", self._run_dir.view, error)

    async def past_turns(self, session_id: str) -> list[PastTurn]:
        """Return a conversation as the agent service keeps it."""
        try:
            return await self._gateway.past_turns(session_id)
        except RefusedError as error:
            if error.status != 404:
                raise
            return []  # nothing was kept of it yet

    async def search(self, text: str) -> list[SearchHit]:
        """Return the turns of all sessions that contain a text."""
        return await self._gateway.search(text)

    async def running(self) -> dict[str, str]:
        """Return the run of every turn in flight, by session id."""
        return await self._gateway.turns()

    def join(self, session_id: str) -> AsyncIterator[TurnEvent]:
        """Follow a session's turn in flight; it goes on when this view leaves."""
        return self._gateway.join(session_id)

    def turn(self, session_id: str, text: str) -> AsyncIterator[TurnEvent]:
        """Run one turn; it goes on when this view leaves.

        The agent gateway remembers the key of a session that another view started.
        """
        key = self._session_keys.get(session_id)
        return self._gateway.turn(
            text,
            session_key=session_id,
            inf_base_url=self._inference_url if key else None,
            session_api_key=key.get_secret_value() if key else None,
            background=True,
        )

    async def interrupt(self, session_id: str) -> None:
        """Stop a session's turn in flight."""
        await self._gateway.interrupt(session_id)

    async def approve(self, session_id: str, approval_id: str, choice: str) -> None:
        """Answer what the agent asked."""
        await self._gateway.approve(session_id, approval_id, choice)

    # Learning ------------------------------------------------------------------------------

    async def episodes(self, session_id: str | None = None) -> list[EpisodeRow]:
        """Return episodes, oldest first."""
        rows: list[EpisodeSummary] = []
        while True:
            after = rows[-1].episode_id if rows else None
            page = await self._trainer.episodes(session_id=session_id, after=after, limit=PAGE)
            rows += page
            if len(page) < PAGE:
                return [EpisodeRow.of(row) for row in rows]

    async def episode(self, episode_id: str) -> EpisodeDetail:
        """Return one episode with its completions."""
        record = await self._trainer.episode(episode_id)
        # Thousands of tokens become objects: not in the loop that draws.
        return await asyncio.to_thread(EpisodeDetail.of, record)

    async def export(self, episode_id: str, path: Path) -> int:
        """Write an episode as JSON Lines, a row per token sequence."""
        record = await self._trainer.episode(episode_id)
        return await asyncio.to_thread(_write_episode, record, path)

    async def set_reward(
        self, episode_id: str, reward: float | None, feedback: str | None = None
    ) -> None:
        """Judge an episode."""
        await self._trainer.set_reward(reward, feedback=feedback, episode_id=episode_id)

    async def unset_reward(self, episode_id: str) -> None:
        """Take back a reward that is not claimed yet."""
        await self._trainer.unset_reward(episode_id=episode_id)

    async def steps(self, after: int) -> list[StepRow]:
        """Return the steps after a number."""
        return [StepRow.of(step) for step in await self._trainer.steps(after=after)]

    async def trainer(self) -> TrainerRow:
        """Return what the trainer does now."""
        return TrainerRow.of(await self._trainer.status(), time.time())

    async def pause_training(self, paused: bool) -> None:
        """Hold training, or let it go on."""
        if paused:
            await self._trainer.pause(HELD_BY_PERSON)
        else:
            await self._trainer.resume()

    async def canaries(self, versions: tuple[int, int] | None = None) -> list[CanaryRow]:
        """Return what two versions said to the canary's questions; None is the newest that did."""
        answers = [
            answer
            for version in versions or (None,)
            for answer in await self._trainer.canaries(version)
        ]
        return [CanaryRow.of(answer) for answer in answers]

    async def roll_back(self, policy_version: int) -> None:
        """Make a kept version's weights current again, under a new number."""
        await self._trainer.rollback(policy_version)

    # The clients ---------------------------------------------------------------------------

    @property
    def _supervisor(self) -> ControlClient:
        return _present(self._control, "the supervisor")

    @property
    def _gateway(self) -> AgentClient:
        return _present(self._agent, "the agent gateway")

    @property
    def _trainer(self) -> InferenceClient:
        return _present(self._inference, "the trainer")


def _present(client: Client | None, what: str) -> Client:
    if client is None:
        raise ServiceError(f"{what} is out of reach")
    return client


def _write_episode(record: EpisodeRecord, path: Path) -> int:
    from hermes_tui_training.exports import jsonl, rows

    path.parent.mkdir(parents=True, exist_ok=True)
    written = list(jsonl.convert([record.to_episode()], rows.ExportOptions()))
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in written)
    path.write_text(text, encoding="utf-8")
    return len(written)


async def _answers(control: ControlClient) -> bool:
    try:
        await control.status()
    except UnreachableError:
        return False
    return True
