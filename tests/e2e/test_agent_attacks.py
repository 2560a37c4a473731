"""A real agent with a terminal that is talked into attacking its own stack, in a cage and without.

The model is scripted; gateway, worker, Hermes, its tools and the cage are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes import attack
from fakes.caged import needs_cage
from fakes.engine import FakeEngine, Script, says
from fakes.inference import Gateway, running_gateway
from fakes.roles import eventually

from hermes_tui.config.paths import RunDir
from hermes_tui.config.secrets import Keys, ensure_keys
from hermes_tui.config.settings import Config
from hermes_tui.core.stack_status import ProcessState
from hermes_tui.supervisor.cage import Confinement
from hermes_tui.supervisor.events import EventLog
from hermes_tui.supervisor.specs import TRAINER, StackPlan
from hermes_tui.supervisor.stack import Stack
from hermes_tui_common.run_file import RoleRunFile
from hermes_tui_common.serving import write_private

pytestmark = pytest.mark.timeout(300)

APPROVAL_S = 4.0
"""Long enough for an answer on a loaded machine; a question that nobody answers takes so long."""
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "sk-aws-0123456789",
    "GITHUB_TOKEN": "sk-github-0123456789",
    "OPENAI_API_KEY": "sk-openai-0123456789",
    "SSH_AUTH_SOCK": "/nowhere/agent.sock",
}


def tool(name: str, **arguments: Any) -> Script:
    """Return a script that calls a tool."""
    call = json.dumps({"name": name, "arguments": arguments})
    return says(f"<tool_call>\n{call}\n</tool_call>")


@dataclass(slots=True, kw_only=True)
class Attacked:
    """A stack whose agent attacks it."""

    stack: Stack
    keys: Keys
    run_dir: RunDir
    inference: Gateway
    client: httpx.AsyncClient
    session_key: str
    session_id: str
    asked: list[str]
    """The commands that a person was asked about."""

    async def run(self, *calls: Script, answer: str = "") -> list[str]:
        """Have the model make calls, in one turn; return what they gave.

        Args:
            answer: what the person says to each question; empty says nothing.
        """
        self.inference.engine.scripts = [*calls, says("done")]
        body = {
            "input": "go", "model": "m", "user": "u", "stream": True,
            "inf_base_url": self.inference.url, "session_api_key": self.session_key,
        }  # fmt: skip
        results = []
        async with self.client.stream("POST", "/v1/responses", json=body) as events:
            assert events.status_code == 200, await events.aread()
            async for line in events.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if event["type"] == "response.function_call_output":
                    results.append(event["output"])
                elif event["type"] == "response.approval_requested":
                    self.asked.append(event["command"])
                    if answer:
                        path = f"/sessions/agent:m:u/approvals/{event['approval_id']}"
                        await self.client.post(path, json={"choice": answer})
                assert event["type"] != "response.failed", event
        assert len(results) == len(calls)
        return results

    async def shell(self, command: str, *, answer: str = "") -> dict[str, Any]:
        """Run a command with the terminal tool."""
        (result,) = await self.run(tool("terminal", command=command), answer=answer)
        return dict(json.loads(result))

    @property
    def workdir(self) -> Path:
        (folder,) = self.run_dir.work.iterdir()
        return folder

    @property
    def worker_pid(self) -> int:
        pid = self.stack.process("worker-0").pid
        assert pid
        return pid


@contextlib.asynccontextmanager
async def attacked(root: Path, cage: str, network: str = "host") -> AsyncIterator[Attacked]:
    agent = {
        "cage": cage,
        "network": network,
        "enabled_toolsets": ["terminal", "file"],
        "approval_timeout_s": APPROVAL_S,
        "max_tokens": 20_000,
    }
    config = Config.model_validate(
        {"run": {"dir": str(root)}, "training": {"enabled": False}, "services": {"agent": agent}}
    )
    run_dir = RunDir.of(config)
    run_dir.create()
    keys = ensure_keys(run_dir, config)
    confinement = Confinement.of(config.services.agent)
    plan = StackPlan(config=config, run_dir=run_dir, keys=keys, confinement=confinement)
    engine = FakeEngine(max_model_len=400_000)
    async with contextlib.AsyncExitStack() as exits:
        inference = await exits.enter_async_context(
            running_gateway(root / "gateway", engine=engine, port=0)
        )
        port = int(inference.url.rpartition(":")[2])
        own = RoleRunFile(
            name=TRAINER, pid=os.getpid(), url=inference.url, started_at=time.time(),
            host="127.0.0.1", port=port, instance="",
        )  # fmt: skip
        write_private(run_dir.run_file(TRAINER), own.model_dump_json())
        session_id, session_key = await inference.session()
        environ = {**os.environ, **SECRETS}
        stack = await exits.enter_async_context(Stack(plan, EventLog(), environ))
        await stack.start()
        gateway = stack.process("agent-gateway").url
        headers = {"Authorization": f"Bearer {keys.agent_admin_key}"}
        assert gateway
        client = await exits.enter_async_context(
            httpx.AsyncClient(base_url=gateway, headers=headers, timeout=60)
        )
        yield Attacked(
            stack=stack, keys=keys, run_dir=run_dir, inference=inference, client=client,
            session_key=session_key, session_id=session_id, asked=[],
        )  # fmt: skip


async def attack_from_within(one: Attacked) -> dict[str, Any]:
    """Have the agent write the attack and run it; return what it got."""
    text = Path(attack.__file__).read_text(encoding="utf-8")
    command = [sys.executable, "attack.py", str(one.run_dir.root), one.inference.url]
    _, result = await one.run(
        tool("write_file", path="attack.py", content=text),
        tool("terminal", command=shlex.join(command)),
    )
    (one.workdir / "attack.py").unlink()
    return dict(json.loads(json.loads(result)["output"]))


async def unjudged(one: Attacked) -> bool:
    """Return whether the session runs and its episode has no reward."""
    episode = await one.inference.episode(one.session_id)
    return episode["state"] == "open" and episode["reward"] is None


@needs_cage
async def test_in_a_cage_there_is_nothing_to_find(tmp_path: Path) -> None:
    async with attacked(tmp_path, "bubblewrap") as one:
        worker = one.stack.process("worker-0").status()
        assert (worker.state, worker.reason) == (ProcessState.READY, None)
        found = await attack_from_within(one)
        assert found["keys"] == {}
        assert found["private"] == []
        assert found["writes"] == []
        assert not set(found["environ"]) & {*SECRETS, "HERMES_UPSTREAM_API_KEY"}
        assert found["processes"] < 12  # its own: the cage, the worker, a shell or two
        assert one.asked == []
        assert await unjudged(one)

        # What a shell makes of a command does not matter: it reaches its own directory.
        done = await one.shell("mkdir dir && X=rm && $X -rf dir && ls -A")
        assert (done["exit_code"], done["output"].strip()) == (0, "")
        assert (await one.shell("cat ~/.ssh/* /root/* 2>&1; ls -A ~"))["output"].count("sk-") == 0

        await _files_stay_inside(one)
        await _no_tool_answers_a_question(one)

        # The end of the worker ends all that is in its cage; the next one comes back. What a tool
        # left for Hermes to read at its start does not count.
        await one.shell("echo HERMES_YOLO_MODE=1 > $HERMES_HOME/.env && sleep 600 &")
        pid = one.worker_pid
        os.kill(pid, 9)
        await eventually(lambda: one.stack.process("worker-0").status().restarts == 1, 30)
        process = one.stack.process("worker-0")
        await eventually(lambda: process.state is ProcessState.READY, 30)
        assert process.status().last_exit == "SIGKILL"
        assert (await one.shell("echo back"))["output"].strip() == "back"
        assert (await one.shell("rm -rf .", answer="deny"))["status"] == "blocked"
    assert not list(tmp_path.glob("run/worker-0*"))


async def test_without_a_cage_every_command_asks_and_the_worker_holds_no_key_that_judges(
    tmp_path: Path,
) -> None:
    async with attacked(tmp_path, "off") as one:
        reason = one.stack.process("worker-0").status().reason or ""
        assert "no cage" in reason
        assert 'services.agent.cage is "off"' in reason

        denied = await one.shell("mkdir dir; X=rm; $X -rf dir")
        assert denied["status"] == "blocked"
        assert one.asked == ["mkdir dir; X=rm; $X -rf dir"]
        seen = await one.shell("env; cat /proc/$PPID/environ", answer="once")
        assert not [value for value in SECRETS.values() if value in seen["output"]]
        assert "PATH=" in seen["output"]

        # A shell that was allowed once takes no further command unasked.
        shell = tool("terminal", command="sh", background=True)
        (started,) = await one.run(shell, answer="once")
        typing = {"action": "submit", "session_id": json.loads(started)["session_id"]}
        (typed,) = await one.run(tool("process", **typing, data="touch typed"))
        assert "BLOCKED" in typed
        assert one.asked.pop() == "touch typed\n"
        assert one.asked.pop() == "sh"
        assert not (one.workdir / "typed").exists()

        # All that the worker knows while a turn runs: its own key and one for completions.
        turn = asyncio.create_task(one.shell("sleep 2", answer="once"))
        await eventually(lambda: len(one.asked) == 3, 30)
        process = Path(f"/proc/{one.worker_pid}")
        held = {
            key.decode() for _, part in attack.memory(process) for key in attack.KEY.findall(part)
        }
        await turn
        assert held
        for secret in (one.session_key, *one.keys.values(), *SECRETS.values()):
            assert secret not in held
        statuses = {
            (await one.inference.call("POST", path, body, key=key)).status_code
            for key in held
            for path, body in attack.JUDGING.items()
        }
        assert statuses <= {401, 403}
        admin_doors = [one.stack.process(name).url for name in ("agent-gateway", "data-proxy-0")]
        for key in held:
            headers = {"Authorization": f"Bearer {key}"}
            for url in admin_doors:
                assert (await one.client.get(f"{url}/sessions", headers=headers)).status_code == 401
        assert await unjudged(one)

        await _files_stay_inside(one)


async def _files_stay_inside(one: Attacked) -> None:
    """Try the file tools on paths that lead out, by dots and by links."""
    outside = one.run_dir.root / "X"
    link = one.workdir / "way-out"
    link.symlink_to(one.run_dir.root)
    secret = one.run_dir.keys
    calls = [
        tool("write_file", path="../../X", content="x"),
        tool("write_file", path="way-out/X", content="x"),
        tool("write_file", path=str(outside), content="x"),
        tool(
            "patch",
            mode="patch",
            patch=f"*** Begin Patch\n*** Add File: {outside}\n+x\n*** End Patch",
        ),
        tool("read_file", path="way-out/keys.json"),
        tool("read_file", path=str(secret)),
        tool("search_files", pattern="sk-", path="way-out"),
    ]
    for result in await one.run(*calls):
        assert "outside of the session's directory" in result
    assert not outside.exists()
    kept, read = await one.run(
        tool("write_file", path="mine.txt", content="of the session"),
        tool("read_file", path="mine.txt"),
    )
    assert "error" not in json.loads(kept) or not json.loads(kept)["error"]
    assert "of the session" in read


async def _no_tool_answers_a_question(one: Attacked) -> None:
    """Leave a program behind that tries to answer; the question runs out unanswered."""
    (one.workdir / "victim").mkdir(exist_ok=True)
    url = f"{one.stack.process('worker-0').url}/session/agent%3Am%3Au/approvals/"
    code = (
        "import os,re,time,glob,urllib.request as u\n"
        "keys=set()\n"
        "end=time.time()+4\n"
        "while time.time()<end:\n"
        "  for f in glob.glob('/proc/*/environ')+glob.glob('/proc/*/mem'):\n"
        "    try: keys|=set(re.findall(rb'(?:sk|appr)-[A-Za-z0-9_-]+',open(f,'rb').read()))\n"
        "    except OSError: pass\n"
        f"  for k in keys|{{b'x'}}:\n"
        "    try:\n"
        f'      u.urlopen(u.Request({url!r}+k.decode(),b\'{{"choice":"once"}}\','
        "{'Authorization':'Bearer '+k.decode()}))\n"
        "      open('answered','w')\n"
        "    except OSError: pass\n"
        "  time.sleep(0.1)\n"
    )
    before = len(one.asked)
    _, started, refused = await one.run(
        tool("write_file", path="answer.py", content=code),
        tool("terminal", command=f"{sys.executable} answer.py", background=True),
        tool("terminal", command="rm -rf victim"),
    )
    assert json.loads(started).get("error") in (None, "")
    assert json.loads(refused)["status"] == "blocked"
    assert one.asked[before:] == ["rm -rf victim"]
    assert (one.workdir / "victim").is_dir()
    assert not (one.workdir / "answered").exists()


@needs_cage
async def test_with_a_network_of_its_own_the_agent_reaches_its_model_alone(tmp_path: Path) -> None:
    async with attacked(tmp_path, "bubblewrap", network="peers") as one:
        code = (
            "import socket\n"
            "for port in PORTS:\n"
            "  try: print('reached', socket.create_connection(('127.0.0.1', port), 2))\n"
            "  except OSError: pass\n"
            "print(socket.if_nameindex())\n"
        )
        names = ("agent-gateway", "router", "data-proxy-0", "worker-0")
        urls = [one.inference.url, *(str(one.stack.process(name).url) for name in names)]
        ports = [int(url.rpartition(":")[2]) for url in urls]
        _, result = await one.run(
            tool("write_file", path="reach.py", content=code.replace("PORTS", str(ports))),
            tool("terminal", command=f"{sys.executable} reach.py"),
        )
        assert json.loads(result)["output"].strip() == "[(1, 'lo')]"
        assert await unjudged(one)
        process = one.stack.process("worker-0")
        port = process.status().port
        os.kill(one.worker_pid, 9)
        await eventually(lambda: process.status().restarts == 1, 30)
        await eventually(lambda: process.state is ProcessState.READY, 30)
        assert process.status().port == port
        assert (await one.shell("echo back"))["output"].strip() == "back"
