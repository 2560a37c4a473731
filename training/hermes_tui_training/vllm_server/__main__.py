"""The process that keeps a vLLM server: starts it, says how far it is, and ends with it.

``python -P -m hermes_tui_training.vllm_server --config FILE``
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from hermes_tui_common.errors import TrainingError
from hermes_tui_common.heartbeat import working
from hermes_tui_common.serving import report_stage, run_role
from hermes_tui_training.api.config import VllmRole
from hermes_tui_training.models.prepare import prepare_model
from hermes_tui_training.vllm_server.command import command, environment

POLL_S = 0.5
HEALTH_S = 2.0
"""Seconds between two looks at the server's health."""
STOP_S = 5.0
"""How long the server may take to end before it is killed."""
_STAGE_CHARS = 100
_LOG_PREFIX = re.compile(r"^(?:\(\w+ pid=\d+\) )?\w+ [\d-]+ [\d:]+ \[[^\]]*\] ")
"""What vLLM puts before a message: process, level, time, place in its source."""


class Server:
    """One vLLM server, a child of this process."""

    def __init__(self, config: VllmRole) -> None:
        self._config = config
        self._last_lines: deque[str] = deque(maxlen=20)
        self._process: asyncio.subprocess.Process | None = None
        self._output: asyncio.Task[None] | None = None
        self._is_ready = False
        self._http = httpx.AsyncClient(
            base_url="http://vllm",
            transport=httpx.AsyncHTTPTransport(uds=str(config.socket)),
            timeout=None,  # a server that never answers is the heartbeat's matter  # noqa: S113
        )

    async def start(self) -> None:
        """Start the server, and return once it answers.

        Raises: TrainingError: it ended instead; with its last error.
        """

        def progress(line: str) -> None:
            report_stage(self._config.serve, line)

        model_dir = await asyncio.to_thread(prepare_model, self._config.model.path, progress)
        progress("starting vLLM; this takes a minute or more")
        self._config.socket.parent.mkdir(mode=0o700, exist_ok=True)
        self._config.socket.unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            *command(self._config, model_dir),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment(os.environ),
            start_new_session=True,
        )
        self._output = asyncio.create_task(self._follow_output(self._process), name="vllm-output")
        while not await self._answers():
            if self._process.returncode is not None:
                await asyncio.wait({self._output}, timeout=STOP_S)  # its last words
                raise TrainingError(f"vLLM did not start: {self._last_error()}")
            await asyncio.sleep(POLL_S)
        self._config.socket.chmod(0o600)  # its folder is private already
        self._is_ready = True

    async def follow(self) -> None:
        """Watch the server; stop this process when it ends."""
        assert self._process is not None
        ended = asyncio.create_task(self._process.wait())
        while not ended.done():
            with working("an answer of vLLM to GET /health"):
                look = asyncio.create_task(self._answers())
                await asyncio.wait({look, ended}, return_when=asyncio.FIRST_COMPLETED)
                look.cancel()
            await asyncio.wait({ended}, timeout=HEALTH_S)
        print(f"error: vLLM ended: {self._last_error()}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    async def stop(self) -> None:
        """End the server, with the processes that it started: they outlive it when it is killed."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), STOP_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._output is not None:
            await asyncio.wait({self._output}, timeout=STOP_S)
        await self._http.aclose()

    async def _answers(self) -> bool:
        try:
            answer = await self._http.get("/health")
        except httpx.HTTPError:
            return False
        return answer.status_code == 200

    async def _follow_output(self, process: asyncio.subprocess.Process) -> None:
        """Pass the server's output on to the log; while it starts, show what it says it does."""
        assert process.stdout is not None
        async for raw in process.stdout:
            text = raw.decode(errors="replace").rstrip()
            print(text, file=sys.stderr, flush=True)
            said = _LOG_PREFIX.sub("", text).strip()
            if not said:
                continue
            self._last_lines.append(said)
            if not self._is_ready and said != text:
                report_stage(self._config.serve, f"vLLM: {said[:_STAGE_CHARS]}")

    def _last_error(self) -> str:
        errors = [line for line in self._last_lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        code = self._process.returncode if self._process else None
        return f"{(errors or list(self._last_lines) or [''])[-1]} (exit code {code})"


def build(config: VllmRole) -> Starlette:
    """Return the app; its lifespan is the server's."""
    server = Server(config)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            await server.start()
            watcher = asyncio.create_task(server.follow(), name="vllm-watcher")
            yield
            watcher.cancel()
        finally:
            await server.stop()

    async def health(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    return Starlette(routes=[Route("/health", health)], lifespan=lifespan)


if __name__ == "__main__":
    run_role(VllmRole, build)
