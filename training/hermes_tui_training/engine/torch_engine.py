"""The torch engine: one thread computes, coroutines talk to it.

The thread owns the model, the caches and the requests. Coroutines put requests and calls into
queues, which it reads between two steps. It returns sampled tokens once per step.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from hermes_tui_common.errors import ConfigError, TrainingError
from hermes_tui_common.heartbeat import working
from hermes_tui_training.api.config import ModelConfig, TrainingConfig
from hermes_tui_training.chat_template.detokenizer import TokenTexts
from hermes_tui_training.engine.base import EngineOutput, EngineStats, SamplingParams
from hermes_tui_training.engine.decoder import Chunk, Decoder
from hermes_tui_training.engine.grammar import Grammars, Matcher
from hermes_tui_training.engine.llama import LlamaDecoder, LlamaShape
from hermes_tui_training.engine.request import Delivery, Request, StopTexts
from hermes_tui_training.engine.scheduler import Scheduler
from hermes_tui_training.engine.transformers_decoder import TransformersDecoder
from hermes_tui_training.engine.weight_loader import read_checkpoint

logger = logging.getLogger(__name__)

_RATE_WINDOW_S = 5.0
"""Window of ``tokens_per_s``."""

_JOIN_S = 30.0
"""Wait this long for the current step when the engine stops."""


class TorchEngine:
    """Samples on one CPU or GPU, many completions at once; see ``Engine``."""

    backend = "torch"

    def __init__(self, config: TrainingConfig, model: ModelConfig, model_dir: Path) -> None:
        self._config = config.engine
        self._model_config = model
        self._model_dir = model_dir
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._decoder: Decoder | None = None
        self._scheduler: Scheduler | None = None
        self._token_texts: TokenTexts | None = None
        self._grammars: Grammars | None = None
        self._max_model_len = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._inbox: deque[Request] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._paused = False
        self._stopping = False
        self._rate: deque[tuple[float, int]] = deque()
        self._swapping = asyncio.Lock()

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        return self._scheduler.policy_version if self._scheduler else 0

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens; 0 before the start."""
        return self._max_model_len

    async def start(self) -> None:
        """Load the model and start the thread.

        Raises:
            ConfigError: max_model_len is more than the model's context length.
            TrainingError: the weights cannot be loaded.
        """
        self._decoder = decoder = await asyncio.to_thread(self._load)
        await asyncio.to_thread(_return_freed_memory)
        context = decoder.context_length
        if self._config.max_model_len > context:
            raise ConfigError(
                f"training.engine.max_model_len = {self._config.max_model_len} is more than the "
                f"{context} tokens of the model's context; set it to {context} or less"
            )
        self._max_model_len = self._config.max_model_len or context
        self._scheduler = Scheduler(
            decoder,
            max_num_seqs=self._config.max_num_seqs,
            prefix_cache_tokens=self._config.prefix_cache_tokens,
        )
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        logger.info("engine started backend=torch device=%s", self._device)

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams
    ) -> AsyncIterator[EngineOutput]:
        """Sample one completion.

        Raises: TrainingError: the prompt does not fit, or sampling failed.
        """
        matcher = await self._matcher(sampling)
        request = self._request(prompt_token_ids, sampling, matcher)
        self._submit(request)
        try:
            while True:
                output = await request.outputs.get()
                if isinstance(output, TrainingError):
                    raise output
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            request.aborted = True
            self._notify()

    async def swap(self, checkpoint: Path, policy_version: int) -> None:
        """Sample with a checkpoint's weights from the next token on.

        They are loaded while sampling continues, then exchanged between two steps.

        Raises: TrainingError: the weights cannot be loaded; the old ones stay in use.
        """
        async with self._swapping:
            started = time.perf_counter()
            decoder, scheduler = self._started()
            install = await asyncio.to_thread(self._prepare, decoder, checkpoint)

            def exchange() -> None:
                install()
                scheduler.weights_changed(policy_version)

            await self._between_steps(exchange)
            await asyncio.to_thread(_return_freed_memory)
            seconds = time.perf_counter() - started
            logger.info("weights swapped version=%d seconds=%.2f", policy_version, seconds)

    async def pause(self) -> None:
        """Stop sampling after the current step; requests keep their state."""
        self._paused = True
        await self._between_steps(lambda: None)

    async def resume(self) -> None:
        """Sample again after ``pause``."""
        self._paused = False
        self._notify()

    def stats(self) -> EngineStats:
        """Return the current load."""
        scheduler = self._scheduler
        since = time.monotonic() - _RATE_WINDOW_S
        counted = sum(count for at, count in list(self._rate) if at >= since)
        return EngineStats(
            num_running=scheduler.num_running if scheduler else 0,
            num_waiting=(scheduler.num_waiting if scheduler else 0) + len(self._inbox),
            paused=self._paused,
            tokens_per_s=counted / _RATE_WINDOW_S,
            cached_tokens=scheduler.num_cached_tokens if scheduler else 0,
            prefix_hit_tokens=scheduler.prefix_hit_tokens if scheduler else 0,
            prompt_tokens=scheduler.prompt_tokens if scheduler else 0,
        )

    async def stop(self) -> None:
        """End all requests with an error, stop the thread and free the model."""
        self._stopping = True
        self._notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _JOIN_S)
        self._decoder = self._scheduler = self._thread = None

    def _started(self) -> tuple[Decoder, Scheduler]:
        if self._decoder is None or self._scheduler is None or self._stopping:
            raise TrainingError("the engine is not running")
        return self._decoder, self._scheduler

    # ---- on the caller's side --------------------------------------------------------------------

    async def _matcher(self, sampling: SamplingParams) -> Matcher | None:
        self._started()
        if sampling.grammar is None or self._grammars is None:
            return None
        make = self._grammars.matcher
        return await asyncio.to_thread(make, sampling.grammar, sampling.stop_token_ids)

    def _request(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams, matcher: Matcher | None
    ) -> Request:
        decoder, _ = self._started()
        if not 0 < len(prompt_token_ids) < self._max_model_len:
            raise TrainingError(
                f"a prompt of {len(prompt_token_ids)} tokens does not fit: the model takes 1 to "
                f"{self._max_model_len - 1}"
            )
        if not 0 <= min(prompt_token_ids) <= max(prompt_token_ids) < decoder.vocab_size:
            raise TrainingError(f"a token id is outside 0 to {decoder.vocab_size - 1}")
        if sampling.stop and self._token_texts is None:
            raise TrainingError(f"stop texts need a tokenizer.json in {self._model_dir}")
        texts = [text for text in sampling.stop if text]
        watcher = StopTexts(self._token_texts, texts) if self._token_texts and texts else None
        return Request(
            prompt_token_ids,
            sampling,
            max_length=self._max_model_len,
            stop_texts=watcher,
            matcher=matcher,
        )

    def _submit(self, request: Request) -> None:
        with self._wake:
            self._inbox.append(request)
            self._wake.notify()

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    async def _between_steps(self, call: Callable[[], None]) -> None:
        """Run a call on the engine's thread between two steps, and wait for it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def run() -> None:
            try:
                call()
            except Exception as error:  # raised again in the coroutine that waits
                loop.call_soon_threadsafe(settle, error)
            else:
                loop.call_soon_threadsafe(settle, None)

        self._started()
        with self._wake:
            self._calls.append(run)
            self._wake.notify()
        await done

    # ---- what other threads do -----------------------------------------------------------------

    def _load(self) -> Decoder:
        tokenizer_file = self._model_dir / "tokenizer.json"
        if tokenizer_file.exists():
            self._token_texts = TokenTexts(Tokenizer.from_file(str(tokenizer_file)))
        dtype = self._dtype()
        config = json.loads((self._model_dir / "config.json").read_text(encoding="utf-8"))
        shape = LlamaShape.from_config(config)
        decoder: Decoder
        if shape is None:
            logger.info("model runs through transformers: slower, one sequence at a time")
            decoder = TransformersDecoder(self._model_dir, device=self._device, dtype=dtype)
        else:
            state = read_checkpoint(self._model_dir, self._model_dir)
            decoder = LlamaDecoder(shape, state, device=self._device, dtype=dtype)
        self._grammars = Grammars(tokenizer_file, decoder.vocab_size)
        # The first pass sets up libraries and buffers: the first request should not wait for that.
        decoder.forward([Chunk(token_ids=[0], cache=decoder.new_cache())])
        return decoder

    def _dtype(self) -> torch.dtype:
        name = self._model_config.dtype
        if name == "auto":
            name = "float32" if self._device.type == "cpu" else "bfloat16"
        return torch.float32 if name == "float32" else torch.bfloat16

    def _prepare(self, decoder: Decoder, checkpoint: Path) -> Callable[[], None]:
        state = read_checkpoint(self._model_dir, checkpoint)
        try:
            return decoder.prepare(state)
        except (KeyError, RuntimeError) as error:
            raise TrainingError(
                f"the weights in {checkpoint} do not fit the model: {error}"
            ) from error

    def _run(self) -> None:
        """Run the engine's thread."""
        assert self._scheduler is not None
        while self._round(self._scheduler):
            pass

    def _round(self, scheduler: Scheduler) -> bool:
        """Take new requests and calls, compute one step; return False once stopped."""
        with self._wake:
            self._wake.wait_for(lambda: self._is_due(scheduler))
            arrived, calls = list(self._inbox), list(self._calls)
            self._inbox.clear()
            self._calls.clear()
            stopping = self._stopping  # later requests are refused: see _started
        with working("one step of the engine"):
            for request in arrived:
                scheduler.add(request)
            for call in calls:
                call()
            scheduler.drop_aborted()
            if stopping:
                self._fail_all(scheduler, TrainingError("the engine was stopped"))
                return False
            if scheduler.has_work and not self._paused:
                self._step(scheduler)
        return True

    def _is_due(self, scheduler: Scheduler) -> bool:
        handed_in = bool(self._inbox or self._calls or self._stopping)
        return handed_in or (scheduler.has_work and not self._paused)

    def _step(self, scheduler: Scheduler) -> None:
        deliveries: list[tuple[Request, Delivery]] = []
        try:
            count = scheduler.step(lambda request, item: deliveries.append((request, item)))
        except Exception as error:  # such as out of memory: later requests may fit
            logger.exception("engine step failed")
            self._deliver(deliveries)
            self._fail_all(scheduler, TrainingError(f"the engine could not compute: {error}"))
            return
        self._deliver(deliveries)
        now = time.monotonic()
        self._rate.append((now, count))
        while self._rate[0][0] < now - _RATE_WINDOW_S:
            self._rate.popleft()

    def _fail_all(self, scheduler: Scheduler, error: TrainingError) -> None:
        self._deliver([(request, error) for request in scheduler.drop_all()])

    def _deliver(self, deliveries: list[tuple[Request, Delivery]]) -> None:
        """Pass a step's outputs to the event loop, waking it once."""
        if not deliveries or self._loop is None:
            return

        def put() -> None:
            for request, item in deliveries:
                request.outputs.put_nowait(item)

        try:
            self._loop.call_soon_threadsafe(put)
        except RuntimeError:  # the event loop is closed: nobody waits for these outputs
            for request, _ in deliveries:
                request.aborted = True


def _return_freed_memory() -> None:
    """Return the pages of freed weights to the system.

    glibc keeps freed pages, after a swap more than the size of the model. torch has no call for it
    (2.13; proposed in https://github.com/pytorch/pytorch/pull/192078), glibc has ``malloc_trim``.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL(None).malloc_trim(0)
