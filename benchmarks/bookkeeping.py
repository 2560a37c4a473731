"""What the inference gateway's own work costs per turn, as a conversation grows to 128 turns.

    python benchmarks/bookkeeping.py [--conversations N]

Bookkeeping is everything but the engine: match the history with the recorded completions, build the
prompt, record the request, parse the reply, record the result. Reading and validating the body,
which grows with every turn, is measured separately. The engine is scripted and answers at once; the
tokenizer is the embedded model's; the database is a real file. Like Hermes, the client sends the
whole history with each request, stripped. Prints a table and, last, one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))

from fakes.engine import FakeEngine, FakeOrchestrator, Script  # noqa: E402
from outcome import at_most, print_outcome  # noqa: E402
from pydantic import SecretStr  # noqa: E402

from hermes_tui_common.json_body import parse_json  # noqa: E402
from hermes_tui_common.serving import ServeConfig  # noqa: E402
from hermes_tui_training.algorithm.samples import training_samples  # noqa: E402
from hermes_tui_training.api.config import ModelConfig, TrainerRole, TrainingConfig  # noqa: E402
from hermes_tui_training.api.protocol import ChatRequest  # noqa: E402
from hermes_tui_training.chat_template.renderer import Chat  # noqa: E402
from hermes_tui_training.inference_gateway.completion_run import CompletionRun  # noqa: E402
from hermes_tui_training.inference_gateway.context import Services  # noqa: E402
from hermes_tui_training.inference_gateway.sampling_plan import chat_plan  # noqa: E402
from hermes_tui_training.models.prepare import prepare_model  # noqa: E402
from hermes_tui_training.store.store import Store, hash_key  # noqa: E402

TURNS = 128
REPLY = "<think>short</think> It is the {turn}th answer, and it says that all is well so far.  "
EARLY, LATE = slice(10, 20), slice(TURNS - 10, TURNS)


def build(directory: Path) -> Services:
    """Return a gateway's parts with a scripted engine."""
    config = TrainerRole(
        serve=ServeConfig(name="trainer"),
        admin_key=SecretStr("admin-key-of-the-benchmark"),
        model=ModelConfig(),
        training=TrainingConfig(),
        database=directory / "trajectories.db",
        checkpoints=directory / "checkpoints",
        learner_run_file=directory / "learner.json",
    )
    chat = Chat.load(prepare_model(config.model.path, lambda line: None), config.model)
    return Services(
        config=config,
        store=Store(config.database),
        engine=FakeEngine(max_model_len=16_384),
        chat=chat,
        orchestrator=FakeOrchestrator(),  # type: ignore[arg-type]
    )


async def conversation(services: Services, number: int) -> list[tuple[float, float]]:
    """Run a conversation; return the milliseconds of bookkeeping and of reading per turn."""
    store, chat, engine = services.store, services.chat, services.engine
    key_hash = hash_key(f"sk-sess-{number}")
    session = store.sessions.create(key_hash=key_hash, task_id="t", group_id=f"g{number}")
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are Hermes."}]
    times: list[tuple[float, float]] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"And what comes as number {turn}, please?"})
        raw = json.dumps({"model": "policy", "messages": messages}).encode()
        token_ids = [*chat.tokenizer.encode(REPLY.format(turn=turn)), chat.stop_token_ids[0]]
        assert isinstance(engine, FakeEngine)
        engine.scripts = [Script(token_ids=token_ids)]
        began = time.perf_counter()
        planned = chat_plan(ChatRequest.model_validate(parse_json(raw)))
        read = time.perf_counter()
        run = CompletionRun(services, session, planned)
        await run.begin()
        outcome = await run.run(lambda piece: None)
        times.append(((time.perf_counter() - read) * 1000, (read - began) * 1000))
        messages.append({"role": "assistant", "content": outcome.message["content"].strip()})
    episode = store.episodes.newest_of(session.session_id)
    assert episode is not None
    samples = training_samples(episode, {c.completion_id: 1.0 for c in episode.completions})
    assert len(samples) == 1, f"{len(samples)} samples of an unbroken episode"
    assert samples[0].num_trainable_tokens == sum(len(c.token_ids) for c in episode.completions)
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--conversations", type=int, default=16)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        services = build(Path(directory))
        asyncio.run(conversation(services, -1))  # warm-up
        runs = [asyncio.run(conversation(services, n)) for n in range(options.conversations)]
        services.store.close()
        size = (Path(directory) / "trajectories.db").stat().st_size / (options.conversations + 1)
    turns = [min(kept for kept, _ in values) for values in zip(*runs, strict=True)]
    reading = [min(read for _, read in values) for values in zip(*runs, strict=True)]
    print("ms per turn (minimum over the conversations): bookkeeping, reading the body")
    for start in range(0, TURNS, 16):
        part = slice(start, start + 16)
        row = f"{statistics.median(turns[part]):6.2f} {statistics.median(reading[part]):6.2f}"
        print(f"  turns {start:3}-{start + 15:3}  {row}")
    early, late = statistics.median(turns[EARLY]), statistics.median(turns[LATE])
    early_read, late_read = statistics.median(reading[EARLY]), statistics.median(reading[LATE])
    whole = (late + late_read) / (early + early_read)
    print(
        f"turns 10-20: {early:.2f} ms, last ten: {late:.2f} ms, growth {late / early:.2f}", end=""
    )
    print(f" ({whole:.2f} with reading)")
    print(f"one sample per conversation; {size / 1e6:.2f} MB of database each")
    figures = {
        "early_ms": early,
        "late_ms": late,
        "growth": late / early,
        "growth_with_reading": whole,
        "database_bytes": size,
    }
    target = at_most("bookkeeping, last ten turns over turns 10-20", late / early, 1.2)
    print_outcome("bookkeeping", figures, [target])


if __name__ == "__main__":
    main()
