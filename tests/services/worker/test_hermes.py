"""Hermes in a real worker, the whole chain as real processes, against a scripted model server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes import services
from fakes.upstream import Asked, Reply, Upstream, call, echo, running, say

from hermes_tui_services.api.protocol import path_key

APPROVAL_S = 2.0
MAX_TOKENS = 77


@pytest.fixture(scope="module")
def shared_upstream() -> Iterator[Upstream]:
    with running() as upstream:
        yield upstream


@pytest.fixture
def upstream(shared_upstream: Upstream) -> Upstream:
    shared_upstream.script = echo
    shared_upstream.asked.clear()
    return shared_upstream


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[services.Services]:
    agent = {
        "enabled_toolsets": ["todo", "file", "terminal", "clarify"],
        "approval_timeout_s": APPROVAL_S,
        "max_tokens": MAX_TOKENS,
        "temperature": 0.5,
        "system_prompt": "You are the prompt.",
    }
    env = {"HERMES_TUI__SECRET_KEY": "own-secret", "HERMES_YOLO_MODE": "1"}
    folder = tmp_path_factory.mktemp("stack")
    # As in a cage: only commands that look dangerous ask.
    with services.running(folder, agent=agent, env=env, cage="bubblewrap") as stack:
        yield stack


def events_of(
    client: httpx.Client, method: str, path: str, body: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the events of a streamed answer as they come."""
    with client.stream(method, path, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line[6:])


class Talk:
    """One conversation over the gateway."""

    def __init__(self, client: httpx.Client, upstream: Upstream, user: str) -> None:
        self.client = client
        self.user = user
        self.key = f"agent:hermes-agent:{user}"
        self.fields = {
            "model": "hermes-agent",
            "user": user,
            "inf_base_url": upstream.url.removesuffix("/v1"),
            "session_api_key": f"sk-sess-{user}-0123456789",
        }

    def say(self, text: str, **more: Any) -> list[dict[str, Any]]:
        """Run a turn and return its events."""
        return list(self.stream(text, **more))

    def stream(self, text: str, **more: Any) -> Iterator[dict[str, Any]]:
        body = {"input": text, "stream": True, **self.fields, **more}
        return events_of(self.client, "POST", "/v1/responses", body)

    def post(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        return self.client.post(f"/sessions/{path_key(self.key)}/{path}", json=body or {})

    def history(self) -> list[dict[str, Any]]:
        answer = self.client.get(f"/sessions/{path_key(self.key)}/history")
        assert answer.status_code == 200, answer.text
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages


@pytest.fixture
def talk(
    stack: services.Services, upstream: Upstream, request: pytest.FixtureRequest
) -> Iterator[Talk]:
    with stack.client() as client:
        yield Talk(client, upstream, request.node.name)


def wait_for(condition: Callable[[], Any], within_s: float = 5.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)
    return value


def script(*replies: Reply) -> Callable[[Asked], Reply]:
    """Return a script that gives the replies one after another, then repeats the last."""
    left = list(replies)
    lock = threading.Lock()

    def answer(asked: Asked) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return answer


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


GRAMMAR = ("output_item.", "content_part.", "function_call_arguments.")
"""Beginnings of the events that frame what happened; the gateway's own tests cover them."""


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Return what happened, without the events that only frame it."""
    names = [event["type"].removeprefix("response.") for event in events]
    return [name for name in names if not name.startswith(GRAMMAR)]


def upstream_of(talk: Talk) -> dict[str, str]:
    """Return the fields that send a turn's model calls to the scripted server."""
    return {name: talk.fields[name] for name in ("inf_base_url", "session_api_key")}


def tool_results(asked: Asked) -> list[str]:
    return [m["content"] for m in asked.messages if m["role"] == "tool"]


def test_two_turns_stream_and_the_second_knows_the_first(talk: Talk, upstream: Upstream) -> None:
    events = talk.say("my name is Ada")
    assert kinds(events)[0] == "created"
    assert kinds(events)[-2:] == ["output_text.done", "completed"]
    assert text_of(events) == "my name is Ada"
    response = events[-1]["response"]
    assert response["usage"] == {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    talk.say("again")
    first, second = upstream.chats
    assert [m["content"] for m in second.messages] == [
        "You are the prompt.",
        "my name is Ada",
        "my name is Ada",
        "again",
    ]
    assert [m["role"] for m in talk.history()] == ["user", "assistant"] * 2
    assert first.key == second.key == f"sk-sess-{talk.user}-0123456789"


def test_only_the_turns_own_calls_reach_the_upstream_as_configured(
    talk: Talk, upstream: Upstream
) -> None:
    talk.say("one")
    talk.say("two", instructions="Be brief.", temperature=0.25, max_output_tokens=9)
    assert [(a.method, a.path) for a in upstream.asked] == [("POST", "/v1/chat/completions")] * 2
    first, second = (asked.body for asked in upstream.asked)
    assert (first["max_tokens"], first["temperature"]) == (MAX_TOKENS, 0.5)
    assert (second["max_tokens"], second["temperature"]) == (9, 0.25)
    assert first["model"] == "policy"
    assert first["stream"] is True
    assert second["messages"][0]["content"] == "You are the prompt.\n\nBe brief."


def test_the_first_delta_comes_long_before_the_last(talk: Talk, upstream: Upstream) -> None:
    upstream.script = lambda asked: say(*"abcdefgh", gap_s=0.1)
    began = time.monotonic()
    times = [time.monotonic() - began for event in talk.stream("go") if "delta" in event]
    assert len(times) == 8
    assert times[0] < 0.5 * times[-1]


def test_a_tool_is_called_and_its_result_kept(talk: Talk, upstream: Upstream) -> None:
    todos = {"todos": [{"id": "1", "content": "greet", "status": "pending"}]}
    upstream.script = script(call("todo", todos, "call_a", chunks=("Let me see.",)), say("Done."))
    events = talk.say("plan it")
    assert kinds(events) == [
        "created",
        "output_text.delta",
        "function_call",
        "function_call_output",
        "output_text.delta",
        "output_text.done",
        "completed",
    ]
    called, returned = (
        next(event for event in events if event["type"] == f"response.function_call{end}")
        for end in ("", "_output")
    )
    assert (called["call_id"], called["name"]) == ("call_a", "todo")
    assert json.loads(called["arguments"]) == todos
    assert (returned["call_id"], returned["name"]) == ("call_a", "todo")
    assert "greet" in returned["output"]
    user, asking, result, answer = talk.history()
    assert user["content"] == "plan it"
    assert asking["content"] == "Let me see."
    assert asking["tool_calls"][0]["id"] == result["tool_call_id"] == "call_a"
    assert answer["content"] == "Done."
    upstream.script = echo
    talk.say("next")
    replayed = upstream.chats[-1].messages
    assert [m["role"] for m in replayed] == [
        "system", "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    # What is replayed is what Hermes itself sent within the turn: the model's prefix holds.
    assert replayed[:4] == upstream.chats[-2].messages[:4]


def test_parallel_calls_are_paired_by_id(talk: Talk, upstream: Upstream) -> None:
    calls = tuple(
        (f"call_{name}", "write_file", json.dumps({"path": f"{name}.txt", "content": name}))
        for name in "ab"
    )
    upstream.script = script(Reply(tool_calls=calls), say("Written."))
    talk.say("write both")
    asking, *results = talk.history()[1:4]
    assert [c["id"] for c in asking["tool_calls"]] == ["call_a", "call_b"]
    assert [r["tool_call_id"] for r in results] == ["call_a", "call_b"]


def test_reasoning_is_streamed(talk: Talk, upstream: Upstream) -> None:
    upstream.script = lambda asked: say("Yes.", reasoning=("Let me ", "think."))
    events = talk.say("why")
    thought = [e["delta"] for e in events if e["type"] == "response.reasoning_text.delta"]
    assert "".join(thought) == "Let me think."
    assert text_of(events) == "Yes."


def remove(name: str) -> Reply:
    return call("terminal", {"command": f"rm -rf {name}"}, "call_remove")


def make_victim(talk: Talk, upstream: Upstream) -> Path:
    """Run a harmless command in the session's directory and return the file that it made."""
    upstream.script = script(call("terminal", {"command": "touch victim && pwd"}), say("ok"))
    talk.say("prepare")
    result = json.loads(tool_results(upstream.chats[-1])[0])
    victim = Path(result["output"].strip()) / "victim"
    assert victim.exists()
    return victim


@pytest.mark.parametrize(("choice", "stays"), [("deny", True), ("once", False)])
def test_a_dangerous_command_waits_for_an_answer(
    talk: Talk, upstream: Upstream, choice: str, stays: bool
) -> None:
    victim = make_victim(talk, upstream)
    upstream.script = script(remove("victim"), say("As you say."))
    asked: dict[str, Any] = {}
    for event in talk.stream("delete it"):
        if event["type"] == "response.approval_requested":
            asked = event
            assert victim.exists()
            answer = {"choice": choice, "reason": "because"}
            assert talk.post(f"approvals/{event['approval_id']}", answer).status_code == 200
            assert talk.post(f"approvals/{event['approval_id']}", answer).status_code == 410
    assert asked["kind"] == "command"
    assert asked["command"] == "rm -rf victim"
    assert asked["choices"] == ["once", "session", "deny"]
    assert asked["description"]
    assert asked["expires_at"] == pytest.approx(time.time(), abs=10)
    assert victim.exists() is stays
    assert ("BLOCKED" in tool_results(upstream.chats[-1])[-1]) is stays
    assert talk.post("approvals/appr-unknown", {"choice": "deny"}).status_code == 404


def test_another_client_sees_the_question_and_answers_it(
    stack: services.Services, talk: Talk, upstream: Upstream
) -> None:
    victim = make_victim(talk, upstream)
    upstream.script = script(remove("victim"), say("As you say."))
    sent: list[dict[str, Any]] = []
    sender = threading.Thread(target=lambda: sent.extend(talk.stream("delete it")))
    sender.start()
    with stack.client() as other:
        wait_for(lambda: "approval_requested" in kinds(sent))
        asked: dict[str, Any] = {}
        seen = []
        for event in events_of(other, "GET", f"/sessions/{path_key(talk.key)}/events"):
            seen.append(event)
            if event["type"] == "response.approval_requested":
                asked = event
                path = f"/sessions/{path_key(talk.key)}/approvals/{event['approval_id']}"
                assert other.post(path, json={"choice": "once"}).status_code == 200
                late = talk.post(f"approvals/{event['approval_id']}", {"choice": "deny"})
        assert other.get(f"/sessions/{path_key(talk.key)}/events").status_code == 404
    sender.join(10)
    assert seen[0]["input"] == "delete it"
    assert asked["command"] == "rm -rf victim"
    assert not victim.exists()
    assert (late.status_code, late.json()["error"]["message"]) == (
        410,
        "The question was answered already: once.",
    )
    answered = {"approval_id": asked["approval_id"], "choice": "once"}
    for events in (sent, seen):
        told = next(e for e in events if e["type"] == "response.approval_answered")
        assert answered.items() <= told.items()
        assert kinds(events)[-1] == "completed"
    assert text_of(seen) == text_of(sent)
    assert text_of(seen).strip() == "As you say."


def test_silence_is_a_no(talk: Talk, upstream: Upstream) -> None:
    victim = make_victim(talk, upstream)
    upstream.script = script(remove("victim"), say("Nobody answered."))
    events = talk.say("delete it")
    assert "approval_requested" in kinds(events)
    assert kinds(events)[-1] == "completed"
    assert victim.exists()
    assert "timed out" in tool_results(upstream.chats[-1])[-1]
    approval = next(e for e in events if e["type"] == "response.approval_requested")
    late = talk.post(f"approvals/{approval['approval_id']}", {"choice": "once"})
    assert late.status_code == 410


def test_a_question_of_the_agent_is_answered_with_any_text(talk: Talk, upstream: Upstream) -> None:
    question = {"question": "Which colour?", "choices": ["red", "blue"]}
    upstream.script = script(call("clarify", question), say("Green it is."))
    for event in talk.stream("paint"):
        if event["type"] == "response.approval_requested":
            assert (event["kind"], event["description"]) == ("clarify", "Which colour?")
            assert event["choices"] == ["red", "blue"]
            talk.post(f"approvals/{event['approval_id']}", {"choice": "green"})
    assert "green" in tool_results(upstream.chats[-1])[-1]


def test_an_interrupt_closes_the_request_and_keeps_the_text(talk: Talk, upstream: Upstream) -> None:
    upstream.script = lambda asked: say("So ", "far.", hang=True)
    events = []
    asked_at = 0.0
    for event in talk.stream("go on"):
        events.append(event)
        if event.get("delta") == "far.":
            asked_at = time.monotonic()
            assert talk.post("interrupt").json()["interrupted"] is True
    assert kinds(events)[-1] == "failed"
    assert events[-1]["response"]["error"]["code"] == "interrupted"
    closed = wait_for(lambda: upstream.chats[-1].hung_up_at, 2.0)
    assert closed - asked_at < 1.0
    assert talk.history() == [
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": "So far.", "interrupted": True},
    ]
    assert len(upstream.chats) == 1
    upstream.script = echo
    assert text_of(talk.say("and now?")) == "and now?"


def test_an_interrupt_while_idle_does_not_swallow_the_next_message(talk: Talk) -> None:
    talk.say("first")
    assert talk.post("interrupt").json()["interrupted"] is False
    assert text_of(talk.say("second")) == "second"


def test_an_interrupt_ends_a_command_and_an_open_question(talk: Talk, upstream: Upstream) -> None:
    upstream.script = script(call("terminal", {"command": "sleep 60"}), say("never"))
    began = time.monotonic()
    for event in talk.stream("sleep"):
        if event["type"] == "response.function_call":
            talk.post("interrupt")
    assert time.monotonic() - began < 5
    upstream.script = script(call("clarify", {"question": "Well?"}), say("never"))
    began = time.monotonic()
    for event in talk.stream("ask"):
        if event["type"] == "response.approval_requested":
            talk.post("interrupt")
    assert time.monotonic() - began < APPROVAL_S


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_the_request(
    stack: services.Services, talk: Talk, upstream: Upstream, stream: bool
) -> None:
    upstream.script = lambda asked: say("Hello", hang=True)
    body = {"input": "hi", "stream": stream, **talk.fields}
    with pytest.raises(httpx.ReadTimeout):
        talk.client.post("/v1/responses", json=body, timeout=0.5)
    left_at = time.monotonic()
    closed = wait_for(lambda: upstream.chats and upstream.chats[-1].hung_up_at, 2.0)
    assert closed - left_at < 1.0
    wait_for(lambda: talk.client.get("/sessions").json()["data"][0]["running"] is False)
    assert talk.history()[-1] == {"role": "assistant", "content": "Hello", "interrupted": True}


def test_sessions_do_not_see_each_other(
    stack: services.Services, talk: Talk, upstream: Upstream
) -> None:
    command = 'echo "$PWD $HERMES_SESSION_ID ${MARK:-unset}"; export MARK=mine'

    def answer(asked: Asked) -> Reply:
        return call("terminal", {"command": command}) if not tool_results(asked) else say("ok")

    upstream.script = answer
    talks = [Talk(stack.client(), upstream, f"{talk.user}-{i}") for i in range(4)]
    threads = [threading.Thread(target=t.say, args=("look",)) for t in talks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = {a.key: tool_results(a)[0] for a in upstream.chats if tool_results(a)}
    assert len(seen) == 4
    rows = [json.loads(text)["output"].split() for text in seen.values()]
    directories, session_ids, marks = zip(*rows, strict=True)
    assert len(set(directories)) == 4
    assert len(set(session_ids)) == 4
    assert set(marks) == {"unset"}
    for key, (directory, session_id, _) in zip(seen, rows, strict=True):
        assert directory.endswith(session_id.removeprefix("s-")), key
    for other in talks:
        other.client.close()


def test_the_agents_shell_has_none_of_our_secrets(talk: Talk, upstream: Upstream) -> None:
    upstream.script = script(call("terminal", {"command": "env"}), say("ok"))
    talk.say("look around")
    shown = tool_results(upstream.chats[-1])[0]
    assert "PATH=" in shown
    assert "own-secret" not in shown
    assert "HERMES_TUI__" not in shown
    assert services.ADMIN_KEY not in shown


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (Reply(status=401, error="this key was revoked"), "this key was revoked"),
        (Reply(status=500, error="the engine is on fire"), "the engine is on fire"),
        (Reply(status=400, error="8200 tokens, 8192 fit", code="context_length_exceeded"), "8192"),
    ],
)
def test_an_error_of_the_upstream_is_carried_up(
    talk: Talk, upstream: Upstream, reply: Reply, word: str
) -> None:
    upstream.script = lambda asked: reply
    events = talk.say("hi")
    assert kinds(events) == ["created", "failed"]
    error = events[-1]["response"]["error"]
    assert word in error["message"]
    assert len(upstream.chats) == 1
    body = {"input": "hi", **talk.fields}
    answer = talk.client.post("/v1/responses", json=body)
    assert answer.status_code in (400, 502)
    assert word in answer.json()["error"]["message"]


def test_a_stream_that_breaks_off_is_a_failure_with_its_cause(
    talk: Talk, upstream: Upstream
) -> None:
    upstream.script = lambda asked: say("Once upon", cut=True)
    events = talk.say("tell me")
    assert kinds(events)[-1] == "failed"
    error = events[-1]["response"]["error"]
    assert "broke off" in error["message"]
    assert upstream.url in error["message"]
    answer = talk.client.get(f"/sessions/{path_key(talk.key)}/history")
    # Hermes asks again a few times; what each of its calls said was streamed, and so is kept.
    streamed = "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    )
    assert streamed.startswith("Once upon")
    said = [(row["content"], row.get("interrupted", False)) for row in answer.json()["messages"]]
    assert said == [("tell me", False), (streamed, True)]


def test_an_upstream_that_is_not_there_is_a_failure_with_its_address(talk: Talk) -> None:
    nowhere = "http://127.0.0.1:9/v1"
    events = talk.say("hi", inf_base_url=nowhere)
    assert kinds(events)[-1] == "failed"
    assert nowhere in events[-1]["response"]["error"]["message"]


def test_a_reply_cut_by_max_tokens_is_continued_and_then_marked(
    talk: Talk, upstream: Upstream
) -> None:
    upstream.script = lambda asked: say("part", finish_reason="length")
    events = talk.say("long story")
    response = events[-1]["response"]
    assert (kinds(events)[-1], response["status"]) == ("completed", "completed")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"] == {"input_tokens": 40, "output_tokens": 20, "total_tokens": 60}
    assert len(upstream.chats) == 4
    assert {asked.body["max_tokens"] for asked in upstream.chats} == {MAX_TOKENS}
    history = talk.history()
    assert history[0] == {"role": "user", "content": "long story"}
    assert all(m.get("synthetic") for m in history[1:] if m["role"] == "user")


def test_usage_is_the_sum_of_the_turns_calls_and_a_cut_call_is_told(
    talk: Talk, upstream: Upstream
) -> None:
    upstream.script = script(
        call("todo", {"todos": []}, "call_a"), say("Once", finish_reason="length"), say(" more.")
    )
    response = talk.say("go")[-1]["response"]
    assert response["usage"] == {"input_tokens": 30, "output_tokens": 15, "total_tokens": 45}
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    upstream.script = script(say("Once", finish_reason="length"), say(" more."))
    said = {"messages": [{"role": "user", "content": "go"}], **upstream_of(talk)}
    chat = talk.client.post("/v1/chat/completions", json=said).json()
    assert chat["choices"][0]["finish_reason"] == "length"
    assert chat["usage"] == {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
    assert talk.say("whole")[-1]["response"]["incomplete_details"] is None


def test_a_failed_turn_tells_the_usage_of_the_calls_before(talk: Talk, upstream: Upstream) -> None:
    upstream.script = script(
        call("todo", {"todos": []}, "call_a"), Reply(status=400, error="no such thing")
    )
    failed = talk.say("go")[-1]
    assert failed["type"] == "response.failed"
    used = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    assert failed["response"]["usage"] == used


def test_usage_that_is_not_known_is_null(talk: Talk, upstream: Upstream) -> None:
    upstream.script = lambda asked: say("Hello.", usage=None)
    assert talk.say("go")[-1]["response"]["usage"] is None
    said = {"messages": [{"role": "user", "content": "go"}], **upstream_of(talk)}
    assert talk.client.post("/v1/chat/completions", json=said).json()["usage"] is None


def test_max_output_tokens_bounds_the_whole_turn(talk: Talk, upstream: Upstream) -> None:
    upstream.script = lambda asked: say("part", finish_reason="length")
    response = talk.say("long", max_output_tokens=8)[-1]["response"]
    assert [asked.body["max_tokens"] for asked in upstream.chats] == [8, 3]
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 10  # this server samples more than it may
    assert response["output"][0]["content"][0]["text"] == "partpart"
    assert [m["role"] for m in talk.history()] == ["user", "assistant"]
    upstream.asked.clear()
    upstream.script = lambda asked: call("todo", {"todos": []}, "call_a")
    tools = talk.say("tools", max_output_tokens=5)[-1]
    assert (tools["type"], len(upstream.chats)) == ("response.completed", 1)
    assert tools["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    upstream.script = echo
    assert talk.say("after")[-1]["response"]["incomplete_details"] is None


def test_without_an_upstream_the_answer_says_what_to_do(stack: services.Services) -> None:
    with stack.client() as client:
        answer = client.post("/v1/responses", json={"input": "hi", "user": "nobody"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "no_upstream"
    for word in ("inf_base_url", "session_api_key", "[upstream]", "HERMES_UPSTREAM_BASE_URL"):
        assert word in error["message"]


def test_tools_of_the_caller_are_refused(talk: Talk) -> None:
    events = talk.say("hi", tools=[{"type": "function", "name": "mine"}])
    assert kinds(events)[-1] == "failed"
    assert events[-1]["response"]["error"]["param"] == "tools"


def test_failing_turns_do_not_fill_the_disk(
    stack: services.Services, talk: Talk, upstream: Upstream
) -> None:
    upstream.script = lambda asked: Reply(status=500, error="no")
    talk.say("warm up")
    home = stack["worker-0"].run_dir / "hermes-0"
    before = sorted(path for path in home.rglob("*") if path.is_file())
    for _ in range(10):
        talk.say("x" * 5000)
    assert sorted(path for path in home.rglob("*") if path.is_file()) == before


def test_the_log_stays_ours_and_holds_no_keys(stack: services.Services, talk: Talk) -> None:
    talk.say("a secret message")
    log = stack["worker-0"].log
    assert "a secret message" not in log
    assert "sk-sess-test" not in log
    assert services.ADMIN_KEY not in log
    assert all(" hermes_tui_" in line or " uvicorn." in line for line in _records(log, "INFO"))


def _records(log: str, level: str) -> list[str]:
    return [line for line in log.splitlines() if f" {level} " in line]
