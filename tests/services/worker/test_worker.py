"""Loading an agent class, and what a worker makes of Hermes' results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes.roles import ScriptedAgent, worker_role

from hermes_tui_common.errors import ApiError, ConfigError
from hermes_tui_services.api.agent import TurnInterrupted
from hermes_tui_services.api.events import ApprovalRequested
from hermes_tui_services.worker.agent_loader import load_agent
from hermes_tui_services.worker.approvals import Questions
from hermes_tui_services.worker.hermes.home import hermes_config, reached_directly
from hermes_tui_services.worker.hermes.results import new_messages, response_of


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("JustAName", ["package.module.Class"]),
        ("no_such_package.Agent", ["cannot import no_such_package", "ModuleNotFoundError"]),
        ("fakes.roles.ScriptedAgnt", ["no 'ScriptedAgnt'", "it has ScriptedAgent"]),
        ("fakes.roles.Chain", ["no 'async def run"]),
        ("json.JSONDecoder", ["no 'async def run"]),
    ],
)
def test_a_wrong_class_is_one_readable_line(tmp_path: Path, path: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load_agent(worker_role(tmp_path, **{"class": path}))
    text = str(error.value)
    assert f"services.agent.class = '{path}'" in text
    assert "\n" not in text
    for word in words:
        assert word in text


def test_a_class_whose_constructor_fails_is_one_readable_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_agent.py").write_text(
        "class Agent:\n"
        "    def __init__(self):\n        raise OSError('no disk')\n"
        "    async def run(self, request, *, emitter): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="could not be created: OSError: no disk"):
        load_agent(worker_role(tmp_path, **{"class": "broken_agent.Agent"}))


def test_a_class_written_for_areal_is_loaded(tmp_path: Path) -> None:
    agent = load_agent(worker_role(tmp_path, **{"class": "fakes.roles.ScriptedAgent"}))
    assert isinstance(agent, ScriptedAgent)


OK = {"completed": True, "turn_exit_reason": "text_response(finish_reason=stop)", "api_calls": 1}
LENGTH = "Response remained truncated after 4 continuation attempts"


def outcome(result: dict[str, Any], history: list[dict[str, Any]] | None = None) -> Any:
    return response_of(
        result, history=history or [], message="hi", usage={}, upstream="http://model/v1"
    )


def said(*rows: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in rows]


def test_a_finished_turn_keeps_what_hermes_has_of_it() -> None:
    history = said(("user", "before"), ("assistant", "yes"))
    call = {
        "id": "c1", "call_id": "c1", "response_item_id": None, "type": "function",
        "function": {"name": "todo", "arguments": "{}"},
    }  # fmt: skip
    added = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call], "finish_reason": "tool_calls"},
        {"role": "tool", "name": "todo", "tool_name": "todo", "tool_call_id": "c1", "content": "x"},
        {"role": "assistant", "content": "done", "reasoning": "hm"},
    ]
    response = outcome(OK | {"final_response": "done", "messages": history + added}, history)
    assert response.summary == "done"
    assert response.messages == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "todo", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "name": "todo", "tool_call_id": "c1", "content": "x"},
        {"role": "assistant", "content": "done", "reasoning": "hm"},
    ]


def test_a_message_that_hermes_merged_with_the_one_before_is_found() -> None:
    history = said(("user", "unanswered"))
    messages = said(("user", "unanswered\n\nhi"), ("assistant", "yes"))
    assert new_messages(messages, history, "hi") == said(("assistant", "yes"))
    assert new_messages(said(("user", "other")), [], "hi") is None
    assert new_messages(None, [], "hi") is None


def test_a_reply_cut_by_max_tokens_is_an_incomplete_success() -> None:
    asked = "[System: Your previous response was truncated by the output length limit. …]"
    messages = said(("user", "hi"), ("assistant", "a"), ("user", asked), ("assistant", "b"))
    result = {"completed": False, "partial": True, "error": LENGTH, "final_response": "ab"}
    response = outcome(result | {"messages": messages})
    assert response.summary == "ab"
    assert response.metadata["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response.messages[1]["synthetic"] is True


def test_a_reply_cut_by_the_network_is_a_failure() -> None:
    asked = "[System: The previous response was cut off by a network error mid-stream. …]"
    messages = said(("user", "hi"), ("assistant", "a"), ("user", asked), ("assistant", "b"))
    result = {"completed": False, "partial": True, "error": LENGTH, "final_response": "ab"}
    with pytest.raises(ApiError, match="broke off"):
        outcome(result | {"messages": messages})


@pytest.mark.parametrize(
    ("result", "status", "code", "word"),
    [
        ({"failed": True, "error": "Error code: 500 - boom"}, 502, "agent_failed", "boom"),
        ({"failed": True, "error": "no key sk-sess-abcdefgh"}, 502, "agent_failed", r"sk-sess-\*"),
        ({"failed": True, "partial": True, "compaction_disabled": True, "error": "8200 > 8192"},
         400, "context_length_exceeded", "8200 > 8192"),
        (OK | {"turn_exit_reason": "empty_response_exhausted", "final_response": "⚠️ No reply"},
         502, "empty_reply", "empty"),
        ({"partial": True, "error": "Model generated invalid tool call: fly"}, 502,
         "agent_failed", "fly"),
        ({}, 502, "agent_failed", "no cause"),
    ],
)  # fmt: skip
def test_a_failure_carries_its_cause(
    result: dict[str, Any], status: int, code: str, word: str
) -> None:
    with pytest.raises(ApiError, match=word) as error:
        outcome(result)
    assert (error.value.status, error.value.code) == (status, code)
    assert "http://model/v1" in error.value.message
    assert "abcdefgh" not in error.value.message


def test_an_interrupted_turn_is_neither() -> None:
    with pytest.raises(TurnInterrupted):
        outcome({"completed": True, "interrupted": True})
    with pytest.raises(TurnInterrupted):
        outcome({"completed": False, "interrupted": True})


def test_hermes_does_nothing_by_itself(tmp_path: Path) -> None:
    config: Any = hermes_config(worker_role(tmp_path, approval_timeout_s=7.5).agent)
    assert config["approvals"] == {"mode": "manual", "timeout": 8}
    assert config["agent"]["api_max_retries"] == 1
    assert config["compression"] == {"enabled": False}
    assert config["security"]["allow_lazy_installs"] is False


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        ({}, "127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "corp.example, localhost"}, "corp.example,localhost,127.0.0.1,::1"),
        ({"no_proxy": "a", "NO_PROXY": "b"}, "a,127.0.0.1,localhost,::1"),
        ({"NO_PROXY": "*"}, "*"),
    ],
)
def test_a_model_on_this_machine_is_reached_without_a_proxy(
    environ: dict[str, str], hosts: str
) -> None:
    assert reached_directly(environ) == hosts


def test_questions_are_answered_once_in_time_by_their_own_session() -> None:
    events: list[ApprovalRequested] = []
    questions = Questions(timeout_s=60)
    asked = questions.ask(
        "s", events.append, kind="command", description="d", choices=("once", "deny"), command="rm"
    )
    assert events[0].choices == ("once", "deny")
    assert events[0].command == "rm"
    for key, approval_id, choice, status in (
        ("s", "appr-other", "once", 404),
        ("t", asked.approval_id, "once", 404),
        ("s", asked.approval_id, "always", 400),
    ):
        with pytest.raises(ApiError) as error:
            questions.answer(key, approval_id, choice)
        assert error.value.status == status
    questions.answer("s", asked.approval_id, "deny", "no")
    assert (asked.choice, asked.reason) == ("deny", "no")
    assert asked.wait(lambda: False) == "deny"
    with pytest.raises(ApiError) as late:
        questions.answer("s", asked.approval_id, "once")
    assert late.value.status == 410


def test_a_question_runs_out_with_time_with_an_interrupt_and_with_its_turn() -> None:
    short = Questions(timeout_s=0.05)
    asked = short.ask("s", lambda e: None, kind="clarify", description="?", choices=())
    assert asked.wait(lambda: False) is None
    questions = Questions(timeout_s=60)
    interrupted = questions.ask("s", lambda e: None, kind="clarify", description="?", choices=())
    assert interrupted.wait(lambda: True) is None
    over = questions.ask("s", lambda e: None, kind="clarify", description="?", choices=())
    questions.close("s")
    for which, question in ((short, asked), (questions, interrupted), (questions, over)):
        with pytest.raises(ApiError) as error:
            which.answer("s", question.approval_id, "yes")
        assert error.value.status == 410
