"""The documents name only what exists: files, modules, functions and tests."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "hermes.toml", "docs/*.md")
    for path in ROOT.glob(pattern)
)
FOLDERS = ("hermes_tui", "services", "training", "tests", "docs", "benchmarks")
SOURCES = {"hermes_tui": "", "hermes_tui_common": "services/", "hermes_tui_services": "services/"}
SOURCES["hermes_tui_training"] = "training/"
FOREIGN = {"start_session.py", "hermes_loop.py", "set_reward.py", "train.py"}
"""AReaL's scripts, which have their successors here."""

_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(rf"(?<![\w./-])(?:[\w*/-]+\.(?:py|tcss)|(?:{'|'.join(FOLDERS)})/[\w./*-]*)")
_MODULE = re.compile(rf"(?<![\w./])(?:{'|'.join(SOURCES)})(?:\.\w+)+")
_TEST = re.compile(r"([\w/]+\.py|…)::(\w+)")
_STEP = re.compile(r"\]\(([^)\s]+\.py)\) ((?:`\w+`(?:, )?)+)")


def text_of(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def code_of(document: str) -> str:
    """Return what stands in code spans and code blocks; of a file that is no Markdown, all."""
    text = text_of(document)
    return "\n".join(_CODE.findall(text)) if document.endswith(".md") else text


def files() -> list[str]:
    """Return the files of the repository, as paths from its root that begin with a slash."""
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    return [f"/{path.relative_to(ROOT).as_posix()}" for path in [*found, *ROOT.glob("*.*")]]


def defines(path: Path, name: str) -> bool:
    """Return whether a file defines a function, a class or a variable, at any depth."""
    wanted = rf"^\s*(?:async def|def|class) {name}\b|^{name}\b *[:=]"
    return re.search(wanted, path.read_text(encoding="utf-8"), re.MULTILINE) is not None


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_to_a_file(document: str) -> None:
    links = [link.partition("#")[0] for link in _LINK.findall(text_of(document))]
    inside = [link for link in links if link and "://" not in link]
    assert [link for link in inside if not (ROOT / document).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_file_exists(document: str) -> None:
    """A path may begin anywhere: ``engine/base.py`` is one, and so is ``test_exports.py``."""
    known = files()
    named = set(_FILE.findall(code_of(document))) - FOREIGN
    assert [path for path in sorted(named) if not _exists(path, known)] == []


def _exists(path: str, known: list[str]) -> bool:
    if path.endswith("/"):
        return (ROOT / path).is_dir()
    return bool(fnmatch.filter(known, f"*/{path}")) or (ROOT / path).exists()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_module_exists(document: str) -> None:
    assert [name for name in _MODULE.findall(code_of(document)) if not _is_importable(name)] == []


def _is_importable(dotted: str) -> bool:
    """Return whether a dotted name is a package, a module, or something that a module defines."""
    path = ROOT / SOURCES[dotted.partition(".")[0]] / dotted.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    module = path.parent.with_suffix(".py")
    source = module if module.exists() else path.parent / "__init__.py"
    return source.exists() and path.name in source.read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_named_test_exists(document: str) -> None:
    assert [name for file, name in _tests_in(document) if not _is_test(file, name)] == []


def _tests_in(document: str) -> Iterator[tuple[str, str]]:
    """Yield each named test's file and name; ``…`` stands for the file that was named before."""
    file = ""
    for named, name in _TEST.findall(text_of(document)):
        file = file if named == "…" else named
        yield file, name


def _is_test(file: str, name: str) -> bool:
    return any(defines(path, name) for path in (ROOT / "tests").rglob(Path(file).name))


def test_every_step_of_the_walks_is_where_it_says() -> None:
    document = "docs/architecture.md"
    steps = [
        (link, name)
        for link, names in _STEP.findall(text_of(document))
        for name in re.findall(r"\w+", names)
    ]
    assert len(steps) > 30
    folder = (ROOT / document).parent
    assert [(link, name) for link, name in steps if not defines(folder / link, name)] == []
