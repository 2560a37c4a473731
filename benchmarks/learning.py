"""What training does to the embedded model, and what it costs.

    python benchmarks/learning.py [--rank N --nats-per-unit X] [--episodes N] [--only RUN ...]

Everything is real: the torch engine samples in this process, the learner is a process of its own,
the store and the orchestrator connect them. There are three runs, each from the original model:

1. presses: twenty episodes with random rewards of +1 and -1. What does one press do to its reply,
   and is the model's English intact after twenty?
2. habit: a reply that begins with "No" gets +1, any other -1.
3. control: the same questions, with rewards that carry no information: +1 and -1 alternate among
   the replies with the habit, and among those without it.

Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import os

# Engine and learner share the cores; see docs/engine.md. Must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
import asyncio
import itertools
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outcome import Target, at_least, at_most, print_outcome
from training_run import TEXT, Episode, Examiner, Run
from transformers.utils.logging import disable_progress_bar

from hermes_tui_training.api.config import ModelConfig, RewardConfig, TrainingConfig
from hermes_tui_training.engine import create_engine
from hermes_tui_training.models.prepare import EMBEDDED_MODEL, prepare_model
from hermes_tui_training.store.checkpoint import checkpoint_path

PROMPTS = (
    "Name a colour.",
    "Name an animal.",
    "Greet Ada.",
    "What do you like?",
    "Tell me a joke.",
)
"""Questions of the first run."""

HABIT_PROMPTS = tuple(
    f"{question} Answer yes or no."
    for question in ("Do birds have wings?", "Is ice cold?", "Is the sun hot?", "Is the sky blue?")
)
"""Questions of the other runs. The untrained model says no to a third of them."""

HELD_OUT = "Can fish swim? Answer yes or no."
"""Never part of training."""

HABIT = "No"

QUESTIONS = ("What is the capital of France?", "What is 2 + 2?", "Tell me about the sea.")
"""Answered greedily before and after training."""


def learned(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    return [episode.row for episode in episodes if episode.row]


def press(episode: Episode) -> dict[str, Any]:
    """Return the effect of one press on its reply."""
    assert episode.row
    change = episode.row["logprob_after"] - episode.row["logprob_before"]
    return {
        "reward": episode.reward,
        "advantage": round(episode.row["advantage_mean"], 2),
        "tokens": episode.row["num_trained_tokens"],
        "logprob_change": round(change, 3),
        "token_probability_ratio": round(math.exp(change), 2),
        "reply_probability_ratio": float(
            f"{math.exp(change * episode.row['num_trained_tokens']):.3g}"
        ),
        "kl": round(episode.row["kl_step"], 3),
        "step_frac": episode.row["step_frac"],
    }


async def run_presses(run: Run, model_dir: Path, count: int) -> dict[str, Any]:
    before = Examiner(model_dir, None)
    exam = {
        "perplexity_before": before.perplexity(TEXT),
        "answers_before": [before.answer(q) for q in QUESTIONS],
    }
    del before
    coin = random.Random(1)
    # One of each first, then at random.
    rewards = [1.0, -1.0, *(coin.choice((1.0, -1.0)) for _ in range(count - 2))]
    episodes = []
    async with run.running():
        for index, reward in enumerate(rewards):
            question = PROMPTS[0] if index < 2 else PROMPTS[index % len(PROMPTS)]
            episode = await run.episode(question, 12 if index < 2 else 24, lambda _, r=reward: r)
            show(index, episode)
            episodes.append(episode)
        version = run.version
        after = Examiner(model_dir, checkpoint_path(run.checkpoints, version))
        exam["perplexity_after"] = after.perplexity(TEXT)
        exam["answers_after"] = [after.answer(q) for q in QUESTIONS]
    rows = learned(episodes)
    return {
        "plus_one": press(episodes[0]),
        "minus_one": press(episodes[1]),
        **exam,
        "right_way_frac": statistics.mean(
            (row["logprob_after"] > row["logprob_before"]) == (row["advantage_mean"] > 0)
            for row in rows
        ),
        "step_s": statistics.median(row["seconds"]["total"] for row in rows),
        "recompute_s": statistics.median(row["seconds"]["recompute"] for row in rows),
        "update_s": statistics.median(row["seconds"]["update"] for row in rows),
        "save_s": statistics.median(row["seconds"]["save"] for row in rows),
        "publish_s": statistics.median(row["seconds"]["publish"] for row in rows),
        "score_to_weights_s": statistics.median(row["score_to_weights_s"] for row in rows),
        "gap_max": max(row["gap_max"] for row in rows),
        "kl_max": max(row["kl_step"] for row in rows),
        "learner_peak_rss_mib": run.peak_rss_bytes // 2**20,
    }


def has_habit(text: str) -> bool:
    return text.strip().startswith(HABIT)


def reward_habit(text: str) -> float:
    return 1.0 if has_habit(text) else -1.0


def reward_by_turns() -> Callable[[str], float]:
    """Return a judge whose rewards do not depend on the habit."""
    signs = {True: itertools.cycle((1.0, -1.0)), False: itertools.cycle((1.0, -1.0))}
    return lambda text: next(signs[has_habit(text)])


async def run_habit(
    run: Run, model_dir: Path, count: int, judge: Callable[[str], float]
) -> dict[str, Any]:
    episodes = []
    async with run.running():
        for index in range(count):
            question = HABIT_PROMPTS[index % len(HABIT_PROMPTS)]
            episode = await run.episode(question, 8, judge)
            show(index, episode)
            episodes.append(episode)
        examiner = Examiner(model_dir, checkpoint_path(run.checkpoints, run.version))
        after = statistics.mean(examiner.begins_with(q, HABIT) for q in HABIT_PROMPTS)
        held_out = examiner.begins_with(HELD_OUT, HABIT)
    shown = [has_habit(episode.text) for episode in episodes]
    quarter = max(1, count // 4)
    return {
        "shown_first_quarter": statistics.mean(shown[:quarter]),
        "shown_last_quarter": statistics.mean(shown[-quarter:]),
        "probability_after": round(after, 3),
        "held_out_after": round(held_out, 3),
        "steps": len(learned(episodes)),
    }


def targets_of(name: str, figures: dict[str, Any]) -> list[Target]:
    """Return the targets of one run: a visible change, intact English, a habit, no false effect."""
    run = figures[name]
    if name == "presses":
        worse = run["perplexity_after"] / run["perplexity_before"]
        return [
            at_least("+1: token probability", run["plus_one"]["token_probability_ratio"], 1.05),
            at_most("-1: token probability", run["minus_one"]["token_probability_ratio"], 0.95),
            at_least("presses that moved the right way", run["right_way_frac"], 0.9),
            at_most("perplexity after twenty presses over before", round(worse, 3), 1.25),
        ]
    if name == "habit":
        return [
            at_least("habit: share of the last quarter's replies", run["shown_last_quarter"], 0.8)
        ]
    rise = run["shown_last_quarter"] - run["shown_first_quarter"]
    return [at_most("control: rise of the habit's share", round(rise, 3), 0.4)]


def show(index: int, episode: Episode) -> None:
    moved = "no step"
    if episode.row:
        row = episode.row
        moved = (
            f"logprob {row['logprob_before']:.2f} -> {row['logprob_after']:.2f}, "
            f"kl {row['kl_step']:.2f}, {row['num_trials']} trials, {row['seconds']['total']:.1f} s"
        )
    print(f"  {index + 1:>3} {episode.reward:+.0f} {moved}  {episode.text[:48]!r}", flush=True)


async def main() -> None:
    defaults = TrainingConfig()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rank", type=int, default=defaults.lora.rank)
    parser.add_argument("--nats-per-unit", type=float, default=defaults.step.nats_per_unit)
    parser.add_argument("--episodes", type=int, default=20, help="per run")
    parser.add_argument("--only", nargs="*", metavar="RUN", help="presses, habit, control")
    args = parser.parse_args()
    config = defaults.model_copy(
        update={
            "lora": defaults.lora.model_copy(update={"rank": args.rank}),
            "step": defaults.step.model_copy(update={"nats_per_unit": args.nats_per_unit}),
            "reward": RewardConfig(grace_s=0.0),
        }
    )
    disable_progress_bar()
    started = time.monotonic()
    model_dir = prepare_model(EMBEDDED_MODEL, print)
    engine = create_engine(config, ModelConfig(), model_dir)
    await engine.start()
    before = Examiner(model_dir, None)
    figures: dict[str, Any] = {
        "rank": args.rank,
        "nats_per_unit": args.nats_per_unit,
        "habit_before": round(
            statistics.mean(before.begins_with(q, HABIT) for q in HABIT_PROMPTS), 3
        ),
        "held_out_before": round(before.begins_with(HELD_OUT, HABIT), 3),
    }
    del before
    runs: dict[str, Callable[[Run], Any]] = {
        "presses": lambda run: run_presses(run, model_dir, args.episodes),
        "habit": lambda run: run_habit(run, model_dir, args.episodes, reward_habit),
        "control": lambda run: run_habit(run, model_dir, args.episodes, reward_by_turns()),
    }
    chosen = args.only or list(runs)
    for name in chosen:
        print(f"{name}:", flush=True)
        await engine.swap(model_dir, 0)
        with tempfile.TemporaryDirectory() as root:
            figures[name] = await runs[name](Run(Path(root), model_dir, engine, config))
    await engine.stop()
    figures["seconds"] = round(time.monotonic() - started, 1)
    for name in chosen:
        print(f"{name}: {json.dumps(figures[name], indent=1, ensure_ascii=False)}")
    print_outcome("learning", figures, [t for name in chosen for t in targets_of(name, figures)])


if __name__ == "__main__":
    asyncio.run(main())
