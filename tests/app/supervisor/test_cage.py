"""Whether there is a cage, and what one shows: with bubblewrap itself."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from fakes.backend import FakeBackend, FakeClock
from fakes.caged import needs_cage
from fakes.roles import worker_role

from hermes_tui.cli.doctor import _cage
from hermes_tui.config.settings import Config
from hermes_tui.core.changes import Change, Notice
from hermes_tui.core.controller import Controller
from hermes_tui.core.models import StackInfo
from hermes_tui.supervisor import cage
from hermes_tui.supervisor.cage import Confinement
from hermes_tui.supervisor.child import child_environment
from hermes_tui_common.errors import ConfigError, StackError
from hermes_tui_services.api.config import AgentConfig
from hermes_tui_services.worker.hermes.guards import NO_CAGE, YOUR_FILES, always_asks


def agent(**settings: Any) -> AgentConfig:
    return AgentConfig.model_validate(settings)


def test_without_bubblewrap_auto_is_none_and_what_needs_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cage.sys, "platform", "linux")
    monkeypatch.setattr(cage.shutil, "which", lambda name: None)
    assert str(Confinement.of(agent())).startswith("none: bubblewrap is not installed: apt install")
    for settings in ({"cage": "bubblewrap"}, {"network": "peers"}):
        with pytest.raises(ConfigError, match="bubblewrap is not installed"):
            Confinement.of(agent(**settings))


def test_switched_off_it_is_none_and_says_so() -> None:
    assert str(Confinement.of(agent(cage="off"))) == 'none: services.agent.cage is "off"'
    with pytest.raises(ConfigError, match="needs a cage"):
        Confinement.of(agent(cage="off", network="peers"))


def test_bubblewrap_that_does_not_work_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setattr(cage.shutil, "which", lambda name: str(broken))
    assert str(Confinement.of(agent())).endswith("bwrap: No permissions to create new namespace")


def shown(tmp_path: Path, script: str, **settings: Any) -> str:
    """Return what a shell in a worker's cage prints."""
    run_dir = tmp_path / "run"
    run_dir.mkdir(exist_ok=True)
    (run_dir / "keys.json").write_text("secret")
    config = agent(**settings)
    confinement = Confinement.of(config)
    home = run_dir / "hermes" / "worker-0"
    workdir = Path(config.workdir) if config.workdir else run_dir / "work"
    made = confinement.cage(config, run_dir, home, workdir, None)
    assert made
    command = [*made.command(), "/bin/sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


@needs_cage
def test_a_path_of_the_users_shows_neither_the_run_directory_nor_the_settings(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "hermes.toml").write_text("upstream.api_key = 'secret'")
    script = (
        f"cd {tmp_path}; cat mine.txt; cat hermes.toml; ls -A run run/hermes; cat run/keys.json;"
        "touch run/work/new && echo -n written; touch mine.txt && echo ' changed'; true"
    )
    seen = shown(tmp_path, script, read_paths=[str(tmp_path)])
    assert "mine" in seen
    assert "secret" not in seen
    assert seen.splitlines()[-1] == "written"
    assert "worker-0" in seen
    seen = shown(tmp_path, script, write_paths=[str(tmp_path)])
    assert "secret" not in seen
    assert seen.splitlines()[-1] == "written changed"
    assert (tmp_path / "run" / "work" / "new").exists()


@needs_cage
def test_a_directory_for_sessions_around_the_run_directory_does_not_show_it(
    tmp_path: Path,
) -> None:
    seen = shown(
        tmp_path, f"touch {tmp_path}/new; cat {tmp_path}/run/*; true", workdir=str(tmp_path)
    )
    assert seen == ""
    assert (tmp_path / "new").exists()
    with pytest.raises(StackError, match=r"services.agent.workdir: .* holds your home"):
        shown(tmp_path, "true", workdir=str(Path.home().parent))


@needs_cage
def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    for key in ("read_paths", "write_paths"):
        with pytest.raises(StackError, match=f"services.agent.{key}: there is no /nowhere"):
            shown(tmp_path, "true", **{key: ["/nowhere"]})


@needs_cage
def test_the_system_is_read_only_and_its_secrets_are_not_there(tmp_path: Path) -> None:
    script = "cat /etc/shadow; touch /usr/x /etc/x; ls -A /run /root /tmp; cat /proc/self/status"
    seen = shown(tmp_path, f"{script}; true")
    assert "root:*" not in seen
    assert "CapBnd:\t0000000000000000" in seen
    assert "NoNewPrivs:\t1" in seen
    assert not Path("/usr/x").exists()


def test_a_worker_inherits_what_is_on_a_list_and_nothing_of_ours() -> None:
    environ = {
        "PATH": "/bin", "LC_TIME": "C", "AWS_SECRET_ACCESS_KEY": "x", "MINE": "y",
        "HERMES_TUI__RUN__DIR": "z", "ADMIN_KEY": "k",
    }  # fmt: skip
    made = child_environment(environ, "mark", (*cage.INHERITED, "MINE", "ADMIN_KEY"))
    assert {"PATH": "/bin", "LC_TIME": "C", "MINE": "y"}.items() <= made.items()
    assert not {"AWS_SECRET_ACCESS_KEY", "HERMES_TUI__RUN__DIR", "ADMIN_KEY"} & made.keys()


@pytest.mark.parametrize(
    ("inside", "write_paths", "reason"),
    [
        ("none", [], NO_CAGE),
        ("none", ["/srv"], NO_CAGE),
        ("bubblewrap", ["/srv"], YOUR_FILES),
        ("bubblewrap", [], ""),
    ],
)
def test_every_command_asks_where_it_can_do_harm(
    tmp_path: Path, inside: str, write_paths: list[str], reason: str
) -> None:
    role = worker_role(tmp_path, write_paths=write_paths).model_copy(update={"cage": inside})
    assert always_asks(role) == reason


def test_doctor_finds_fault_only_with_tools_that_nothing_keeps_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def finding(**settings: Any) -> tuple[str, bool]:
        found = _cage(Config.model_validate({"services": {"agent": settings}}))
        return found.state, bool(found.fix)

    monkeypatch.setattr(cage, "_obstacle", lambda: "it is not here")
    assert finding() == ("none: it is not here", False)
    assert finding(enabled_toolsets=["terminal"]) == ("none: it is not here", True)
    off = 'none: services.agent.cage is "off"'
    assert finding(enabled_toolsets=["terminal"], cage="off") == (off, False)
    assert finding(cage="bubblewrap") == (
        'services.agent.cage = "bubblewrap": it is not here',
        True,
    )
    monkeypatch.setattr(cage, "_obstacle", lambda: "")
    monkeypatch.setattr(cage.shutil, "which", lambda name: "/usr/bin/bwrap")
    assert finding(enabled_toolsets=["terminal"]) == ("bubblewrap, network: host", False)


@pytest.mark.parametrize(
    ("in_force", "warned"), [("none: it is not here", 1), ("bubblewrap, network: host", 0), ("", 0)]
)
async def test_the_person_is_warned_before_the_first_tool_call(in_force: str, warned: int) -> None:
    backend = FakeBackend(FakeClock())
    controller = Controller(backend, clock=backend.clock)
    await controller.start(lambda _: None)
    controller.state.info = StackInfo(run_dir="/x", training=True, model="m", cage=in_force)
    heard: list[Change] = []
    controller.notifier.listen(heard.append)
    watching = controller.watch()
    try:
        watching.send(None)  # as far as the first wait
    finally:
        watching.close()
    said = [change for change in heard if isinstance(change, Notice)]
    assert [change.severity for change in said] == ["warning"] * warned
    assert all("no cage" in change.text and "it is not here" in change.text for change in said)
