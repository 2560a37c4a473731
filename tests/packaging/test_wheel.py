"""The wheel: what it holds, and that a view-only install needs neither torch nor the agent."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"hermes_tui", "hermes_tui_common", "hermes_tui_services", "hermes_tui_training"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the build backend that is installed; nothing is downloaded."""
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        capture_output=True,
        timeout=100,
        check=True,
    )
    (built,) = target.glob("*.whl")
    return built


def test_holds_exactly_the_four_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops - {info} == PACKAGES
    sources = {
        f"{package}/{file.relative_to(root / package)}"
        for package, root in (
            ("hermes_tui", ROOT),
            ("hermes_tui_common", ROOT / "services"),
            ("hermes_tui_services", ROOT / "services"),
            ("hermes_tui_training", ROOT / "training"),
        )
        for file in (root / package).rglob("*")
        if file.suffix in (".py", ".tcss", ".typed")
    }
    assert sources <= set(names)


def test_metadata_keeps_the_heavy_parts_optional(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = archive.read(name).decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    always = [line for line in required if "extra ==" not in line]
    assert any(line.startswith("Requires-Dist: textual") for line in always)
    for heavy in ("torch", "transformers", "hermes-agent"):
        assert not [line for line in always if line.startswith(f"Requires-Dist: {heavy}")]
        assert [line for line in required if line.startswith(f"Requires-Dist: {heavy}")]
    assert "License-Expression: Apache-2.0" in metadata


def test_installed_alone_it_shows_help_and_the_app_imports(wheel: Path, tmp_path: Path) -> None:
    """Install into an empty folder, and forbid what a view-only install does not have."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"),
            *("--disable-pip-version-check", "--target", str(tmp_path), str(wheel)),
        ],
        capture_output=True,
        timeout=100,
        check=True,
    )
    program = f"""
import sys
# The checkout is installed in editable mode: its finder must not answer instead of the wheel.
sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
sys.path[:] = [{str(tmp_path)!r}] + [p for p in sys.path if not p.startswith({str(ROOT)!r})
                                      or "site-packages" in p]
for name in ("torch", "transformers", "peft", "renderers", "run_agent"):
    sys.modules[name] = None
import hermes_tui, hermes_tui_services, hermes_tui_training
for package in (hermes_tui, hermes_tui_services, hermes_tui_training):
    assert package.__file__.startswith({str(tmp_path)!r}), package.__file__
import importlib, pkgutil
for module in pkgutil.walk_packages(hermes_tui.__path__, "hermes_tui."):
    importlib.import_module(module.name)
from hermes_tui.cli.main import main
main(["--help"])
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: hermes-tui")
