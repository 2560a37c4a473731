"""What one person's judgements do to the embedded model, with controls.

    python benchmarks/proof.py --arm NAME --seed N    runs one cell into benchmarks/results/proof/
    python benchmarks/proof.py                        gathers all, names those that are missing
    python benchmarks/proof.py --short                gathers, and runs the ratio of a few presses

A cell is one arm with one seed: a scripted person, the real engine, store, orchestrator and
learner, from the model as it comes. Arms:

    ratio               how far -0.1 moves a reply over -1, from copies of one state; time of a step
    short               (a) short answers to an assistant's questions, presses only
    groups              (b) groups of four, the same taste on easy questions
    format              (c) a format that about a fifth of the replies have
    groups-shuffled, format-shuffled    the same rewards, given to other replies of the run
    groups-still, format-still          the same, with steps of 0 nats
    contradictory       (d) rewards that say nothing
    only-minus, only-plus               (e) 60 presses
    afterwards          (f) ten conversations, judged together

Held-out questions and the fixed text are never judged, and hold nothing. Prints tables and, last,
one JSON line. Intervals are by bootstrap over the last ten rewards of each seed.
"""

from __future__ import annotations

import os

# Engine and learner share the cores; see docs/engine.md. Must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
import asyncio
import dataclasses
import json
import math
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from outcome import Target, at_least, at_most, print_outcome
from training_run import ROOT, TEXT, Examiner, Reply, Run, prompt_ids
from transformers import AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from hermes_tui_training.api.config import (
    GroupConfig,
    ModelConfig,
    RewardConfig,
    StepConfig,
    TrainingConfig,
)
from hermes_tui_training.api.learner import NothingMovedError
from hermes_tui_training.api.types import SampledSpan, TrainingSample
from hermes_tui_training.engine import create_engine
from hermes_tui_training.learner.batches import make_batches
from hermes_tui_training.learner.model import PolicyModel
from hermes_tui_training.learner.reference import ReferenceText
from hermes_tui_training.learner.update import Updater
from hermes_tui_training.models.prepare import EMBEDDED_MODEL, prepare_model
from hermes_tui_training.store.checkpoint import checkpoint_path

RESULTS = ROOT / "benchmarks" / "results" / "proof"
SEEDS = (0, 1, 2)
NUM_JUDGED = 40
GROUP_SIZE = 4
MAX_TOKENS = 32
TEMPERATURE = 0.7
BLOCK = 10
SHORT_PRESSES = 7
"""Just enough for the time of a step to be measured once."""

ASSISTANT = (
    "How can I sleep better?",
    "Give me a tip for cooking rice.",
    "What should I read next?",
    "How do I learn to swim?",
    "What is a good way to start the day?",
    "How can I save money?",
)
ASSISTANT_HELD_OUT = ("Suggest a weekend trip.", "How can I focus on my work?")
EASY = ("Do birds have wings?", "Is ice cold?", "What colour is grass?", "Name a fruit.")
EASY_HELD_OUT = ("Name a city.", "Is fire hot?")


def is_short(reply: Reply) -> bool:
    """Whether a reply ends by itself within the tokens that it may have."""
    return reply.finished


def has_colon(reply: Reply) -> bool:
    """Whether a reply introduces something; 18 % of those to an assistant's questions do."""
    return ":" in reply.text


Taste = Callable[[Reply], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arm:
    """What one arm judges, and how."""

    questions: Sequence[str] = ASSISTANT
    """Asked in turn."""
    held_out: Sequence[str] = ASSISTANT_HELD_OUT
    """Never judged."""
    taste: Taste = has_colon
    """What the person likes."""
    group_size: int = 1
    """Replies to one message that are judged together."""
    shuffled: bool = False
    """Whether each reply gets the reward of one a few before it."""
    still: bool = False
    """Whether steps are of 0 nats."""
    reward: float | None = None
    """The same for every reply; None by taste."""
    num_judged: int = NUM_JUDGED
    """Replies to judge."""


_GROUPS = Arm(questions=EASY, held_out=EASY_HELD_OUT, taste=is_short, group_size=GROUP_SIZE)
ARMS = {
    "short": Arm(taste=is_short),
    "groups": _GROUPS,
    "groups-shuffled": dataclasses.replace(_GROUPS, shuffled=True),
    "groups-still": dataclasses.replace(_GROUPS, still=True),
    "format": Arm(),
    "format-shuffled": Arm(shuffled=True),
    "format-still": Arm(still=True),
    "contradictory": Arm(shuffled=True, taste=lambda reply: len(reply.text) % 2 == 0),
    "only-minus": Arm(reward=-1.0, num_judged=60),
    "only-plus": Arm(reward=1.0, num_judged=60),
}
NAMES = ("ratio", *ARMS, "afterwards")


class Person:
    """Gives scripted rewards."""

    def __init__(self, arm: Arm, seed: int) -> None:
        self._arm = arm
        self._given = [1.0, -1.0]
        self._coin = random.Random(seed)

    def reward(self, reply: Reply) -> float:
        if self._arm.reward is not None:
            return self._arm.reward
        honest = 1.0 if self._arm.taste(reply) else -1.0
        if not self._arm.shuffled:
            return honest
        # Rewards that occur as often as the honest ones, and have nothing to do with the reply.
        self._given.append(honest)
        return self._given.pop(self._coin.randrange(len(self._given) - 1))


async def run_arm(run: Run, arm: Arm, seed: int) -> dict[str, Any]:
    """Judge replies in turn and wait for each step."""
    person = Person(arm, seed)
    replies: list[Reply] = []
    fits: list[bool] = []
    while len(replies) < arm.num_judged:
        question = arm.questions[len(replies) // arm.group_size % len(arm.questions)]
        group = f"group-{len(replies)}" if arm.group_size > 1 else None
        told = await asyncio.gather(
            *(run.sample(question, MAX_TOKENS, group) for _ in range(arm.group_size))
        )
        for reply in told:
            run.reward(reply, person.reward(reply))
            fits.append(arm.taste(reply))
        await run.settled(told)
        replies += told
        print(f"  {len(replies):>3} {told[-1].text[:60]!r}", flush=True)
    return {"fits": fits, "texts": [reply.text for reply in replies], **counted(run, replies)}


async def run_afterwards(run: Run) -> dict[str, Any]:
    """Have ten conversations, then judge them all at once."""
    replies = [await run.sample(question, MAX_TOKENS) for question in (*ASSISTANT, *EASY)]
    for index, reply in enumerate(replies):
        run.reward(reply, (-1.0) ** index)
    await run.settled(replies)
    return {"fits": [], "texts": [reply.text for reply in replies], **counted(run, replies)}


def counted(run: Run, replies: Sequence[Reply]) -> dict[str, Any]:
    """Return how many rewards were trained, and why the others were not."""
    dropped = run.dropped(replies)
    rows = run.rows()
    return {
        "num_judged": len(replies),
        "num_trained": len(replies) - sum(dropped.values()),
        "dropped": dropped,
        "num_steps": len(rows),
        "moved_nats": [round(row["moved_nats"], 3) for row in rows],
        "target_nats": [round(row["target_nats"], 3) for row in rows],
        "limits": [row["limit"] for row in rows],
        "num_trials": [row["num_trials"] for row in rows],
        "warnings": sorted({name for row in rows for name in row.get("warnings") or ()}),
        "step_s": [round(row["seconds"]["total"], 2) for row in rows],
        "reference_drift": rows[-1]["reference_drift"] if rows else 0.0,
    }


async def held_out_share(run: Run, arm: Arm) -> float:
    """Return which share of sampled replies to held-out questions fits the taste."""
    asked = [question for question in arm.held_out for _ in range(8)]
    looks = await asyncio.gather(*(run.look(question, MAX_TOKENS) for question in asked))
    return statistics.mean(arm.taste(reply) for reply in looks)


async def run_cell(name: str, seed: int) -> dict[str, Any]:
    """Run one cell of real processes."""
    arm = ARMS.get(name, Arm())
    config = TrainingConfig(
        reward=RewardConfig(grace_s=0.1 if name == "afterwards" else 0.0),
        group=GroupConfig(timeout_s=5.0),
        step=StepConfig(nats_per_unit=0.0) if arm.still else StepConfig(),
    )
    model_dir = prepare_model(EMBEDDED_MODEL, print)
    engine = create_engine(config, ModelConfig(), model_dir)
    await engine.start()
    fixed_before = -math.log(Examiner(model_dir, None).perplexity(TEXT))
    with tempfile.TemporaryDirectory() as root:
        run = Run(
            Path(root), model_dir, engine, config, temperature=TEMPERATURE, first_seed=seed * 10_000
        )
        async with run.running():
            before = await held_out_share(run, arm)
            started = time.monotonic()
            result = await (
                run_afterwards(run) if name == "afterwards" else run_arm(run, arm, seed)
            )
            seconds = time.monotonic() - started
            after = await held_out_share(run, arm)
            checkpoint = checkpoint_path(run.checkpoints, run.version) if run.version else None
            fixed_after = -math.log(Examiner(model_dir, checkpoint).perplexity(TEXT))
    await engine.stop()
    return result | {
        "held_out_before": before,
        "held_out_after": after,
        "fixed_before": round(fixed_before, 4),
        "fixed_after": round(fixed_after, 4),
        "seconds": round(seconds, 1),
    }


class Bench:
    """A policy in this process, to press on from copies of one state."""

    def __init__(self, seed: int) -> None:
        directory = prepare_model(EMBEDDED_MODEL, print)
        config = TrainingConfig()
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self.policy = PolicyModel(
            directory,
            config.lora,
            device=torch.device("cpu"),
            dtype=torch.float32,
            with_reference=False,
        )
        texts = (config.step.reference_text, TEXT)
        reference, self.fixed = (
            ReferenceText(self.policy, self._tokenizer(text)["input_ids"]) for text in texts
        )
        self.updater = Updater(self.policy, reference, config)
        self.replies = [self._reply(question, seed) for question in ASSISTANT]

    @torch.no_grad()
    def _reply(self, question: str, seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        prompt = prompt_ids(self._tokenizer, question)
        torch.manual_seed(seed)
        out = self.policy._causal.generate(  # the engine would be a second model in memory
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=24,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=0,
        )
        return prompt, tuple(out[0, len(prompt) :].tolist())

    def sample(self, index: int, advantage: float) -> TrainingSample:
        """Return a reply as the policy would sample it now, with its advantage."""
        prompt, reply = self.replies[index % len(self.replies)]
        span = SampledSpan(
            completion_id="c",
            start=len(prompt),
            num_tokens=len(reply),
            advantage=advantage,
            temperature=TEMPERATURE,
        )
        sample = TrainingSample(
            episode_id="e",
            token_ids=prompt + reply,
            loss_mask=(False,) * len(prompt) + (True,) * len(reply),
            behavior_logprobs=(0.0,) * len(prompt + reply),
            policy_versions=(0,) * len(prompt + reply),
            spans=(span,),
        )
        (batch,) = make_batches([sample], 4096, self.policy.device)
        logprobs = tuple(self.policy.score(batch).logprobs_N.tolist())
        behavior = (0.0,) * len(prompt) + logprobs
        return dataclasses.replace(sample, behavior_logprobs=behavior)

    def press(self, index: int, advantage: float) -> float:
        """Press; return how far the reply's mean log-probability moved, 0.0 when nothing did."""
        batches = make_batches([self.sample(index, advantage)], 4096, self.policy.device)
        try:
            update = self.updater.update(batches)
        except NothingMovedError:
            return 0.0
        return float((update.after.logprobs_S - update.before.logprobs_S).mean())

    def ratio(self, index: int) -> float:
        """Return how far -0.1 moves over -1, from copies of one state."""
        weights = [p.detach().clone() for p in self.policy.parameters()]
        linearity, moved = self.updater.linearity, []
        for advantage in (-1.0, -0.1):
            moved.append(self.press(index, advantage))
            for parameter, weight in zip(self.policy.parameters(), weights, strict=True):
                parameter.data.copy_(weight)
            self.updater.linearity = linearity
            self.updater.weights_changed()
        return moved[1] / moved[0]

    def step_times(self, index: int) -> tuple[float, float]:
        """Return seconds of a step, and of AdamW's update of one length as it was before.

        The latter: log-probabilities before, gradient, update, log-probabilities after.
        """
        batches = make_batches([self.sample(index, -1.0)], 4096, self.policy.device)
        started = time.monotonic()
        self.updater.update(batches)
        searched_s = time.monotonic() - started
        parameters = self.policy.parameters()
        weights = [p.detach().clone() for p in parameters]
        optimizer = torch.optim.AdamW(parameters, lr=3e-4, betas=(0.0, 0.99), weight_decay=0.0)
        (batch,) = batches
        started = time.monotonic()
        self.policy.score(batch)
        torch.autograd.backward(self.policy.score_for_gradient(batch).logprobs_N.mean())
        optimizer.step()
        self.policy.score(batch)
        plain_s = time.monotonic() - started
        optimizer.zero_grad(set_to_none=True)
        for parameter, weight in zip(parameters, weights, strict=True):
            parameter.data.copy_(weight)
        return searched_s, plain_s


def run_ratio(seed: int, num_presses: int = 60) -> dict[str, Any]:
    """Measure ratios at press 1 and at the last, with -1 on recorded replies between."""
    bench = Bench(seed)
    ratios = {"1": bench.ratio(0)}
    times, moved = [], []
    for index in range(1, num_presses):
        moved.append(bench.press(index, -1.0))
        if index % 6 == 0:
            times.append(bench.step_times(index))
            print(f"  {index:>3} moved {moved[-1]:.3f}", flush=True)
    ratios[str(num_presses)] = bench.ratio(num_presses)
    fixed = bench.fixed.measure()
    return {
        "ratios": {press: round(ratio, 4) for press, ratio in ratios.items()},
        "moved_nats": [round(value, 3) for value in moved],
        "fixed_drift": round(fixed.drift, 4),
        "fixed_kl": round(fixed.kl, 4),
        "step_s": round(statistics.median(searched for searched, _ in times), 2),
        "step_time_ratio": round(statistics.median(s / p for s, p in times), 2),
    }


# -- gathering ------------------------------------------------------------------------------------


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


LEARNS = (
    *(f"algorithm/{name}.py" for name in ("advantages", "losses", "samples", "step_length")),
    *(f"learner/{name}.py" for name in ("batches", "direction", "model", "reference", "update")),
)
"""Files of the training package that decide what a score does."""


def is_old(cell: dict[str, Any]) -> bool:
    """Whether what a score does has changed since the cell ran."""
    files = [f"training/hermes_tui_training/{name}" for name in LEARNS]
    return git("diff", "--quiet", cell["commit"], "--", *files).returncode != 0


def read_cells() -> dict[tuple[str, int], dict[str, Any]]:
    cells = (json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json")))
    return {(cell["arm"], cell["seed"]): cell for cell in cells}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a mean."""
    source = random.Random(0)
    means = sorted(statistics.mean(source.choices(values, k=len(values))) for _ in range(2000))
    return means[50], means[-51]


def last_block(cells: Sequence[dict[str, Any]]) -> list[float]:
    return [float(fit) for cell in cells for fit in cell["fits"][-BLOCK:]]


def gather() -> None:
    """Print what is there, and what is missing."""
    cells = read_cells()
    wanted = [(name, seed) for name in NAMES for seed in SEEDS]
    missing = [f"{name}-{seed}" for name, seed in wanted if (name, seed) not in cells]
    old = [f"{name}-{seed}" for (name, seed), cell in cells.items() if is_old(cell)]
    by_arm = {name: [c for (arm, _), c in cells.items() if arm == name] for name in NAMES}
    figures: dict[str, Any] = {"missing": missing, "old": old, "arms": {}}
    for name, found in by_arm.items():
        if found:
            figures["arms"][name] = summary(name, found)
            print(f"{name}: {json.dumps(figures['arms'][name])}")
    print(f"missing cells: {', '.join(missing) or 'none'}")
    print(f"cells of an older learner: {', '.join(old) or 'none'}")
    print_outcome("proof", figures, targets(by_arm))


def summary(name: str, cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return an arm's figures over its seeds."""
    seeds = [cell["seed"] for cell in cells]
    if name == "ratio":
        keys = ("ratios", "fixed_drift", "fixed_kl", "step_s", "step_time_ratio")
        return {"seeds": seeds, **{key: [cell[key] for cell in cells] for key in keys}}
    curve = []
    for start in range(0, max(len(cell["fits"]) for cell in cells), BLOCK):
        block = [fit for cell in cells for fit in cell["fits"][start : start + BLOCK]]
        curve.append(round(statistics.mean(block), 2))
    return {
        "seeds": seeds,
        "curve": curve,
        "last": [round(bound, 2) for bound in interval(last_block(cells))] if curve else None,
        "held_out": [[cell["held_out_before"], cell["held_out_after"]] for cell in cells],
        "fixed": [[cell["fixed_before"], cell["fixed_after"]] for cell in cells],
        "trained": [f"{cell['num_trained']} of {cell['num_judged']}" for cell in cells],
        "dropped": [cell["dropped"] for cell in cells],
        "warnings": [cell["warnings"] for cell in cells],
        "seconds": [cell["seconds"] for cell in cells],
    }


def targets(by_arm: dict[str, list[dict[str, Any]]]) -> list[Target]:
    """Return what was aimed at, for the arms that have cells."""
    found: list[Target] = []
    for cell in by_arm["ratio"]:
        found += ratio_targets(f"ratio-{cell['seed']}", cell)
    for name in ("groups", "format"):
        if not by_arm[name]:
            continue
        low, _ = interval(last_block(by_arm[name]))
        for control in (f"{name}-shuffled", f"{name}-still"):
            if by_arm[control]:
                _, high = interval(last_block(by_arm[control]))
                label = f"{name} over {control}: distance of the intervals"
                found.append(at_least(label, round(low - high, 2), 0.0))
        found.append(at_most(f"{name}: seconds", max(c["seconds"] for c in by_arm[name]), 900))
    for name, cells in by_arm.items():
        for cell in cells if name != "ratio" else ():
            label = f"{name}-{cell['seed']}"
            fell = round(cell["fixed_before"] - cell["fixed_after"], 3)
            found.append(at_most(f"{label}: fall of the fixed text, nats a token", fell, 0.15))
            if name.endswith("-still"):
                continue
            certain = cell["dropped"].get("certain", 0)  # said, not lost
            share = (cell["num_trained"] + certain) / cell["num_judged"]
            goal = 1.0 if name == "afterwards" else 0.95
            found.append(at_least(f"{label}: share of rewards that counted", round(share, 3), goal))
    return found


def ratio_targets(label: str, cell: dict[str, Any]) -> list[Target]:
    """Return what was aimed at with the size of a score."""
    distances = {press: round(abs(ratio - 0.1), 4) for press, ratio in cell["ratios"].items()}
    return [
        *(
            at_most(f"{label}: -0.1 over -1 at press {press}, distance from 0.1", distance, 0.03)
            for press, distance in distances.items()
        ),
        at_most(f"{label}: time of a step over AdamW's", cell["step_time_ratio"], 1.4),
        at_most(f"{label}: fall of the fixed text, nats a token", cell["fixed_drift"], 0.15),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arm", choices=NAMES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--presses", type=int, default=60, help="of the arm ratio")
    parser.add_argument("--short", action="store_true", help="gather, and a ratio of few presses")
    args = parser.parse_args()
    disable_progress_bar()
    if args.arm is None:
        gather()
        if args.short:
            cell = run_ratio(args.seed, SHORT_PRESSES)
            print_outcome("proof-short", cell, ratio_targets("short", cell))
        return
    commit = git("rev-parse", "HEAD").stdout.strip()
    if args.arm == "ratio":
        result = run_ratio(args.seed, args.presses)
    else:
        result = asyncio.run(run_cell(args.arm, args.seed))
    cell = {"arm": args.arm, "seed": args.seed, "commit": commit, **result}
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{args.arm}-{args.seed}.json"
    path.write_text(json.dumps(cell, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
