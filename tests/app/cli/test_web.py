"""``hermes-tui web``: the screen in browser tabs that all look at one stack."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import websockets
from fakes.served import Served, is_alive, until

from hermes_tui.cli.web_server import COOKIE, WebSettings, serve
from hermes_tui.config.settings import load_config
from hermes_tui_common.errors import ConfigError

DEADLINE_S = 60.0


class Web:
    """A running ``hermes-tui web`` over a stack."""

    def __init__(self, run_dir: Path) -> None:
        words = (f"run.dir={run_dir}", "training.enabled=false")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "hermes_tui.cli.main", "web", "--port", "0", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        )
        assert self.process.stdout
        self.link = self.process.stdout.readline().strip()
        self.errors: list[str] = []
        self._reader = threading.Thread(target=self._read_errors, daemon=True)
        self._reader.start()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?key=[\w-]{32}", self.link), self.link
        self.address = urlsplit(self.link).netloc
        self.key = self.link.partition("=")[2]

    def _read_errors(self) -> None:
        assert self.process.stderr
        self.errors += self.process.stderr

    def tabs(self) -> list[int]:
        """Return the processes of the open tabs."""
        return [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream
            stream.close()
        return code


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served.fakes(tmp_path_factory.mktemp("web")) as served:
        served.wait_for("ready")
        yield served


@pytest.fixture(scope="module")
def web(stack: Served) -> Iterator[Web]:
    web = Web(stack.run_dir)
    yield web
    assert web.stop() == 0


@asynccontextmanager
async def tab(web: Web) -> AsyncIterator[websockets.ClientConnection]:
    """Open a tab, as the page's script does."""
    headers = {"Cookie": f"{COOKIE}={web.key}", "Origin": f"http://{web.address}"}
    url = f"ws://{web.address}/ws?width=120&height=40"
    async with websockets.connect(url, additional_headers=headers) as socket:
        yield socket


async def seen(socket: websockets.ClientConnection, text: str) -> None:
    """Wait until a tab is told to draw a text."""
    drawn = b""
    async with asyncio.timeout(DEADLINE_S):
        while text.encode() not in drawn:
            data = await socket.recv()
            drawn += data if isinstance(data, bytes) else b""


def test_nobody_gets_in_without_the_link(web: Web) -> None:
    with httpx.Client(base_url=f"http://{web.address}") as http:
        assert http.get("/").status_code == 403
        assert http.get("/?key=wrong").status_code == 403
        assert http.get("/", headers={"Cookie": f"{COOKIE}=wrong"}).status_code == 403
        assert http.get("/ws").status_code == 403
        assert "open the link" in http.get("/").text
        opened = http.get(web.link)
        assert opened.status_code == 303
        cookie = opened.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        page = http.get("/")
        assert page.status_code == 200
        assert web.key not in page.text
        assert "<title>Hermes TUI · " in page.text
        assert 'querySelector(".xterm-helper-textarea")' in page.text, "the prompt has the keys"
        foreign = http.get("/ws", headers={"Origin": "http://127.0.0.1:1"})
        assert foreign.status_code == 403  # another page's script, with our cookie


async def test_every_tab_attaches_to_the_one_stack(web: Web, stack: Served) -> None:
    pids = stack.pids()
    async with tab(web) as one, tab(web) as two:
        await seen(one, "Say something to the agent")
        await seen(two, "Say something to the agent")
        tabs = web.tabs()
        assert len(tabs) == 2
        assert all(psutil.Process(pid).children() == [] for pid in tabs)  # nothing was started
    # A closed tab ends its process, and nothing else.
    assert await asyncio.to_thread(until, lambda: not any(map(is_alive, tabs)))
    assert stack.pids() == pids


async def test_keys_of_a_tab_reach_its_screen(web: Web) -> None:
    async with tab(web) as socket:
        await seen(socket, "Say something to the agent")
        await socket.send('["stdin", "\\u0011"]')  # ctrl+q
        await seen(socket, "Stop everything")
        await socket.send('["stdin", "\\r"]')
        async with asyncio.timeout(DEADLINE_S):
            await socket.wait_closed()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_an_address_that_others_reach_must_be_meant(tmp_path: Path, host: str) -> None:
    config = load_config([f"run.dir={tmp_path}"], environ={}, cwd=tmp_path)
    with pytest.raises(ConfigError, match="add --expose if that is meant"):
        serve(config, WebSettings(host=host))


def test_without_the_extra_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = load_config([f"run.dir={tmp_path}"], environ={}, cwd=tmp_path)
    with pytest.raises(ConfigError, match=r"pip install 'hermes-tui\[web\]'"):
        serve(config, WebSettings())


def test_a_port_in_use_is_one_line(tmp_path: Path, web: Web) -> None:
    config = load_config([f"run.dir={tmp_path}"], environ={}, cwd=tmp_path)
    port = int(web.address.partition(":")[2])
    with pytest.raises(ConfigError, match="give another --port"):
        serve(config, WebSettings(port=port))
