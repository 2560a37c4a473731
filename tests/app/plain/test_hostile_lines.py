"""Strings that break terminals, in what is printed line by line: --plain and the commands."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from fakes.backend import FakeBackend, FakeClock, make_step
from fakes.hostile import HOSTILE, MARK, OBEYED

from hermes_tui.cli.main import cli, main
from hermes_tui.core.controller import Controller
from hermes_tui.core.stack_status import ProcessState, ProcessStatus, StackStatus
from hermes_tui.plain.app import Plain
from hermes_tui_common.errors import ConfigError
from hermes_tui_services.api.events import (
    ApprovalRequested,
    ReasoningArrived,
    ToolCalled,
    ToolReturned,
)
from hermes_tui_training.api.client import InferenceClient
from hermes_tui_training.api.types import Session
from hermes_tui_training.api.wire import CompletionRecord, EpisodeRecord

each_text = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


def assert_harmless(printed: str, *, marks: int) -> None:
    """Check that lines could not steer a terminal, and that they tell of all that was hostile."""
    found = OBEYED.search(printed.replace("\n", "").replace("\t", ""))
    assert not found, found
    assert printed.count(MARK) >= marks, printed[:2_000]


@each_text
async def test_plain(text: str) -> None:
    clock = FakeClock()
    backend = FakeBackend(clock)
    backend.model = text
    backend.add_session("s", created_at=1)
    backend.session_rows["s"] = replace(backend.session_rows["s"], task_id=text)
    backend.add_episode("s", text, text, reason=text)
    backend.set_state("ep-1", "dropped", dropped_reason=text)
    backend.process_rows.append(ProcessStatus(name=text, state=ProcessState.FAILED, reason=text))
    backend.step_rows = [make_step(1)]
    backend.trainer_row = replace(backend.trainer_row, state=text, reason=text)
    backend.reply, backend.logprobs = [text, text], [-0.1, -9.0]
    backend.turn_events = [
        ReasoningArrived(text=text),
        ToolCalled(call_id="c", name=text, arguments=text),
        ToolReturned(call_id="c", output=text),
        ApprovalRequested(
            approval_id="a",
            kind="command",
            command=text,
            description=text,
            choices=(text, "deny"),
            expires_at=None,
        ),
    ]
    out = io.StringIO()
    plain = Plain(Controller(backend, clock=clock), out, interactive=False)
    lines = ("/sessions", "/open 1", text.replace("\n", " "), "2", "/chat", "/result", "/tokens")
    for line in (*lines, "/status", "/training", f"/score {text}", f"/{text}", None):
        plain.put(line)
    await asyncio.wait_for(plain.run(), 10)
    assert_harmless(out.getvalue(), marks=25)


async def test_nothing_of_what_may_run_is_hidden() -> None:
    clock = FakeClock()
    backend = FakeBackend(clock)
    command = "ls \x1b]0;$(rm -rf ~)\x07 # \u202egnp.\u200bexe"
    backend.turn_events = [
        ApprovalRequested(
            approval_id="a",
            kind="command",
            command=command,
            description="",
            choices=("once", "deny"),
            expires_at=None,
        )
    ]
    out = io.StringIO()
    plain = Plain(Controller(backend, clock=clock), out, interactive=False)
    for line in ("hello", "deny", None):
        plain.put(line)
    await asyncio.wait_for(plain.run(), 10)
    assert "ls \\x1b]0;$(rm -rf ~)\\x07 # \\u202egnp.\\u200bexe" in out.getvalue()


def stack_of(text: str) -> StackStatus:
    """Return a stack with a process that failed for a hostile reason."""
    process = ProcessStatus(
        name="worker-0", role="worker", state=ProcessState.FAILED, reason=text, last_exit=text
    )
    return StackStatus(
        version="1",
        run_dir="/run",
        state=ProcessState.FAILED,
        pid=1,
        uptime_s=1.0,
        control="http://127.0.0.1:1",
        processes=(process,),
    )


def episode_of(text: str) -> EpisodeRecord:
    """Return an episode whose texts are all hostile."""
    completion = CompletionRecord(
        completion_id="chatcmpl-1",
        episode_id="ep-1",
        turn_index=0,
        created_at=1.0,
        prompt_token_ids=(1,),
        token_ids=(2,),
        logprobs=(-1.0,),
        policy_versions=(0,),
        finish_reason=text,
        request_messages=({"role": "user", "content": text},),
        message={"role": "assistant", "content": text},
        trainable=False,
        untrainable_reason="truncated",
        error=text,
    )
    return EpisodeRecord(
        episode_id="ep-1",
        session_id="s-1",
        group_id="group-1",
        task_id=text,
        state="dropped",
        created_at=1.0,
        dropped_reason=text,
        completions=(completion,),
    )


@each_text
def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    async def sessions(_: object) -> list[Session]:
        times = {"created_at": 1.0, "last_active_at": 1.0}
        return [Session(session_id="s-1", task_id=text, group_id="group-1", **times)]

    async def episodes(_: object, **__: object) -> list[EpisodeRecord]:
        return [episode_of(text)]

    async def episode(*_: object) -> EpisodeRecord:
        return episode_of(text)

    async def status(_: object) -> StackStatus:
        return stack_of(text)

    monkeypatch.setattr(InferenceClient, "sessions", sessions)
    monkeypatch.setattr(InferenceClient, "episodes", episodes)
    monkeypatch.setattr(InferenceClient, "episode", episode)
    monkeypatch.setattr("hermes_tui.cli.stack.fetch_status", status)
    log = tmp_path / "logs" / "worker-0.log"
    log.parent.mkdir()
    log.write_text(f"{text}\n", encoding="utf-8", errors="replace")
    monkeypatch.setenv("HERMES_TUI_HOME", str(tmp_path))
    gateway = ("http://127.0.0.1:1", "--admin-key", "k")

    def printed(*args: str) -> str:
        return CliRunner().invoke(cli, args, catch_exceptions=False).output

    listed = printed("session", "list", *gateway)
    assert_harmless(listed, marks=1)
    assert len(listed.splitlines()) == 2
    shown = printed("session", "show", "s-1", *gateway)
    assert_harmless(shown, marks=4)
    heads = [line for line in shown.splitlines() if not line.startswith(" " * 13)]
    assert [head.split()[0] for head in heads[1:]] == ["user", "assistant"]
    [told] = json.loads(printed("session", "show", "s-1", "--json", *gateway))
    assert EpisodeRecord.model_validate(told) == episode_of(text)  # data is data
    assert_harmless(printed("status"), marks=1)
    assert len(printed("status").splitlines()) == 8
    assert_harmless(printed("logs", "worker-0"), marks=1)


@each_text
def test_a_hostile_error(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConfigError(text)

    monkeypatch.setattr("hermes_tui.cli.overrides.Invocation.load", fail)
    with pytest.raises(SystemExit):
        main(["stop"])
    assert_harmless(capsys.readouterr().err, marks=1)
