"""The vLLM engine: a vLLM server samples, token ids go in and come out over its HTTP API.

Adapters are loaded under a name of their own for each version: a completion ends with the version
that it began with. Full weights are exchanged for all at once: completions in flight are cut off
between two tokens and go on with the new weights. So each token has one version, and it is known.

Facts about vLLM (0.32): the completions API takes and returns token ids (``return_token_ids``);
logprobs are those of the distribution that was sampled from, after temperature, where the server
was started with ``--logprobs-mode processed_logprobs``; adapters are loaded at run time, and
weights reloaded, only where it was started for that. ``vllm_server`` starts it so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from hermes_tui_common.errors import TrainingError, cause_of
from hermes_tui_training.api.config import TrainingConfig, VllmAddress
from hermes_tui_training.chat_template.detokenizer import TokenTexts
from hermes_tui_training.engine.base import EngineOutput, EngineStats, SamplingParams
from hermes_tui_training.engine.request import StopTexts
from hermes_tui_training.engine.vllm_answers import Load, outputs_of, read_load
from hermes_tui_training.engine.weight_loader import read_checkpoint

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
ADMIN_TIMEOUT_S = 600.0
"""A large model's weights take minutes to load."""
START_TIMEOUT_S = 60.0
"""How long the start waits for a server that is up already to answer."""
RESTART_S = 30.0
"""How long a swap waits for a server that was just started again."""
LOAD_POLL_S = 1.0
"""Seconds between two looks at the server's load."""
_RATE_WINDOW_S = 5.0
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class _Weights:
    """What completions are sampled with."""

    model: str
    """The model's name in a request: the base model's, or the adapter's."""
    policy_version: int
    checkpoint: Path | None = None
    """Where they lie; None is the base model."""


@dataclass(slots=True, eq=False)
class _Flight:
    """One completion that is being sampled."""

    weights: _Weights
    outputs: asyncio.Queue[EngineOutput | TrainingError | None] = field(
        default_factory=asyncio.Queue
    )
    """None says that it was cut off and goes on with other weights."""
    reader: asyncio.Task[None] | None = None


class VllmEngine:
    """Samples with a vLLM server that runs already; see ``Engine``.

    Args:
        config: ``[training]``.
        model_dir: Hugging Face directory of the base model, for stop texts and checks.
        address: where the server answers.
    """

    backend = "vllm"

    def __init__(self, config: TrainingConfig, model_dir: Path, address: VllmAddress) -> None:
        self._config = config.engine
        self._model_dir = model_dir
        key = address.api_key.get_secret_value()
        self._http = httpx.AsyncClient(
            base_url=address.url,
            transport=httpx.AsyncHTTPTransport(
                uds=str(address.socket) if address.socket else None,
                limits=httpx.Limits(max_connections=None),
            ),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        )
        self._weights = _Weights("", 0)
        self._base = ""
        self._max_model_len = 0
        self._vocab_size = 0
        self._token_texts: TokenTexts | None = None
        self._flights: set[_Flight] = set()
        self._loaded: set[str] = set()
        self._open = asyncio.Event()
        """Cleared while weights are exchanged or sampling is paused: new requests wait."""
        self._paused = False
        self._swapping = asyncio.Lock()
        self._restoring = asyncio.Lock()
        self._rate: deque[tuple[float, int]] = deque()
        self._load = Load()
        self._watcher: asyncio.Task[None] | None = None

    @property
    def policy_version(self) -> int:
        """Version of the weights in use."""
        return self._weights.policy_version

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus completion, in tokens; 0 before the start."""
        return self._max_model_len

    async def start(self) -> None:
        """Find the server.

        Raises: TrainingError: it does not answer, or serves no model.
        """
        await self._find_model(START_TIMEOUT_S)
        self._weights = _Weights(self._base, 0)
        config = json.loads((self._model_dir / "config.json").read_text(encoding="utf-8"))
        self._vocab_size = int(config.get("text_config", config)["vocab_size"])
        tokenizer_file = self._model_dir / "tokenizer.json"
        if tokenizer_file.exists():
            self._token_texts = TokenTexts(Tokenizer.from_file(str(tokenizer_file)))
        self._watcher = asyncio.create_task(self._watch(), name="vllm-load")
        self._open.set()
        logger.info("engine started backend=vllm model=%s", self._base)

    async def generate(
        self, prompt_token_ids: Sequence[int], sampling: SamplingParams
    ) -> AsyncIterator[EngineOutput]:
        """Sample one completion.

        Raises: TrainingError: the prompt does not fit, or the server failed.
        """
        self._check_prompt(prompt_token_ids)
        stop_texts = self._stop_texts(sampling)
        room = self._max_model_len - len(prompt_token_ids)
        left = min(sampling.max_tokens, room)
        sampled: list[int] = []
        while True:
            await self._open.wait()
            flight = _Flight(self._weights)
            now = replace(sampling, max_tokens=left - len(sampled))
            async with self._flying(flight, [*prompt_token_ids, *sampled], now):
                while (output := await flight.outputs.get()) is not None:
                    if isinstance(output, TrainingError):
                        raise output
                    output = _ended_by_text(output, stop_texts)
                    sampled += output.token_ids
                    self._rate.append((time.monotonic(), len(output.token_ids)))
                    yield output
                    if output.finish_reason is not None:
                        return

    async def swap(self, checkpoint: Path, policy_version: int) -> None:
        """Sample with a checkpoint's weights from the next completion, or token, on.

        Raises: TrainingError: the weights cannot be loaded; the old ones stay in use.
        """
        async with self._swapping:
            started = time.perf_counter()
            is_adapter = (checkpoint / "adapter_config.json").exists()
            await asyncio.to_thread(read_checkpoint, self._model_dir, checkpoint)  # is it whole?
            await self._find_model(RESTART_S)
            if is_adapter:
                weights = _Weights(f"policy-{policy_version}", policy_version, checkpoint)
                await self._load_adapter(weights)
                self._weights = weights
                await self._unload_unused()
            else:
                await self._exchange(_Weights(self._base, policy_version, checkpoint))
            seconds = time.perf_counter() - started
            logger.info("weights swapped version=%d seconds=%.2f", policy_version, seconds)

    async def pause(self) -> None:
        """Stop sampling; requests keep their state.

        Raises: TrainingError: the server has no such route, or failed.
        """
        self._paused = True
        self._open.clear()
        await self._post("/pause", params={"mode": "keep"})

    async def resume(self) -> None:
        """Sample again after ``pause``."""
        await self._post("/resume")
        self._paused = False
        self._open.set()

    def stats(self) -> EngineStats:
        """Return the current load; the server's part of it is at most a second old."""
        since = time.monotonic() - _RATE_WINDOW_S
        while self._rate and self._rate[0][0] < since:
            self._rate.popleft()
        waiting = min(self._load.num_waiting, len(self._flights))
        return EngineStats(
            num_running=len(self._flights) - waiting,
            num_waiting=waiting,
            paused=self._paused,
            tokens_per_s=sum(count for _, count in self._rate) / _RATE_WINDOW_S,
            cached_tokens=self._load.cached_tokens,
            prefix_hit_tokens=self._load.prefix_hit_tokens,
            prompt_tokens=self._load.prompt_tokens,
        )

    async def stop(self) -> None:
        """End all requests with an error. The server goes on: it has a process of its own."""
        error = TrainingError("the engine was stopped")
        for flight in list(self._flights):
            await _end(flight)
            flight.outputs.put_nowait(error)
        if self._watcher:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})
        await self._http.aclose()

    # ---- one completion --------------------------------------------------------------------------

    def _check_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        if not self._max_model_len:
            raise TrainingError("the engine is not running")
        if not 0 < len(prompt_token_ids) < self._max_model_len:
            raise TrainingError(
                f"a prompt of {len(prompt_token_ids)} tokens does not fit: the model takes 1 to "
                f"{self._max_model_len - 1}"
            )
        if not 0 <= min(prompt_token_ids) <= max(prompt_token_ids) < self._vocab_size:
            raise TrainingError(f"a token id is outside 0 to {self._vocab_size - 1}")

    def _stop_texts(self, sampling: SamplingParams) -> StopTexts | None:
        texts = [text for text in sampling.stop if text]
        if not texts:
            return None
        if self._token_texts is None:
            raise TrainingError(f"stop texts need a tokenizer.json in {self._model_dir}")
        return StopTexts(self._token_texts, texts)

    @contextlib.asynccontextmanager
    async def _flying(
        self, flight: _Flight, prompt: list[int], sampling: SamplingParams
    ) -> AsyncGenerator[None]:
        """Sample while the block runs; leaving it aborts what is left."""
        flight.reader = asyncio.create_task(self._read(flight, prompt, sampling))
        self._flights.add(flight)
        try:
            yield
        finally:
            self._flights.discard(flight)
            await _end(flight)

    async def _read(self, flight: _Flight, prompt: list[int], sampling: SamplingParams) -> None:
        """Pass a completion's outputs on. Cancelling closes the connection: vLLM aborts it."""
        try:
            try:
                await self._stream(flight, prompt, sampling)
            except _UnknownModelError:  # the server was started again
                await self._restore(flight.weights)
                flight.weights = self._weights
                await self._stream(flight, prompt, sampling)
        except TrainingError as error:
            flight.outputs.put_nowait(error)
        except httpx.HTTPError as error:
            flight.outputs.put_nowait(
                TrainingError(f"the connection to vLLM was lost ({cause_of(error)})")
            )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            flight.outputs.put_nowait(TrainingError(f"vLLM gave no valid answer: {error!r}"))

    async def _stream(self, flight: _Flight, prompt: list[int], sampling: SamplingParams) -> None:
        body = _request_of(flight.weights.model, prompt, sampling)
        async with self._http.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != 200:
                raise _refusal("a completion", answer.status_code, await answer.aread())
            ended = False
            async for line in answer.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise TrainingError(f"vLLM failed: {_message(chunk)}")
                for output in outputs_of(chunk, sampling, flight.weights.policy_version):
                    ended = ended or output.finish_reason is not None
                    flight.outputs.put_nowait(output)
        if not ended:
            raise TrainingError("vLLM ended a completion without a reason")

    # ---- weights ---------------------------------------------------------------------------------

    async def _load_adapter(self, weights: _Weights) -> None:
        body = {
            "lora_name": weights.model,
            "lora_path": str(weights.checkpoint),
            "load_inplace": True,
        }
        await self._post("/v1/load_lora_adapter", json=body)
        self._loaded.add(weights.model)

    async def _unload_unused(self) -> None:
        used = {self._weights.model, *(flight.weights.model for flight in self._flights)}
        for name in self._loaded - used:
            self._loaded.discard(name)
            try:
                await self._post("/v1/unload_lora_adapter", json={"lora_name": name})
            except TrainingError as error:  # it only takes room
                logger.warning("adapter %s not unloaded: %s", name, error)

    async def _exchange(self, weights: _Weights) -> None:
        """Cut off what is in flight, load full weights, and go on."""
        self._open.clear()
        try:
            for flight in list(self._flights):
                await _end(flight)
                flight.outputs.put_nowait(None)
            try:
                await self._reload(weights)
            except TrainingError:
                await self._reload(self._weights)  # a part of the new ones may be in place
                raise
            self._weights = weights
        finally:
            if not self._paused:
                self._open.set()

    async def _reload(self, weights: _Weights) -> None:
        directory = weights.checkpoint or self._model_dir
        kwargs = {"weights_path": str(directory)}
        await self._post("/collective_rpc", json={"method": "reload_weights", "kwargs": kwargs})
        await self._post("/reset_prefix_cache")

    async def _restore(self, lost: _Weights) -> None:
        """Bring the current weights back into a server that was started again."""
        async with self._restoring:
            if self._weights is not lost:
                return  # somebody else did, or newer ones came
            base = self._base
            await self._find_model(RESTART_S)
            if lost.checkpoint is None:
                self._weights = replace(lost, model=self._base)
            elif lost.model == base:
                self._weights = replace(lost, model=self._base)
                await self._reload(self._weights)
            else:
                await self._load_adapter(lost)
            logger.warning("vLLM was started again: version %d is back", lost.policy_version)

    # ---- the server ------------------------------------------------------------------------------

    async def _find_model(self, within_s: float) -> None:
        """Read which model is served, once the server answers."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                answer = await self._http.get("/v1/models", timeout=ADMIN_TIMEOUT_S)
                if answer.status_code != 200:
                    raise _refusal("its list of models", answer.status_code, answer.content)
                base = next(row for row in answer.json()["data"] if not row.get("parent"))
                self._base, self._max_model_len = base["id"], int(base["max_model_len"])
                return
            except httpx.HTTPError as error:
                if time.monotonic() > deadline:
                    raise TrainingError(f"vLLM does not answer ({cause_of(error)})") from error
                await asyncio.sleep(_POLL_S)
            except (ValueError, KeyError, StopIteration) as error:
                raise TrainingError(f"vLLM names no model: {error!r}") from error

    async def _post(self, path: str, **request: Any) -> None:
        try:
            answer = await self._http.post(path, timeout=ADMIN_TIMEOUT_S, **request)
        except httpx.HTTPError as error:
            raise TrainingError(f"vLLM did not do {path} ({cause_of(error)})") from error
        if answer.status_code != 200:
            raise _refusal(path, answer.status_code, answer.content)

    async def _watch(self) -> None:
        """Follow the server's load."""
        while True:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                answer = await self._http.get("/metrics", timeout=CONNECT_TIMEOUT_S)
                self._load = read_load(answer.text)
            await asyncio.sleep(LOAD_POLL_S)


class _UnknownModelError(TrainingError):
    """The server does not know the model's or adapter's name."""


def _request_of(model: str, prompt: list[int], sampling: SamplingParams) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "stream": True,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "logprobs": sampling.top_logprobs,
        "stop_token_ids": list(sampling.stop_token_ids),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "ignore_eos": True,  # what ends a completion is said by stop_token_ids
        "skip_special_tokens": False,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.grammar is not None:
        body["structured_outputs"] = {"grammar": sampling.grammar}
    return body


def _refusal(what: str, status: int, content: bytes) -> TrainingError:
    try:
        message = _message(json.loads(content))
    except (ValueError, TypeError):
        message = content[:300].decode(errors="replace")
    known = status != 404 or "does not exist" not in message
    return (TrainingError if known else _UnknownModelError)(
        f"vLLM refused {what} ({status}): {message}"
    )


def _message(body: dict[str, Any]) -> str:
    error = body.get("error", body)
    return str(error.get("message", error) if isinstance(error, dict) else error)


def _ended_by_text(output: EngineOutput, stop_texts: StopTexts | None) -> EngineOutput:
    """Return an output up to the token that completes a stop text."""
    if stop_texts is None:
        return output
    for index, token_id in enumerate(output.token_ids):
        if (text := stop_texts.feed(token_id)) is not None:
            end = index + 1
            return EngineOutput(
                token_ids=output.token_ids[:end],
                logprobs=output.logprobs[:end],
                policy_versions=output.policy_versions[:end],
                top_logprobs=output.top_logprobs[:end],
                removed_probs=output.removed_probs[:end],
                finish_reason="stop",
                stop_text=text,
            )
    return output


async def _end(flight: _Flight) -> None:
    if flight.reader is not None:
        flight.reader.cancel()
        await asyncio.wait({flight.reader})
