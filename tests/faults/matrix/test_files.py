"""Each damage of each file of a stack that is down: it starts, and says what was lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.fault_stack import FaultStack
from fault_results import Cell, Outcome

pytestmark = pytest.mark.timeout(900)

PAGE = 4096
Damage = Callable[[Path], object]


def scribble(path: Path, at_frac: float, num_bytes: int = PAGE) -> None:
    """Overwrite some bytes at a share of the file's length."""
    with path.open("r+b") as file:
        file.seek(int(path.stat().st_size * at_frac) // PAGE * PAGE)
        file.write(b"\xa5" * num_bytes)


DAMAGES: dict[str, Damage] = {
    "header": lambda path: scribble(path, 0.0, 64),
    "middle": lambda path: scribble(path, 0.5),
    "end": lambda path: scribble(path, 0.99),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": Path.unlink,
}
NEWEST = "newest checkpoint"
CHECKPOINT_FILES = ("adapter_model.safetensors", "training_state.json", "step.json", "COMPLETE")
DATABASES = ("trajectories.db", "conversations.db")

CELLS = [
    *(
        Cell(what=f"{NEWEST}, {file}", fault=fault)
        for file in CHECKPOINT_FILES
        for fault in ("cut", "deleted")
    ),
    Cell(what=NEWEST, fault="deleted"),
    *(Cell(what=file, fault=fault) for file in DATABASES for fault in DAMAGES),
    *(
        Cell(what=file, fault="cut")
        for file in ("run/router.json", "run/supervisor.json", "metrics.jsonl", "view.json")
    ),
]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, byte_model: Path) -> Iterator[FaultStack]:
    """Return a stack for all damages, one after another; it is up between them."""
    stack = FaultStack(tmp_path_factory.mktemp("files"), byte_model)
    stack.start()
    yield stack
    stack.close()


@pytest.mark.parametrize(
    "cell",
    [pytest.param(cell, id=cell.id, marks=pytest.mark.cell(cell, short=False)) for cell in CELLS],
)
def test_damage(kept: FaultStack, cell: Cell, outcome: Outcome) -> None:
    for number in range(2):
        judged = kept.answered(f"{cell.id}-{number}")
        assert not kept.reward(judged, 1.0)
        kept.wait_trained(judged)
    before = newest_version(kept)
    kept.stop()
    damage(kept.run_dir, cell, before)
    began = time.monotonic()
    kept.start()
    again = kept.answered(f"{cell.id}-again")
    outcome.seconds = time.monotonic() - began
    outcome.texts += notices(kept)
    outcome.kept += still_there(kept, f"{cell.id}-1")
    assert not kept.reward(again, -1.0)
    kept.wait_trained(again)
    assert newest_version(kept) > before, "a version's number was given twice"


def damage(run_dir: Path, cell: Cell, version: int) -> None:
    """Break a file of the run directory, or a whole checkpoint."""
    place, _, file = cell.what.partition(", ")
    path = run_dir / place
    if place == NEWEST:
        path = run_dir / "checkpoints" / f"policy_version_{version}" / file
    if path.is_dir():
        shutil.rmtree(path)
        return
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)
    if not path.exists():  # such as the run file of what was stopped: broken is what lies there
        path.write_text('{"name": "half')
    else:
        DAMAGES[cell.fault](path)


def newest_version(stack: FaultStack) -> int:
    """Return the version that serves."""
    return int(stack.trainer("GET", "/rl/status").json()["policy_version"])


def notices(stack: FaultStack) -> list[str]:
    """Return what the stack says of its start."""
    reasons = {row["reason"] for row in stack.status().values() if row["reason"]}
    told = stack.trainer("GET", "/rl/status").json()["notices"]
    return [*sorted(reasons - set(told)), *told]


def still_there(stack: FaultStack, user: str) -> list[str]:
    """Return what of an earlier conversation and its training is still known."""
    found = []
    if stack.agent("GET", f"/sessions/agent:m:{user}/history").status_code == 200:
        found.append("the last conversation")
    if any(
        row["state"] == "trained" for row in stack.trainer("GET", "/rl/episodes").json()["data"]
    ):
        found.append("trained episodes")
    if stack.steps():
        found.append("steps")
    return found
