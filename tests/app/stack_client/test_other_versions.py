"""Answers and events of another version: none ends a view, and each says what is wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
from fakes.roles import Served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hermes_tui.config.settings import Config
from hermes_tui.core.control_api import ControlEvent, ProcessChanged
from hermes_tui.core.stack_status import ProcessState
from hermes_tui.stack_client.control import ControlClient
from hermes_tui.stack_client.remote import RemoteBackend
from hermes_tui_common.errors import ServiceError
from hermes_tui_common.http import sse
from hermes_tui_services.api.client import AgentClient
from hermes_tui_services.api.events import TextArrived, TurnStarted
from hermes_tui_training.api.client import InferenceClient

PROCESS = {"event": "process", "id": 1, "name": "router", "role": "router"}


class Peer:
    """A service that answers what it was told to."""

    def __init__(self) -> None:
        self.answer: Response = JSONResponse({})
        self.events: list[bytes] = []

    async def __call__(self, request: Request) -> Response:
        return self.answer

    async def stream(self, request: Request) -> Response:
        async def chunks() -> AsyncIterator[bytes]:
            for event in self.events:
                yield event

        return StreamingResponse(chunks(), media_type="text/event-stream")


@pytest.fixture
def peer() -> Peer:
    return Peer()


@pytest.fixture
async def url(peer: Peer) -> AsyncIterator[str]:
    streams = ["/events", "/rl/events", "/sessions/{key}/events"]
    app = Starlette(
        routes=[
            *(Route(path, peer.stream) for path in streams),
            Route("/{rest:path}", peer.__call__, methods=["GET", "POST"]),
        ]
    )
    served = Served(app)
    yield await served.start()
    await served.stop()


async def control_events(client: ControlClient) -> list[ControlEvent]:
    return [event async for event in client.events()]


async def test_an_unknown_process_state_is_an_error_that_names_it(peer: Peer, url: str) -> None:
    process = {"name": "router", "state": "levitating"}
    peer.answer = JSONResponse(
        {
            "version": "9",
            "run_dir": "/r",
            "state": "ready",
            "pid": 1,
            "uptime_s": 1.0,
            "control": url,
            "processes": [process],
        }
    )
    async with ControlClient(url, "key") as client:
        with pytest.raises(ServiceError, match=r"supervisor at .*processes\.0\.state: .*'ready'"):
            await client.status()
        process["state"] = "ready"
        peer.answer = JSONResponse({**json.loads(bytes(peer.answer.body)), "processes": [process]})
        assert (await client.status()).processes[0].state is ProcessState.READY


async def test_an_event_with_an_unknown_process_state_is_skipped_and_counted(
    peer: Peer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    peer.events = [
        sse({**PROCESS, "state": "levitating"}),
        sse({**PROCESS, "state": "sublimating"}),
        sse({"event": "a newer kind"}),
        b"data: no json\n\n",
        sse({**PROCESS, "state": "ready"}),
    ]
    with caplog.at_level(logging.WARNING):
        async with ControlClient(url, "key") as client:
            (event,) = await control_events(client)
    assert isinstance(event, ProcessChanged)
    assert event.state is ProcessState.READY
    assert client.skipped_events.counts == {"control": 4}
    assert [record.message.count("event skipped") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (Response("<html>", media_type="text/html"), "not JSON"),
        (JSONResponse([]), "valid dictionary"),
        (JSONResponse({"data": [{"session_key": "s"}]}), r"data\.0\.created_at: Field required"),
    ],
)
async def test_an_answer_of_another_shape_is_a_service_error(
    peer: Peer, url: str, answer: Response, problem: str
) -> None:
    peer.answer = answer
    async with AgentClient(url, "key") as client:
        with pytest.raises(ServiceError, match=f"the agent gateway at .*{problem}"):
            await client.sessions()


async def test_a_turn_goes_on_after_an_event_that_cannot_be_read(peer: Peer, url: str) -> None:
    created = {"response": {"id": "r", "metadata": {"run_id": "run-1"}}}
    peer.events = [
        sse({"type": "response.created", **created}, event="response.created"),
        sse({"type": "response.output_text.delta"}, event="response.output_text.delta"),
        sse(["no object"]),
        sse({"type": "response.output_text.delta", "delta": "Hi"}),
    ]
    async with AgentClient(url, "key") as client:
        events = client.join("s")
        seen = [await anext(events), await anext(events)]
        with pytest.raises(ServiceError, match="ended the turn without a result"):
            await anext(events)
    assert [type(event) for event in seen] == [TurnStarted, TextArrived]
    assert client.skipped_events.counts == {"response.output_text.delta": 1, "unnamed": 1}


async def test_a_malformed_event_of_the_trainer_is_skipped(
    peer: Peer, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def event(kind: str, **payload: object) -> bytes:
        return sse({"kind": kind, "payload": payload, "at": 1.0}, event=kind)

    peer.events = [
        event("completion.tokens", session_id="s", episode_id="e"),  # and no tokens
        event("episode.scored", session_id=["s"]),
        sse({"kind": "no payload"}, event="odd"),
        event("step.finished", episode_ids=["e"], session_id=None),
    ]
    backend = RemoteBackend(Config())
    client = InferenceClient(url, "key")
    monkeypatch.setattr(backend, "_inference", client)
    async with aclosing(backend.learning_events()) as events:  # type: ignore[type-var]
        first = await anext(events)
    await client.aclose()
    assert (first.kind, first.episode_ids, first.session_id) == ("step.finished", ("e",), "")
    assert backend.skipped_events.counts == {"completion.tokens": 1, "episode.scored": 1}
    assert client.skipped_events.counts == {"odd": 1}
