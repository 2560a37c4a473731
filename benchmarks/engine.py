"""How fast the torch engine samples, compared with ``transformers.generate`` on the same weights.

    python benchmarks/engine.py [--model PATH_OR_NAME] [--rounds N]

Every round measures both, one right after the other, so that other load slows both; ratios are the
medians over the rounds. The last part trains the same model in a second process (LoRA, float32,
niced like the learner) and measures the tokens per second that remain. Prints a line per round and,
last, one JSON line.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported; see docs/engine.md

import argparse
import asyncio
import contextlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from outcome import Target, at_least, at_most, print_outcome
from transformers import AutoModelForCausalLM

from hermes_tui_training.api.config import ModelConfig, TrainingConfig
from hermes_tui_training.engine import Engine, SamplingParams, create_engine
from hermes_tui_training.models.prepare import EMBEDDED_MODEL, prepare_model

PROMPT_LENGTHS = (24, 310, 60, 180, 37, 240, 96, 130)
REPLY_LENGTHS = (48, 24, 64, 32, 56, 28, 40, 36)
LONG_PROMPT = 1500
NEXT_MESSAGE = 30
LEARNER_NICENESS = 10
LEARNER_TOKENS = 512

FORM_TOKENS = 48
FORM = (
    '%llguidance {}\nstart: %json {"type": "array", "minItems": 99, "items": {"type": "object", '
    '"properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "tags": {"type": '
    '"array", "items": {"type": "string"}}}, "required": ["name", "age", "tags"], '
    '"additionalProperties": false}, "x-guidance": {"whitespace_flexible": false}}'
)
"""A form that no reply of ``FORM_TOKENS`` tokens has come to the end of."""

Rounds = list[dict[str, float]]


@dataclass(frozen=True)
class Job:
    """One completion to sample."""

    prompt: list[int]
    reply_length: int


def jobs_of(count: int, seed: int) -> list[Job]:
    """Return ``count`` completions of different lengths, whose prompts have no common prefix."""
    generator = torch.Generator().manual_seed(seed)
    sizes = zip(PROMPT_LENGTHS * 2, REPLY_LENGTHS * 2, strict=True)
    return [Job(random_tokens(p, generator), r) for p, r in list(sizes)[:count]]


def random_tokens(count: int, generator: torch.Generator) -> list[int]:
    """Return random ids that are no control tokens."""
    token_ids: list[int] = torch.randint(100, 40_000, (count,), generator=generator).tolist()
    return token_ids


async def sample(engine: Engine, job: Job) -> tuple[list[int], float]:
    """Return the sampled ids and the seconds to the first."""
    started = time.perf_counter()
    first_s = 0.0
    token_ids: list[int] = []
    async for output in engine.generate(job.prompt, SamplingParams(max_tokens=job.reply_length)):
        first_s = first_s or time.perf_counter() - started
        token_ids += output.token_ids
    return token_ids, first_s


async def engine_rate(engine: Engine, jobs: list[Job], streams: int) -> float:
    """Return sampled tokens per second with ``streams`` completions at a time."""
    queue = list(jobs)

    async def stream() -> None:
        while queue:
            await sample(engine, queue.pop(0))

    started = time.perf_counter()
    await asyncio.gather(*[stream() for _ in range(streams)])
    return sum(job.reply_length for job in jobs) / (time.perf_counter() - started)


def generate(model: Any, prompt: list[int], count: int) -> None:
    """Let transformers sample exactly ``count`` tokens."""
    with torch.inference_mode():
        model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=True,
            top_k=0,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=0,
        )


def generate_rate(model: Any, jobs: list[Job]) -> float:
    """Return transformers' tokens per second, one completion after another."""
    started = time.perf_counter()
    for job in jobs:
        generate(model, job.prompt, job.reply_length)
    return sum(job.reply_length for job in jobs) / (time.perf_counter() - started)


async def measure_rates(engine: Engine, model: Any, index: int) -> dict[str, float]:
    """Return one round's tokens per second; figures that are compared are measured in turn."""
    pair = slice(2 * index % 8, 2 * index % 8 + 2)  # a short and a long prompt
    found = {"engine_8": await engine_rate(engine, jobs_of(16, 10 * index), 8)}
    found["generate"] = generate_rate(model, jobs_of(8, 10 * index + 1)[pair])
    found["engine_1"] = await engine_rate(engine, jobs_of(8, 10 * index + 2)[pair], 1)
    found["engine_4"] = await engine_rate(engine, jobs_of(8, 10 * index + 3), 4)
    found["engine_16"] = await engine_rate(engine, jobs_of(16, 10 * index + 4), 16)
    return found


async def measure_form(engine: Engine, stop_token_id: int, seed: int) -> dict[str, float]:
    """Return one round's tokens per second of replies of a form, and of the same without."""
    prompt = random_tokens(60, torch.Generator().manual_seed(seed))
    found: dict[str, float] = {}
    for streams in (1, 8):
        for name, grammar in (("free", None), ("form", FORM)):
            stops = (stop_token_id,) if grammar else ()  # a free reply must not end early
            params = SamplingParams(max_tokens=FORM_TOKENS, stop_token_ids=stops, grammar=grammar)

            async def stream(params: SamplingParams = params) -> None:
                async for _ in engine.generate(prompt, params):
                    pass

            await stream()  # the prompt is in the cache, and the grammar's tokenizer made
            started = time.perf_counter()
            await asyncio.gather(*[stream() for _ in range(streams)])
            found[f"{name}_{streams}"] = streams * FORM_TOKENS / (time.perf_counter() - started)
    return found


async def measure_turns(engine: Engine, model: Any, seed: int) -> dict[str, float]:
    """Return one round's prompt tokens per second, and seconds to the first token of two turns."""
    generator = torch.Generator().manual_seed(seed)
    prompt = random_tokens(LONG_PROMPT, generator)
    started = time.perf_counter()
    generate(model, prompt, 1)
    generate_s = time.perf_counter() - started
    reply, first_s = await sample(engine, Job(prompt, 16))
    following = prompt + reply + random_tokens(NEXT_MESSAGE, generator)
    _, second_s = await sample(engine, Job(following, 4))
    return {
        "generate_prefill": LONG_PROMPT / generate_s,
        "engine_prefill": LONG_PROMPT / first_s,
        "first_turn_s": first_s,
        "second_turn_s": second_s,
    }


@contextlib.contextmanager
def learner_beside(model_dir: Path) -> Iterator[Callable[[bool], None]]:
    """Start a process that trains the model; yields a function that lets it run or stops it."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--train", str(model_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()  # its first step is done
        yield lambda runs: process.send_signal(signal.SIGCONT if runs else signal.SIGSTOP)
    finally:
        process.kill()
        process.communicate()


async def measure_beside_learner(engine: Engine, model_dir: Path, num_rounds: int) -> Rounds:
    """Return each round's tokens per second, without and with a busy learner."""
    rounds: Rounds = []
    with learner_beside(model_dir) as let_run:
        for index in range(num_rounds):
            found: dict[str, float] = {}
            for name, learner_runs in (("alone", False), ("beside_learner", True)):
                let_run(learner_runs)
                for streams in (1, 8):
                    jobs = jobs_of(8, 900 + index)[-streams:]
                    found[f"engine_{streams}_{name}"] = await engine_rate(engine, jobs, streams)
            rounds.append(found)
    return rounds


def train(model_dir: Path) -> None:
    """Train forever with steps like the learner's; prints a line per step."""
    os.nice(LEARNER_NICENESS)
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model_dir),
        LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    )
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    token_ids = torch.randint(100, 40_000, (1, LEARNER_TOKENS))
    while True:
        started = time.perf_counter()
        model(input_ids=token_ids, labels=token_ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"{time.perf_counter() - started:.3f}", flush=True)


def medians(rounds: Rounds) -> dict[str, float]:
    """Return each figure's median over the rounds."""
    return {name: round(statistics.median(r[name] for r in rounds), 3) for name in rounds[0]}


def ratio(rounds: Rounds, over: str, under: str) -> float:
    """Return the median of the rounds' ratios of two figures."""
    return round(statistics.median(r[over] / r[under] for r in rounds), 3)


def targets_of(rates: Rounds, turns: Rounds, forms: Rounds) -> list[Target]:
    """Return the targets with the values reached."""
    return [
        *(
            at_least(
                f"tokens/s of {n} streams, with a form over without",
                ratio(forms, f"form_{n}", f"free_{n}"),
                0.9,
            )
            for n in (1, 8)
        ),
        at_least(
            "tokens/s at 1 stream, engine over generate", ratio(rates, "engine_1", "generate"), 1.0
        ),
        at_least(
            "tokens/s at 8 streams, engine over generate", ratio(rates, "engine_8", "generate"), 3.5
        ),
        at_least(
            f"prefill of {LONG_PROMPT} tokens, engine over generate",
            ratio(turns, "engine_prefill", "generate_prefill"),
            0.9,
        ),
        at_most(
            f"time to first token at {LONG_PROMPT} tokens, second turn over first",
            ratio(turns, "second_turn_s", "first_turn_s"),
            0.25,
        ),
    ]


async def run(model_name: str, num_rounds: int) -> tuple[dict[str, Any], list[Target]]:
    """Measure everything; return the figures and the targets."""
    model_dir = prepare_model(model_name, lambda line: print(line, file=sys.stderr))
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    engine = create_engine(TrainingConfig(), ModelConfig(dtype="float32"), model_dir)
    await engine.start()
    generate(model, [5] * 8, 2)
    rates: Rounds = []
    turns: Rounds = []
    forms: Rounds = []
    stop_token_id = int(model.config.eos_token_id)
    for index in range(num_rounds):
        rates.append(await measure_rates(engine, model, index))
        turns.append(await measure_turns(engine, model, 10 * index + 5))
        forms.append(await measure_form(engine, stop_token_id, 10 * index + 6))
        measured = {**rates[-1], **turns[-1], **forms[-1]}
        figures = {name: round(value, 2) for name, value in measured.items()}
        print(f"round {index + 1}:", figures, flush=True)
    del model
    beside = await measure_beside_learner(engine, model_dir, num_rounds)
    await engine.stop()
    shares = {
        f"share_{n}_beside_learner": ratio(
            beside, f"engine_{n}_beside_learner", f"engine_{n}_alone"
        )
        for n in (1, 8)
    }
    figures = {**medians(rates), **medians(turns), **medians(forms), **medians(beside), **shares}
    return figures, targets_of(rates, turns, forms)


def main() -> None:
    """Run the benchmark, or its training process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=EMBEDDED_MODEL)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train)
        return
    figures, targets = asyncio.run(run(arguments.model, arguments.rounds))
    print_outcome("engine", figures, targets)


if __name__ == "__main__":
    main()
