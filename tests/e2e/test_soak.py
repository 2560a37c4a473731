"""The soak in small: a stack under load loses, mixes up and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOAK = ROOT / "benchmarks" / "soak.py"


@pytest.mark.timeout(300)
def test_a_stack_under_load_keeps_what_it_acknowledged() -> None:
    model = ROOT / "tests" / "fixtures" / "old_run" / "tiny-model"
    words = ["--seconds", "3", "--agents", "3", "--streams", "3", "--model", str(model)]
    done = subprocess.run(
        [sys.executable, str(SOAK), *words], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert [target["met"] for target in outcome["targets"]] == [True] * 5
    figures = outcome["figures"]
    assert (figures["restarts"], figures["refreshes"]) == (4, 100)
    assert figures["turns"] > 0
    assert figures["completions"] > 0


def test_growth_is_a_fitted_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOAK.parent))
    import soak

    samples = soak.Samples()
    samples.rows["worker-0"] = [(float(at), 1_000_000 * at, 7) for at in range(20)]
    assert samples.slopes(1) == pytest.approx({"worker-0": 60e6})
    assert samples.slopes(2) == pytest.approx({"worker-0": 0.0})
    samples.take("worker-0", 1)  # another process: what the one before grew does not count
    assert len(samples.rows["worker-0"]) <= 1


def test_an_error_counts_unless_a_process_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOAK.parent))
    import soak

    names = ("agent", "trainer", "control")
    nowhere = {f"{name}_{what}": "" for name in names for what in ("url", "key")}
    run = soak.Soak(**nowhere, ends_at=0.0)
    run.failed("by itself")
    run.restarting = 1
    run.failed("by a restart")
    assert run.faults == ["by itself"]
    assert run.counts["injected errors"] == 1
