"""The gateway's routes about policy versions: rollback, the canary's answers, groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.inference import ADMIN_KEY, running_gateway

from hermes_tui_common.errors import RefusedError, ServiceError, TrainingError
from hermes_tui_training.api.client import InferenceClient
from hermes_tui_training.api.config import GroupConfig, TrainingConfig
from hermes_tui_training.api.types import CanaryAnswer
from hermes_tui_training.api.wire import StepRecord
from hermes_tui_training.trainer.orchestrator import UnknownVersionError


async def test_a_rollback_answers_with_the_new_versions_row(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, port=0) as gateway:
        async with InferenceClient(gateway.url, ADMIN_KEY) as client:
            row = await client.rollback(1)
            assert row == StepRecord(step=3, policy_version=3, rolled_back_to=1)
            gateway.orchestrator.rollback_answer = UnknownVersionError("version 1 has none")
            with pytest.raises(RefusedError, match="Version 1 has none") as refused:
                await client.rollback(1)
        assert (refused.value.status, refused.value.param) == (404, "policy_version")


@pytest.mark.parametrize(
    ("error", "status"),
    [(TrainingError("it is current"), 409), (ServiceError("the learner is not running"), 503)],
)
async def test_a_rollback_that_cannot_be_says_why(
    tmp_path: Path, error: Exception, status: int
) -> None:
    async with running_gateway(tmp_path) as gateway:
        gateway.orchestrator.rollback_answer = error
        answer = await gateway.call("POST", "/rl/rollback", {"policy_version": 0})
        assert answer.status_code == status
        assert str(error)[1:] in answer.json()["error"]["message"]


async def test_only_the_admin_rolls_back_and_only_to_a_version(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        _, key = await gateway.session()
        body = {"policy_version": 0}
        assert (await gateway.call("POST", "/rl/rollback", body, key=None)).status_code == 401
        assert (await gateway.call("POST", "/rl/rollback", body, key=key)).status_code == 403
        for value in (-1, "1", None, 1.5, True):
            answer = await gateway.call("POST", "/rl/rollback", {"policy_version": value})
            assert answer.status_code == 400, value
            assert answer.json()["error"]["param"] == "policy_version"


def _answer(version: int, position: int, text: str) -> CanaryAnswer:
    return CanaryAnswer(
        policy_version=version,
        position=position,
        prompt=f"question {position}",
        status="answered",
        text=text,
        token_ids=(7, 8),
        logprobs=(-0.5, -0.25),
        finish_reason="stop",
        at=1.0,
    )


async def test_canary_answers_are_read_by_version_or_the_newest_two(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, port=0) as gateway:
        for version in (3, 1, 2):
            for position in (1, 0):
                gateway.store.canaries.put(_answer(version, position, f"{version}/{position}"))
        async with InferenceClient(gateway.url, ADMIN_KEY) as client:
            newest = await client.canaries()
            assert [row.text for row in newest] == ["2/0", "2/1", "3/0", "3/1"]
            assert newest[0].token_ids == (7, 8)
            assert newest[0].logprobs == (-0.5, -0.25)
            assert [row.text for row in await client.canaries(1)] == ["1/0", "1/1"]
            assert await client.canaries(9) == []
            for text in ("x", "-1", "1.5", ""):
                answer = await gateway.call("GET", f"/rl/canaries?policy_version={text}")
                assert answer.status_code == 400, text
        _, key = await gateway.session()
        assert (await gateway.call("GET", "/rl/canaries", key=key)).status_code == 403


async def test_the_status_says_which_siblings_a_group_waits_for(tmp_path: Path) -> None:
    training = TrainingConfig(group=GroupConfig(timeout_s=500.0))
    async with running_gateway(tmp_path, training=training) as gateway:
        body = {"task_id": "task", "group_size": 3}
        started = (await gateway.call("POST", "/rl/start_session", body)).json()
        keys = [session["session_api_key"] for session in started["sessions"]]
        for key in keys[:2]:
            await gateway.chat(key)
        await gateway.call("POST", "/rl/set_reward", {"reward": 1}, key=keys[0])
        status = (await gateway.call("GET", "/rl/status")).json()
        assert status["num_scored"] == 0
        (group,) = status["groups"]
        assert 400 < group.pop("seconds_left") <= 500
        assert group == {
            "group_id": started["group_id"],
            "task_id": "task",
            "num_scored": 1,
            "num_siblings": 3,
        }
        assert f"; {started['group_id']} has 1 of 3 scored" in status["waiting"]

        await gateway.call("POST", "/rl/set_reward", {"reward": 0}, key=keys[1])
        await gateway.call("POST", "/rl/end_session", {}, key=keys[2])
        status = (await gateway.call("GET", "/rl/status")).json()
        assert (status["num_scored"], status["groups"]) == (1, [])
        assert status["waiting"].startswith("1 of 1 scored")
