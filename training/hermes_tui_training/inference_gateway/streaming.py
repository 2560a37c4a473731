"""Answers a completion while it runs, and ends it when nobody listens any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from hermes_tui_common.errors import ApiError
from hermes_tui_common.http import SseResponse
from hermes_tui_common.streaming import disconnected
from hermes_tui_training.api.types import Session
from hermes_tui_training.inference_gateway.apis.base import ResponseFormat, ResponseFormatFactory
from hermes_tui_training.inference_gateway.completion_run import (
    CompletionDelta,
    CompletionResult,
    CompletionRun,
)
from hermes_tui_training.inference_gateway.context import Services, services_of
from hermes_tui_training.inference_gateway.sampling_plan import SamplingPlan

_FEW = 64
"""Streams that are sent every token as soon as it is there."""

_PAUSE_S = 0.0002
"""For each stream beyond those, how long one waits between two chunks."""

_MAX_PAUSE_S = 0.04
"""Longest such wait; 25 chunks a second still look like a stream."""

Arrival = CompletionDelta | CompletionResult | ApiError
"""What a completion gives while it runs: deltas, then its result or an error."""

OTHER_CHOICE_FAILED = "another choice of its request failed"


async def begin(
    request: Request, session: Session, plan: SamplingPlan, make_format: ResponseFormatFactory
) -> CompletionResponse:
    """Begin a request's completions and return what will answer it: the one way to the record.

    Raises: ApiError: see ``CompletionRun.begin``.
    """
    services = services_of(request)
    if services.external.get(plan.model):
        raise ApiError(
            400,
            f"'{plan.model}' is another server's model; it answers /v1/chat/completions only.",
            param="model",
        )
    runs = await _begun(services, session, plan)
    model, token_text = services.config.model.path, services.chat.token_texts.alone
    return CompletionResponse(
        [make_format(run, model=model, token_text=token_text) for run in runs], services.running
    )


async def _begun(services: Services, session: Session, plan: SamplingPlan) -> list[CompletionRun]:
    """Return a run per choice; each has begun. Raises: ApiError: none is left running."""
    runs: list[CompletionRun] = []
    try:
        for choice in range(plan.num_choices):
            first = runs[0] if runs else None
            run = CompletionRun(services, session, plan, choice=choice, first=first)
            await run.begin()
            runs.append(run)
    except ApiError:
        for run in runs:
            run.stopped_because = OTHER_CHOICE_FAILED
            await run.cancelled()
        raise
    return runs


class CompletionResponse(Response):
    """The answer to a request, JSON or event stream; a client that leaves ends its completions.

    Completions do not wait for a slow client. Their results are recorded as soon as they are there;
    the last chunk is sent after that.
    """

    def __init__(self, formats: Sequence[ResponseFormat], running: Collection[str]) -> None:
        """
        Args:
            formats: one per choice, in order; their runs have begun.
            running: the completions that are being answered, by everybody.
        """
        super().__init__()
        self._formats = formats
        self._runs = [choice.run for choice in formats]
        self._running = running
        self._arrived: asyncio.Queue[tuple[ResponseFormat, Arrival]] = asyncio.Queue()
        self._held: tuple[ResponseFormat, Arrival] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            for run in self._runs:
                await stack.enter_async_context(run.registered())
            sampling = [group.create_task(self._sample(c), name="sample") for c in self._formats]
            answering = group.create_task(self._answer(scope, send), name="answer")
            leaving = group.create_task(disconnected(receive), name="disconnect")
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            for run in self._runs:
                run.client_left |= not answering.done()
            for task in (*sampling, answering, leaving):
                task.cancel()

    async def _sample(self, choice: ResponseFormat) -> None:
        def emit(arrival: Arrival) -> None:
            self._arrived.put_nowait((choice, arrival))

        try:
            emit(await choice.run.run(emit))
        except ApiError as error:
            for run in self._runs:
                run.stopped_because = OTHER_CHOICE_FAILED
            emit(error)

    async def _answer(self, scope: Scope, send: Send) -> None:
        choice, first = await self._arrived.get()
        if isinstance(first, ApiError):
            response: Response = choice.refused(first)
        elif choice.plan.stream:
            response = SseResponse(self._stream(choice, first))
        else:
            response = await self._whole(choice, first)

        try:
            await response(scope, _never, send)
        except (OSError, ClientDisconnect):
            for run in self._runs:
                run.client_left = True

    async def _whole(self, choice: ResponseFormat, item: Arrival) -> Response:
        deltas: dict[ResponseFormat, list[CompletionDelta]] = {c: [] for c in self._formats}
        results: dict[ResponseFormat, CompletionResult] = {}
        while True:
            if isinstance(item, ApiError):
                return choice.refused(item)
            if isinstance(item, CompletionDelta):
                deltas[choice].append(item)
            else:
                results[choice] = item
            if len(results) == len(self._formats):
                break
            choice, item = await self._arrived.get()
        answers = [c.answer(deltas[c], results[c]) for c in self._formats]
        return JSONResponse(self._formats[0].joined(answers))

    async def _stream(self, choice: ResponseFormat, item: Arrival) -> AsyncIterator[bytes]:
        for one in self._formats:
            for event in one.start_events():
                yield event
        open_choices = len(self._formats)
        while open_choices:
            if isinstance(item, ApiError):
                for event in choice.error_events(item):
                    yield event
                return
            if isinstance(item, CompletionDelta):
                events = choice.delta_events(item)
            else:
                events = choice.end_events(item)
                open_choices -= 1
            for event in events:
                yield event
            if open_choices:
                choice, item = await self._next()
        for event in self._formats[0].close_events(self._num_sampled):
            yield event

    async def _next(self) -> tuple[ResponseFormat, Arrival]:
        """Return what arrives next; deltas that wait already travel together.

        With many streams each sends less often, so that there is something to join: what a chunk
        costs is then shared by several tokens.
        """
        pause_s = _PAUSE_S * (len(self._running) - _FEW)
        if pause_s > 0 and self._held is None and self._arrived.empty():
            await asyncio.sleep(min(pause_s, _MAX_PAUSE_S))
        choice, item = self._held or await self._arrived.get()
        self._held = None
        while isinstance(item, CompletionDelta) and not self._arrived.empty():
            self._held = self._arrived.get_nowait()
            other, following = self._held
            both = None
            if other is choice and isinstance(following, CompletionDelta):
                both = item.joined(following)
            if both is None:
                break
            item, self._held = both, None
        return choice, item

    @property
    def _num_sampled(self) -> int:
        return sum(len(run.token_ids) for run in self._runs)


async def _never() -> Message:
    """Receive nothing: whether the client left is watched elsewhere."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
