"""The orchestrator over a real store and real checkpoints; learner and engine are scripted."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from fakes.siblings import complete, scored, sibling
from fakes.training_bench import GRACE_S, Bench, SwappingEngine, until

from hermes_tui_common.errors import ServiceError, TrainingError
from hermes_tui_training.api.config import RewardConfig
from hermes_tui_training.api.learner import (
    NonFiniteError,
    NothingMovedError,
    RollbackRequest,
    StepAnswer,
    StepRequest,
)
from hermes_tui_training.api.protocol import EventKind
from hermes_tui_training.store import checkpoint
from hermes_tui_training.trainer.orchestrator import MAX_ATTEMPTS, Orchestrator, UnknownVersionError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_tui_training.trainer.orchestrator._BACKOFF_S", (0.02,))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_a_reward_becomes_served_weights_and_a_row(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        episode_id = bench.episode(1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 1)

    episode = bench.store.episodes.get(episode_id)
    assert (episode.state, episode.step) == ("trained", 1)
    assert episode.completions[0].advantage == 1.0
    assert episode.completions[0].after_logprobs == (-0.5, -0.5)
    assert bench.engine.swaps == [1]
    assert bench.store.meta.get("baselines") == pytest.approx({"t": 0.1, "": 0.1})
    (row,) = bench.store.steps.rows()
    lines = (bench.root / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [row]
    contract = (
        "step policy_version episode_ids reward_mean advantage_mean baseline loss grad_norm "
        "learning_rate clip_frac rejected_frac kl_behavior entropy num_trained_tokens "
        "num_prompt_tokens staleness_max gap_mean gap_max logprob_before logprob_after seconds "
        "score_to_weights_s finished_at"
    )
    assert set(contract.split()) <= set(row)
    seconds = {"wait", "claim", "recompute", "update", "save", "publish", "total"}
    assert set(row["seconds"]) == seconds
    assert row["episode_ids"] == [episode_id]
    assert (row["step"], row["policy_version"], row["num_prompt_tokens"]) == (1, 1, 3)
    assert (row["reward_mean"], row["advantage_mean"], row["baseline"]) == (1.0, 1.0, 0.0)
    assert row["seconds"]["save"] == 0.5
    assert row["seconds"]["total"] >= 3.5
    assert row["score_to_weights_s"] >= GRACE_S
    kinds = bench.kinds()
    order = [EventKind.STEP_STARTED, EventKind.STEP_FINISHED, EventKind.VERSION_PUBLISHED]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)


async def test_a_reward_can_be_changed_within_its_grace(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        episode_id = bench.episode(1.0)
        bench.store.rewards.set(episode_id, -0.5)
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    assert [r.facts.reward_mean for r in bench.learner.requests] == [-0.5]


async def test_the_baseline_goes_on_after_a_restart(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        bench.episode(1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    async with bench.running() as orchestrator:
        assert orchestrator.status()["policy_version"] == 1
        bench.episode(-1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 2)
    facts = bench.learner.requests[1].facts
    assert facts.baseline == pytest.approx(0.1)
    assert facts.advantage_mean == pytest.approx(-1.1)


async def test_a_restart_serves_the_current_version(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        bench.episode(1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    bench.engine = SwappingEngine()
    async with bench.running():
        assert bench.engine.policy_version == 1


async def test_a_batch_waits_for_its_size(tmp_path: Path) -> None:
    bench = Bench(tmp_path, batch_size=2)
    async with bench.running() as orchestrator:
        first = bench.episode(1.0)
        await until(lambda: orchestrator.status()["reason"] == "1 of 2 scored")
        second = bench.episode(-1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    assert bench.learner.requests[0].facts.episode_ids == (first, second)


async def test_nothing_to_learn_is_dropped_with_its_reason(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        nothing = bench.episode(0.0)
        await until(lambda: bench.state(nothing) == "dropped")
        assert bench.store.episodes.get(nothing).dropped_reason == "zero_advantage"
        something = bench.episode(1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    assert bench.learner.requests[0].facts.episode_ids == (something,)


async def test_the_staleness_bound_is_the_same_after_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_staleness=1)
    async with bench.running() as orchestrator:
        for version in (1, 2):
            bench.episode(1.0 if version % 2 else -1.0, version=version - 1)
            await until(lambda v=version: orchestrator.status()["policy_version"] == v)
    async with bench.running() as orchestrator:
        old, fresh = bench.episode(1.0, version=0), bench.episode(1.0, version=1)
        await until(lambda: orchestrator.status()["policy_version"] == 3)
    assert bench.store.episodes.get(old).dropped_reason == "stale"
    assert bench.state(fresh) == "trained"
    assert bench.store.steps.rows()[-1]["staleness_max"] == 1


async def test_numbers_that_are_not_finite_drop_their_episode_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path, batch_size=2)

    def refuse(request: StepRequest) -> None:
        raise NonFiniteError("the loss is not finite", request.facts.episode_ids[:1])

    bench.learner.script = [refuse]
    async with bench.running() as orchestrator:
        bad, good = bench.episode(1.0), bench.episode(1.0)
        await until(lambda: bench.state(bad) == "dropped" and bench.state(good) == "scored")
        assert bench.store.episodes.get(bad).dropped_reason == "non_finite"
        third = bench.episode(-1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    assert bench.learner.requests[1].facts.episode_ids == (good, third)
    assert EventKind.STEP_FAILED in bench.kinds()


async def test_a_learner_that_dies_before_saving_gives_its_episode_back(bench: Bench) -> None:
    def die(_: StepRequest) -> None:
        bench.learner.gone = True
        raise ServiceError("the connection to the learner was lost")

    bench.learner.script = [die]
    async with bench.running() as orchestrator:
        episode_id = bench.episode(1.0)
        await until(lambda: bench.learner.gone and bench.state(episode_id) == "scored")
        await until(lambda: orchestrator.status()["reason"] == "the learner is not running")
        bench.learner.gone = False
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    assert [row["episode_ids"] for row in bench.store.steps.rows()] == [[episode_id]]


async def test_a_learner_that_dies_after_saving_has_trained_its_episode(bench: Bench) -> None:
    def save_and_die(request: StepRequest) -> None:
        bench.learner.save(request)
        bench.learner.gone = True
        raise ServiceError("the connection to the learner was lost")

    bench.learner.script = [save_and_die]
    async with bench.running() as orchestrator:
        episode_id = bench.episode(1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 1)
        assert bench.engine.policy_version == 1
    assert [row["episode_ids"] for row in bench.store.steps.rows()] == [[episode_id]]
    assert bench.state(episode_id) == "trained"
    assert len(bench.learner.requests) == 1


async def test_a_trainer_that_dies_while_the_learner_works_waits_for_it(bench: Bench) -> None:
    hold = asyncio.Event()

    async def never(request: StepRequest) -> StepAnswer:
        bench.learner.requests.append(request)
        bench.learner.busy_with = request.target_version
        hold.set()
        await asyncio.Future()
        raise AssertionError

    step, bench.learner.step = bench.learner.step, never  # type: ignore[method-assign]
    async with bench.running():
        episode_id = bench.episode(1.0)
        await hold.wait()
    bench.learner.step = step  # type: ignore[method-assign]
    async with bench.running() as orchestrator:
        await until(lambda: "finishing version 1" in orchestrator.status()["reason"])
        assert bench.state(episode_id) == "claimed"
        bench.learner.save(bench.learner.requests[0])
        bench.learner.busy_with = None
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    assert [row["episode_ids"] for row in bench.store.steps.rows()] == [[episode_id]]
    assert len(bench.learner.requests) == 1


async def test_a_claim_without_a_checkpoint_is_given_back_at_start(bench: Bench) -> None:
    episode_id = bench.episode(1.0)
    bench.store.steps.claim(
        step=1, limit=1, min_count=1, scored_before=time.time(), min_policy_version=0
    )
    assert bench.state(episode_id) == "claimed"
    async with bench.running() as orchestrator:
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    assert bench.state(episode_id) == "trained"


async def test_a_failed_publish_is_said_and_tried_again(bench: Bench) -> None:
    bench.engine.failures = 2
    async with bench.running() as orchestrator:
        episode_id = bench.episode(1.0)
        await until(lambda: orchestrator.status()["publish_error"])
        status = orchestrator.status()
        assert status["publish_error"] == status["problem"] == "the file is cut short"
        assert status["served_version"] == 0
        await until(lambda: bench.engine.policy_version == 1)
        assert bench.state(episode_id) == "trained"
        await until(lambda: orchestrator.status()["publish_error"] is None)
        await until(lambda: orchestrator.status()["problem"] is None)
    assert bench.store.steps.rows()[0]["published"] is False
    assert bench.kinds().count(EventKind.PUBLISH_FAILED) == 1


async def test_a_step_that_moves_nothing_makes_no_version_and_says_why(bench: Bench) -> None:
    def refuse(_: StepRequest) -> None:
        raise NothingMovedError("the model says this nearly always by now", "certain")

    bench.learner.script = [refuse]
    async with bench.running() as orchestrator:
        certain = bench.episode(1.0)
        await until(lambda: bench.state(certain) == "dropped")
        assert bench.store.episodes.get(certain).dropped_reason == "certain"
        assert orchestrator.status()["policy_version"] == 0
        later = bench.episode(-1.0)
        await until(lambda: bench.state(later) == "trained")
    (said,) = [e.payload for e in bench.store.events.stored() if e.kind == EventKind.STEP_UNMOVED]
    assert said == {
        "episode_ids": [certain],
        "reason": "certain",
        "message": "the model says this nearly always by now",
    }
    assert [row["episode_ids"] for row in bench.store.steps.rows()] == [[later]]


async def test_what_the_policy_has_left_behind_is_dropped_as_stale(tmp_path: Path) -> None:
    bench = Bench(tmp_path, batch_size=2)
    bench.learner.leaves_behind = 1
    async with bench.running() as orchestrator:
        old, fresh = bench.episode(1.0), bench.episode(1.0)
        await until(lambda: orchestrator.status()["policy_version"] == 1)
        await until(lambda: bench.state(old) == "dropped")
    assert bench.store.episodes.get(old).dropped_reason == "stale"
    assert bench.state(fresh) == "trained"
    assert bench.store.steps.rows()[0]["episode_ids"] == [fresh]


async def test_a_pause_lasts_until_somebody_resumes(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        await orchestrator.pause("somebody wants to look")
        await until(lambda: orchestrator.status()["state"] == "paused")
        assert orchestrator.status()["reason"] == "somebody wants to look"
    async with bench.running() as orchestrator:
        assert orchestrator.status()["paused"]
        later = bench.episode(-1.0)
        await orchestrator.resume()
        await until(lambda: bench.state(later) == "trained")
    assert [EventKind.TRAINER_PAUSED in bench.kinds(), EventKind.TRAINER_RESUMED in bench.kinds()]


async def test_a_learner_that_always_fails_pauses_training(bench: Bench) -> None:
    def fail(_: StepRequest) -> None:
        raise ServiceError("the learner could not do the step: no memory")

    bench.learner.script = [fail] * MAX_ATTEMPTS
    async with bench.running() as orchestrator:
        episode_id = bench.episode(1.0)
        await until(lambda: orchestrator.status()["state"] == "paused")
        assert "no memory" in orchestrator.status()["reason"]
        await until(lambda: bench.state(episode_id) == "scored")
        await orchestrator.resume()
        await until(lambda: orchestrator.status()["policy_version"] == 1)


async def test_old_versions_are_pruned_and_pinned_ones_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, checkpoint={"keep_all_s": 0.0})
    async with bench.running() as orchestrator:
        with pytest.raises(TrainingError, match="version 0"):
            await orchestrator.checkpoint()
        for version in range(1, 6):
            bench.episode((-1.0) ** version, version=version - 1)
            await until(lambda v=version: orchestrator.status()["policy_version"] == v)
            if version == 1:
                assert (await orchestrator.checkpoint())["policy_version"] == 1
        await until(lambda: checkpoint.complete_versions(bench.config.checkpoints) == [1, 3, 4, 5])


async def _steps(bench: Bench, orchestrator: Orchestrator, count: int) -> None:
    for _ in range(count):
        version = orchestrator.status()["policy_version"]
        bench.episode(1.0, version=version)
        await until(lambda v=version: orchestrator.status()["policy_version"] == v + 1)


@pytest.mark.parametrize("version", [1, 0])
async def test_a_rollback_is_a_new_version_with_an_old_ones_state(
    bench: Bench, version: int
) -> None:
    async with bench.running() as orchestrator:
        await _steps(bench, orchestrator, 2)
        await orchestrator.pause()
        await until(lambda: orchestrator.status()["kept_versions"] == [0, 1, 2])
        row = await orchestrator.rollback(version)
        assert orchestrator.status()["paused"]
        await orchestrator.resume()
        await _steps(bench, orchestrator, 1)

    assert bench.learner.rollbacks == [RollbackRequest(version=version, target_version=3)]
    assert (row["step"], row["policy_version"], row["rolled_back_to"]) == (3, 3, version)
    assert row["episode_ids"] == []
    assert bench.store.steps.rows()[2] == row
    assert [r.get("rolled_back_to") for r in bench.store.steps.rows()] == [
        None,
        None,
        version,
        None,
    ]
    assert bench.engine.swaps == [1, 2, 3, 4]
    later = bench.learner.requests[-1]
    assert (later.base_version, later.target_version) == (3, 4)
    # The moving average of rewards of 1: 0.1 after one, none before.
    assert later.facts.baseline == pytest.approx(0.1 if version else 0.0)
    said = [
        e.payload for e in bench.store.events.stored() if e.kind == EventKind.VERSION_ROLLED_BACK
    ]
    assert said == [row]
    assert bench.kinds().count(EventKind.STEP_FINISHED) == 3


async def test_a_version_without_a_checkpoint_cannot_be_gone_back_to(tmp_path: Path) -> None:
    bench = Bench(tmp_path, checkpoint={"keep_last": 2, "keep_all_s": 0.0})
    async with bench.running() as orchestrator:
        await _steps(bench, orchestrator, 4)
        await until(lambda: orchestrator.status()["kept_versions"] == [0, 3, 4])
        with pytest.raises(UnknownVersionError, match=r"version 1 has no .* go to 0, 3$"):
            await orchestrator.rollback(1)
        with pytest.raises(TrainingError, match="current one already"):
            await orchestrator.rollback(4)
        assert orchestrator.status()["policy_version"] == 4
    assert bench.learner.rollbacks == []


async def test_a_rollback_counts_when_the_learner_dies_behind_it(bench: Bench) -> None:
    bench.learner.dies_after_rollback = True
    async with bench.running() as orchestrator:
        await _steps(bench, orchestrator, 2)
        with pytest.raises(ServiceError, match="lost during a rollback"):
            await orchestrator.rollback(1)
        await until(lambda: orchestrator.status()["policy_version"] == 3)
        assert bench.engine.policy_version == 3
    assert [row.get("rolled_back_to") for row in bench.store.steps.rows()] == [None, None, 1]
    assert len(bench.learner.rollbacks) == 1


async def test_a_rollback_is_not_done_later_when_it_was_refused(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        await _steps(bench, orchestrator, 2)
        bench.learner.gone = True
        with pytest.raises(ServiceError, match="not running"):
            await orchestrator.rollback(1)
        bench.learner.gone = False
        await _steps(bench, orchestrator, 1)
    assert bench.learner.rollbacks == []
    assert [row.get("rolled_back_to") for row in bench.store.steps.rows()] == [None] * 3


async def test_a_rollback_is_the_way_out_of_weights_that_cannot_be_served(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        await _steps(bench, orchestrator, 1)
        bench.engine.refused = {2}
        bench.episode(1.0, version=1)
        await until(lambda: "is not served" in orchestrator.status()["reason"])
        row = await orchestrator.rollback(1)
        assert row["published"]
        assert orchestrator.status()["served_version"] == 3
        assert orchestrator.status()["publish_error"] is None


async def test_siblings_are_trained_together_against_each_other(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        sessions = [sibling(bench.store) for _ in range(3)]
        ids = [scored(bench.store, sessions[0], 1.0), scored(bench.store, sessions[1], 0.0)]
        await until(lambda: "has 2 of 3 scored" in orchestrator.status()["reason"])
        ids.append(scored(bench.store, sessions[2], -1.0))
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    (request,) = bench.learner.requests
    assert request.facts.episode_ids == tuple(ids)
    assert request.facts.num_groups == 1
    # The one that is exactly average belongs to the step, with nothing to push.
    assert [sample.spans[-1].advantage for sample in request.samples] == [1.5, 0.0, -1.5]
    assert [sample.num_trainable_tokens for sample in request.samples] == [2, 2, 2]
    (row,) = bench.store.steps.rows()
    assert row["num_groups"] == 1
    assert {bench.state(episode_id) for episode_id in ids} == {"trained"}


async def test_a_group_goes_without_siblings_that_are_too_late(tmp_path: Path) -> None:
    bench = Bench(tmp_path, group={"timeout_s": 0.3})
    async with bench.running() as orchestrator:
        sessions = [sibling(bench.store) for _ in range(4)]
        ids = [scored(bench.store, sessions[0], 1.0), scored(bench.store, sessions[1], -1.0)]
        late = complete(bench.store, sessions[2])
        await until(lambda: orchestrator.status()["policy_version"] == 1)
        bench.store.rewards.set(late, 1.0)
        bench.store.sessions.end(sessions[3])
        await until(lambda: orchestrator.status()["policy_version"] == 2)
    group, lone = bench.learner.requests
    assert group.facts.episode_ids == tuple(ids)
    assert [sample.spans[-1].advantage for sample in group.samples] == [2.0, -2.0]
    assert (lone.facts.episode_ids, lone.facts.num_groups) == ((late,), 0)
    # Its baseline is the running one: 0.9 * 0.1 - 0.1 after 1 and -1.
    assert lone.samples[0].spans[-1].advantage == pytest.approx(1.01)


async def test_a_sibling_that_ends_lets_its_group_go(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        one, two = sibling(bench.store), sibling(bench.store)
        episode_id = scored(bench.store, one)
        await until(lambda: "has 1 of 2 scored" in orchestrator.status()["reason"])
        bench.store.sessions.end(two)
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    assert bench.learner.requests[0].facts.episode_ids == (episode_id,)


async def test_a_group_without_a_verdict_is_dropped(bench: Bench) -> None:
    async with bench.running() as orchestrator:
        sessions = [sibling(bench.store) for _ in range(3)]
        ids = [scored(bench.store, session_id, 0.0) for session_id in sessions]
        await until(lambda: all(bench.state(episode_id) == "dropped" for episode_id in ids))
        assert {bench.store.episodes.get(i).dropped_reason for i in ids} == {"zero_advantage"}
        assert orchestrator.status()["policy_version"] == 0
    assert bench.learner.requests == []


async def test_a_batch_counts_groups(tmp_path: Path) -> None:
    bench = Bench(tmp_path, batch_size=2)
    async with bench.running() as orchestrator:
        ids = [scored(bench.store, sibling(bench.store), reward) for reward in (1.0, -1.0)]
        await until(lambda: orchestrator.status()["reason"] == "1 of 2 scored")
        ids.append(bench.episode(0.5))
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    (request,) = bench.learner.requests
    assert request.facts.episode_ids == tuple(ids)
    assert [sample.spans[-1].advantage for sample in request.samples] == [2.0, -2.0, 0.5]


async def test_a_step_takes_all_that_is_ready(tmp_path: Path) -> None:
    """Ten conversations that are judged afterwards are all trained."""
    bench = Bench(tmp_path, reward=RewardConfig(grace_s=0.0))
    ids = [bench.episode((-1.0) ** index) for index in range(10)]
    async with bench.running() as orchestrator:
        await until(lambda: orchestrator.status()["policy_version"] >= 1)
        await until(lambda: all(bench.state(episode_id) == "trained" for episode_id in ids))
    assert [row["episode_ids"] for row in bench.store.steps.rows()] == [ids]


async def test_a_group_that_is_all_bad_is_trained(bench: Bench) -> None:
    sessions = [sibling(bench.store) for _ in range(4)]
    ids = [scored(bench.store, session_id, -1.0) for session_id in sessions]
    async with bench.running():
        await until(lambda: all(bench.state(episode_id) == "trained" for episode_id in ids))
    (request,) = bench.learner.requests
    assert [sample.spans[-1].advantage for sample in request.samples] == [-1.0] * 4


@pytest.mark.parametrize("action", ["warn", "hold"])
async def test_one_answer_for_all_is_said_and_acted_on(tmp_path: Path, action: str) -> None:
    bench = Bench(tmp_path, watch={"action": action}, batch_size=10)
    for index in range(10):
        bench.episode(1.0, question=f"question {index}")
    async with bench.running() as orchestrator:
        await until(lambda: orchestrator.status()["policy_version"] == 1)
        if action == "hold":
            await until(lambda: orchestrator.status()["state"] == "paused")
            assert "10 of the last 10 replies begin with 'x'" in orchestrator.status()["reason"]
            await orchestrator.resume()
        for index in range(10):
            bench.episode(1.0, version=1, question=f"question {index}")
        # It holds when it begins, not at every step from then on.
        await until(lambda: orchestrator.status()["policy_version"] == 2)
        assert not orchestrator.status()["paused"]
    rows = bench.store.steps.rows()
    assert [list(row["warnings"]) for row in rows] == [["one_answer"]] * 2
    assert rows[0]["reply_alike_frac"] == 1.0


async def test_a_group_stays_whole_when_the_learner_dies(bench: Bench) -> None:
    def die(_: StepRequest) -> None:
        bench.learner.gone = True
        raise ServiceError("the connection to the learner was lost")

    bench.learner.script = [die]
    async with bench.running() as orchestrator:
        sessions = [sibling(bench.store) for _ in range(2)]
        ids = [scored(bench.store, s, r) for s, r in zip(sessions, (1.0, -1.0), strict=True)]
        await until(lambda: bench.learner.gone and bench.state(ids[0]) == "scored")
        bench.learner.gone = False
        await until(lambda: orchestrator.status()["policy_version"] == 1)
    assert [request.facts.episode_ids for request in bench.learner.requests] == [tuple(ids)] * 2
    assert [row["episode_ids"] for row in bench.store.steps.rows()] == [ids]
