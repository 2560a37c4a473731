"""Asks every version the same questions, so that a person sees whether it gets better.

Greedy, so that a change is the weights' doing. Low priority: it begins when the engine has nothing
else to do, its questions share their decode steps with whatever comes then, and it gives up when a
newer version arrives. Nothing of it belongs to a session, and nothing is trained.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes_tui_common.errors import HermesTuiError
from hermes_tui_training.api.config import CanaryConfig
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import CanaryAnswer, CanaryStatus
from hermes_tui_training.engine.base import Engine, EngineOutput, SamplingParams
from hermes_tui_training.store.event_feed import Subscription
from hermes_tui_training.store.store import Store

if TYPE_CHECKING:  # the renderers behind it take seconds to import
    from hermes_tui_training.chat_template.renderer import Chat

logger = logging.getLogger(__name__)

_IDLE_POLL_S = 0.2
"""The engine tells nobody when it falls idle; a fifth of a second is soon enough for a canary."""


class Canary:
    """Has each served version answer ``[training.canary] prompts``, once."""

    def __init__(self, *, store: Store, engine: Engine, chat: Chat, config: CanaryConfig) -> None:
        """
        Args:
            store: where the answers go; its events say when a version is published.
            engine: started.
            chat: the model's chat format.
            config: the questions.
        """
        self._store = store
        self._engine = engine
        self._chat = chat
        self._config = config
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin with the version that is served now, unless it has answered before."""
        if self._config.prompts:
            self._task = asyncio.create_task(self._run(), name="canary")

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        with self._store.events.subscribe() as subscription:
            while True:
                version = self._engine.policy_version
                try:
                    await self._ask(version)
                except Exception:
                    # Nothing depends on the canary; the next version gets another chance.
                    logger.exception("the canary failed version=%s", version)
                if self._engine.policy_version == version:
                    await _published(subscription)

    async def _ask(self, version: int) -> None:
        known = await asyncio.to_thread(self._store.canaries.answers, version)
        answered = {answer.prompt for answer in known if answer.status == "answered"}
        questions = [
            (position, prompt)
            for position, prompt in enumerate(dict.fromkeys(self._config.prompts))
            if prompt not in answered
        ]
        while questions and self._is_current(version) and not self._is_idle():  # noqa: ASYNC110
            await asyncio.sleep(_IDLE_POLL_S)
        answers = await asyncio.gather(*(self._answer(version, *asked) for asked in questions))
        for answer in answers:
            await asyncio.to_thread(self._store.canaries.put, answer)
            logger.info(
                "canary %s version=%s position=%s tokens=%s",
                answer.status,
                version,
                answer.position,
                len(answer.token_ids),
            )

    async def _answer(self, version: int, position: int, prompt: str) -> CanaryAnswer:
        """Return the version's answer, or why there is none."""
        started = time.monotonic()
        outputs: list[EngineOutput] = []
        status: CanaryStatus = "answered"
        reason = None
        try:
            if not await self._collect(version, prompt, outputs):
                status, reason = "skipped", f"version {self._engine.policy_version} came"
        except HermesTuiError as error:
            status, reason = "failed", str(error)
        if status != "answered":
            outputs = []
        token_ids = tuple(token for output in outputs for token in output.token_ids)
        return CanaryAnswer(
            policy_version=version,
            position=position,
            prompt=prompt,
            status=status,
            reason=reason,
            text=self._text(token_ids),
            token_ids=token_ids,
            logprobs=tuple(value for output in outputs for value in output.logprobs),
            finish_reason=outputs[-1].finish_reason if outputs else None,
            seconds=time.monotonic() - started,
            at=time.time(),
        )

    async def _collect(self, version: int, prompt: str, outputs: list[EngineOutput]) -> bool:
        """Sample an answer into a list; return whether all of it is the version's own.

        Raises: HermesTuiError: the prompt does not fit, or the engine failed.
        """
        if not self._is_current(version):
            return False
        rendered = await asyncio.to_thread(self._chat.prompt, [{"role": "user", "content": prompt}])
        sampling = SamplingParams(
            max_tokens=self._config.max_tokens,
            temperature=0.0,
            stop_token_ids=self._chat.stop_token_ids,
        )
        generated = self._engine.generate(rendered.token_ids, sampling)
        try:
            async for output in generated:
                if any(made_by != version for made_by in output.policy_versions):
                    return False
                outputs.append(output)
        finally:
            await generated.aclose()  # type: ignore[attr-defined]
        return True

    def _text(self, token_ids: Sequence[int]) -> str:
        stops = self._chat.stop_token_ids
        spoken = token_ids[:-1] if token_ids and token_ids[-1] in stops else token_ids
        return str(self._chat.tokenizer.decode(list(spoken)))

    def _is_current(self, version: int) -> bool:
        return self._engine.policy_version == version

    def _is_idle(self) -> bool:
        stats = self._engine.stats()
        return not stats.paused and stats.num_running + stats.num_waiting == 0


async def _published(subscription: Subscription) -> None:
    while True:
        events, lost = await subscription.batch()
        if lost or any(event.kind == EventKind.VERSION_PUBLISHED for event in events):
            return
