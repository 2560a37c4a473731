"""The commands say things in one way: titles, units, error lines, the episode that is judged."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fakes.inference import ADMIN_KEY, Gateway, running_gateway

from hermes_tui.cli.connect import Gateway as Found
from hermes_tui.cli.main import cli, main
from hermes_tui.cli.stack import training_words
from hermes_tui.config.paths import RunDir
from hermes_tui.core.units import size


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    async with running_gateway(tmp_path, port=0) as gateway:

        async def the_running_stack(invocation: object, url: str | None, key: str | None) -> Found:
            return Found(url=gateway.url, key=key or ADMIN_KEY)

        monkeypatch.setattr("hermes_tui.cli.sessions.inference_gateway", the_running_stack)
        for name in ("ADMIN_KEY", "SESSION_API_KEY", "REWARD"):
            monkeypatch.delenv(name, raising=False)
        yield gateway


async def run(*args: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli, args)


async def test_row_24_the_list_of_sessions_has_titles(gateway: Gateway) -> None:
    session_id, key = await gateway.session("chat")
    await gateway.chat(key, "Greet  Ada\nin one sentence")
    lines = (await run("session", "list")).output.splitlines()
    assert lines[0].split() == ["SESSION", "STARTED", "STATE", "TASK", "TOPIC", "TITLE"]
    assert lines[1].startswith(session_id)
    assert lines[1].endswith("chat        chat        Greet Ada in one sentence")


async def test_a_topic_can_be_seen_and_set(gateway: Gateway) -> None:
    session_id, key = await gateway.session("chat")
    await gateway.chat(key, "Write a poem")
    assert " writing " in (await run("session", "list")).output
    done = await run("session", "topic", session_id, "rhymes")
    assert done.output == f"{session_id} is about rhymes\n"
    assert " rhymes " in (await run("session", "list")).output
    refused = await run("session", "topic", session_id, "a#b")
    assert refused.exit_code == 2
    assert "without #" in refused.output


async def test_the_list_of_sessions_says_how_they_ended(gateway: Gateway) -> None:
    store = gateway.store.sessions
    await gateway.session()
    store.end_idle(time.time() + 1.0)
    asked, _ = await gateway.session()
    store.end(asked)
    await gateway.session()
    lines = (await run("session", "list")).output.splitlines()
    assert [line[51:62].strip() for line in lines] == ["STATE", "timed out", "ended", "open"]


async def test_row_24_a_reward_without_a_key_judges_the_last_episode_and_says_which(
    gateway: Gateway,
) -> None:
    _, first = await gateway.session()
    _, second = await gateway.session()
    await gateway.chat(second, "Second")
    await gateway.chat(first, "First")
    done = await run("reward", "--reward", "0.35", "--feedback", "too long")
    assert done.exit_code == 0, done.output
    said = done.output.splitlines()
    assert said[0].startswith("judging episode 1 of “First”: ep-")
    assert said[1].startswith("Reward 0.35 applied to ep-")
    (episode,) = [row for row in gateway.store.episodes.summaries() if row.reward is not None]
    assert (episode.reward, episode.feedback) == (0.35, "too long")
    shown = await run("session", "show", episode.session_id)
    assert "reward +0.35 (“too long”)" in shown.output


async def test_row_24_without_an_episode_there_is_nothing_to_judge(gateway: Gateway) -> None:
    done = await run("reward")
    assert "there is no episode to judge" in str(done.exception)


@pytest.mark.parametrize("args", [["status", "--nope"], ["nope"], ["session", "end"]])
def test_row_24_each_mistake_is_one_error_line(
    args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(args)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "--help`" in line


def test_row_24_check_lists_every_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hermes.toml").write_text(
        "[training]\nbatch_size = 'one'\n[services.pairs]\ncout = 2\n[tui]\ntheme = 'none'\n"
    )
    with pytest.raises(SystemExit) as ended:
        main(["config", "check"])
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"error: {tmp_path}/hermes.toml:") for line in lines)
    for part in ("batch_size must be", "unknown key services.pairs.cout", "no theme “none”"):
        assert sum(part in line for line in lines) == 1


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(0, "–"), (999, "1 kB"), (50_000_000, "50 MB"), (1.2e9, "1.2 GB")]
)
def test_row_24_sizes_have_one_unit(num_bytes: float, text: str) -> None:
    assert size(num_bytes) == text


async def test_status_says_what_the_trainer_does_and_how_far_the_last_score_moved(
    gateway: Gateway, tmp_path: Path
) -> None:
    run_dir = RunDir(tmp_path)
    keys = {"agent_admin_key": "a", "inference_admin_key": ADMIN_KEY, "control_key": "c"}
    run_dir.keys.write_text(json.dumps(keys))
    row = {"step": 1, "policy_version": 1, "episode_ids": [], "moved_nats": 0.5, "num_praised": 1}
    gateway.store.steps.commit({**row, "warnings": {"length": "replies shrink"}}, [], {})
    words = await training_words(run_dir, gateway.url)
    assert words[0][0] == "training"
    assert words[1:] == [
        ("last step", "v1 says these more readily: +0.50 a token"),
        ("watch", "replies shrink"),
    ]
    assert await training_words(run_dir, "http://127.0.0.1:9") == [], "its process says so"
