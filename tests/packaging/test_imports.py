"""What never enters which process. A static graph cannot see late imports; sys.modules does."""

from __future__ import annotations

import importlib.util
import pkgutil
import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "peft", "renderers", "run_agent", "openai")


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after running some code."""
    program = f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def imported(*names: str) -> str:
    return "\n".join(f"import {name}" for name in names)


def all_modules_of(package: str) -> list[str]:
    (path,) = importlib.util.find_spec(package).submodule_search_locations
    return [m.name for m in pkgutil.walk_packages([path], f"{package}.")]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(tuple(all_modules_of("hermes_tui")), id="the app"),
        pytest.param(
            ("hermes_tui.supervisor.serve", "hermes_tui.stack_client.launch"), id="the supervisor"
        ),
        pytest.param(
            (
                "hermes_tui_training.api.client",
                "hermes_tui_training.api.config",
                "hermes_tui_training.api.protocol",
                "hermes_tui_services.api.client",
                "hermes_tui_services.api.config",
                "hermes_tui_services.api.protocol",
            ),
            id="what the app sees of the others",
        ),
    ],
)
def test_heavy_packages_stay_out(names: tuple[str, ...]) -> None:
    modules = modules_after(imported(*names))
    assert not modules & set(HEAVY)
    assert "pydantic" in modules


def test_exports_need_no_more_than_a_view() -> None:
    modules = modules_after(imported(*all_modules_of("hermes_tui_training.exports")))
    assert not modules & {"numpy", "pyarrow", *HEAVY}
    assert "hermes_tui_training" in modules


def test_help_loads_next_to_nothing() -> None:
    code = "from hermes_tui.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    assert not modules_after(code) & {"textual", "pydantic", "httpx", "asyncio", *HEAVY}


def test_the_supervisor_knows_no_screen() -> None:
    modules = modules_after(
        imported("hermes_tui.supervisor.serve", "hermes_tui.stack_client.control")
    )
    assert "textual" not in modules


def test_the_trainer_knows_no_agent_and_the_worker_no_torch() -> None:
    assert "run_agent" not in modules_after(imported("hermes_tui_training.inference_gateway.app"))
    worker = modules_after(
        imported("hermes_tui_services.worker.app", "hermes_tui_services.worker.hermes.agent")
    )
    assert "torch" not in worker
