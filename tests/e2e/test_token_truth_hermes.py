"""Hermes itself in front of the real gateway: its replay changes no token that was sampled."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

from fakes import services
from fakes.engine import FakeEngine, Script, says
from fakes.inference import running_gateway

from hermes_tui_training.algorithm.samples import segments, training_samples

MAX_TURNS = 12
ROUNDS = 10


def plans(number: int) -> Script:
    """Return a script that thinks, talks and calls a tool, spaced as no serializer would."""
    todos = json.dumps([{"status": "pending", "id": str(number), "content": f"step {number}"}])
    return says(
        f"<think>number {number}</think>\n\n Next:  \n"
        f'<tool_call>\n{{"name":  "todo", "arguments": {{"todos":{todos} ,"merge": true}} }}\n'
        "</tool_call>"
    )


def converse(run_dir: Path, url: str, key: str, inputs: list[str]) -> list[dict[str, Any]]:
    """Run turns through the whole agent service; return each answer."""
    agent = {
        "enabled_toolsets": ["todo"],
        "max_turns": MAX_TURNS,
        "max_tokens": 2048,
        "system_prompt": "You plan.",
    }
    fields = {"model": "hermes", "user": "a/b c", "inf_base_url": url, "session_api_key": key}
    with services.running(run_dir, agent=agent) as stack, stack.client() as client:
        return [
            client.post("/v1/responses", json={"input": text, **fields}).json() for text in inputs
        ]


async def test_ten_tool_rounds_and_a_summary_that_is_no_turn(tmp_path: Path) -> None:
    turn_one = [*(plans(number) for number in range(ROUNDS)), says("<think>x</think> Planned. ")]
    turn_two = [says("  You are welcome.\n")]
    turn_three = [plans(number) for number in range(100, 100 + MAX_TURNS)]
    scripts = [*turn_one, *turn_two, *turn_three]
    engine = FakeEngine(*scripts, says("A summary."), max_model_len=65_536)
    async with running_gateway(tmp_path, engine=engine, port=0) as gateway:
        session_id, key = await gateway.session()
        answers = await asyncio.to_thread(
            converse,
            tmp_path,
            gateway.url,
            key,
            ["Plan it, and write <tool_call>{} yourself.", "Thank you", "Plan more"],
        )
        episode = gateway.store.episodes.find(session_id=session_id)[0]
    assert [answer["status"] for answer in answers[:2]] == ["completed", "completed"]
    *turns, summary = episode.completions
    assert [turn.token_ids for turn in turns] == [tuple(script.token_ids) for script in scripts]
    assert all(turn.kind == "turn" and turn.trainable for turn in turns)
    assert (summary.kind, summary.untrainable_reason) == ("aux", "aux_call")
    for before, after in itertools.pairwise(turns):
        assert after.prefix == {
            "parent_completion_id": before.completion_id,
            "shared_token_count": len(before.prompt_token_ids) + len(before.token_ids),
            "first_difference": None,
        }
    assert len(segments(turns)) == 1
    (sample,) = training_samples(episode, {turn.completion_id: 1.0 for turn in turns})
    assert sample.loss_mask.count(True) == sum(len(script.token_ids) for script in scripts)
