"""The last line of each benchmark: its figures, and its targets with the values reached."""

from __future__ import annotations

import json
from typing import Any

Target = dict[str, Any]


def at_least(name: str, value: float, goal: float) -> Target:
    """Return a target that is met at the goal or above."""
    return {"name": name, "value": value, "goal": f">= {goal:g}", "met": value >= goal}


def at_most(name: str, value: float, goal: float) -> Target:
    """Return a target that is met at the goal or below."""
    return {"name": name, "value": value, "goal": f"<= {goal:g}", "met": value <= goal}


def print_outcome(benchmark: str, figures: dict[str, Any], targets: list[Target]) -> None:
    """Print the targets as text, then everything as one JSON line.

    The line is ``{"benchmark", "figures", "targets": [{"name", "value", "goal", "met"}]}``.
    """
    for target in targets:
        print(
            f"{'met   ' if target['met'] else 'MISSED'} {target['name']}: {target['value']:g}"
            f" (goal {target['goal']})"
        )
    print(json.dumps({"benchmark": benchmark, "figures": figures, "targets": targets}))
