"""The command line: settings among the arguments, exit codes, one line per mistake."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import tomli
from click.testing import CliRunner

from hermes_tui import __version__
from hermes_tui.cli.main import cli, main
from hermes_tui.cli.overrides import Invocation, OverridesCommand, OverridesGroup
from hermes_tui.core.errors import AlreadyRunningError, NotRunningError, exit_code
from hermes_tui_common.errors import ApiError, ConfigError, ServiceError, StackError


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERMES_TUI_HOME", str(tmp_path / "home"))


def run(*args: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of the whole program."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hermes_tui.cli.main", *args],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_help_names_every_command_and_is_quick() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, out, _ = run("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # CPU time is what it takes on a quiet machine, however busy this one is.
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert code == 0
    for name in ("setup", "attach", "status", "stop", "logs", "chat", "session", "reward"):
        assert f"\n  {name} " in out
    assert cpu_s < 0.3


def test_version() -> None:
    assert run("--version") == (0, f"hermes-tui, version {__version__}\n", "")


def test_no_terminal_is_one_sentence() -> None:
    code, out, err = run()
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "--serve" in err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["config", "check", "services.pairs.cout=2"], 2, "did you mean services.pairs.count?"),
        (["--serve", "services.gateway.host=0.0.0.0"], 2, "reachable from other machines"),
        (["-c", "none.toml", "config", "check"], 2, "none.toml: cannot be read"),
        (["status"], 1, "nothing runs in"),
        (["stop"], 1, "nothing runs in"),
        (["attach"], 1, "nothing runs in"),
        (["logs", "router"], 2, "there is no log of 'router'"),
        (["agent", "status"], 1, "nothing runs in"),
    ],
)
def test_mistake_is_one_line_and_an_exit_code(args: list[str], code: int, said: str) -> None:
    got, out, err = run(*args)
    assert (got, out) == (code, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert said in err


def test_config_init_check_show(tmp_path: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(cli, ["config", "init"]).exit_code == 0
    text = (tmp_path / "hermes.toml").read_text()
    assert "# count = 1" in text
    assert isinstance(runner.invoke(cli, ["config", "init"]).exception, ConfigError)
    checked = runner.invoke(cli, ["config", "check"])
    assert checked.output.startswith(f"ok: {tmp_path / 'hermes.toml'}")
    shown = runner.invoke(cli, ["services.pairs.count=2", "config", "show", "model.path=/m"])
    values = tomli.loads(shown.output)
    assert values["services"]["pairs"]["count"] == 2
    assert values["model"]["path"] == "/m"


def test_config_init_says_what_it_found_here() -> None:
    said = CliRunner().invoke(cli, ["config", "init"]).output
    assert re.search(r" for \d+ cores?, \d+ GB of memory, .*, \d+ GB of disk free\n", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tui.theme=textual-lite"], "tui.theme: there is no theme “textual-lite”; there are ansi"),
        (["tui.keymap.score_god=z"], "tui.keymap.score_god: no such action; did you mean score_g"),
    ],
)
def test_config_check_knows_themes_and_actions(words: list[str], said: str) -> None:
    code, out, err = run(*words, "config", "check")
    assert (code, out) == (2, "")
    assert said in err


def test_no_list_of_commands_is_cut_at_80_columns() -> None:
    def groups(command: click.Command, *words: str) -> Iterator[list[str]]:
        if isinstance(command, click.Group):
            yield list(words)
            for name in command.list_commands(click.Context(command)):
                below = command.get_command(click.Context(command), name)
                assert below
                yield from groups(below, *words, name)

    for words in groups(cli):
        said = CliRunner().invoke(cli, [*words, "--help"], terminal_width=80).output
        assert "Commands:" in said
        assert [line for line in said.splitlines()[1:] if line.endswith("...")] == []


def test_doctor_names_what_is_missing_and_what_mends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_TUI_CACHE", "nothing-here")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, _ = run("doctor", f"services.gateway.port={port}")
    rows = [line.split(maxsplit=2) for line in out.splitlines() if line[:2] in ("ok", "!!")]
    found = {row[1]: row for row in rows}
    assert {"python", "textual", "torch", "cpu", "memory", "disk", "terminal"} <= set(found)
    assert found["services.gateway.port"][0] == "!!"
    assert f"{port} is in use" in out
    assert "set services.gateway.port to another port, or 0" in out
    assert found["services.router.port"] == ["ok", "services.router.port", "0: any that is free"]
    assert found["model"][0] == "!!"
    assert "-> hermes-tui setup" in out
    assert (code, out.splitlines()[-1]) == (1, "2 to fix")


def test_words_may_stand_anywhere() -> None:
    seen = {}

    @click.group(cls=OverridesGroup, invoke_without_command=True)
    @click.option("-c", "--config", "config_file")
    def group(config_file: str | None) -> None: ...

    @group.command(cls=OverridesCommand)
    @click.argument("place", default="")
    @click.option("--task-id")
    @click.option("--flag", is_flag=True)
    @click.pass_obj
    def act(invocation: Invocation, place: str, task_id: str, flag: bool) -> None:
        seen.update(words=invocation.overrides, place=place, task_id=task_id, flag=flag)

    args = ["a.b=1", "-c", "x.y=z", "act", "--flag", "c.d=2", "--task-id", "e.f=3", "here", "g.h=4"]
    result = CliRunner().invoke(group, args, catch_exceptions=False)
    assert result.exit_code == 0
    assert seen == {
        "words": ["a.b=1", "c.d=2", "g.h=4"],
        "place": "here",
        "task_id": "e.f=3",
        "flag": True,
    }


def test_serve_takes_no_command() -> None:
    result = CliRunner().invoke(cli, ["--serve", "status"])
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (StackError("x"), 3),
        (AlreadyRunningError("/x", 7), 4),
        (NotRunningError("/x"), 1),
        (ServiceError("x"), 1),
        (ApiError(404, "x"), 1),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert exit_code(error) == code  # type: ignore[arg-type]


def test_main_reports_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("error: nothing runs in ")


def test_unknown_service_name_cannot_leave_the_folder() -> None:
    code, _, err = run("agent", "status", "--service", "../../x")
    assert code == 2
    assert "no name of a service" in err
