"""What a step did, in a sentence: on the screen, in ``--plain`` and on the command line."""

from __future__ import annotations

from hermes_tui.core.models import StepRow
from hermes_tui.core.reasons import limit_text
from hermes_tui.core.units import decimals_for, signed


def sentence(step: StepRow) -> str:
    """Return what a step did, such as ``v5 says this less readily: −0.12 a token``.

    Nats are those of the judged tokens' mean log-probability. Where some replies were praised and
    others were not, it says how many of each, and how far they went their ways.
    """
    made, what = f"v{step.policy_version}", "this" if len(step.episode_ids) == 1 else "these"
    if (back := step.values.get("rolled_back_to")) is not None:
        return f"{made} is v{back:.0f} again"
    moved, why = moved_by(step), limit_text(step.limit)
    if moved is None:
        return f"{made} was made; how far it moved is not known"
    if not moved:
        return f"{made} says {what} as readily as before" + (f": {why}" if why else "")
    less = f", not as far as wanted: {why}" if why else ""
    far = f"{signed(moved, decimals_for(moved))} a token{less}"
    praised, punished = _ways(step)
    if praised and punished:
        return f"{made} says {praised:.0f} of these more readily, {punished:.0f} less: {far}"
    how = "more" if moved > 0 else "less"
    return f"{made} says {what} {how} readily: {far}"


def moved_by(step: StepRow) -> float | None:
    """Return how far a step moved what was judged, nats a token; 0.0 for next to nothing.

    Above 0 it became likelier; where some was praised and some was not, above 0 is as judged. None
    when it is not known.
    """
    moved = step.values.get("moved_nats")
    praised, punished = _ways(step)
    if moved is None or not (praised or punished):  # a step of an older version of the program
        before, after = step.values.get("logprob_before"), step.values.get("logprob_after")
        if before is None or after is None:
            return None
        moved = after - before
    elif not praised:
        moved = -moved
    return None if moved != moved else round(moved, decimals_for(moved)) + 0.0


def _ways(step: StepRow) -> tuple[float, float]:
    """Return how many replies a step praised and how many it punished; zeros when not known."""
    return step.values.get("num_praised", 0.0), step.values.get("num_punished", 0.0)
