"""What the learner reports: a long step is no hang as long as its batches get on."""

from __future__ import annotations

from pathlib import Path

from fakes.beats import heartbeat_of_the_test
from fakes.episodes import make_completion, make_episode
from fakes.steps import make_request
from fakes.tiny_model import make_tiny_model

from hermes_tui_common.heartbeat import TaskBeat, working
from hermes_tui_training.api.config import LoraConfig, ModelConfig, TrainingConfig
from hermes_tui_training.learner.learner import Learner

NUM_EPISODES = 4
UNIFORM = -4.11
"""About what a random model of 61 tokens gives each of them, nats."""


def test_each_pass_through_the_model_is_progress(tmp_path: Path) -> None:
    """Each pass takes as long as two beats, so the whole step dozens; none is silent for longer."""
    model = make_tiny_model(tmp_path / "model")
    training = TrainingConfig(lora=LoraConfig(rank=2, alpha=4), micro_batch_tokens=1)
    learner = Learner(model, ModelConfig(path=str(model)), training, tmp_path / "checkpoints")
    ids = [f"ep-{number}" for number in range(NUM_EPISODES)]
    completions = [
        make_completion(f"c-{id_}", (5, 6, 7), (8, 9, 10), episode_id=id_, logprobs=(UNIFORM,) * 3)
        for id_ in ids
    ]
    episodes = [
        make_episode(completion, episode_id=id_)
        for id_, completion in zip(ids, completions, strict=True)
    ]
    seen: list[TaskBeat] = []
    with heartbeat_of_the_test() as heartbeat:

        def beat(*_: object) -> None:
            for _ in range(2):
                seen.extend(heartbeat.beat().tasks)

        embeddings = learner._policy._causal.get_input_embeddings()
        embeddings.register_forward_pre_hook(beat)
        with working("making version 1"):
            learner.step(make_request(episodes, [{f"c-{id_}": 1.0} for id_ in ids]))
    assert {task.task for task in seen} == {"making version 1"}
    assert seen[-1].busy_s >= 2 * 2 * NUM_EPISODES
    assert max(task.silent_s for task in seen) <= 2.0
    assert {task.progress for task in seen} >= {
        f"batch {number} of {NUM_EPISODES}" for number in range(1, NUM_EPISODES + 1)
    }
