"""Settings of AReaL's ``train.py``, from YAML files and command lines, as ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hermes_tui.config.areal import LEFT_OUT, MAPPED, read_words, read_yaml
from hermes_tui.config.settings import Config, load_config
from hermes_tui_common.errors import ConfigError

DOCUMENT = Path(__file__).parents[3] / "docs" / "areal.md"

FILE = """
experiment_name: online-rl
total_train_steps: 100
tokenizer_path: ${actor.path}
cluster: {n_nodes: 1, n_gpus_per_node: 2, fileroot: /tmp/areal}
scheduler: {type: local}
rollout:
  backend: "sglang:d1"
  consumer_batch_size: ${train_dataset.batch_size}
  max_concurrent_rollouts: 256
  max_head_offpolicyness: 2
  agent: {mode: online, turn_discount: 0.9, tool_call_parser: qwen}
  admin_api_key: sk-123456
actor:
  admin_api_key: sk-other
  path: /models/mine
  dtype: bfloat16
  mb_spec: {max_tokens_per_mb: 15360}
  optimizer: {type: adam, lr: 1.70e-5, weight_decay: 0.017, gradient_clipping: 1.0}
  eps_clip: 0.4
  reward_scaling: 10.0
  reward_bias: -0.5
  kl_ctl: 0.0
  rejection_sampling: {metric: ratio, upper: 5.0}
  scheduling_spec: [{task_type: worker, gpu: 1}]
sglang: {max_running_requests: null, context_length: 32768}
train_dataset: {batch_size: 3, path: "null", type: rl}
saver: {freq_epochs: 1, freq_steps: null}
stats_logger: {wandb: {mode: disabled}}
"""


def loaded(words: list[str]) -> Config:
    return load_config(words, environ={}, cwd=Path("/"))


def test_a_file_of_areal(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(FILE)
    translation = read_yaml(file)
    config = loaded(translation.words())
    training = config.training
    assert (config.model.path, config.model.dtype) == ("/models/mine", "bfloat16")
    assert training.admin_api_key.get_secret_value() == "sk-123456"
    assert training.batch_size == 3
    assert training.max_staleness == 2
    assert training.gateway.max_sessions == 256
    assert training.micro_batch_tokens == 15360
    assert (training.reward.scale, training.reward.bias) == (10.0, -0.5)
    assert training.reward.turn_discount == 0.9
    assert (training.loss.clip_low, training.loss.clip_high) == (0.4, 0.4)
    assert (training.loss.reject, training.loss.kl_coef) == (5.0, 0.0)
    assert training.optimizer.learning_rate == 1.7e-5
    assert training.checkpoint == Config().training.checkpoint
    assert training.metrics.loggers == ()
    assert "run.dir" in translation.left_out["cluster.fileroot"]
    assert "/rl/" not in translation.left_out["actor.admin_api_key"]
    assert "actor.scheduling_spec" in translation.left_out


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("train_dataset.batch_size=4", "training.batch_size=4"),
        ("actor.optimizer.lr=5e-6", "training.optimizer.learning_rate=5e-06"),
        ("actor.reward_scaling=2", "training.reward.scale=2"),
        ("rollout.max_head_offpolicyness=8", "training.max_staleness=8"),
        ("+saver.freq_steps=7", "training.checkpoint.keep_every=7"),
        ("actor.use_lora=false", "training.lora.rank=0"),
        ("stats_logger.wandb.mode=online", 'training.metrics.loggers=["wandb"]'),
        ("training.batch_size=9", "training.batch_size=9"),
    ],
)
def test_a_word_of_a_command_line(word: str, expected: str) -> None:
    (translated,) = read_words([word]).words()
    assert translated == expected
    loaded([translated])


def test_a_later_word_wins() -> None:
    words = ["train_dataset.batch_size=4", "training.batch_size=5", "train_dataset.batch_size=6"]
    assert loaded(read_words(words).words()).training.batch_size == 6


@pytest.mark.parametrize("word", ["total_train_steps=5", "gconfig.temperature=0.7", "seed=1"])
def test_a_word_without_a_counterpart_says_what_to_do(word: str) -> None:
    translation = read_words([word])
    assert translation.overrides == {}
    (reason,) = translation.left_out.values()
    assert reason


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("actor: {dtype: float16}", "actor.dtype = 'float16' cannot be taken over: model.dtype"),
        ("actor:\n  - {", "config.yaml:2: not YAML"),
        ("just words", "config.yaml: holds no settings"),
        ("trainer: {x: 1}", "trainer.x is no setting of AReaL's train.py"),
    ],
)
def test_a_file_that_cannot_be_taken_over(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_yaml(file)


def test_every_mapping_names_settings_that_there_are() -> None:
    values = {
        "actor.dtype": "float32",
        "actor.path": "x",
        "rollout.admin_api_key": "k",
        "stats_logger.wandb.mode": "online",
        "actor.use_lora": False,
        "rollout.agent.turn_discount": 0.5,
        "actor.eps_clip": 0.5,
        "actor.rejection_sampling.upper": 2.0,
    }
    for word in MAPPED:
        translation = read_words([])
        translation.add(word, values.get(word, 1))
        loaded(translation.words())


def test_the_document_lists_every_word() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    missing = [word for word in (*MAPPED, *LEFT_OUT) if f"`{word}`" not in text]
    assert not missing
