"""A backup of a stack that runs, and a stack that runs on what was restored from it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fakes.old_run import copy_old_run
from fakes.served import Served

from hermes_tui_training.api.client import InferenceClient

pytestmark = pytest.mark.timeout(300)

PROGRAM = [sys.executable, "-P", "-m", "hermes_tui.cli.main"]
START_S = 120.0
STEP_S = 60.0


@contextlib.contextmanager
def served(folder: Path, run_dir: Path) -> Iterator[Served]:
    with Served([*PROGRAM, "--serve", f"run.dir={run_dir}"], run_dir, cwd=folder) as served:
        served.wait_for("ready", START_S)
        yield served


def trainer_of(served: Served) -> InferenceClient:
    keys = json.loads((served.run_dir / "keys.json").read_text())
    return InferenceClient(served.rows[-1]["inference_gateway"], keys["inference_admin_key"])


def command(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [*PROGRAM, *words], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(served: Served, session: str) -> list[str]:
    key = json.loads((served.run_dir / "keys.json").read_text())["agent_admin_key"]
    url = f"{served.rows[-1]['agent_gateway']}/sessions/{session}/history"
    answer = httpx.get(url, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=60)
    return [
        row["content"]
        for row in answer.json()["messages"]
        if row["role"] == "user" and not row.get("synthetic")
    ]


async def until_version(trainer: InferenceClient, version: int) -> None:
    async with asyncio.timeout(STEP_S):
        while (await trainer.status()).served_version != version:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_stack_goes_on_from_a_restored_run(tmp_path: Path) -> None:
    folder = copy_old_run(tmp_path / "copy")
    archive, restored = tmp_path / "backup.tar", tmp_path / "restored" / "run"
    with served(folder, folder / "run-dir") as stack:
        async with trainer_of(stack) as trainer:
            await trainer.resume()  # one episode had been scored while training was paused
            await until_version(trainer, 4)
        said = command(folder, "backup", str(archive))
        assert "3 checkpoints" in said
        before = asked(stack, "ada")
    said = command(folder, "restore", str(archive), f"run.dir={restored}")
    assert f"restored {restored}" in said

    with served(folder, restored) as stack:
        assert asked(stack, "ada") == before == ["Greet Ada.", "And Grace: 数 😀", "A last one."]
        async with trainer_of(stack) as trainer:
            status = await trainer.status()
            assert (status.served_version, status.notices) == (4, ())
            session = await trainer.start_session("greet")
            hello = [{"role": "user", "content": "Hello."}]
            await trainer.chat(session.api_key, hello, max_tokens=4)
            await trainer.set_reward(1.0, session_id=session.session_id)
            await until_version(trainer, 5)
            steps = await trainer.steps()
            assert [step.policy_version for step in steps] == [1, 2, 3, 4, 5]
            trained = [episode for step in steps for episode in step.episode_ids]
            assert len(trained) == len(set(trained)) == 6
