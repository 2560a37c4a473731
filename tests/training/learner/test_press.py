"""A press does what it says: how far a step moves the judged reply, and what else it may move."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from fakes.episodes import make_completion, make_episode
from fakes.steps import make_request
from fakes.tiny_model import make_tiny_model

from hermes_tui_training.algorithm.samples import training_samples
from hermes_tui_training.api.config import (
    LoraConfig,
    LossConfig,
    ModelConfig,
    StepConfig,
    TrainingConfig,
)
from hermes_tui_training.api.learner import LearnerMetrics, NothingMovedError
from hermes_tui_training.api.types import Completion, TrainingSample
from hermes_tui_training.learner.batches import make_batches
from hermes_tui_training.learner.learner import Learner
from hermes_tui_training.learner.model import PolicyModel
from hermes_tui_training.learner.reference import ReferenceText, mean_kl
from hermes_tui_training.learner.update import Update, Updater
from hermes_tui_training.store import checkpoint

CPU = torch.device("cpu")
NATS = 0.1
"""What a score of 1 moves: a random model of 32 dimensions bends long before half a nat."""

REFERENCE = tuple(range(30, 60))
KINDS = pytest.mark.parametrize(
    "lora", [LoraConfig(rank=4, alpha=8), LoraConfig(rank=0)], ids=["lora", "full"]
)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


class Bench:
    """A policy to press on, without checkpoints."""

    def __init__(
        self,
        model_dir: Path,
        lora: LoraConfig,
        *,
        reference_ids: Sequence[int] = (),
        **changes: float,
    ) -> None:
        step = {"nats_per_unit": NATS, **changes}
        config = TrainingConfig(
            lora=lora, loss=LossConfig(max_step_kl=100), step=StepConfig(**step)
        )
        self.policy = PolicyModel(
            model_dir, lora, device=CPU, dtype=torch.float32, with_reference=False
        )
        reference = ReferenceText(self.policy, reference_ids) if reference_ids else None
        self.updater = Updater(self.policy, reference, config)

    def samples(self, replies: dict[tuple[int, ...], float]) -> list[TrainingSample]:
        """Return replies as the policy would have sampled them, with their advantages."""
        found = []
        for index, (tokens, advantage) in enumerate(replies.items()):
            completion = make_completion(
                f"c{index}", (5, 6, 7), tokens, logprobs=(-1.0,) * len(tokens)
            )
            episode = make_episode(completion, episode_id=f"ep-{index}")
            (sample,) = training_samples(episode, {f"c{index}": advantage})
            (batch,) = make_batches([sample], 999, CPU)
            logprobs = (0.0,) * 3 + tuple(self.policy.score(batch).logprobs_N.tolist())
            found.append(dataclasses.replace(sample, behavior_logprobs=logprobs))
        return found

    def press(self, replies: dict[tuple[int, ...], float]) -> Update:
        return self.updater.update(make_batches(self.samples(replies), 999, CPU))

    def moved(self, tokens: tuple[int, ...], advantage: float) -> float:
        """Return how far a press moves a reply's mean log-probability; the weights are as before.

        Signed as the log-probability.
        """
        weights = [p.detach().clone() for p in self.policy.parameters()]
        linearity = self.updater.linearity
        update = self.press({tokens: advantage})
        for parameter, weight in zip(self.policy.parameters(), weights, strict=True):
            parameter.data.copy_(weight)
        self.updater.linearity = linearity
        return float((update.after.logprobs_S - update.before.logprobs_S).mean())


REPLY = (8, 9, 10, 11)


@KINDS
def test_a_score_moves_its_reply_in_proportion_to_its_size(
    model_dir: Path, lora: LoraConfig
) -> None:
    """From copies of one state, on the first press and after twenty-five others."""
    bench = Bench(model_dir, lora)
    for presses in (0, 25):
        for index in range(presses):
            bench.press({(20 + index % 5, 21, 22 + index % 3): (-1.0) ** index})
        whole, tenth = bench.moved(REPLY, -1.0), bench.moved(REPLY, -0.1)
        assert whole == pytest.approx(-NATS, rel=0.16)
        assert tenth / whole == pytest.approx(0.1, abs=0.03)
        assert bench.moved(REPLY, 0.1) / bench.moved(REPLY, 1.0) == pytest.approx(0.1, abs=0.03)


@KINDS
def test_a_hundred_presses_do_not_make_the_next_one_larger(
    model_dir: Path, lora: LoraConfig
) -> None:
    bench = Bench(model_dir, lora)
    first = bench.moved(REPLY, -0.2)
    for index in range(100):
        bench.press({REPLY: 0.2 * (-1.0) ** index})
    assert bench.moved(REPLY, -0.2) / first == pytest.approx(1.0, abs=0.3)


@KINDS
def test_the_length_of_a_reply_does_not_decide_how_far_it_moves(
    model_dir: Path, lora: LoraConfig
) -> None:
    bench = Bench(model_dir, lora)
    long = tuple(8 + i % 40 for i in range(80))
    assert bench.moved(long, -1.0) == pytest.approx(bench.moved(long[:2], -1.0), rel=0.35)
    # In one step too: each reply counts alike, however many tokens it has.
    update = bench.press({(50, 51): -1.0, long: -1.0})
    assert update.length.trial is not None
    assert update.length.trial.moved == pytest.approx(NATS, rel=0.16)


def test_scores_of_one_step_pull_their_replies_apart(model_dir: Path) -> None:
    bench = Bench(model_dir, LoraConfig(rank=0))
    update = bench.press({REPLY: 1.0, (20, 21, 22, 23): -1.0})
    change_S = update.after.logprobs_S - update.before.logprobs_S
    assert float(change_S[:4].mean()) > 0.6 * NATS
    assert float(change_S[4:].mean()) < -0.6 * NATS


def _at_temperature(bench: Bench, temperature: float) -> tuple[Completion, float]:
    """Return the likeliest reply of one token at a temperature, and its log-probability."""
    (sample,) = bench.samples({(8,): 1.0})
    (batch,) = make_batches([sample], 999, CPU)
    logits_V = bench.policy.score(batch, torch.tensor([0])).kept_KV[0] / temperature
    logprob, token = torch.log_softmax(logits_V, -1).max(-1)
    completion = make_completion(
        "c", (5, 6, 7), (int(token),), logprobs=(float(logprob),), temperature=temperature
    )
    return completion, float(logprob)


def _near_certain(model_dir: Path, low: float, high: float) -> Completion:
    """Return a reply whose log-probability is between two bounds, since it is sampled so coldly."""
    bench = Bench(model_dir, LoraConfig(rank=0))
    for exponent in range(200):
        completion, logprob = _at_temperature(bench, 0.97**exponent)
        if low < logprob < high:
            return completion
    raise AssertionError("no temperature gives such a reply")


def test_praise_leaves_a_near_certain_reply_alone(model_dir: Path, tmp_path: Path) -> None:
    config = TrainingConfig(lora=LoraConfig(rank=0), loss=LossConfig(max_step_kl=100))
    learner = Learner(model_dir, ModelConfig(path=str(model_dir)), config, tmp_path)
    certain = _near_certain(model_dir, -0.05, -0.01)
    with pytest.raises(NothingMovedError, match="nearly always by now") as nothing:
        learner.step(make_request([make_episode(certain)], [{"c": 1.0}]))
    assert nothing.value.reason == "certain"
    assert checkpoint.complete_versions(tmp_path) == []
    # Blame is another matter.
    blamed = learner.step(make_request([make_episode(certain)], [{"c": -0.1}])).result.metrics
    assert blamed.moved_nats == pytest.approx(0.05, rel=0.16)


def test_praise_counts_less_the_nearer_a_reply_is_to_certain(
    model_dir: Path, tmp_path: Path
) -> None:
    config = TrainingConfig(lora=LoraConfig(rank=0), loss=LossConfig(max_step_kl=100))
    learner = Learner(model_dir, ModelConfig(path=str(model_dir)), config, tmp_path)
    near = _near_certain(model_dir, -0.4, -0.3)
    metrics = learner.step(make_request([make_episode(near)], [{"c": 1.0}])).result.metrics
    assert metrics.target_nats == pytest.approx(-near.logprobs[0] / 2, rel=1e-3)
    assert metrics.moved_nats == pytest.approx(metrics.target_nats, rel=0.16)
    assert (metrics.limit, metrics.num_certain) == ("certain", 1)


@KINDS
def test_the_reference_text_drifts_no_further_than_its_bound(
    model_dir: Path, lora: LoraConfig
) -> None:
    """Replies of the text's own tokens are judged bad, so that the text falls with them."""

    def run(bound: float) -> tuple[float, float]:
        bench = Bench(model_dir, lora, reference_ids=REFERENCE, max_reference_drift=bound)
        drift = moved = 0.0
        for index in range(10):
            update = bench.press({tuple(REFERENCE[index : index + 6]): -1.0})
            assert update.reference is not None
            assert update.length.trial is not None
            drift = max(drift, update.reference.drift)
            moved += update.length.trial.moved
        return drift, moved

    free, _ = run(99.0)
    assert free > 0.01  # or there would be nothing to hold
    held, moved = run(free / 4)
    assert held <= free / 4
    assert moved > 0.5 * 10 * NATS  # the replies went on becoming less likely


def test_a_used_up_bound_moves_nothing_and_says_so(model_dir: Path) -> None:
    reference_ids = (*REPLY, *REPLY)
    bench = Bench(
        model_dir, LoraConfig(rank=0), reference_ids=reference_ids, max_reference_drift=1e-9
    )
    with pytest.raises(NothingMovedError, match="max_reference_drift") as held:
        bench.press({REPLY: -1.0})
    assert held.value.reason == "reference_drift"


def test_scores_that_cancel_each_other_out_are_said(model_dir: Path) -> None:
    bench = Bench(model_dir, LoraConfig(rank=0))
    one, other = bench.samples({REPLY: 1.0}), bench.samples({REPLY: -1.0})
    with pytest.raises(NothingMovedError) as nothing:
        bench.updater.update(make_batches([*one, *other], 999, CPU))
    assert nothing.value.reason == "no_gradient"


def test_a_step_of_no_nats_moves_nothing(model_dir: Path) -> None:
    bench = Bench(model_dir, LoraConfig(rank=0), nats_per_unit=0)
    with pytest.raises(NothingMovedError, match="nats_per_unit is 0"):
        bench.press({REPLY: 1.0})


def _with_logprob(sample: TrainingSample, change: float) -> TrainingSample:
    shifted = (v + change if m else v for v, m in zip(sample.behavior_logprobs, sample.loss_mask))  # noqa: B905
    return dataclasses.replace(sample, behavior_logprobs=tuple(shifted))


def test_a_reply_that_the_policy_has_left_behind_is_stale(model_dir: Path) -> None:
    bench = Bench(model_dir, LoraConfig(rank=0))
    near, far = bench.samples({REPLY: -1.0, (20, 21, 22): -1.0})
    near, far = _with_logprob(near, 0.3), _with_logprob(far, 3.0)
    update = bench.updater.update(make_batches([near, far], 999, CPU))
    assert update.stale_episode_ids == ("ep-1",)
    change_S = update.after.logprobs_S - update.before.logprobs_S
    assert float(change_S[:4].mean()) == pytest.approx(-NATS, rel=0.16)
    with pytest.raises(NothingMovedError) as nothing:
        bench.updater.update(make_batches([_with_logprob(far, 3.0)], 999, CPU))
    assert nothing.value.reason == "stale"


def test_a_kl_that_is_no_number_does_not_read_as_zero() -> None:
    good = torch.log_softmax(torch.tensor([[0.1, 0.2, 0.3]]), -1)
    assert math.isnan(mean_kl(good, good * math.nan))
    assert mean_kl(good, good) == 0.0


def test_metrics_say_what_the_reference_text_did(model_dir: Path, tmp_path: Path) -> None:
    def step(name: str, reference_ids: Sequence[int]) -> LearnerMetrics:
        config = TrainingConfig(lora=LoraConfig(rank=4, alpha=8))
        learner = Learner(
            model_dir, ModelConfig(path=str(model_dir)), config, tmp_path / name, reference_ids
        )
        completion = make_completion("c", (5, 6, 7), REPLY, logprobs=(-4.1,) * 4)
        request = make_request([make_episode(completion)], [{"c": -1.0}])
        return learner.step(request).result.metrics

    with_text, without = step("with", REFERENCE), step("without", ())
    assert without.reference_drift is None
    assert with_text.reference_kl is not None
    assert with_text.reference_kl > 0
    assert with_text.reference_drift is not None
    assert with_text.reference_logprob == pytest.approx(-4.1, abs=0.4)
    assert abs(with_text.reference_drift) <= 0.15
