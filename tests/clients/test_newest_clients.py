"""The newest clients, in an environment of their own, against both gateways over HTTP.

``make clients`` makes the environment; it has neither torch nor this program. The lines of
docs/clients.md are run as they stand there.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.apis import CALL
from fakes.engine import Script, says
from fakes.inference import running_gateway
from fakes.roles import ADMIN_KEY, chain

from hermes_tui_training.chat_template.reply_parser import write_call

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("CLIENTS_PYTHON", ROOT / ".venv-clients" / "bin" / "python"))
PROGRAMS = Path(__file__).parent / "programs"
PERSON = '{"name": "Ada"}'
PERSON_CALL = write_call("Person", PERSON)

pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason="make clients makes the clients' environment"),
    pytest.mark.timeout(300),
]


def lines_of(client: str) -> str:
    """Return the lines that docs/clients.md shows for a client."""
    text = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(client)}\n.*?^```python\n(.*?)^```", text, re.M | re.S)
    assert found, f"docs/clients.md shows no lines for {client}"
    return found[1]


async def run(code: str, base_url: str, api_key: str) -> list[str]:
    """Return what a program prints that is run in the clients' environment."""
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environ |= {"BASE_URL": base_url, "API_KEY": api_key, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    process = await asyncio.create_subprocess_exec(
        PYTHON, "-P", "-c", code, stdout=-1, stderr=-1, env={**environ, "NO_PROXY": "127.0.0.1"}
    )
    try:
        said, errors = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, errors.decode()[-3000:]
    return said.decode().splitlines()


async def test_the_environment_has_the_clients_alone() -> None:
    code = (
        "import importlib.util as u; print([n for n in ('torch', 'hermes_tui') if u.find_spec(n)])"
    )
    assert await run(code, "", "") == ["[]"]


LINES: Sequence[tuple[str, str, str]] = [
    ("openai", "Hello Ada.", "Hello Ada."),
    ("openai, the Responses API", "Hello Ada.", "Hello Ada."),
    ("anthropic", "Hello Ada.", "Hello Ada."),
    ("langchain-openai", "Hello Ada.", "Hello Ada."),
    ("pydantic-ai", "Hello Ada.", "Hello Ada."),
    ("instructor", PERSON_CALL, "name='Ada'"),
    ("litellm", "Hello Ada.", "Hello Ada."),
]
"""Client, what the model says, what the lines print."""


@pytest.mark.parametrize(("client", "said", "printed"), LINES, ids=[row[0] for row in LINES])
async def test_the_lines_of_the_document_reach_the_model(
    tmp_path: Path, client: str, said: str, printed: str
) -> None:
    async with running_gateway(tmp_path, port=0) as gateway:
        gateway.engine.default = says(said)
        session_id, key = await gateway.session()
        assert await run(lines_of(client), f"{gateway.url}/v1", key) == [printed]
        (completion,) = (await gateway.episode(session_id))["completions"]
        assert completion["finish_reason"] in ("stop", "tool_calls")


@pytest.mark.parametrize(
    "client",
    ["openai", "openai, the Responses API", "langchain-openai", "pydantic-ai", "litellm"],
)
async def test_the_lines_of_the_document_reach_the_agent(tmp_path: Path, client: str) -> None:
    async with chain(tmp_path) as one:
        assert await run(lines_of(client), f"{one.gateway}/v1", ADMIN_KEY) == ["Greet Ada."]
        assert one.agent.seen[0].message == "Greet Ada."


HELPERS: dict[str, tuple[list[Script], list[str]]] = {
    "openai_helpers": (
        [says("Hello Ada."), says("Hello Ada."), says(PERSON), says(PERSON)],
        [
            "chat: True",
            "responses: True",
            "models: model",
            "parsed: name='Ada'",
            "parsed: name='Ada'",
        ],
    ),
    "anthropic_helpers": (
        [
            says("Hello Ada."),
            says('<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>'),
        ],
        ["stream: True end_turn", "tokens: True", "call: [('look', {'a': 1})]"],
    ),
    "langchain_helpers": (
        [says("Hello Ada."), says(PERSON_CALL), says(PERSON), says(PERSON_CALL), says("Hi.")],
        [
            "stream: Hello Ada.",
            "usage: True",
            "call: {'name': 'Ada'}",
            "json_schema name='Ada'",
            "function_calling name='Ada'",
            "responses: Hi.",
        ],
    ),
    "pydantic_ai_helpers": (
        [
            says("Hello Ada."),
            says(CALL),
            says("It is é1."),
            says(write_call("final_result", PERSON)),
            says(PERSON),
        ],
        ["stream: Hello Ada.", "tool: It is é1.", "output: name='Ada'", "native: name='Ada'"],
    ),
    "instructor_helpers": (
        [says(PERSON_CALL), says(PERSON), says(PERSON)],
        ["tool_call name='Ada'", "json_mode name='Ada'", "json_schema_mode name='Ada'"],
    ),
    "litellm_helpers": ([says("Hello Ada.")], ["stream: Hello Ada."]),
}
"""Program, what the model says to each of its requests, what it prints."""


@pytest.mark.parametrize("program", HELPERS)
async def test_the_helpers_of_the_newest_packages(tmp_path: Path, program: str) -> None:
    scripts, printed = HELPERS[program]
    async with running_gateway(tmp_path, port=0) as gateway:
        gateway.engine.scripts = list(scripts)
        _, key = await gateway.session()
        code = (PROGRAMS / f"{program}.py").read_text(encoding="utf-8")
        assert await run(code, f"{gateway.url}/v1", key) == printed
        assert gateway.engine.scripts == []


async def test_the_streams_of_the_openai_package_reach_the_agent(tmp_path: Path) -> None:
    async with chain(tmp_path) as one:
        code = (PROGRAMS / "openai_agent.py").read_text(encoding="utf-8")
        assert await run(code, f"{one.gateway}/v1", ADMIN_KEY) == [
            "chat: hello world",
            "responses: True hello world",
            "calls: ['look']",
        ]
