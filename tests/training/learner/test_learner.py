"""The learner's step on a tiny random model: directions, invariances, guards, checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes.episodes import make_completion, make_episode
from fakes.steps import make_request
from fakes.tiny_model import make_tiny_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hermes_tui_common.errors import ConfigError, TrainingError
from hermes_tui_training.api.config import (
    LoraConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    StepConfig,
    TrainingConfig,
)
from hermes_tui_training.api.learner import (
    NonFiniteError,
    RollbackRequest,
    StepResult,
    VersionExistsError,
)
from hermes_tui_training.api.types import Completion, Episode, LineageId
from hermes_tui_training.learner.direction import turn_into_direction
from hermes_tui_training.learner.learner import Learner
from hermes_tui_training.store import checkpoint

LORA = LoraConfig(rank=4, alpha=8)
FULL = LoraConfig(rank=0)
KINDS = pytest.mark.parametrize("lora", [LORA, FULL], ids=["lora", "full"])


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def _learner(
    model_dir: Path, checkpoints: Path, lora: LoraConfig = LORA, **changes: object
) -> Learner:
    # Half a nat is more than one direction can do to a random model of 32 dimensions.
    values: dict[str, object] = {"lora": lora, "step": StepConfig(nats_per_unit=0.2), **changes}
    training = TrainingConfig(**values)  # type: ignore[arg-type]
    return Learner(model_dir, ModelConfig(path=str(model_dir)), training, checkpoints)


def _truth(model_dir: Path, completion: Completion) -> tuple[float, ...]:
    """Return the log-probabilities of a completion's tokens by the model's plain forward."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    ids = torch.tensor([completion.prompt_token_ids + completion.token_ids])
    temperature = completion.sampling["temperature"]
    with torch.no_grad():
        logits = model(ids).logits[0] / temperature
    logprobs = torch.log_softmax(logits, -1)
    start = len(completion.prompt_token_ids)
    return tuple(
        float(logprobs[start + i - 1, token]) for i, token in enumerate(completion.token_ids)
    )


def _sampled(model_dir: Path, completion: Completion) -> Completion:
    return replace(completion, logprobs=_truth(model_dir, completion))


def _episode(model_dir: Path, *, episode_id: str = "ep-1", length: int = 3) -> Episode:
    sampled = tuple(8 + i for i in range(length))
    completion = make_completion(
        f"c-{episode_id}", (5, 6, 7), sampled, temperature=0.6, episode_id=episode_id
    )
    return make_episode(_sampled(model_dir, completion), episode_id=episode_id)


def _weights(*advantages: float) -> list[dict[str, float]]:
    return [{f"c-ep-{i}": value} for i, value in enumerate(advantages, 1)]


@KINDS
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_judgement_moves_its_tokens_its_way(
    model_dir: Path, tmp_path: Path, lora: LoraConfig, sign: float
) -> None:
    episode = _episode(model_dir)
    answer = _learner(model_dir, tmp_path, lora).step(make_request([episode], _weights(sign)))
    metrics = answer.result.metrics
    assert (metrics.logprob_after - metrics.logprob_before) * sign > 0.01
    assert metrics.grad_norm > 0
    assert metrics.kl_step > 0
    assert metrics.num_trained_tokens == 3
    # At temperature 0.6 the sampler's and the learner's log-probabilities are the same numbers.
    assert metrics.gap_max < 1e-4
    (completion,) = answer.result.completions
    assert completion.proximal_logprobs == pytest.approx(episode.completions[0].logprobs, abs=1e-4)
    assert sum(completion.after_logprobs) / 3 == pytest.approx(metrics.logprob_after, abs=1e-5)
    assert completion.advantage == sign


@KINDS
def test_what_was_saved_is_what_was_measured(
    model_dir: Path, tmp_path: Path, lora: LoraConfig
) -> None:
    episode = _episode(model_dir)
    answer = _learner(model_dir, tmp_path, lora).step(make_request([episode], _weights(1.0)))
    path = checkpoint.checkpoint_path(tmp_path, 1)
    assert checkpoint.is_complete(tmp_path, 1)
    assert checkpoint.read_step(tmp_path, 1) == answer.result
    again = _learner(model_dir, tmp_path, lora)
    assert again.version == 1
    second = again.step(make_request([episode], _weights(1.0), base_version=1))
    before = second.result.completions[0].proximal_logprobs
    assert before == pytest.approx(answer.result.completions[0].after_logprobs, abs=1e-5)
    if lora.rank:
        config = json.loads((path / "adapter_config.json").read_text())
        assert (config["r"], config["lora_alpha"]) == (4, 8)
        assert config["base_model_name_or_path"] == str(model_dir.resolve())
        assert load_file(path / "adapter_model.safetensors")
    else:
        assert _truth(path, episode.completions[0]) == pytest.approx(before, abs=1e-5)


def test_a_restart_changes_nothing(model_dir: Path, tmp_path: Path) -> None:
    first, second = _episode(model_dir), _episode(model_dir, episode_id="ep-2", length=5)
    weights = [{"c-ep-2": -1.0}]
    running = _learner(model_dir, tmp_path / "a")
    running.step(make_request([first], _weights(1.0)))
    expected = running.step(make_request([second], weights, base_version=1)).result

    _learner(model_dir, tmp_path / "b").step(make_request([first], _weights(1.0)))
    restarted = _learner(model_dir, tmp_path / "b")
    result = restarted.step(make_request([second], weights, base_version=1)).result
    assert result.completions == expected.completions


def test_changed_settings_count_after_a_restart(model_dir: Path, tmp_path: Path) -> None:
    _learner(model_dir, tmp_path).step(make_request([_episode(model_dir)], _weights(1.0)))
    learner = _learner(model_dir, tmp_path, step=StepConfig(nats_per_unit=0.1))
    request = make_request([_episode(model_dir)], _weights(-1.0), base_version=1)
    assert learner.step(request).result.metrics.moved_nats == pytest.approx(0.1, rel=0.15)


def test_settings_without_effect_are_named_once_and_change_nothing(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request = make_request([_episode(model_dir)], _weights(-1.0))
    usual = _learner(model_dir, tmp_path / "usual").step(request).result
    assert "no effect" not in caplog.text
    optimizer = OptimizerConfig(learning_rate=1.0, warmup_steps=9, betas=(0.9, 0.5))
    learner = _learner(model_dir, tmp_path / "set", optimizer=optimizer)
    assert learner.step(request).result.completions == usual.completions
    for name in ("learning_rate", "warmup_steps", "betas"):
        assert caplog.text.count(f"training.optimizer.{name} has no effect") == 1
    assert "max_grad_norm" not in caplog.text


def test_an_earlier_base_version_is_loaded_again(model_dir: Path, tmp_path: Path) -> None:
    episode = _episode(model_dir)
    learner = _learner(model_dir, tmp_path)
    first = learner.step(make_request([episode], _weights(1.0))).result
    other = learner.step(
        make_request([episode], _weights(-1.0), base_version=0, target_version=7)
    ).result
    assert other.completions[0].proximal_logprobs == pytest.approx(
        first.completions[0].proximal_logprobs, abs=1e-6
    )
    assert other.metrics.logprob_after < other.metrics.logprob_before


Gradients = dict[str, torch.Tensor]


def _one_update(
    model_dir: Path,
    checkpoints: Path,
    micro_batch_tokens: int,
    order: list[int],
    lora: LoraConfig = FULL,
) -> tuple[StepResult, Gradients]:
    """Do one step on four replies; return it with the gradient that it went by."""
    lengths = [3, 9, 1, 5]
    episodes = [
        _episode(model_dir, episode_id=f"ep-{i}", length=n) for i, n in enumerate(lengths, 1)
    ]
    weights = _weights(*ADVANTAGES)
    request = make_request([episodes[i] for i in order], [weights[i] for i in order])
    learner = _learner(model_dir, checkpoints, lora, micro_batch_tokens=micro_batch_tokens)
    gradients: Gradients = {}

    def turn(parameters: list[torch.nn.Parameter], anchor: object = None) -> float:
        named = learner._policy._causal.named_parameters()
        gradients.update((n, p.grad.clone()) for n, p in named if p.grad is not None)
        return turn_into_direction(parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hermes_tui_training.learner.update.turn_into_direction", turn)
        return learner.step(request).result, gradients


ADVANTAGES = (1.0, -0.5, 0.25, 2.0)


def _assert_same(one: Gradients, other: Gradients) -> None:
    assert one.keys() == other.keys()
    for name, gradient in one.items():
        assert torch.allclose(gradient, other[name], rtol=1e-4, atol=1e-5), name


@KINDS
def test_micro_batches_padding_and_order_change_nothing(
    model_dir: Path, tmp_path: Path, lora: LoraConfig
) -> None:
    whole, gradients = _one_update(model_dir, tmp_path / "a", 10_000, [0, 1, 2, 3], lora)
    single, others = _one_update(model_dir, tmp_path / "b", 1, [2, 0, 3, 1], lora)
    assert single.metrics.loss == pytest.approx(whole.metrics.loss, abs=1e-5)
    assert single.metrics.grad_norm == pytest.approx(whole.metrics.grad_norm, rel=1e-4)
    assert single.metrics.kl_step == pytest.approx(whole.metrics.kl_step, rel=1e-2)
    assert single.metrics.moved_nats == pytest.approx(whole.metrics.moved_nats, rel=1e-3)
    by_id = {c.completion_id: c.after_logprobs for c in single.completions}
    for completion in whole.completions:
        assert by_id[completion.completion_id] == pytest.approx(completion.after_logprobs, abs=1e-3)
    _assert_same(gradients, others)


def test_the_gradient_is_that_of_the_mean_move_by_plain_torch(
    model_dir: Path, tmp_path: Path
) -> None:
    """Each reply counts alike: the gradient of sum(A * mean logprob) / sum(|A|), negated."""
    _, gradients = _one_update(model_dir, tmp_path, 10_000, [0, 1, 2, 3])
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    move = torch.zeros(())
    for index, (length, advantage) in enumerate(zip([3, 9, 1, 5], ADVANTAGES, strict=True), 1):
        (completion,) = _episode(model_dir, episode_id=f"ep-{index}", length=length).completions
        ids = torch.tensor([completion.prompt_token_ids + completion.token_ids])
        logprobs = torch.log_softmax(model(ids).logits[0, 2:-1] / 0.6, -1)
        move = move + advantage * logprobs.gather(1, ids[0, 3:, None]).mean()
    torch.autograd.backward(-move / sum(map(abs, ADVANTAGES)))
    plain = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    _assert_same(gradients, plain)


def test_recomputed_activations_change_nothing(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, gradients = _one_update(model_dir, tmp_path / "a", 10_000, [0, 1, 2, 3])
    module = "hermes_tui_training.learner.model"
    monkeypatch.setattr(f"{module}.CHECKPOINTING_TOKENS", 1)
    monkeypatch.setattr(f"{module}.LOGIT_ROWS", 2)
    chunked, others = _one_update(model_dir, tmp_path / "b", 10_000, [0, 1, 2, 3])
    assert chunked.metrics.loss == pytest.approx(plain.metrics.loss, abs=1e-6)
    assert chunked.metrics.kl_step == pytest.approx(plain.metrics.kl_step, rel=1e-2)
    _assert_same(gradients, others)


def test_a_multi_turn_sample_gives_each_completion_its_own_numbers(
    model_dir: Path, tmp_path: Path
) -> None:
    first = _sampled(model_dir, make_completion("c1", (1, 2, 3), (4, 5)))
    second = _sampled(model_dir, make_completion("c2", (1, 2, 3, 4, 5, 6), (7, 8, 9)))
    request = make_request([make_episode(first, second)], [{"c1": 1.0, "c2": -1.0}])
    result = _learner(model_dir, tmp_path).step(request).result
    assert [c.completion_id for c in result.completions] == ["c1", "c2"]
    for trained, completion in zip(result.completions, (first, second), strict=True):
        assert trained.proximal_logprobs == pytest.approx(completion.logprobs, abs=1e-4)
    assert sum(result.completions[0].after_logprobs) > sum(first.logprobs)
    assert sum(result.completions[1].after_logprobs) < sum(second.logprobs)


@KINDS
def test_numbers_that_are_not_finite_are_rolled_back(
    model_dir: Path, tmp_path: Path, lora: LoraConfig
) -> None:
    episode = _episode(model_dir)
    learner = _learner(model_dir, tmp_path, lora)
    good = learner.step(make_request([episode], _weights(1.0))).result
    request = make_request([episode], _weights(-1e38), base_version=1)
    with pytest.raises(NonFiniteError) as refused:
        learner.step(request)
    assert refused.value.episode_ids == ("ep-1",)
    assert not checkpoint.is_complete(tmp_path, 2)
    after = learner.step(make_request([episode], _weights(1.0), base_version=1)).result
    assert after.completions[0].proximal_logprobs == pytest.approx(
        good.completions[0].after_logprobs, abs=1e-3
    )


@KINDS
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_step_that_would_go_too_far_is_shortened(
    model_dir: Path, tmp_path: Path, lora: LoraConfig, sign: float
) -> None:
    request = make_request([_episode(model_dir)], _weights(sign))
    unbound = LossConfig(max_step_kl=100)
    free = _learner(model_dir, tmp_path / "free", lora, loss=unbound).step(request).result.metrics
    assert free.step_frac == pytest.approx(1.0, abs=0.15)
    assert free.limit is None
    changes = {"loss": LossConfig(max_step_kl=free.kl_step / 3)}
    result = _learner(model_dir, tmp_path, lora, **changes).step(request).result
    assert result.metrics.limit == "step_kl"
    assert result.metrics.step_frac < 0.85
    assert free.kl_step / 6 < result.metrics.kl_step <= free.kl_step / 3
    assert (result.metrics.logprob_after - result.metrics.logprob_before) * sign > 0
    # What was kept is what was measured.
    again = _learner(model_dir, tmp_path, lora, **changes)
    request = make_request([_episode(model_dir)], _weights(sign), base_version=1)
    before = again.step(request).result.completions[0].proximal_logprobs
    assert before == pytest.approx(result.completions[0].after_logprobs, abs=1e-5)


def test_a_finished_version_is_refused(model_dir: Path, tmp_path: Path) -> None:
    learner = _learner(model_dir, tmp_path)
    request = make_request([_episode(model_dir)], _weights(1.0))
    learner.step(request)
    with pytest.raises(VersionExistsError):
        learner.step(request)


def test_a_missing_base_version_is_said(model_dir: Path, tmp_path: Path) -> None:
    request = make_request([_episode(model_dir)], _weights(1.0), base_version=4)
    with pytest.raises(TrainingError, match="version 4 cannot be used: it is gone"):
        _learner(model_dir, tmp_path).step(request)


def test_checkpoints_of_other_settings_are_refused(model_dir: Path, tmp_path: Path) -> None:
    _learner(model_dir, tmp_path).step(make_request([_episode(model_dir)], _weights(1.0)))
    with pytest.raises(ConfigError, match=r"training\.lora\.rank is 0"):
        _learner(model_dir, tmp_path, FULL)


def test_another_model_begins_at_0_beside_the_versions_of_the_first(
    model_dir: Path, tmp_path: Path
) -> None:
    checkpoints = tmp_path / "checkpoints"
    _learner(model_dir, checkpoints).step(make_request([_episode(model_dir)], _weights(1.0)))
    other = make_tiny_model(tmp_path / "other")
    assert _learner(other, checkpoints).version == 0
    request = make_request([_episode(other)], _weights(1.0))
    answer = _learner(other, checkpoints).step(request.model_copy(update={"target_version": 2}))
    assert (answer.result.base, answer.result.parent) == (str(other), 0)
    assert checkpoint.lineage_of(checkpoints, 2) == LineageId(base=str(other))
    assert _learner(model_dir, checkpoints).version == 1
    assert _learner(other, checkpoints).version == 2


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path"):
        _learner(tmp_path / "nothing", tmp_path)


@KINDS
def test_the_kl_penalty_is_towards_where_training_began(
    model_dir: Path, tmp_path: Path, lora: LoraConfig
) -> None:
    episode = _episode(model_dir)
    learner = _learner(model_dir, tmp_path, lora, loss=LossConfig(kl_coef=0.1))
    first = learner.step(make_request([episode], _weights(1.0))).result
    assert first.metrics.kl_reference == pytest.approx(0.0, abs=1e-6)
    moved = replace(
        episode,
        completions=(
            replace(episode.completions[0], logprobs=first.completions[0].after_logprobs),
        ),
    )
    second = learner.step(make_request([moved], _weights(1.0), base_version=1)).result
    assert second.metrics.kl_reference > 1e-4


@KINDS
def test_after_a_rollback_a_step_is_what_it_was_the_first_time(
    model_dir: Path, tmp_path: Path, lora: LoraConfig
) -> None:
    episode = _episode(model_dir)

    def step(learner: Learner, base_version: int) -> StepResult:
        request = make_request([episode], _weights(1.0), base_version=base_version)
        return learner.step(request).result

    learner = _learner(model_dir, tmp_path, lora)
    first, second = step(learner, 0), step(learner, 1)
    answer = learner.rollback(RollbackRequest(version=1, target_version=3))
    assert checkpoint.read_step(tmp_path, 3) == answer.result
    assert answer.result.baselines == first.facts.baselines
    assert (first.parent, second.parent, answer.result.parent) == (0, 1, 1)
    assert {first.base, answer.result.base} == {str(model_dir)}
    again = _learner(model_dir, tmp_path, lora)  # the rollback is what a restart goes on with
    assert again.version == 3
    assert step(again, 3).completions == second.completions
    # Back to the beginning, from a version that was itself a rollback's successor.
    answer = again.rollback(RollbackRequest(version=0, target_version=5))
    assert answer.result.baselines == {}
    assert step(again, 5).completions == first.completions
    assert step(again, 6).completions == second.completions


def test_a_rollback_to_what_is_gone_changes_nothing(model_dir: Path, tmp_path: Path) -> None:
    learner = _learner(model_dir, tmp_path)
    learner.step(make_request([_episode(model_dir)], _weights(1.0)))
    with pytest.raises(TrainingError, match="version 7 cannot be used: it is gone"):
        learner.rollback(RollbackRequest(version=7, target_version=2))
    with pytest.raises(VersionExistsError):
        learner.rollback(RollbackRequest(version=0, target_version=1))
    assert checkpoint.complete_versions(tmp_path) == [1]
    learner.step(make_request([_episode(model_dir)], _weights(1.0), base_version=1))
    assert learner.version == 2
