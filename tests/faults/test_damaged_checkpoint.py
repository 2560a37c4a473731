"""Checkpoints that are damaged or gone: an older one takes over, is said, and is trained on.

The orchestrator, the store and the checkpoints are real; learner and engine are scripted. The last
tests have a real learner load real weights.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.learner_process import ADMIN_KEY, LearnerProcess
from fakes.tiny_model import make_tiny_model
from fakes.training_bench import Bench, SwappingEngine, until

from hermes_tui_training.api.config import LoraConfig, ModelConfig, TrainingConfig
from hermes_tui_training.api.learner import RollbackRequest
from hermes_tui_training.learner.learner import Learner
from hermes_tui_training.store import checkpoint
from hermes_tui_training.store.checkpoint_check import DamagedCheckpointError, require_whole
from hermes_tui_training.store.store import Store
from hermes_tui_training.trainer.learner_client import LearnerClient
from hermes_tui_training.trainer.orchestrator import Orchestrator


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_tui_training.trainer.orchestrator._BACKOFF_S", (0.02,))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def _train(bench: Bench, orchestrator: Orchestrator, count: int) -> list[str]:
    """Give rewards one after another; return the ids of their episodes."""
    ids = []
    for number in range(count):
        base = orchestrator.status()["policy_version"]
        ids.append(bench.episode(1.0 if number % 2 else -1.0, version=base))
        await until(lambda v=base: orchestrator.status()["policy_version"] > v)
    return ids


async def _trained(bench: Bench, count: int) -> list[str]:
    async with bench.running() as orchestrator:
        return await _train(bench, orchestrator, count)


def _restarted(bench: Bench) -> None:
    bench.engine = SwappingEngine()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _scribble(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(byte ^ 0x55 for byte in content[middle : middle + 8])
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "truncated": _cut,
    "scribbled": _scribble,
    "removed": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_the_version_before_a_damaged_one_serves_and_is_trained_on(
    bench: Bench, damage: str
) -> None:
    await _trained(bench, 2)
    newest = bench.config.checkpoints / "policy_version_2"
    DAMAGES[damage](newest / "step.json")
    _restarted(bench)
    async with bench.running() as orchestrator:
        status = orchestrator.status()
        assert (status["policy_version"], status["served_version"]) == (1, 1)
        assert status["kept_versions"] == [0, 1]
        (notice,) = status["notices"]
        assert "version 2 cannot be used: step.json" in notice
        assert "version 1 serves" in notice
        await _train(bench, orchestrator, 1)
        assert orchestrator.status()["policy_version"] == 3  # no number twice
    assert bench.learner.requests[-1].base_version == 1
    (aside,) = bench.config.checkpoints.glob("damaged-policy_version_2-*")
    assert "step.json" in (aside / checkpoint.DAMAGE_FILE).read_text()


async def test_the_version_before_a_removed_one_serves(bench: Bench) -> None:
    await _trained(bench, 2)
    shutil.rmtree(bench.config.checkpoints / "policy_version_2")
    _restarted(bench)
    async with bench.running() as orchestrator:
        assert orchestrator.status()["served_version"] == 1
        assert (
            "version 2 cannot be used: it is gone; version 1 serves"
            in orchestrator.status()["notices"][0]
        )
        await _train(bench, orchestrator, 1)
        assert orchestrator.status()["served_version"] == 3


async def test_with_no_checkpoint_left_the_model_itself_serves(bench: Bench) -> None:
    await _trained(bench, 2)
    shutil.rmtree(bench.config.checkpoints)
    _restarted(bench)
    async with bench.running() as orchestrator:
        assert orchestrator.status()["served_version"] == 0
        assert "the model that training began with serves" in orchestrator.status()["notices"][0]
        await _train(bench, orchestrator, 1)
        assert orchestrator.status()["served_version"] == 3
    assert bench.learner.requests[-1].base_version == 0


async def test_two_damaged_ones_lead_back_two_versions(bench: Bench) -> None:
    await _trained(bench, 3)
    for version in (2, 3):
        _cut(bench.config.checkpoints / f"policy_version_{version}" / "step.json")
    _restarted(bench)
    async with bench.running() as orchestrator:
        assert orchestrator.status()["served_version"] == 1
        baselines = checkpoint.read_baselines(bench.config.checkpoints, 1)
        assert bench.store.meta.get("baselines") == baselines


async def test_a_damaged_rollback_leads_to_what_it_went_back_to(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        await _train(bench, orchestrator, 2)
        await orchestrator.rollback(1)
    _cut(bench.config.checkpoints / "policy_version_3" / "step.json")
    _restarted(bench)
    async with bench.running() as orchestrator:
        assert orchestrator.status()["served_version"] == 1  # not 2, which was left on purpose


async def test_damage_that_the_learner_finds_is_no_reason_to_pause(bench: Bench) -> None:
    await _trained(bench, 2)
    _restarted(bench)

    def find(_: object) -> None:
        raise DamagedCheckpointError(2, "model.safetensors does not match its checksum")

    bench.learner.script = [find]
    async with bench.running() as orchestrator:
        await _train(bench, orchestrator, 1)
        status = orchestrator.status()
        assert not status["paused"]
        assert status["failed_attempts"] == 0
        assert (status["policy_version"], status["served_version"]) == (3, 3)
    assert bench.learner.requests[-1].base_version == 1


@pytest.mark.parametrize("kept", [(1, 2), (2,)])
async def test_a_deleted_database_is_filled_from_the_checkpoints(
    bench: Bench, tmp_path: Path, kept: tuple[int, ...]
) -> None:
    await _trained(bench, 2)
    baselines = bench.store.meta.get("baselines")
    bench.store.close()
    for file in tmp_path.glob("trajectories.db*"):
        file.unlink()
    for version in {1, 2} - set(kept):
        shutil.rmtree(bench.config.checkpoints / f"policy_version_{version}")
    bench.store = Store(tmp_path / "trajectories.db")
    _restarted(bench)
    async with bench.running() as orchestrator:
        status = orchestrator.status()
        assert (status["policy_version"], status["served_version"]) == (2, 2)
        assert bench.store.meta.get("baselines") == baselines
        assert len(status["notices"]) == len(kept)
        assert all("1 of its 1 episodes are forgotten" in text for text in status["notices"])
        await _train(bench, orchestrator, 1)
        assert orchestrator.status()["policy_version"] == 3
    assert [row["step"] for row in bench.store.steps.rows()] == [*kept, 3]


async def test_an_old_copy_of_the_database_trains_nothing_twice(
    bench: Bench, tmp_path: Path
) -> None:
    async with bench.running() as orchestrator:
        await _train(bench, orchestrator, 1)
        await orchestrator.pause()
        second = bench.episode(1.0, version=1)
        bench.store.close()
        shutil.copy(tmp_path / "trajectories.db", tmp_path / "copy")
        bench.store = Store(tmp_path / "trajectories.db")
    async with bench.running() as orchestrator:
        await orchestrator.resume()
        await until(lambda: orchestrator.status()["policy_version"] == 2)
        await _train(bench, orchestrator, 1)
    bench.store.close()
    for file in tmp_path.glob("trajectories.db*"):
        file.unlink()
    (tmp_path / "copy").rename(tmp_path / "trajectories.db")
    bench.store = Store(tmp_path / "trajectories.db")
    async with bench.running() as orchestrator:
        assert orchestrator.status()["served_version"] == 3
        assert bench.store.episodes.get(second).step == 2
        await orchestrator.resume()
        await _train(bench, orchestrator, 1)
        assert orchestrator.status()["policy_version"] == 4
    consumed = [id_ for r in bench.learner.requests for id_ in r.facts.episode_ids]
    assert len(consumed) == len(set(consumed)) == 4


def test_a_checkpoint_of_an_earlier_version_is_read_without_checksums(tmp_path: Path) -> None:
    directory = tmp_path / "policy_version_1"
    directory.mkdir()
    (directory / "step.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (directory / "COMPLETE").touch()
    require_whole(directory, 1)
    (directory / "adapter_model.safetensors").write_bytes((9).to_bytes(8, "little") + b"{}")
    with pytest.raises(DamagedCheckpointError, match=r"adapter_model\.safetensors is cut short"):
        require_whole(directory, 1)


# -- a real learner -------------------------------------------------------------------------------

TRAINING = TrainingConfig(lora=LoraConfig(rank=2, alpha=4))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def _learner(model_dir: Path, root: Path) -> Learner:
    return Learner(model_dir, ModelConfig(path=str(model_dir)), TRAINING, root, [])


def _two_versions(model_dir: Path, root: Path) -> Learner:
    learner = _learner(model_dir, root)
    for version in (1, 2):
        learner.rollback(RollbackRequest(version=0, target_version=version))
    return learner


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["adapter_model.safetensors", "training_state.json"])
def test_a_learner_skips_and_refuses_a_damaged_checkpoint(
    model_dir: Path, tmp_path: Path, name: str, damage: str
) -> None:
    _two_versions(model_dir, tmp_path)
    DAMAGES[damage](checkpoint.checkpoint_path(tmp_path, 2) / name)
    learner = _learner(model_dir, tmp_path)
    assert learner.version == 1
    with pytest.raises(DamagedCheckpointError, match=name) as refused:
        learner.rollback(RollbackRequest(version=2, target_version=3))
    assert refused.value.version == 2
    assert checkpoint.complete_versions(tmp_path) == [1, 2]


def test_a_learner_refuses_a_checkpoint_that_is_gone(model_dir: Path, tmp_path: Path) -> None:
    learner = _two_versions(model_dir, tmp_path)
    shutil.rmtree(checkpoint.checkpoint_path(tmp_path, 1))
    with pytest.raises(DamagedCheckpointError, match="it is gone"):
        learner.rollback(RollbackRequest(version=1, target_version=3))


async def test_a_learner_process_starts_beside_a_damaged_checkpoint_and_says_so(
    model_dir: Path, tmp_path: Path
) -> None:
    process = LearnerProcess(tmp_path, model_dir, TRAINING)
    _two_versions(model_dir, process.checkpoints)
    _scribble(checkpoint.checkpoint_path(process.checkpoints, 2) / "adapter_model.safetensors")
    try:
        await asyncio.to_thread(process.start)
        assert process.health().json()["policy_version"] == 1
        client = LearnerClient(process.run_file, ADMIN_KEY)
        with pytest.raises(DamagedCheckpointError, match="does not match its checksum") as refused:
            await client.rollback(RollbackRequest(version=2, target_version=3))
        assert refused.value.version == 2
        await client.aclose()
    finally:
        process.kill()
