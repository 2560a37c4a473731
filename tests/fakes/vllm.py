"""A server that answers as vLLM does, with tokens that are counted instead of sampled.

The next token is ``(first prompt token + position + shift) % VOCABULARY``; the weights' shift is
the number that ends an adapter's name, or a checkpoint's. As a program it stands for
``python -P -m vllm.entrypoints.openai.api_server``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

VOCABULARY = 61
METRICS = """\
# HELP vllm:num_requests_waiting Number of requests waiting.
vllm:num_requests_waiting{engine="0",model_name="base"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="base"} 0.25
vllm:prefix_cache_hits_total{engine="0",model_name="base"} 30.0
vllm:prompt_tokens_total{engine="0",model_name="base"} 50.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1.0
"""


def number_of(name: str) -> int:
    """Return the number that a version's name ends with; 0 for none."""
    digits = name.rsplit("-", 1)[-1].rsplit("_", 1)[-1]
    return int(digits) if digits.isdigit() else 0


@dataclass
class FakeVllm:
    """Its state, and what it was asked."""

    base: str = "base-1"
    """Name of the base model."""
    adapters: dict[str, str] = field(default_factory=dict)
    """Loaded adapters and their directories."""
    weights: str = ""
    """Directory of the full weights in place."""
    reloaded: list[str] = field(default_factory=list)
    """Directories of full weights, in the order in which they were asked for."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Completions that were asked for."""
    num_hung_up: int = 0
    """Completions whose client went away."""
    num_cache_resets: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    """Streams wait for it after ``hold_at`` tokens."""
    hold_at: int = 10_000
    break_off_at: int = 10_000
    """Streams end without a word after so many tokens."""
    refuse_weights: bool = False
    """Whether loading anything fails."""

    @property
    def app(self) -> Starlette:
        def route(path: str, call: Any, method: str = "POST") -> Route:
            return Route(path, call, methods=[method])

        return Starlette(
            routes=[
                route("/health", self._health, "GET"),
                route("/metrics", self._metrics, "GET"),
                route("/v1/models", self._models, "GET"),
                route("/v1/completions", self._complete),
                route("/v1/load_lora_adapter", self._load_adapter),
                route("/v1/unload_lora_adapter", self._unload_adapter),
                route("/collective_rpc", self._reload),
                route("/reset_prefix_cache", self._reset),
                route("/pause", self._nothing),
                route("/resume", self._nothing),
            ]
        )

    def restart(self, base: str) -> None:
        """Forget what a server forgets that is started again."""
        self.base, self.adapters, self.weights = base, {}, ""

    async def _health(self, _: Request) -> Response:
        return Response()

    async def _metrics(self, _: Request) -> Response:
        return PlainTextResponse(METRICS)

    async def _models(self, _: Request) -> Response:
        rows: list[dict[str, Any]] = [{"id": self.base, "max_model_len": 64, "parent": None}]
        rows += [{"id": name, "parent": self.base} for name in self.adapters]
        return JSONResponse({"object": "list", "data": rows})

    async def _load_adapter(self, request: Request) -> Response:
        body = await request.json()
        if self.refuse_weights:
            return JSONResponse({"error": {"message": "no such adapter"}}, 400)
        self.adapters[body["lora_name"]] = body["lora_path"]
        return PlainTextResponse("Success")

    async def _unload_adapter(self, request: Request) -> Response:
        del self.adapters[(await request.json())["lora_name"]]
        return PlainTextResponse("Success")

    async def _reload(self, request: Request) -> Response:
        path = (await request.json())["kwargs"]["weights_path"]
        self.reloaded.append(path)
        if self.refuse_weights and "policy" in path:
            return JSONResponse({"error": {"message": "weights do not fit"}}, 500)
        self.weights = path
        return JSONResponse({"results": [None]})

    async def _reset(self, _: Request) -> Response:
        self.num_cache_resets += 1
        return Response()

    async def _nothing(self, _: Request) -> Response:
        return Response()

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        if body["model"] != self.base and body["model"] not in self.adapters:
            message = f"The model `{body['model']}` does not exist."
            return JSONResponse({"error": {"message": message, "code": 404}}, 404)
        self.requests.append(body)
        shift = number_of(body["model"] if body["model"] != self.base else self.weights)
        return StreamingResponse(self._stream(body, shift), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any], shift: int) -> AsyncIterator[str]:
        prompt = body["prompt"]
        try:
            for index in range(body["max_tokens"]):
                if index == self.hold_at:
                    await self.gate.wait()
                if index == self.break_off_at:
                    return
                token = (prompt[0] + len(prompt) + index + shift) % VOCABULARY
                stops = token in body["stop_token_ids"]
                last = index == body["max_tokens"] - 1
                top = {f"token_id:{token}": -0.5, "token_id:0": -1.0, "token_id:1": -2.0}
                choice = {
                    "token_ids": [token],
                    "logprobs": {
                        "token_logprobs": [-0.5],
                        "top_logprobs": [top] if body["logprobs"] else [None],
                    },
                    "finish_reason": "stop" if stops else "length" if last else None,
                }
                yield f"data: {json.dumps({'choices': [choice]})}\n\n"
                await asyncio.sleep(0)
                if stops:
                    break
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            self.num_hung_up += 1
            raise


@contextlib.asynccontextmanager
async def serving(fake: FakeVllm) -> AsyncIterator[str]:
    """Serve a fake on a free port of this machine; yield its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(fake.app, log_level="warning", lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        fake.gate.set()
        server.should_exit = True
        await task


def main() -> None:
    """Serve on the Unix socket that the command line names, as vLLM does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--uds", type=Path, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--model", type=Path, required=True)
    args, _ = parser.parse_known_args()
    print("(APIServer pid=1) INFO 01-01 00:00:00 [loader.py:1] Loading weights", flush=True)
    if (args.model / "broken").exists():
        print("ValueError: these weights are broken", flush=True)
        sys.exit(1)
    uvicorn.run(FakeVllm(base=args.served_model_name).app, uds=str(args.uds), log_level="warning")


if __name__ == "__main__":
    main()
