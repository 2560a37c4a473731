"""A full disk: a state with a name, 507 with a sentence, and it goes on by itself.

Files that fill up lie on a tmpfs of a few megabytes; where mounting is not permitted those tests
are skipped. The others are told how much is free.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.inference import ADMIN_KEY, running_gateway
from fakes.small_disk import SmallDisk
from fakes.tiny_model import make_tiny_model
from fakes.training_bench import Bench, until

from hermes_tui_common import disk
from hermes_tui_common.disk import DiskFullError, require_room, wait_for_room
from hermes_tui_common.http import error_response
from hermes_tui_services.data_proxy.store import ConversationStore, TurnRow
from hermes_tui_training.api.config import LoraConfig, ModelConfig, TrainingConfig
from hermes_tui_training.api.learner import RollbackRequest, StepRequest
from hermes_tui_training.learner.learner import Learner
from hermes_tui_training.store import checkpoint
from hermes_tui_training.store.store import Store
from hermes_tui_training.trainer.orchestrator import MAX_ATTEMPTS


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_tui_training.trainer.orchestrator._BACKOFF_S", (0.02,))
    monkeypatch.setattr("hermes_tui_common.disk._POLL_S", 0.01)


_LONG = [{"role": "user", "content": "x" * 3000}]


def _record(store: Store) -> None:
    for number in range(300):
        store.sessions.create(key_hash=f"{number}", task_id="t" * 900, group_id="h")


def test_a_full_disk_is_a_507_with_a_sentence(tmp_path: Path) -> None:
    error = DiskFullError(tmp_path, 59_000_000, free_bytes=12_000_000)
    answer = error_response(error)
    assert str(error) == f"the disk is full: 12 MB free, 59 MB needed in {tmp_path}"
    assert (answer.status_code, answer.headers["retry-after"]) == (507, "10")
    require_room(tmp_path / "not" / "there", 1)
    with pytest.raises(DiskFullError, match="needed in"):
        require_room(tmp_path, 2**60)


def test_trajectories_are_recorded_again_once_there_is_room(small_disk: SmallDisk) -> None:
    store = Store(small_disk.path / "trajectories.db")
    store.sessions.create(key_hash="first", task_id="t", group_id="g")
    small_disk.fill()
    with pytest.raises(DiskFullError, match="the disk is full: 0 MB free in"):
        _record(store)
    small_disk.make_room()
    before = store.sessions.num_running()
    store.sessions.create(key_hash="last", task_id="t", group_id="g")
    assert store.sessions.num_running() == before + 1
    store.close()


async def test_a_request_on_a_full_disk_gets_507(small_disk: SmallDisk) -> None:
    async with running_gateway(small_disk.path / "run") as gateway:
        session_id, key = await gateway.session()
        assert (await gateway.chat(key)).status_code == 200
        small_disk.fill()
        asked = [
            ("POST", "/rl/start_session", {"task_id": "t" * 900}, None),
            ("POST", "/v1/chat/completions", {"model": "m", "messages": _LONG}, key),
        ]
        for method, path, body, own_key in asked:
            for _ in range(300):  # until the blocks that the database has are used up
                answer = await gateway.call(method, path, body, key=own_key or ADMIN_KEY)
                if answer.is_error:
                    break
            assert answer.status_code == 507, answer.text
            assert answer.json()["error"]["code"] == "disk_full"
            assert "the disk is full: 0 MB free in" in answer.json()["error"]["message"]
            assert answer.headers["retry-after"] == "10"
        small_disk.make_room()
        assert (await gateway.chat(key)).status_code == 200
        answer = await gateway.call("POST", "/rl/set_reward", {"reward": 1.0}, key=key)
        assert (answer.status_code, answer.json()["session_id"]) == (200, session_id)


async def test_chats_are_kept_again_once_there_is_room(small_disk: SmallDisk) -> None:
    store = ConversationStore(small_disk.path / "conversations.db")
    await store.open()
    small_disk.fill()
    row = TurnRow(run_id="r", messages=[{"role": "user", "content": "x" * 20_000}], summary="")

    async def fill_up() -> None:
        for _ in range(300):
            await store.append("s", row)

    with pytest.raises(DiskFullError) as refused:
        await fill_up()
    assert refused.value.status == 507
    small_disk.make_room()
    await store.append("s", row)
    await store.close()


async def test_training_waits_for_room_and_goes_on_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)

    def full(request: StepRequest) -> None:
        monkeypatch.setattr(disk, "free_of", lambda _: 12_000_000)
        raise DiskFullError(bench.config.checkpoints, 59_000_000, free_bytes=12_000_000)

    bench.learner.script = [full]
    async with bench.running() as orchestrator:
        episode_id = bench.episode(1.0)
        text = f"the disk is full: 12 MB free, 59 MB needed in {bench.config.checkpoints}"
        await until(lambda: bench.learner.requests and bench.state(episode_id) == "scored")
        await until(lambda: orchestrator.status()["reason"] == text)
        claims = bench.kinds().count("episode.claimed")
        turns = iter(range(2 * MAX_ATTEMPTS))
        looks = 0

        def looked_often(_: Path) -> int:
            nonlocal looks
            looks += 1
            next(turns, None)
            return 12_000_000

        monkeypatch.setattr(disk, "free_of", looked_often)
        await until(lambda: looks > 2 * MAX_ATTEMPTS)
        status = orchestrator.status()
        assert (status["state"], status["paused"]) == ("waiting", False)
        assert status["failed_attempts"] == 0
        assert bench.kinds().count("episode.claimed") == claims == 1
        monkeypatch.undo()
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    assert bench.state(episode_id) == "trained"


def _learner(tmp_path: Path, root: Path) -> Learner:
    model = make_tiny_model(tmp_path / "model")
    training = TrainingConfig(lora=LoraConfig(rank=2, alpha=4))
    return Learner(model, ModelConfig(path=str(model)), training, root, [])


def test_a_learner_knows_before_it_begins_that_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = _learner(tmp_path, tmp_path / "checkpoints")
    with monkeypatch.context() as patched:
        patched.setattr(disk, "free_of", lambda _: 1_000_000)
        with pytest.raises(DiskFullError, match="1 MB free, 16 MB needed in"):
            learner.rollback(RollbackRequest(version=0, target_version=1))
    assert checkpoint.complete_versions(tmp_path / "checkpoints") == []
    learner.rollback(RollbackRequest(version=0, target_version=1))
    assert checkpoint.complete_versions(tmp_path / "checkpoints") == [1]


def test_a_disk_that_fills_up_during_a_save_leaves_nothing(
    tmp_path: Path, small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = small_disk.path / "checkpoints"
    learner = _learner(tmp_path, root)
    small_disk.fill(but_bytes=16_384)
    monkeypatch.setattr(disk, "free_of", lambda _: 2**40)  # it was not full when it was asked
    with pytest.raises(DiskFullError):
        learner.rollback(RollbackRequest(version=0, target_version=1))
    assert checkpoint.complete_versions(root) == []
    small_disk.make_room()
    learner.rollback(RollbackRequest(version=0, target_version=1))
    assert checkpoint.complete_versions(root) == [1]


def test_a_start_waits_for_room_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([0, 0, 1_000_000, 5_000_000])
    monkeypatch.setattr(disk, "free_of", lambda _: next(free))
    said: list[str] = []
    wait_for_room(tmp_path, said.append)
    assert said == [
        f"waiting: the disk is full: {number} MB free, 4 MB needed in {tmp_path}"
        for number in (0, 1)
    ]
    assert next(free, None) is None
