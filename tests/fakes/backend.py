"""A stack that exists only in the test: deterministic, and driven by it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path

from fakes.flights import Feed, Flight

from hermes_tui.core.changes import TrainerEvent
from hermes_tui.core.control_api import ControlEvent, ProcessChanged
from hermes_tui.core.errors import StackStoppedError
from hermes_tui.core.models import (
    CanaryRow,
    CompletionRow,
    EpisodeDetail,
    EpisodeRow,
    SessionRow,
    StackInfo,
    StartStage,
    StepRow,
    Token,
    TrainerRow,
    ViewMemory,
)
from hermes_tui.core.stack_status import (
    DiskSample,
    GpuSample,
    ProcessState,
    ProcessStatus,
    SystemSample,
)
from hermes_tui_common.errors import ApiError, HermesTuiError, RefusedError
from hermes_tui_services.api.client import PastTurn
from hermes_tui_services.api.events import (
    ApprovalAnswered,
    TextArrived,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
)
from hermes_tui_services.api.protocol import INTERRUPTED, NO_TURN
from hermes_tui_services.api.wire import SearchHit
from hermes_tui_training.api.types import Event
from hermes_tui_training.api.wire import StepRecord

REPLY = ["Hello", " Ada", ",", " it", "'s", " a", " pleasure", " to", " meet", " you", "!"]
LOGPROBS = [-0.1, -0.4, -0.02, -1.2, -0.05, -0.3, -1.92, -0.01, -0.02, -0.01, -0.7]
NAMES = ("router", "worker-0", "trainer", "learner", "agent-gateway", "data-proxy-0")


class FakeClock:
    """Time that the test moves."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def make_tokens(
    texts: Iterable[str] = REPLY, logprobs: Iterable[float] = LOGPROBS, version: int = 7
) -> tuple[Token, ...]:
    """Return sampled tokens with made-up ids."""
    return tuple(
        Token(token_id=1000 + i, text=text, logprob=logprob, policy_version=version)
        for i, (text, logprob) in enumerate(zip(texts, logprobs, strict=False))
    )


def prompt_for(text: str) -> tuple[Token, ...]:
    """Return a user message as ChatML tokens."""
    texts = ["<|im_start|>", "user", "\n", *text.split(" "), "<|im_end|>", "\n"]
    texts += ["<|im_start|>", "assistant", "\n"]
    return tuple(Token(token_id=i + 1, text=part) for i, part in enumerate(texts))


class FakeBackend:
    """Implements ``hermes_tui.core.backend.Backend``; several controllers may use one.

    A turn says ``reply`` token by token; with ``hold`` set it waits at ``gate`` after ``hold``
    tokens, whether anybody follows it or not. ``refuse`` makes the next call fail with its text.
    """

    def __init__(self, clock: FakeClock, *, training: bool = True) -> None:
        self.clock = clock
        self.training = training
        self.model = "smollm2-135m"
        self.memory = ViewMemory()
        self.reply: list[str] = list(REPLY)
        self.logprobs: list[float] = list(LOGPROBS)
        self.turn_events: list[TurnEvent] = []
        self.hold: int | None = None
        self.gate = asyncio.Event()
        self.start_gate: asyncio.Event | None = None
        self.stop_gate: asyncio.Event | None = None
        self.run_dir = "/run"
        self.workdir = ""
        self.context_tokens = 0
        self.start_error = ""
        self.refuse = ""
        self.trainer_error = ""
        self.calls: list[tuple[object, ...]] = []
        self.session_rows: dict[str, SessionRow] = {}
        self.details: dict[str, EpisodeDetail] = {}
        self.step_rows: list[StepRow] = []
        self.canary_rows: list[CanaryRow] = []
        self.trainer_row = TrainerRow(policy_version=7, state="waiting", num_scored=0, batch_size=1)
        self.process_rows = [
            ProcessStatus(
                name=name,
                state=ProcessState.READY,
                role=name.removesuffix("-0"),
                pid=100 + i,
                port=8000 + i,
                uptime_s=60.0,
                rss_bytes=(i + 1) * 50_000_000,
            )
            for i, name in enumerate(NAMES)
        ]
        self.sample = make_sample(self.process_rows)
        self.log_lines: dict[str, list[str]] = {}
        self.log_error: HermesTuiError | None = None
        self._log_grew = asyncio.Event()
        self._learned: Feed[TrainerEvent] = Feed()
        self._left_at = [0]
        self.num_listening = 0
        """Views that follow the trainer's events."""
        self._num_flights = 0
        self.flights: dict[str, Flight] = {}
        self.past: dict[str, list[PastTurn]] = {}
        self.hits: list[SearchHit] = []
        """What a search finds, where it contains the text."""
        self._control: asyncio.Queue[ControlEvent | None] = asyncio.Queue()

    # Making a past -------------------------------------------------------------------------

    def add_session(
        self,
        session_id: str,
        *,
        created_at: float,
        ended: bool = False,
        task_id: str = "chat",
        topic: str = "",
    ) -> None:
        """Have a session that was started before the view came."""
        self.session_rows[session_id] = SessionRow(
            session_id=session_id,
            task_id=task_id,
            topic=topic,
            group_id=f"g-{session_id}",
            created_at=created_at,
            ended=ended,
        )

    def add_episode(
        self,
        session_id: str,
        said: str,
        reply: str,
        *,
        state: str = "open",
        reward: float | None = None,
        version: int = 5,
        step: int | None = None,
        reason: str = "",
    ) -> str:
        """Have an episode of one turn."""
        episode_id = f"ep-{len(self.details) + 1}"
        now = 100.0 + len(self.details)
        words = reply.split(" ")
        tokens = make_tokens(
            [w if i == 0 else f" {w}" for i, w in enumerate(words)],
            [-0.05 - (i * 37 % 29) / 10 for i in range(len(words))],
            version,
        )
        row = EpisodeRow(
            episode_id=episode_id,
            session_id=session_id,
            state=state,
            reward=reward,
            scored_at=now if reward is not None else None,
            created_at=now,
            step=step,
            policy_version=version,
            staleness=7 - version,
            num_completions=1,
        )
        completion = self._completion(f"chatcmpl-{episode_id}", said, tokens, now, reason=reason)
        self.details[episode_id] = EpisodeDetail(row=row, completions=(completion,))
        return episode_id

    def _completion(
        self,
        completion_id: str,
        said: str,
        tokens: tuple[Token, ...],
        created_at: float,
        *,
        shared: int = 0,
        finish_reason: str | None = "stop",
        reason: str = "",
    ) -> CompletionRow:
        text = "".join(token.text for token in tokens)
        return CompletionRow(
            completion_id=completion_id,
            created_at=created_at,
            prompt=prompt_for(said),
            tokens=tokens,
            finish_reason=finish_reason,
            kind="turn",
            trainable=not reason,
            untrainable_reason=reason,
            shared_tokens=shared,
            request_messages=({"role": "user", "content": said},),
            message={"role": "assistant", "content": text},
            total_s=0.5,
        )

    def set_state(self, episode_id: str, state: str, **changes: object) -> None:
        """Move an episode on, and tell the view."""
        detail = self.details[episode_id]
        row = replace(detail.row, state=state, **changes)  # type: ignore[arg-type]
        self.details[episode_id] = replace(detail, row=row)
        self.emit(f"episode.{state}", session_id=row.session_id, episode_id=episode_id)

    def emit(self, kind: str, **data: object) -> None:
        """Send an event of the trainer."""
        self._learned.put(TrainerEvent.of(Event(kind=kind, payload=data, at=self.clock())))

    def emit_control(self) -> None:
        """Send an event of the supervisor."""
        changed = ProcessChanged(name="router", role="router", state=ProcessState.READY)
        self._control.put_nowait(changed)

    def stop_elsewhere(self) -> None:
        """Have somebody else stop the stack."""
        self._control.put_nowait(None)

    def _called(self, *call: object) -> None:
        self.calls.append(call)
        if self.refuse:
            text, self.refuse = self.refuse, ""
            raise ApiError(409, text)

    # Backend -------------------------------------------------------------------------------

    async def start(self, report: Callable[[StartStage], None]) -> StackInfo:
        report(StartStage(process="router", state="ready", text=""))
        report(StartStage(process="trainer", state="starting", text="loading weights"))
        if self.start_gate:
            await self.start_gate.wait()
        if self.start_error:
            raise HermesTuiError(self.start_error)
        report(StartStage(process="trainer", state="ready"))
        return StackInfo(
            run_dir=self.run_dir,
            training=self.training,
            model=self.model,
            context_tokens=self.context_tokens,
            workdir=self.workdir,
        )

    async def control_events(self) -> AsyncIterator[ControlEvent]:
        while (event := await self._control.get()) is not None:
            yield event
        self._control.put_nowait(None)  # whoever asks again hears the same
        raise StackStoppedError

    async def learning_events(self) -> AsyncIterator[TrainerEvent]:
        # Who comes back goes on where it left; who comes as another view begins now.
        index = self._left_at.pop() if self._left_at else len(self._learned.items)
        self.num_listening += 1
        try:
            async for event in self._learned.follow(index):
                index += 1
                if event.kind == "broken":
                    raise HermesTuiError("the trainer is gone")
                yield event
        finally:
            self.num_listening -= 1
            self._left_at.append(index)

    async def processes(self) -> list[ProcessStatus]:
        return list(self.process_rows)

    async def system(self) -> SystemSample:
        return self.sample

    async def log(self, process: str, tail: int) -> AsyncIterator[str]:
        shown = max(len(self.log_lines.setdefault(process, [])) - tail, 0)
        while True:
            if self.log_error:
                raise self.log_error
            for line in self.log_lines[process][shown:]:
                shown += 1
                yield line
            await self._log_grew.wait()

    def write_log(self, process: str, *lines: str) -> None:
        """Have a process write lines to its log."""
        self.log_lines.setdefault(process, []).extend(lines)
        self._log_grew.set()
        self._log_grew = asyncio.Event()

    async def restart(self, process: str) -> None:
        self._called("restart", process)

    async def shutdown(self) -> None:
        self._called("shutdown")
        if self.stop_gate:
            await self.stop_gate.wait()

    async def sessions(self) -> list[SessionRow]:
        return list(self.session_rows.values())

    async def start_session(self, task_id: str) -> SessionRow:
        self._called("start_session", task_id)
        session_id = f"sess-{len(self.session_rows) + 1}"
        self.add_session(session_id, created_at=self.clock(), task_id=task_id)
        return self.session_rows[session_id]

    async def start_siblings(self, task_id: str, size: int) -> list[SessionRow]:
        self._called("start_siblings", task_id, size)
        rows = [await self.start_session(task_id) for _ in range(size)]
        siblings = {row.session_id: replace(row, group_id=rows[0].group_id) for row in rows}
        self.session_rows |= siblings
        return list(siblings.values())

    async def start_branch(
        self, session: SessionRow, *, until: float, beside: str = ""
    ) -> SessionRow:
        self._called("start_branch", session.session_id, until, beside)
        session_id = f"sess-{len(self.session_rows) + 1}"
        self.add_session(session_id, created_at=self.clock(), task_id=session.task_id)
        row = replace(self.session_rows[session_id], branch_of=session.session_id)
        if beside:
            row = replace(row, group_id=session.group_id)
        self.session_rows[session_id] = row
        kept = [t for t in self.past.get(session.session_id, ()) if t.finished_at <= until]
        self.past[session_id] = kept
        return row

    async def rename_session(self, session_id: str, title: str) -> None:
        self._called("rename_session", session_id, title)
        self.session_rows[session_id] = replace(self.session_rows[session_id], title=title)

    async def delete_session(self, session_id: str) -> None:
        self._called("delete_session", session_id)
        del self.session_rows[session_id]
        gone = [d for d in self.details.values() if d.row.session_id == session_id]
        for detail in gone:
            del self.details[detail.row.episode_id]

    async def search(self, text: str) -> list[SearchHit]:
        self._called("search", text)
        return [
            hit
            for hit in self.hits
            if text.casefold() in f"{hit.before}{hit.match}{hit.after}".casefold()
        ]

    async def end_session(self, session_id: str) -> None:
        self._called("end_session", session_id)
        row = self.session_rows[session_id]
        self.session_rows[session_id] = replace(row, ended=True)
        self.emit("session.ended", session_id=session_id)

    async def set_topic(self, session_id: str, topic: str) -> None:
        self._called("set_topic", session_id, topic)
        row = self.session_rows[session_id]
        self.session_rows[session_id] = replace(row, topic=topic)
        self.emit("session.topic_set", session_id=session_id)

    async def episodes(self, session_id: str | None = None) -> list[EpisodeRow]:
        rows = [detail.row for detail in self.details.values()]
        return [row for row in rows if session_id in (None, row.session_id)]

    async def episode(self, episode_id: str) -> EpisodeDetail:
        if episode_id not in self.details:
            raise RefusedError(ApiError(404, "There is no such episode."))
        return self.details[episode_id]

    async def export(self, episode_id: str, path: Path) -> int:
        self._called("export", episode_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"episode_id": "' + episode_id + '"}\n', encoding="utf-8")
        return 1

    async def set_reward(
        self, episode_id: str, reward: float | None, feedback: str | None = None
    ) -> None:
        said = () if feedback is None else (feedback,)
        self._called("set_reward", episode_id, reward, *said)
        row = self.details[episode_id].row
        self.set_state(
            episode_id,
            "scored",
            reward=row.reward if reward is None else reward,
            feedback=row.feedback if feedback is None else feedback,
            scored_at=self.clock(),
        )

    async def unset_reward(self, episode_id: str) -> None:
        self._called("unset_reward", episode_id)
        self.set_state(episode_id, "open", reward=None, feedback="", scored_at=None)

    async def steps(self, after: int) -> list[StepRow]:
        return [row for row in self.step_rows if row.step > after]

    async def trainer(self) -> TrainerRow:
        if self.trainer_error:
            text, self.trainer_error = self.trainer_error, ""
            raise HermesTuiError(text)
        return self.trainer_row

    async def pause_training(self, paused: bool) -> None:
        self._called("pause_training", paused)
        self.trainer_row = replace(self.trainer_row, state="paused" if paused else "waiting")

    async def canaries(self, versions: tuple[int, int] | None = None) -> list[CanaryRow]:
        asked = [row for row in self.canary_rows if not versions or row.policy_version in versions]
        newest = sorted({row.policy_version for row in asked})[-2:]
        return [row for row in asked if row.policy_version in newest]

    async def roll_back(self, policy_version: int) -> None:
        self._called("roll_back", policy_version)
        self.trainer_row = replace(self.trainer_row, policy_version=8)

    async def turn(self, session_id: str, text: str) -> AsyncIterator[TurnEvent]:
        self._called("turn", session_id, text)
        async for update in self.take_off(session_id, text).follow(joined=False):
            yield update

    async def join(self, session_id: str) -> AsyncIterator[TurnEvent]:
        self.calls.append(("join", session_id))
        if session_id not in self.flights:
            raise RefusedError(ApiError(404, "No turn runs.", code=NO_TURN))
        async for update in self.flights[session_id].follow(joined=True):
            yield update

    async def running(self) -> dict[str, str]:
        return {session_id: f.started.run_id for session_id, f in self.flights.items()}

    def recall(self) -> ViewMemory:
        return self.memory

    def remember(self, memory: ViewMemory) -> None:
        self.memory = memory

    async def past_turns(self, session_id: str) -> list[PastTurn]:
        return list(self.past.get(session_id, ()))

    def take_off(self, session_id: str, text: str) -> Flight:
        """Begin a turn, as one that this or another program has sent."""
        self._num_flights += 1
        flight = Flight(f"run-{self._num_flights}", text, self.clock())
        self.flights[session_id] = flight
        flight.task = asyncio.create_task(self._fly(flight, session_id))
        return flight

    async def _fly(self, flight: Flight, session_id: str) -> None:
        for update in self.turn_events:
            flight.updates.put(update)
        text = flight.started.message
        ids = self._open_episode(session_id, text) if self.training else None
        tokens = make_tokens(self.reply, self.logprobs)
        spoken = 0
        for number, token in enumerate(tokens):
            if self.hold is not None and number >= self.hold:
                await self.gate.wait()
            if flight.interrupted:
                break
            if ids:
                self._emit_token(session_id, *ids, token)
            spoken = number + 1
            flight.updates.put(TextArrived(text=token.text))
        if ids:
            self._record(*ids, text, tokens[:spoken])
        else:
            self._keep(flight, session_id, tokens[:spoken])
        del self.flights[session_id]
        if flight.interrupted:
            flight.updates.put(TurnFailed(message="stopped", code=INTERRUPTED))
        else:
            metadata = {"usage": {"output_tokens": spoken}}
            flight.updates.put(TurnCompleted(text="".join(self.reply), metadata=metadata))

    def _keep(self, flight: Flight, session_id: str, tokens: tuple[Token, ...]) -> None:
        said = "".join(token.text for token in tokens)
        turn = PastTurn(
            run_id=flight.started.run_id,
            messages=(
                {"role": "user", "content": flight.started.message},
                {"role": "assistant", "content": said},
            ),
            interrupted=flight.interrupted,
            num_tokens=len(tokens),
            started_at=flight.started.started_at or 0.0,
            finished_at=self.clock(),
        )
        self.past.setdefault(session_id, []).append(turn)
        row = self.session_rows[session_id]
        self.session_rows[session_id] = replace(row, num_turns=len(self.past[session_id]))

    def _open_episode(self, session_id: str, text: str) -> tuple[str, str]:
        mine = [d for d in self.details.values() if d.row.session_id == session_id]
        if not mine or mine[-1].row.state != "open":
            episode_id = f"ep-{len(self.details) + 1}"
            row = EpisodeRow(
                episode_id=episode_id,
                session_id=session_id,
                state="open",
                created_at=self.clock(),
                policy_version=7,
                staleness=0,
            )
            mine = [EpisodeDetail(row=row, completions=())]
        detail = mine[-1]
        completion_id = f"chatcmpl-{detail.row.episode_id}-{len(detail.completions)}"
        completion = self._completion(completion_id, text, (), self.clock(), finish_reason=None)
        self.details[detail.row.episode_id] = replace(
            detail, completions=(*detail.completions, completion)
        )
        ids = {"session_id": session_id, "episode_id": detail.row.episode_id}
        self.emit("completion.started", **ids, completion_id=completion_id)
        return detail.row.episode_id, completion_id

    def _emit_token(
        self, session_id: str, episode_id: str, completion_id: str, token: Token
    ) -> None:
        self.emit(
            "completion.tokens",
            session_id=session_id,
            episode_id=episode_id,
            completion_id=completion_id,
            start=0,
            token_ids=[token.token_id],
            texts=[token.text],
            logprobs=[token.logprob],
            policy_versions=[token.policy_version],
        )

    def _record(
        self, episode_id: str, completion_id: str, text: str, tokens: tuple[Token, ...]
    ) -> None:
        detail = self.details[episode_id]
        done = self._completion(completion_id, text, tokens, detail.completions[-1].created_at)
        self.details[episode_id] = replace(detail, completions=(*detail.completions[:-1], done))
        self.emit("completion.finished", session_id=detail.row.session_id, episode_id=episode_id)

    async def interrupt(self, session_id: str) -> None:
        self._called("interrupt", session_id)
        if flight := self.flights.get(session_id):
            flight.interrupted = True
        self.gate.set()

    async def approve(self, session_id: str, approval_id: str, choice: str) -> None:
        self._called("approve", session_id, approval_id, choice)
        flight = self.flights.get(session_id)
        answers = (
            [u for u in flight.updates.items if isinstance(u, ApprovalAnswered)] if flight else []
        )
        if any(answer.approval_id == approval_id for answer in answers):
            raise RefusedError(ApiError(410, f"The question was answered already: {choice}."))
        if flight:
            flight.updates.put(ApprovalAnswered(approval_id=approval_id, choice=choice))

    async def close(self) -> None:
        self.calls.append(("close",))


def make_step(step: int, reward: float = 1.0) -> StepRow:
    """Return a step's row with plausible numbers."""
    record = StepRecord.model_validate(
        {
            "step": step,
            "policy_version": step + 1,
            "episode_ids": [f"ep-{step}"],
            "reward_mean": reward,
            "advantage_mean": reward * 0.8,
            "baseline": 0.2,
            "loss": -0.63,
            "moved_nats": 0.48 + 0.02 * math.cos(step),
            "reference_kl": 0.001 * step,
            "reply_alike_frac": 0.3,
            "reply_repetition": 0.02,
            "reply_length_mean": 30.0 + step % 3,
            "grad_norm": 1.24,
            "learning_rate": 3e-4,
            "clip_frac": 0.0,
            "kl_behavior": 0.0031,
            "entropy": 2.0 + math.sin(step),
            "num_trained_tokens": 31,
            "staleness_max": 0,
            "gap_mean": 1.1e-5,
            "logprob_before": -1.92,
            "logprob_after": -1.71,
            "seconds": {"claim": 0.01, "update": 0.9, "save": 0.2, "total": 1.4},
            "score_to_weights_s": 3.4,
        }
    )
    return StepRow.of(record)


def make_sample(
    processes: Iterable[ProcessStatus], gpus: tuple[GpuSample, ...] = ()
) -> SystemSample:
    """Return a sample of a machine with two cores, and without a GPU unless some are given."""
    rows = list(processes)
    return SystemSample(
        at=1_000.0,
        cpu_percent=37.0,
        cpu_count=2,
        core_percents=(51.0, 23.0),
        load_average=(1.25, 0.9, 0.5),
        memory_used_bytes=3_100_000_000,
        memory_total_bytes=8_200_000_000,
        process_rss_bytes={"supervisor": 72_000_000, **{row.name: row.rss_bytes for row in rows}},
        process_cpu_percent={"supervisor": 1.0, **{row.name: 4.0 for row in rows}},
        gpus=gpus,
        gpu_note=None if gpus else "no GPU (Driver Not Loaded)",
        disk=DiskSample(
            used_bytes=20_000_000_000,
            total_bytes=64_000_000_000,
            trajectories_bytes=12_000_000,
            trajectories_max_bytes=4_000_000_000,
            conversations_bytes=300_000,
            checkpoints_bytes=177_000_000,
            logs_bytes=2_000_000,
        ),
        supervisor_pid=99,
        supervisor_uptime_s=3_725.0,
    )
