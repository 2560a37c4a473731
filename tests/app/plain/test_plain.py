"""``--plain``: the same use cases, line by line."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.backend import FakeBackend, FakeClock, make_step
from fakes.roles import eventually
from fakes.screen import add_past
from fakes.served import Served, is_alive

from hermes_tui.core.actions import ACTIONS, BY_ID
from hermes_tui.core.commands import COMMANDS
from hermes_tui.core.controller import Controller
from hermes_tui.core.stack_status import ProcessState
from hermes_tui.plain.app import Plain
from hermes_tui_services.api.events import (
    ApprovalRequested,
    ReasoningArrived,
    ToolCalled,
    ToolReturned,
)
from hermes_tui_services.api.wire import SearchHit

DEADLINE_S = 10.0


class Talk:
    """One plain conversation over the fake stack."""

    def __init__(self, *, interactive: bool = False, training: bool = True) -> None:
        clock = FakeClock()
        self.backend = FakeBackend(clock, training=training)
        self.out = io.StringIO()
        self.controller = Controller(self.backend, clock=clock)
        self.plain = Plain(self.controller, self.out, interactive=interactive)

    @property
    def text(self) -> str:
        return self.out.getvalue()

    @property
    def done(self) -> list[object]:
        """What the stack was asked for, without ids."""
        return [(call[0], call[-1]) for call in self.backend.calls if call[0] != "close"]

    async def all(self, *lines: str) -> int:
        """Type lines and then the end, as a pipe does; return the exit code."""
        for line in (*lines, None):
            self.plain.put(line)
        return await asyncio.wait_for(self.plain.run(), DEADLINE_S)

    async def until(self, text: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while text not in self.text:  # noqa: ASYNC110  (nothing tells us)
                await asyncio.sleep(0.005)


@asynccontextmanager
async def typing(talk: Talk) -> AsyncIterator[Callable[[str], None]]:
    """Run a conversation while the test types."""
    running = asyncio.create_task(talk.plain.run())
    await talk.until("[ready]")
    try:
        yield talk.plain.put
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_pipe_is_answered_in_order() -> None:
    talk = Talk()
    assert await talk.all("hello", "/good", "again", "/score -0.3") == 0
    assert talk.done == [
        ("start_session", "chat"),
        ("turn", "hello"),
        ("set_reward", 1.0),
        ("turn", "again"),
        ("set_reward", -0.3),
    ]
    said = talk.text.splitlines()
    assert "you: hello" in said
    assert said[said.index("you: hello") + 1] == "agent: Hello Ada, it's a pleasure to meet you!"
    assert said[said.index("you: hello") + 2].startswith("[turn] completed, 11 tokens, ")
    assert said[0] == "[start] router ready"
    assert "[ready] smollm2-135m, policy v7. Type to the agent; /help for more." in said
    assert (
        "[notice] episode 1 of “hello”: scored +1.0 · trains in 6 s · /undo takes it back" in said
    )
    assert talk.backend.calls[-1] == ("close",)


async def test_words_are_written_when_they_come() -> None:
    talk = Talk(interactive=True)
    talk.backend.hold = 2
    async with typing(talk) as put:
        put("hello")
        await talk.until("agent: Hello Ada")
        assert talk.text.endswith("agent: Hello Ada")
        talk.backend.gate.set()
        await talk.until("[turn] completed")
    assert "you: hello" not in talk.text  # it stands on the terminal already


async def test_interrupt_does_not_wait_its_turn() -> None:
    talk = Talk()
    talk.backend.hold = 1
    assert await talk.all("hello", "/interrupt", "/good") == 0
    assert ("interrupt", "sess-1") in talk.done
    assert "[turn] interrupted" in talk.text
    assert talk.done[-1] == ("set_reward", 1.0)


async def test_at_a_terminal_a_message_waits_for_nobody() -> None:
    talk = Talk(interactive=True)
    talk.backend.hold = 1
    async with typing(talk) as put:
        put("hello")
        await talk.until("agent: Hello")
        put("more")
        await talk.until("[queued] it goes when the agent has spoken")
        put("/good")
        await talk.until("[warning] the agent is still replying: score its reply when it has ended")
        put("/unqueue")
        await talk.until("[queued] taken back: more")
        put("and now")
        assert talk.plain.interrupted()  # ctrl+c
        await talk.until("[turn] interrupted")
        await talk.until("you: and now\nagent: Hello")
        await talk.until("[turn] completed")
        assert not talk.plain.interrupted()
    assert [what for name, what in talk.done if name == "turn"] == ["hello", "and now"]


async def test_undo_bad_new_end_and_restart() -> None:
    talk = Talk()
    lines = ("hello", "/bad", "/undo", "/end", "/new", "/pause", "/resume", "/restart worker-0")
    assert await talk.all(*lines) == 0
    assert [name for name, _ in talk.done] == [
        "start_session",
        "turn",
        "set_reward",
        "unset_reward",
        "end_session",
        "pause_training",
        "pause_training",
        "restart",
    ]
    assert [what for name, what in talk.done if name == "pause_training"] == [True, False]
    assert "; /new starts a new session" in talk.text


async def test_what_the_rows_tell_becomes_lines() -> None:
    talk = Talk(interactive=True)
    async with typing(talk) as put:
        put("hello")
        await talk.until("[turn] completed")
        put("/good")
        await talk.until("+1.0")
        talk.backend.step_rows = [make_step(8)]
        talk.backend.set_state("ep-1", "trained", step=8)
        await talk.until("[episode] episode 1 of “hello”: trained at step 8, reward +1")
        await talk.until(
            "[step] step 8: v9 says this more readily: +0.21 a token, reward +1.000, advantage +0.8"
        )
        talk.backend.step_rows.append(replace(make_step(9), warnings=("replies are all alike",)))
        talk.backend.emit("step.finished")
        await talk.until("[watch] replies are all alike")
        talk.backend.emit("step.unmoved", reason="no_gradient")
        await talk.until("[warning] a step moved nothing: its scores cancel each other out")
        put("/training")
        await talk.until("[trainer] the last scores moved nothing: its scores cancel")
        assert talk.text.count("[watch]") == 2, "as news, and when asked"
        assert talk.text.count("trained at step 8") == 1
        row = talk.backend.process_rows[1]
        talk.backend.process_rows[1] = type(row)(
            name=row.name, state=ProcessState.FAILED, reason="no memory"
        )
        talk.backend.emit_control()
        await talk.until("[process] worker-0 is failed: no memory")


async def test_what_was_lost_is_said_at_the_start_and_when_it_is_found() -> None:
    talk = Talk()
    row = talk.backend.process_rows[1]
    told = row.model_copy(update={"state": ProcessState.READY, "reason": "a was damaged\nb, too"})
    talk.backend.process_rows[1] = told
    talk.backend.trainer_row = replace(talk.backend.trainer_row, notices=("a was damaged",))
    async with typing(talk):
        await talk.until("[notice] b, too")
        assert talk.text.count("[notice] a was damaged") == 1
        later = replace(talk.backend.trainer_row, notices=("a was damaged", "v12 is lost"))
        talk.backend.trainer_row = later
        talk.backend.emit("step.failed")
        await talk.until("[notice] v12 is lost")
        assert talk.text.count("a was damaged") == 1


async def test_the_past_is_no_news_even_when_its_names_come_late() -> None:
    talk = Talk(interactive=True)
    add_past(talk.backend)
    async with typing(talk) as put:
        put("hello")
        await talk.until("[turn] completed")
        put("/sessions")
        await talk.until("Why is the sky blue?")
        assert "[episode]" not in talk.text


async def test_the_last_lines_of_a_log(tmp_path: Path) -> None:
    talk = Talk()
    talk.backend.run_dir = str(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-0.log").write_text("one\ntwo\x1b[2J\nthree\n")
    assert await talk.all("/logs worker-0 2", "/logs nobody", "/logs ../keys") == 1
    said = talk.text.splitlines()
    assert [line for line in said if line.startswith("[log]")] == ["[log] two", "[log] three"]
    known = "supervisor, " + ", ".join(row.name for row in talk.backend.process_rows)
    assert said.count(f"[error] /logs takes one of: {known}") == 2


async def test_the_past_is_listed_and_opened() -> None:
    talk = Talk()
    add_past(talk.backend)
    assert await talk.all("/sessions", "/open 1 1", "/tokens 2", "/training", "/status") == 0
    said = talk.text.splitlines()
    assert "2. chat (ended)" in said or "2. Why is the sky blue? (ended)" in said
    assert "   episode 1: trained at step 6, reward +1.0, policy v5, 2 versions behind" in said
    assert "you: Greet Ada in one sentence." in said
    assert "agent: Good day to you, dear Ada, how are you today?" in said
    assert "the newest 2 of 10 sampled tokens" in said
    assert any(line.startswith("“ today?”, id 1009, logprob -") for line in said)
    assert "[trainer] waiting, policy v7 serves, 0 of 1 scored" in said
    assert any(line.startswith("[step] step 8: v9 says this more readily: +") for line in said)
    assert "router: ready, pid 100, 50 MB, up 60 s" in said


async def test_tools_thoughts_and_long_answers() -> None:
    talk = Talk()
    talk.backend.turn_events = [
        ReasoningArrived(text="hm, "),
        ReasoningArrived(text="files"),
        ToolCalled(call_id="a", name="read", arguments='{"path": "x"}'),
        ToolCalled(call_id="b", name="list", arguments="{}"),
        ToolReturned(call_id="a", output="\n".join(f"line {i}" for i in range(35_000))),
        ToolReturned(call_id="b", output="\x1b[2Jnone"),
    ]
    assert await talk.all("hello") == 0
    said = talk.text.splitlines()
    start = said.index("[thought] hm, files")
    assert said[start + 1 : start + 3] == ['[tool] read {"path": "x"}', "[tool] list"]
    assert said[start + 3] == "[result] line 0"
    assert "[result] and 34980 more lines; /result shows them" in said
    assert "[result] none" in said
    assert "\x1b" not in talk.text


def ask(talk: Talk, asked: ApprovalRequested) -> None:
    """Have the next turn ask, and wait for the answer."""
    talk.backend.turn_events = [asked]
    talk.backend.hold = 0
    approve = talk.backend.approve

    async def approve_and_go_on(session_id: str, approval_id: str, choice: str) -> None:
        await approve(session_id, approval_id, choice)
        talk.backend.gate.set()

    talk.backend.approve = approve_and_go_on  # type: ignore[method-assign]


async def test_the_agent_asks_and_the_next_line_answers() -> None:
    talk = Talk()
    asked = ApprovalRequested(
        approval_id="q", description="rm?", choices=("once", "session", "deny")
    )
    ask(talk, asked)
    assert await talk.all("hello", "maybe", "2", "/good") == 1  # the answer that was none
    assert ("approve", "session") in talk.done
    assert "[approval] 3. deny" in talk.text
    assert "[error] answer with yes, no or one of: once, session, deny" in talk.text


async def test_the_end_of_the_lines_is_a_no() -> None:
    talk = Talk()
    talk.backend.turn_events = [
        ApprovalRequested(approval_id="q", description="?", choices=("deny",))
    ]
    talk.backend.hold = 0
    assert await talk.all("hello") == 0
    assert ("approve", "deny") in talk.done


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/goood", "[error] there is no command /goood; did you mean /good?"),
        ("/score much", "[error] /score takes a number"),
        ("/score 3", "[warning] a reward lies between -1.0 and +1.0; +3.0 does not"),
        ("/open 9", "[error] no session “9”: there is none"),
        ("/tokens", "[error] no tokens are recorded here yet"),
        ("/tokens x", "[error] /tokens takes how many"),
        ("/restart ghost", "[error] /restart takes one of: router, worker-0"),
        ("/quit now", "[error] /quit leaves the stack running; /quit stop ends it"),
        ("/result", "[error] no tool has answered"),
        ("/end", "[error] no session is open"),
        ("/compare 1 x", "[error] /compare takes how many, 2 to 9, and a message"),
        ("/pick 1", "[error] nothing is compared"),
        ("/rollback 99", "[error] /rollback takes a kept version"),
    ],
)
async def test_a_mistake_is_one_line_and_fails_a_script(line: str, said: str) -> None:
    talk = Talk()
    before = ["hello"] if line == "/score 3" else []
    assert await talk.all(*before, line) == 1
    assert said in talk.text


async def test_a_failed_start_says_why_and_exits_1() -> None:
    talk = Talk()
    talk.backend.start_error = "the trainer did not start: no memory"
    assert await talk.all("hello") == 1
    assert talk.text.endswith("[error] the trainer did not start: no memory\n")
    assert "turn" not in dict(talk.done)


async def test_quit_leaves_the_stack_and_quit_stop_ends_it() -> None:
    for line, stopped in (("/quit", False), ("/quit stop", True)):
        talk = Talk()
        assert await talk.all(line, "never said") == 0
        assert (("shutdown", "shutdown") in talk.done) == stopped
        assert "never said" not in talk.text


async def test_two_slashes_are_said_as_one() -> None:
    talk = Talk(training=False)
    assert await talk.all("//help") == 0
    assert talk.done[-1] == ("turn", "/help")


async def test_help_is_the_registry() -> None:
    talk = Talk()
    assert await talk.all("/help") == 0
    for command in COMMANDS:
        usage = f"/{command.word} {command.takes}".rstrip()
        assert f"{usage}: {command.help}\n" in talk.text
        assert command.about or command.help == BY_ID[command.action].help
    assert not re.search(r"cursor|Go to|the focused pane", talk.text), "words of the screen"


SAID_OTHERWISE = {
    "score_zero", "score_tenths", "score_negative_tenths",  # /score
    "score_why", "compare_again",  # /why, /compare alone
    "prompt_send", "compare_pick", "compare_interrupt",  # a line, /pick, /interrupt
    "system_logs",  # /logs
}  # fmt: skip
"""Actions that other commands do, too."""

SCREEN_ONLY = re.compile(
    r"prompt_(newline|leave|enter|clear)|chat_(before|after|fold_all)|pane_(next|previous)|.*_(find|filter|follow|copy)"
    r"|tokens_(left|right|bars|surprise.*)|compare_(previous|next|end|leave)"
    r"|training_(episodes|answers|step_.*)|sessions_clear"
    r"|palette|theme|copy_or_quit"
)
"""Actions that mean nothing where there is no screen: the terminal scrolls, finds and copies."""


def test_every_action_that_does_something_has_a_command() -> None:
    missing = {a.id for a in ACTIONS} - {c.action for c in COMMANDS} - SAID_OTHERWISE
    assert not [name for name in missing if not SCREEN_ONLY.fullmatch(name)]


async def test_replies_are_compared_and_picked() -> None:
    talk = Talk()
    assert await talk.all("/compare 3 greet Ada", "/pick 2", "/unpick") == 0
    assert talk.text.count("agent: Hello Ada, it's a pleasure to meet you!") == 3
    assert "[reply 3] completed, 11 tokens" in talk.text
    rewards = [call[-1] for call in talk.backend.calls if call[0] == "set_reward"]
    assert rewards == [-1.0, 1.0, -1.0]
    assert "1 of 3 picked: +1.0, the others -1.0 · /unpick takes it back" in talk.text
    assert [name for name, _ in talk.done].count("unset_reward") == 3


async def test_any_text_answers_a_free_question() -> None:
    talk = Talk()
    asked = ApprovalRequested(
        approval_id="q", kind="clarify", description="which?", choices=("red",)
    )
    ask(talk, asked)
    assert await talk.all("hello", "/answer blue", "/answer") == 1
    assert ("approve", "blue") in talk.done
    assert "[error] the agent asks nothing now" in talk.text


def plain(run_dir: Path, **kwargs: object) -> subprocess.Popen[str]:
    """Start the program itself over whatever serves the run directory."""
    command = [sys.executable, "-P", "-m", "hermes_tui.cli.main", "--plain"]
    environ = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    return subprocess.Popen(
        [*command, f"run.dir={run_dir}", "training.enabled=false"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
        **kwargs,  # type: ignore[call-overload]
    )


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    run_dir = tmp_path_factory.mktemp("plain")
    with Served.fakes(run_dir) as served:
        served.wait_for("ready")
        yield served


def test_the_program_attaches_and_ends_with_its_input(stack: Served) -> None:
    pids = stack.pids()
    with plain(stack.run_dir) as process:
        out, _ = process.communicate("/status\n", timeout=60)
    assert process.returncode == 0, out
    assert "[ready]" in out
    assert "router: ready" in out
    assert "\x1b" not in out
    assert stack.pids() == pids  # it attached, and left everything as it was


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_is_the_exit_code_and_the_stack_lives(
    stack: Served, number: signal.Signals, code: int
) -> None:
    with plain(stack.run_dir) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("[ready]"):
                break
        process.send_signal(number)
        out = process.stdout.read()
        assert process.wait(timeout=10) == code
    assert "Traceback" not in out
    assert all(map(is_alive, stack.pids()))


def test_a_reader_that_leaves_is_no_traceback(stack: Served) -> None:
    with plain(stack.run_dir) as process:
        assert process.stdin
        assert process.stdout
        for line in process.stdout:
            if line.startswith("[ready]"):
                break
        process.stdout.close()
        process.stdin.write("/status\n/status\n")
        process.stdin.close()
        assert process.wait(timeout=10) == 1


async def test_what_another_view_says_is_told_too() -> None:
    talk = Talk(interactive=True)
    talk.backend.add_session("s", created_at=1)
    talk.backend.hold = 2
    async with typing(talk) as put:
        put("/open 1")
        talk.backend.take_off("s", "from elsewhere")
        await talk.until("you, in another view: from elsewhere\nagent: Hello Ada")
        put("me too")
        await talk.until("[queued] it goes when the agent has spoken")
        talk.backend.gate.set()
        await talk.until("you: me too\nagent: Hello Ada")
        await talk.until("!\n[turn] completed, 11 tokens")
    assert talk.text.count("you, in another view: from elsewhere") == 1


async def test_a_pipe_waits_for_a_turn_that_another_view_sent() -> None:
    talk = Talk()
    talk.backend.add_session("s", created_at=1)
    talk.backend.hold = 2
    talk.backend.take_off("s", "from elsewhere")
    talk.plain.put("/open 1")
    running = asyncio.create_task(talk.plain.run())
    await talk.until("agent: Hello Ada")
    talk.plain.put("me too")
    talk.plain.put(None)
    await asyncio.sleep(0)
    assert ("turn", "me too") not in talk.done
    talk.backend.gate.set()
    assert await asyncio.wait_for(running, DEADLINE_S) == 0
    assert ("turn", "me too") in talk.done
    assert talk.text.index("from elsewhere") < talk.text.index("you: me too")


async def test_a_question_of_another_session_swallows_no_message() -> None:
    talk = Talk(interactive=True)
    talk.backend.add_session("s", created_at=1)
    question = ApprovalRequested(approval_id="q", description="rm?", choices=("once", "deny"))
    talk.backend.turn_events, talk.backend.hold = [question], 0
    talk.backend.take_off("s", "clean up")
    async with typing(talk) as put:
        await talk.until("[approval] in “clean up”; /answer answers it\n[approval] rm?")
        talk.backend.turn_events, talk.backend.hold = [], None
        put("hello")
        await talk.until("[turn] completed")
        put("/answer 1")
        await eventually(lambda: ("approve", "once") in talk.done)


async def test_a_reply_is_tried_again_and_a_message_edited() -> None:
    talk = Talk()
    lines = ("greet Ada", "/retry", "/pick 2", "/edit greet Bob", "/rename Bob’s", "/delete")
    assert await talk.all(*lines, "/restore") == 0
    assert talk.text.count("agent: Hello Ada, it's a pleasure to meet you!") >= 3
    rewards = [call[1:] for call in talk.backend.calls if call[0] == "set_reward"]
    assert sorted(rewards) == [("ep-1", -1.0), ("ep-2", 1.0)]
    branches = [call for call in talk.backend.calls if call[0] == "start_branch"]
    assert [(call[1], call[3]) for call in branches] == [("sess-1", "ep-1"), ("sess-1", "")]
    assert ("rename_session", "sess-3", "Bob’s") in talk.backend.calls
    assert "deleted: ↳ Bob’s; /restore brings it back" in talk.text
    assert "back again: ↳ Bob’s" in talk.text
    assert not [call for call in talk.backend.calls if call[0] == "delete_session"]


async def test_what_was_said_is_searched() -> None:
    talk = Talk()
    talk.backend.hits = [
        SearchHit(
            session_key="sess-1",
            run_id="run-1",
            started_at=1.0,
            finished_at=2.0,
            before="greet ",
            match="Ada",
            after="",
        )
    ]
    assert await talk.all("greet Ada", "/search Ada", "/search x") == 0
    assert "[found] session 1: greet Ada\n" in talk.text
    assert "[found] nothing with “x”" in talk.text
