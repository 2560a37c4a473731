"""``--plain``: the judge loop, and the other doors' rows of the list of what a new user met."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.backend import FakeBackend
from test_plain import Talk, ask, typing

from hermes_tui.core.models import ViewMemory
from hermes_tui_services.api.events import (
    ApprovalRequested,
    TextArrived,
    ToolCalled,
    ToolReturned,
    TurnEvent,
)

COMMAND = ApprovalRequested(approval_id="q", description="rm?", choices=("once", "session", "deny"))


@pytest.mark.parametrize(
    ("line", "choice"),
    [("yes", "once"), ("y", "once"), ("Yes", "once"), ("no", "deny"), ("n", "deny")],
)
async def test_row_23_yes_and_no_answer_a_question(line: str, choice: str) -> None:
    talk = Talk()
    ask(talk, COMMAND)
    assert await talk.all("hello", line) == 0
    assert ("approve", choice) in talk.done
    assert "yes, no, or which?" in talk.text


async def test_row_23_the_end_of_a_pipe_has_last_words() -> None:
    talk = Talk()
    talk.backend.turn_events = [COMMAND]
    talk.backend.hold = 0
    assert await talk.all("hello") == 0
    assert "[notice] the input has ended: nobody answers, which is a no" in talk.text
    last = talk.text.splitlines()[-1]
    assert last.startswith("[notice] the stack runs on")
    assert last.endswith("`hermes-tui stop` ends it")


async def test_row_23_an_error_fails_a_script() -> None:
    talk = Talk()
    talk.backend.refuse = "the engine is gone"
    assert await talk.all("hello") == 1
    assert "[error] the engine is gone" in talk.text
    talk = Talk(interactive=True)
    talk.backend.refuse = "the engine is gone"
    assert await talk.all("hello") == 0, "a person has read it"


@pytest.mark.parametrize(
    "said",
    [
        ["\n\n", "Hello"],
        ["\n", ToolCalled(call_id="a", name="read", arguments="{}"), "Hello"],
        ["Hello", "\n\n"],
    ],
)
async def test_row_23_no_blank_lines_after_agent(said: list[str | TurnEvent]) -> None:
    talk = Talk()
    talk.backend.turn_events = [
        TextArrived(text=part) if isinstance(part, str) else part for part in said
    ] + [ToolReturned(call_id="a", output="ok")]
    talk.backend.reply = []
    talk.backend.logprobs = []
    assert await talk.all("hi") == 0
    lines = talk.text.splitlines()
    assert "" not in lines
    assert "agent: Hello" in lines
    assert not [line for line in lines if line.strip() == "agent:"]


async def test_row_4_it_says_what_a_score_is_for_and_scores_that() -> None:
    talk = Talk()
    backend: FakeBackend = talk.backend
    backend.add_session("s", created_at=1)
    backend.add_episode("s", "hi", "Hello.", state="unscored")
    backend.add_episode("s", "more", "Yes.")
    assert await talk.all("/open 1 1", "/bad") == 0
    assert "[score] /good, /bad and /score go to episode 1 of “hi”" in talk.text
    assert [call for call in backend.calls if call[0] == "set_reward"] == [
        ("set_reward", "ep-1", -1.0)
    ]


async def test_row_5_what_cannot_be_trained_is_said_before_and_not_scored() -> None:
    talk = Talk()
    backend = talk.backend
    backend.add_session("s", created_at=1)
    backend.add_episode("s", "hi", "Hel", reason="truncated")
    assert await talk.all("/open 1 1", "/good") == 1
    why = "episode 1 of “hi” can't be trained: cut off at services.agent.max_tokens"
    assert talk.text.index(f"[score] {why}") < talk.text.index(f"[warning] {why}")
    assert "set_reward" not in [call[0] for call in backend.calls]


async def test_rows_1_and_3_a_score_counts_down_as_typed_and_is_taken_back() -> None:
    talk = Talk()
    assert await talk.all("hello", "/score 0.35", "/undo") == 0
    scored = "episode 1 of “hello”: scored +0.35 · trains in 6 s · /undo takes it back"
    assert f"[notice] {scored}" in talk.text
    assert talk.done[-1] == ("unset_reward", "ep-1")


@pytest.mark.parametrize("command", ["/why", "/w"])
async def test_a_sentence_goes_with_a_score(command: str) -> None:
    talk = Talk()
    assert await talk.all("hello", "/bad", f"{command} too long, and rude") == 0
    assert "[notice] episode 1 of “hello”: why is kept · scored -1.0 · " in talk.text
    row = talk.backend.details["ep-1"].row
    assert (row.reward, row.feedback) == (-1.0, "too long, and rude")


async def test_a_sentence_needs_a_score() -> None:
    talk = Talk()
    assert await talk.all("hello", "/why so") == 1
    assert "[warning] score it first: a sentence goes with a score" in talk.text


async def test_row_17_a_terminal_goes_on_with_the_session_that_was_open() -> None:
    talk = Talk(interactive=True)
    talk.backend.add_session("s", created_at=1)
    talk.backend.add_episode("s", "hi", "Hello.")
    talk.backend.memory = ViewMemory(session_id="s", queued=("and more",))
    async with typing(talk) as put:
        await talk.until("[notice] going on with “hi”; /new begins a new session")
        await talk.until("[queued] “and more” goes before your next message")
        put("now")
        await talk.until("you: and more\n")
        await talk.until("you: now\n")
    assert [what for name, what in talk.done if name == "turn"] == ["and more", "now"]


async def test_row_18_a_stack_that_was_stopped_reads_so() -> None:
    talk = Talk(interactive=True)
    async with typing(talk):
        talk.backend.stop_elsewhere()
        await talk.until("[stack] the stack was stopped; `hermes-tui` starts it again")
    assert "ConnectError" not in talk.text


async def test_row_21_an_unscored_comparison_is_opened_again() -> None:
    asked = Talk()
    assert await asked.all("/compare 2 Greet Ada") == 0
    again = Talk()
    again.backend.session_rows = asked.backend.session_rows
    again.backend.details = asked.backend.details
    assert await again.all("/compare", "/pick 2") == 0
    assert "[compare] you: Greet Ada" in again.text
    rewards = {call[1]: call[2] for call in again.backend.calls if call[0] == "set_reward"}
    assert rewards == {"ep-1": -1.0, "ep-2": 1.0}
    last = Talk()
    last.backend.session_rows = asked.backend.session_rows
    last.backend.details = again.backend.details
    assert await last.all("/compare") == 1
    assert "[error] no comparison waits for a score" in last.text


async def test_a_session_has_a_title_before_its_turns_are_read() -> None:
    talk = Talk()
    talk.backend.add_session("s", created_at=1)
    row = talk.backend.session_rows["s"]
    talk.backend.session_rows["s"] = replace(row, title="Greet Ada")
    assert await talk.all("/sessions") == 0
    assert "1. Greet Ada" in talk.text.splitlines()


async def test_a_session_has_a_topic_that_can_be_told_and_set() -> None:
    talk = Talk()
    talk.backend.add_session("s", created_at=1, topic="writing")
    talk.backend.add_episode("s", "hi", "Hello.")
    assert await talk.all("/open 1", "/topic", "/topic rhymes", "/sessions") == 0
    assert "[notice] this session is about writing" in talk.text
    assert ("set_topic", "s", "rhymes") in talk.backend.calls
    assert "1. hi (open here, about rhymes)" in talk.text


@pytest.mark.parametrize("lines", [["/topic"], ["/open 1", "/topic a#b"]])
async def test_a_topic_that_cannot_be_is_refused(lines: list[str]) -> None:
    talk = Talk()
    talk.backend.add_session("s", created_at=1)
    assert await talk.all(*lines) == 1
    assert "set_topic" not in [call[0] for call in talk.backend.calls]
