"""The last line of a benchmark: its figures, and what was aimed at beside what was reached."""

from __future__ import annotations

import json
from typing import Any

Target = dict[str, Any]


def at_least(name: str, value: float, goal: float) -> Target:
    """Return a target that is met from the goal up."""
    return {"name": name, "value": value, "goal": f">= {goal:g}", "met": value >= goal}


def at_most(name: str, value: float, goal: float) -> Target:
    """Return a target that is met up to the goal."""
    return {"name": name, "value": value, "goal": f"<= {goal:g}", "met": value <= goal}


def print_outcome(benchmark: str, figures: dict[str, Any], targets: list[Target]) -> None:
    """Print the targets for a person, and everything as one JSON line."""
    for target in targets:
        print(
            f"{'met   ' if target['met'] else 'MISSED'} {target['name']}: {target['value']:g}"
            f" (goal {target['goal']})"
        )
    print(json.dumps({"benchmark": benchmark, "figures": figures, "targets": targets}))
