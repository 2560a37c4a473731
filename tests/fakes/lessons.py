"""A training step of the stack in memory, with what it changed."""

from __future__ import annotations

from dataclasses import replace

from fakes.backend import FakeBackend, make_step

from hermes_tui.core.models import CanaryRow

MOVES = {" Ada": 0.31, " pleasure": -0.4, ",": 0.001}
"""How far the step moves some tokens, in nats."""


def train(backend: FakeBackend, step: int = 9, episode_id: str = "ep-1") -> None:
    """Have a step train an episode."""
    detail = backend.details[episode_id]
    (completion,) = detail.completions
    tokens = tuple(
        replace(token, logprob_before=-1.0, logprob_after=-1.0 + MOVES.get(token.text, 0.0))
        for token in completion.tokens
    )
    backend.details[episode_id] = replace(detail, completions=(replace(completion, tokens=tokens),))
    backend.step_rows.append(replace(make_step(step), episode_ids=(episode_id,)))
    backend.canary_rows = [
        CanaryRow(policy_version=version, prompt="Who are you?", text=text)
        for version, text in ((0, "I am Hermes."), (step + 1, "I am Ada."))
    ]
    backend.trainer_row = replace(backend.trainer_row, kept_versions=(0, step + 1))
    backend.emit("step.finished", episode_ids=[episode_id])
