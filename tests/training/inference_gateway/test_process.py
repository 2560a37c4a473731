"""The trainer as a real process on a tiny random model: start, SIGKILL, restart, refusals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.inference import ADMIN_KEY, until
from fakes.tiny_model import make_byte_model

from hermes_tui_training.api.client import InferenceClient

pytestmark = pytest.mark.timeout(300)

START_S = 90.0
"""Importing torch on a busy machine takes long."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_byte_model(tmp_path_factory.mktemp("model"))


class Trainer:
    """The trainer's process; started and killed as a test says."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.run_file = directory / "trainer.json"
        self.config_file = directory / "config.json"
        self.log = directory / "log"
        body = {
            "serve": {"name": "trainer", "run_file": str(self.run_file), "instance": "token"},
            "admin_key": ADMIN_KEY,
            "training": {},
            "database": str(directory / "trajectories.db"),
            "checkpoints": str(directory / "checkpoints"),
            "learner_run_file": str(directory / "learner.json"),
            **config,
        }
        self.config_file.write_text(json.dumps(body), encoding="utf-8")
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self) -> subprocess.Popen[bytes]:
        self.run_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "hermes_tui_training.inference_gateway"),
                    *("--config", str(self.config_file)),
                ],
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"},
            )
        return self.process

    async def start(self) -> str:
        """Start it; return its URL once it is ready."""
        process = self.spawn()
        await until(lambda: self.run_file.exists() or process.poll() is not None, START_S)
        assert process.poll() is None, self.log.read_text(encoding="utf-8")
        return str(json.loads(self.run_file.read_text(encoding="utf-8"))["url"])

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def trainer(tmp_path: Path, model: Path) -> Iterator[Trainer]:
    trainer = Trainer(tmp_path, model={"path": str(model)})
    yield trainer
    trainer.kill()


async def test_sigkill_in_the_middle_of_a_completion(trainer: Trainer) -> None:
    url = await trainer.start()
    async with httpx.AsyncClient(trust_env=False) as http:
        health = await http.get(f"{url}/health")
    assert health.headers["x-hermes-tui-instance"] == "token"
    message = {"role": "user", "content": "Hello"}
    async with InferenceClient(url, ADMIN_KEY) as client:
        started = await client.start_session("t")
        key = started.api_key
        first = await client.chat(key, [message], max_tokens=8, return_token_ids=True)
        chunks = client.chat_stream(key, [message], max_tokens=3000, logprobs=True)
        async for chunk in chunks:
            if chunk["choices"][0]["logprobs"]:
                break
        trainer.kill()
        await chunks.aclose()
    async with InferenceClient(await trainer.start(), ADMIN_KEY) as client:
        (row,) = await client.episodes(session_id=started.session_id)
        episode = await client.episode(row.episode_id)
        kept, lost = episode.completions
        assert kept.completion_id == first["id"]
        assert list(kept.token_ids) == first["choices"][0]["token_ids"]
        assert (lost.status, lost.untrainable_reason) == ("lost", "lost")
        assert lost.prompt_token_ids == kept.prompt_token_ids
        assert episode.incomplete
        assert (await client.chat(key, [message], max_tokens=2))["usage"]["completion_tokens"] <= 2


async def test_a_client_that_leaves_frees_the_real_engine(trainer: Trainer) -> None:
    async with InferenceClient(await trainer.start(), ADMIN_KEY) as client:
        started = await client.start_session("t")
        key, message = started.api_key, {"role": "user", "content": "Hello"}
        asking = asyncio.create_task(client.chat(key, [message], max_tokens=4000))
        # Recorded first, then sampled; the engine may also be busy with the canary's questions.
        async with asyncio.timeout(20):
            while not (rows := await client.episodes(session_id=started.session_id)):
                assert not asking.done()
            while (await client.status()).engine.num_running == 0:
                assert not asking.done()
        asking.cancel()
        async with asyncio.timeout(1):
            while (await client.episode(rows[0].episode_id)).completions[0].status == "running":
                pass
        async with asyncio.timeout(5):
            while (await client.status()).engine.num_running:
                pass
        (completion,) = (await client.episode(rows[0].episode_id)).completions
        assert completion.untrainable_reason == "client_left"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"model": {"path": "/no/such/model"}}, 'model.path = "/no/such/model"'),
        ({"model": {}, "database": "/dev/null/x.db"}, "cannot open the database"),
    ],
)
def test_a_start_that_cannot_be_is_one_line(
    tmp_path: Path, config: dict[str, Any], text: str
) -> None:
    trainer = Trainer(tmp_path, **config)
    try:
        assert trainer.spawn().wait(START_S) == 2
    finally:
        trainer.kill()
    log = trainer.log.read_text(encoding="utf-8")
    assert text in log.splitlines()[-1]
    assert "Traceback" not in log
    assert not trainer.run_file.exists()
