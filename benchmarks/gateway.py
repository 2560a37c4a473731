"""What the inference gateway costs over HTTP with keep-alive, in front of a scripted engine.

    python benchmarks/gateway.py [--rounds N]

One stream: the engine answers at once, so the whole time of a completion is the gateway's. 64
streams: the engine gives every request a token per step of 10 ms (6,400 tokens/s); its rate is
compared with that of the same engine without a gateway. Then the engine answers at once again,
which shows the most tokens per second that the gateway can pass on. The server is a process of its
own and writes to a real database; its tokenizer is the embedded model's. Prints a table and, last,
one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from fakes.engine import FakeEngine, FakeOrchestrator  # noqa: E402
from outcome import at_least, at_most, print_outcome  # noqa: E402

KEY = "admin-key-of-the-benchmark"
TOKENS_ONE, TOKENS_MANY, STREAMS = 32, 128, 64
COMPLETIONS = 100
"""Completions per round at one stream, half of them streamed."""

STEP_S = 0.010
"""Duration of a step of the paced engine."""

ROUNDS_MANY = 2
"""Completions per stream, one after the other."""


class ScriptedEngine(FakeEngine):
    """Gives every request the same tokens; with a pace, one token per step to all of them."""

    def __init__(self, token_ids: Sequence[int], step_s: float) -> None:
        super().__init__(max_model_len=8192)
        self._outputs = [_output(token_id, None) for token_id in token_ids]
        self._last = _output(token_ids[-1], "length")
        self._step_s = step_s
        self._stepped = asyncio.Event()

    async def run_steps(self) -> None:
        """Step forever on schedule.

        A real engine steps in its own thread or process and does not wait for the gateway. So a
        late step is followed by shorter pauses.
        """
        at = time.monotonic()
        while True:
            at += self._step_s
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            stepped, self._stepped = self._stepped, asyncio.Event()
            stepped.set()

    async def generate(self, prompt_token_ids: Sequence[int], sampling: Any) -> AsyncIterator[Any]:
        for position in range(sampling.max_tokens):
            if self._step_s:
                await self._stepped.wait()
            last = position == sampling.max_tokens - 1
            yield self._last if last else self._outputs[position % len(self._outputs)]


def _output(token_id: int, finish_reason: Any) -> Any:
    from hermes_tui_training.engine.base import EngineOutput

    return EngineOutput(
        token_ids=(token_id,), logprobs=(-0.5,), policy_versions=(0,), finish_reason=finish_reason
    )


async def serve(directory: Path, step_s: float) -> None:
    """Run the server: print the port, serve until standard input ends."""
    import uvicorn
    from pydantic import SecretStr

    from hermes_tui_common.serving import ServeConfig, bind
    from hermes_tui_training.api.config import ModelConfig, TrainerRole, TrainingConfig
    from hermes_tui_training.chat_template.renderer import Chat
    from hermes_tui_training.inference_gateway.app import create_app
    from hermes_tui_training.models.prepare import prepare_model
    from hermes_tui_training.store.store import Store

    config = TrainerRole(
        serve=ServeConfig(name="trainer"),
        admin_key=SecretStr(KEY),
        model=ModelConfig(),
        training=TrainingConfig(train_truncated=True),
        database=directory / "trajectories.db",
        checkpoints=directory / "checkpoints",
        learner_run_file=directory / "learner.json",
    )
    chat = Chat.load(prepare_model(config.model.path, lambda line: None), config.model)
    token_ids = chat.tokenizer.encode("Every good answer begins with a question, and ends there. ")
    engine = ScriptedEngine(token_ids, step_s)
    store = Store(config.database)
    app = create_app(config, store=store, engine=engine, chat=chat, orchestrator=FakeOrchestrator())
    sock = bind(ServeConfig(name="trainer", port=0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    stepping = asyncio.create_task(engine.run_steps()) if step_s else None
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    print(sock.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving
    if stepping is not None:
        stepping.cancel()
    store.close()


async def own_rate(step_s: float) -> float:
    """Return the tokens per second of the paced engine without a gateway."""

    async def consume(engine: ScriptedEngine) -> None:
        from hermes_tui_training.engine.base import SamplingParams

        for _ in range(ROUNDS_MANY):
            async for _output in engine.generate([1], SamplingParams(max_tokens=TOKENS_MANY)):
                pass

    engine = ScriptedEngine([5], step_s)
    stepping = asyncio.create_task(engine.run_steps())
    began = time.perf_counter()
    await asyncio.gather(*(consume(engine) for _ in range(STREAMS)))
    rate = STREAMS * ROUNDS_MANY * TOKENS_MANY / (time.perf_counter() - began)
    stepping.cancel()
    return rate


class Server:
    """A server process, and its client."""

    def __init__(self, directory: Path, step_s: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(directory), str(step_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.key = self._post("/rl/start_session", {"task_id": "t"}, KEY)["api_key"]

    def _post(self, path: str, body: Any, key: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, json.dumps(body), {"Authorization": f"Bearer {key}"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def session(self) -> str:
        """Return the key of a new session."""
        key: str = self._post("/rl/start_session", {"task_id": "t"}, KEY)["api_key"]
        return key

    def one_stream(self) -> dict[str, list[float]]:
        """Return milliseconds per completion, streamed and not, on one connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        key = self.session()
        times: dict[str, list[float]] = {"json": [], "stream": []}
        for number in range(COMPLETIONS):
            name = "stream" if number % 2 else "json"
            body = _body(TOKENS_ONE, stream=name == "stream")
            began = time.perf_counter()
            connection.request(
                "POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {key}"}
            )
            text = connection.getresponse().read()
            times[name].append((time.perf_counter() - began) * 1000)
            assert b'"finish_reason"' in text, text[:200]
        connection.close()
        return times

    async def many_streams(self) -> float:
        """Return tokens per second over 64 streams."""
        keys = [self.session() for _ in range(STREAMS)]
        began = time.perf_counter()
        await asyncio.gather(*(self._client(key) for key in keys))
        return STREAMS * ROUNDS_MANY * TOKENS_MANY / (time.perf_counter() - began)

    async def _client(self, key: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = _body(TOKENS_MANY, stream=True)
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"
            f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        for _ in range(ROUNDS_MANY):
            writer.write(head.encode() + body)
            await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()

    def stop(self) -> None:
        """Stop the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _body(max_tokens: int, *, stream: bool) -> bytes:
    messages = [
        {"role": "system", "content": "You are Hermes, an agent that helps."},
        {"role": "user", "content": "Say hello to Ada, please."},
    ]
    return json.dumps(
        {"model": "policy", "messages": messages, "max_tokens": max_tokens, "stream": stream}
    ).encode()


def _measured(directory: Path, rounds: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"json": [], "stream": []}
    own, through, most = [], [], []
    instant, paced = Server(directory / "a", 0.0), Server(directory / "b", STEP_S)
    try:
        instant.one_stream()  # warm-up
        for _ in range(rounds):
            for name, values in instant.one_stream().items():
                times[name] += values
            own.append(asyncio.run(own_rate(STEP_S)))
            through.append(asyncio.run(paced.many_streams()))
            most.append(asyncio.run(instant.many_streams()))
    finally:
        instant.stop()
        paced.stop()
    shares = [a / b for a, b in zip(through, own, strict=True)]
    return {
        "added_ms_json": statistics.median(times["json"]),
        "added_ms_stream": statistics.median(times["stream"]),
        "added_ms": statistics.median(times["json"] + times["stream"]),
        "engine_tokens_per_s": statistics.median(own),
        "gateway_tokens_per_s": statistics.median(through),
        "rate_share": statistics.median(shares),
        "most_tokens_per_s": statistics.median(most),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        import uvicorn

        # The event loop that the product serves on: uvloop where it is installed.
        loop_factory = uvicorn.Config("").get_loop_factory()
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(serve(Path(options.serve[0]), float(options.serve[1])))
        return
    with tempfile.TemporaryDirectory() as directory:
        figures = _measured(Path(directory), options.rounds)
    print(f"one stream, {TOKENS_ONE} tokens: median ms that the gateway adds to a completion")
    print(f"  as JSON     {figures['added_ms_json']:8.2f}")
    print(f"  streamed    {figures['added_ms_stream']:8.2f}")
    print(f"{STREAMS} streams: tokens per second")
    print(f"  engine alone           {figures['engine_tokens_per_s']:8.0f}")
    print(f"  through the gateway    {figures['gateway_tokens_per_s']:8.0f}", end="")
    print(f"  ({figures['rate_share']:.0%})")
    print(f"  at most, without pace  {figures['most_tokens_per_s']:8.0f}")
    targets = [
        at_most("added to a completion at one stream, median ms", figures["added_ms"], 3.0),
        at_least(
            f"tokens/s at {STREAMS} streams, gateway over engine alone", figures["rate_share"], 0.9
        ),
    ]
    print_outcome("gateway", figures, targets)


if __name__ == "__main__":
    main()
