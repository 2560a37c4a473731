"""Parts of the store on a database of their own, without the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_tui_common.errors import ConfigError
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.api.types import CanaryAnswer
from hermes_tui_training.store.canaries import Canaries
from hermes_tui_training.store.episodes import Episodes
from hermes_tui_training.store.events import Events
from hermes_tui_training.store.meta import Meta
from hermes_tui_training.store.sessions import Sessions, hash_key
from hermes_tui_training.store.steps import Steps
from hermes_tui_training.store.transactions import Transactions


@pytest.fixture
def transactions(tmp_path: Path) -> Iterator[Transactions]:
    made = Transactions(tmp_path / "trajectories.db", now=lambda: 7.0)
    yield made
    made.close()


def test_sessions_alone(transactions: Transactions) -> None:
    sessions = Sessions(transactions)
    made = sessions.create(key_hash=hash_key("k"), task_id="task", group_id="group-1")
    assert sessions.by_key_hash(hash_key("k")) == made
    assert (made.created_at, sessions.num_running()) == (7.0, 1)
    assert sessions.end(made.session_id).ended_at == 7.0
    assert sessions.num_running() == 0


def test_values_and_events_alone(transactions: Transactions) -> None:
    meta, events = Meta(transactions), Events(transactions)
    assert meta.get("baselines", {}) == {}
    meta.set("baselines", {"task": 0.5})
    assert meta.get("baselines") == {"task": 0.5}
    assert events.id_range() == (0, 0)
    events.add(EventKind.TRAINER_PAUSED, {"reason": "why"})
    (event,) = events.stored()
    assert (event.kind, event.payload, event.at) == ("trainer.paused", {"reason": "why"}, 7.0)


def test_the_canary_alone(transactions: Transactions) -> None:
    answer = CanaryAnswer(policy_version=1, position=0, prompt="?", status="skipped", at=7.0)
    canaries = Canaries(transactions)
    canaries.put(answer)
    assert canaries.answers(1) == [answer]
    assert canaries.answers() == [], "none was answered"


def test_steps_of_an_empty_database(transactions: Transactions) -> None:
    steps = Steps(transactions, Episodes(transactions))
    assert (steps.policy_version(), steps.rows(), steps.sibling_groups()) == (0, [], [])


def test_a_change_that_fails_is_undone_with_its_event(transactions: Transactions) -> None:
    meta, events = Meta(transactions), Events(transactions)

    def fail() -> None:
        with transactions.write() as write:
            write.set_meta("baselines", 1)
            write.event(EventKind.TRAINER_RESUMED, {})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert meta.get("baselines") is None
    assert events.stored() == []


def test_a_part_reads_a_file_that_another_owns(tmp_path: Path) -> None:
    path = tmp_path / "trajectories.db"
    with pytest.raises(ConfigError):
        Transactions(path, read_only=True)
    owner = Transactions(path)
    reader = Transactions(path, read_only=True)
    try:
        Meta(owner).set("policy_version", 3)
        assert Steps(reader, Episodes(reader)).policy_version() == 3
    finally:
        reader.close()
        owner.close()
