"""What the learning benchmarks share: a training run without HTTP, and an examiner of checkpoints.

Everything is real: the torch engine samples in this process, the learner is a process of its own,
the store and the orchestrator are between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from fakes.learner_process import ADMIN_KEY, LearnerProcess  # noqa: E402

from hermes_tui_common.serving import ServeConfig  # noqa: E402
from hermes_tui_training.api.config import ModelConfig, TrainerRole, TrainingConfig  # noqa: E402
from hermes_tui_training.api.types import CompletionOutcome  # noqa: E402
from hermes_tui_training.engine import Engine, SamplingParams  # noqa: E402
from hermes_tui_training.models.prepare import EMBEDDED_MODEL  # noqa: E402
from hermes_tui_training.store.store import Store  # noqa: E402
from hermes_tui_training.trainer.orchestrator import Orchestrator  # noqa: E402

TEXT = (
    "The history of the ocean is long. People have sailed across it for thousands of years, looking"
    " for food, land and trade. Today ships carry most of the goods that we use, and scientists"
    " study how the water moves heat around the planet."
)
"""A text that nothing is trained on and nothing is held by: the fixed text of every figure."""

STEP_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A sampled reply, recorded and not rewarded yet."""

    episode_id: str
    """Its episode."""
    text: str
    """Without the stop token."""
    finished: bool
    """Whether it ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One rewarded reply and its training step."""

    text: str
    """The reply."""
    reward: float
    """Its reward."""
    row: dict[str, Any] | None
    """The step's row; None if no step was made."""
    dropped_reason: str | None = None
    """Why it was not trained; None when it was."""


class Run:
    """One training run from the untrained model."""

    def __init__(
        self,
        root: Path,
        model_dir: Path,
        engine: Engine,
        config: TrainingConfig,
        *,
        temperature: float = 1.0,
        first_seed: int = 0,
    ) -> None:
        self.checkpoints = root / "checkpoints"
        self._tokenizer = AutoTokenizer.from_pretrained(model_dir)
        self._store = Store(root / "trajectories.db")
        self._engine = engine
        self._learner = LearnerProcess(root, EMBEDDED_MODEL, config, threads=None)
        self._role = TrainerRole(
            serve=ServeConfig(name="trainer"),
            admin_key=ADMIN_KEY,
            model=ModelConfig(),
            training=config,
            database=root / "trajectories.db",
            checkpoints=self.checkpoints,
            learner_run_file=self._learner.run_file,
        )
        self._temperature = temperature
        self._first_seed = first_seed
        self._count = 0
        self.peak_rss_bytes = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await asyncio.to_thread(self._learner.start)
        self._orchestrator = Orchestrator(store=self._store, engine=self._engine, config=self._role)
        await self._orchestrator.start()
        try:
            yield
        finally:
            self.peak_rss_bytes = peak_rss_bytes(self._learner.pid)
            await self._orchestrator.stop()
            await asyncio.to_thread(self._learner.kill)
            self._store.close()

    @property
    def version(self) -> int:
        return self._store.steps.policy_version()

    async def episode(
        self, question: str, max_tokens: int, judge: Callable[[str], float]
    ) -> Episode:
        """Sample a reply, reward it, and wait until it is trained or dropped."""
        before = self.version
        reply = await self.sample(question, max_tokens)
        return await self.judge(reply, judge(reply.text), after=before)

    async def judge(self, reply: Reply, reward: float, *, after: int) -> Episode:
        """Reward a reply and wait until it is trained or dropped, by a step after a version."""
        self.reward(reply, reward)
        await self.settled([reply])
        episode = self._store.episodes.get(reply.episode_id)
        rows = self._store.steps.rows(after=after)
        return Episode(
            text=reply.text,
            reward=reward,
            row=next((row for row in rows if reply.episode_id in row["episode_ids"]), None),
            dropped_reason=episode.dropped_reason,
        )

    async def sample(self, question: str, max_tokens: int, group_id: str | None = None) -> Reply:
        """Sample a reply and record it."""
        self._count += 1
        number = str(self._count)
        ids, outcome = await self._sampled(question, max_tokens, f"chatcmpl-{number}")
        session = self._store.sessions.create(
            key_hash=number, task_id="bench", group_id=group_id or number
        )
        episode_id, _ = self._store.completions.begin(
            completion_id=outcome.completion_id,
            session_id=session.session_id,
            prompt_token_ids=ids,
            sampling={"temperature": self._temperature},
            request_messages=[],
            tools=[],
            prefix={},
        )
        self._store.completions.finish(outcome)
        assert outcome.message is not None
        return Reply(
            episode_id=episode_id,
            text=outcome.message["content"],
            finished=outcome.finish_reason == "stop",
        )

    async def look(self, question: str, max_tokens: int) -> Reply:
        """Sample a reply that is not recorded."""
        self._count += 1
        _, outcome = await self._sampled(question, max_tokens, "")
        assert outcome.message is not None
        finished = outcome.finish_reason == "stop"
        return Reply(episode_id="", text=outcome.message["content"], finished=finished)

    async def _sampled(
        self, question: str, max_tokens: int, completion_id: str
    ) -> tuple[tuple[int, ...], CompletionOutcome]:
        prompt = prompt_ids(self._tokenizer, question)
        sampling = SamplingParams(
            max_tokens=max_tokens,
            temperature=self._temperature,
            seed=self._first_seed + self._count,
            stop_token_ids=(self._tokenizer.eos_token_id,),
        )
        ids, logprobs, versions, finish = [], [], [], None
        async for output in self._engine.generate(prompt, sampling):
            ids += output.token_ids
            logprobs += output.logprobs
            versions += output.policy_versions
            finish = output.finish_reason
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        outcome = CompletionOutcome(
            completion_id=completion_id,
            token_ids=ids,
            logprobs=logprobs,
            policy_versions=versions,
            finish_reason=finish,
            message={"role": "assistant", "content": text},
            latency={},
            trainable=True,
            untrainable_reason=None,
        )
        return prompt, outcome

    def reward(self, reply: Reply, reward: float) -> None:
        """Give a reply its reward, without waiting."""
        self._store.rewards.set(reply.episode_id, reward)

    async def settled(self, replies: Sequence[Reply]) -> list[str]:
        """Wait until all are trained or dropped; return their states."""
        async with asyncio.timeout(STEP_DEADLINE_S):
            while True:
                states = [str(self._store.episodes.get(r.episode_id).state) for r in replies]
                if set(states) <= {"trained", "dropped"}:
                    return states
                await asyncio.sleep(0.02)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all steps."""
        return self._store.steps.rows()

    def dropped(self, replies: Sequence[Reply]) -> dict[str, int]:
        """Return how many of the replies were dropped, by reason."""
        reasons = [self._store.episodes.get(r.episode_id).dropped_reason for r in replies]
        return {reason: reasons.count(reason) for reason in reasons if reason is not None}


class Examiner:
    """Evaluates a checkpoint with the Hugging Face libraries alone."""

    def __init__(self, model_dir: Path, checkpoint: Path | None) -> None:
        full = checkpoint is not None and not (checkpoint / "adapter_config.json").exists()
        self._tokenizer = AutoTokenizer.from_pretrained(model_dir)
        source = checkpoint if full else model_dir
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        if checkpoint is not None and not full:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # raised by peft about transformers
                model = PeftModel.from_pretrained(model, checkpoint)
        self._model = model.eval()

    @torch.no_grad()
    def perplexity(self, text: str) -> float:
        ids = torch.tensor([self._tokenizer(text)["input_ids"]])
        return math.exp(float(self._model(input_ids=ids, labels=ids).loss))

    @torch.no_grad()
    def answer(self, question: str, max_tokens: int = 16) -> str:
        ids = torch.tensor([prompt_ids(self._tokenizer, question)])
        out = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
        )
        return str(self._tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))

    @torch.no_grad()
    def begins_with(self, question: str, word: str) -> float:
        """Return the probability that the reply begins with a word."""
        ids = torch.tensor([prompt_ids(self._tokenizer, question)])
        probabilities = torch.softmax(self._model(input_ids=ids).logits[0, -1], -1)
        first = self._tokenizer(word)["input_ids"][0]
        return float(probabilities[first])


def prompt_ids(tokenizer: Any, question: str) -> tuple[int, ...]:
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def peak_rss_bytes(pid: int) -> int:
    """Return a process's peak resident memory; its current one where the system has no peak."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        return int(psutil.Process(pid).memory_info().rss)
