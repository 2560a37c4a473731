"""``hermes-tui export`` as a program: beside a gateway that works, and from its file alone."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.engine import encode, says
from fakes.inference import ADMIN_KEY, Gateway, running_gateway


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path, port=0) as gateway:
        gateway.engine.scripts = [says("one"), says("two"), says("three")]
        _, key = await gateway.session("greet")
        messages = [{"role": "user", "content": "Hi"}]
        for text in ("one", "two"):
            await gateway.call("POST", "/v1/chat/completions", {"messages": messages}, key=key)
            messages += [
                {"role": "assistant", "content": text},
                {"role": "user", "content": "And?"},
            ]
        await gateway.call("POST", "/rl/set_reward", {"reward": 0.5}, key=key)
        await gateway.chat(key, "unscored")
        yield gateway


async def run(*args: str | Path, key: str | None = ADMIN_KEY) -> tuple[int, str, str]:
    """Return a command's exit code and what it wrote."""
    environ = {**os.environ, "HERMES_TUI_HOME": "/nonexistent"}
    environ.pop("ADMIN_KEY", None)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "hermes_tui.cli.main",
        "export",
        *args,
        env=environ if key is None else environ | {"ADMIN_KEY": key},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_gateway_and_its_file_give_the_same(gateway: Gateway, tmp_path: Path) -> None:
    database = tmp_path / "trajectories.db"
    before = gateway.store.events.id_range()
    (code, asked, said), (offline, read, _) = await asyncio.gather(
        run(gateway.url), run("--database", database, key=None)
    )
    assert (code, offline) == (0, 0), said
    rows = [json.loads(line) for line in asked.splitlines()]
    assert [row["reward"] for row in rows] == [0.5, None]
    assert [len(row["interaction_ids"]) for row in rows] == [2, 1]
    assert sum(rows[0]["loss_mask"]) == len(encode("onetwo")) + 2
    assert "exported 2 sequences of 2 episodes" in said
    assert asked == read
    assert gateway.store.events.id_range() == before, "exporting marks nothing"


async def test_a_file_is_written_whole(gateway: Gateway, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="hermes-tui[export] is not installed")
    output = tmp_path / "out" / "rows.parquet"
    args = ("--format", "parquet", "-o", output)
    code, _, said = await run(gateway.url, *args)
    assert code == 2
    assert "cannot write" in said
    output.parent.mkdir()
    code, _, said = await run(gateway.url, *args, "--state", "scored", "--style", "individual")
    assert code == 0, said
    assert parquet.read_table(output).column("reward").to_pylist() == [0.5, 0.5]
    assert list(output.parent.iterdir()) == [output]
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("args", "code", "text"),
    [
        (("--state", "trained"), 2, "no recorded episode matches"),
        (("--episode-id", "ep-none"), 1, "no such episode"),
        (("--format", "parquet"), 2, "--output"),
        (("--format", "csv"), 2, "csv"),
        (("--database", "x.db"), 2, "--database and a gateway's URL exclude"),
    ],
)
async def test_what_cannot_be_exported_is_said(
    gateway: Gateway, args: tuple[str, ...], code: int, text: str
) -> None:
    found, out, said = await run(gateway.url, *args)
    assert (found, out) == (code, "")
    assert text in said
    assert "Traceback" not in said


async def test_a_file_is_only_read(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        _, key = await gateway.session()
        await gateway.chat(key)
    database = tmp_path / "trajectories.db"
    before = database.read_bytes()
    code, out, said = await run("--database", database, key=None)
    assert code == 0, said
    assert len(out.splitlines()) == 1
    assert database.read_bytes() == before


async def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    for version, text in ((0, "older version"), (999, "newer version")):
        database = tmp_path / f"{version}.db"
        connection = sqlite3.connect(database)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("CREATE TABLE t (x)")
        connection.close()
        code, _, said = await run("--database", database, key=None)
        assert (code, text in said) == (2, True), said
    code, _, said = await run("--database", tmp_path / "none.db", key=None)
    assert code == 2
    assert "cannot open the database" in said
    assert not (tmp_path / "none.db").exists()
